//! Replies of a model behind a server, in a conversation.
//!
//! The recipe's tools are sent as data; calls in the recipe's text format are parsed too, because
//! some servers leave them in the text. An env keeps the text of a reply and the results of its
//! calls; the calls are stored here and inserted between the two when the conversation is sent
//! again.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::chat::{AnswerEvent, ModelReply, ShowAnswer};
use super::local::show_event;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Completion, FinishReason, Observation, ServerChat, ServerCompletion, ServerReply, ToolCall};
use crate::remote::{self, Patience, RawCall, RawReply, Server, ServerOptions, ServerSampling};
use crate::rollout::SERVER_PROMPT;
use crate::script::{GenerateRequest, SampledText};
use crate::telemetry::Interrupt;
use crate::text::{CODE_TOOL, Format, FormatChoice, Reply, chat_messages};

/// Longest wait for the next byte: a server may have a queue.
pub(super) const SILENCE: Duration = Duration::from_mins(10);
/// Attempts of a request to a busy server.
const ATTEMPTS: u32 = 4;

/// A model behind a server.
pub(super) struct RemoteModel {
    server: Server,
    sampling: ServerSampling,
    /// The recipe's tool-call format.
    format: Option<Format>,
    max_context: usize,
    /// Calls by their ids, with the text of their reply.
    calls: HashMap<String, (String, ToolCall)>,
}

/// The options of a server in a chat.
pub(super) fn options(base: &str, api: crate::config::ServerApi, model: &str) -> ServerOptions {
    ServerOptions {
        base: base.to_owned(),
        api,
        model: model.to_owned(),
        setting: "--api-base",
        silence: SILENCE,
        attempts: ATTEMPTS,
        patience: Patience::Chat,
    }
}

impl RemoteModel {
    pub(super) fn new(
        options: ServerOptions,
        sampling: ServerSampling,
        format: Option<Format>,
        max_context: usize,
    ) -> Result<Self> {
        Ok(Self { server: Server::new(options)?, sampling, format, max_context, calls: HashMap::new() })
    }

    pub(super) fn title(&self) -> String {
        format!("{} at {}", self.server.model(), self.server.base())
    }

    /// Maximum prompt tokens of a context policy.
    pub(super) fn prompt_budget(&self) -> usize {
        if self.max_context == 0 { SERVER_PROMPT } else { self.max_context / 2 }
    }

    pub(super) fn reply(
        &mut self,
        observation: &Observation,
        tools: &[Value],
        interrupt: Interrupt,
        show: &mut ShowAnswer<'_>,
    ) -> Result<ModelReply> {
        let Observation::Messages(messages) = observation else {
            return Err(Error::new(
                Kind::Script,
                "this recipe's context returns text or ids; a server accepts only messages",
            )
            .hint("use a local model instead: --model DIR"));
        };
        let earlier = |id: &str| self.calls.get(id).map(|(text, call)| (text.as_str(), call));
        let messages = chat_messages(messages, &earlier, self.format.as_ref())?;
        let chat = ServerChat { messages, tools: tools.to_vec(), calls: self.calls.len() };
        let format = self.format.clone();
        let mut stream = format.as_ref().map(|format| format.stream(false, CODE_TOOL, tools));
        let replied = self.server.reply(&chat, &self.sampling, &|| interrupt.is_set(), &mut |piece| match piece {
            remote::ReplyText::Reasoning(more) => show(AnswerEvent::Thought(more)),
            remote::ReplyText::Content(more) => match &mut stream {
                Some(stream) => stream.push(more).iter().for_each(|event| show_event(event, show)),
                None => show(AnswerEvent::Text(more)),
            },
        });
        let mut reply = replied.map_err(|failure| self.server.error(&failure))?;
        let mut read = Reply { content: reply.content.clone(), ..Reply::default() };
        if let (Some(format), Some(mut stream)) = (&format, stream) {
            if reply.finish_reason == FinishReason::Stop {
                // Servers omit the stop string: it is restored if it completes a call.
                let calls = |text: &str| Ok::<_, Error>(format.read(text, false, CODE_TOOL, tools)?.tool_calls.len());
                let count = calls(&reply.content)?;
                for stop in format.stop_strings() {
                    if calls(&[&reply.content, stop].concat())? > count {
                        reply.content.push_str(stop);
                        stream.push(stop).iter().for_each(|event| show_event(event, show));
                        break;
                    }
                }
            }
            let (events, parsed) = stream.finish()?;
            for event in &events {
                show_event(event, show);
            }
            read = parsed;
        }
        Ok(self.finish(reply, read, show))
    }

    /// A text for the recipe's script, in a separate conversation.
    pub(super) fn generate(&mut self, request: &GenerateRequest, interrupt: Interrupt) -> Result<SampledText> {
        let messages = chat_messages(&request.messages, &|_| None, self.format.as_ref())?;
        let (options, defaults) = (&request.options, &self.sampling);
        let sampling = ServerSampling {
            max_tokens: options.max_new_tokens.or(defaults.max_tokens),
            temperature: options.temperature.or(defaults.temperature),
            top_k: options.top_k.or(defaults.top_k),
            top_p: options.top_p.or(defaults.top_p),
            min_p: options.min_p.or(defaults.min_p),
            stop: options.stop.clone(),
            ..defaults.clone()
        };
        let chat = ServerChat { messages, ..ServerChat::default() };
        let replied = self.server.reply(&chat, &sampling, &|| interrupt.is_set(), &mut |_| ());
        let reply = replied.map_err(|failure| self.server.error(&failure))?;
        let text = match &self.format {
            Some(format) => format.read(&reply.content, false, CODE_TOOL, &[])?.content,
            None => reply.content.clone(),
        };
        let server_reply = ServerReply { usage: reply.usage, retries: reply.retries, ..ServerReply::default() };
        let server = ServerCompletion { text: reply.content, reply: server_reply };
        let completion = Completion::of_server(server, reply.finish_reason);
        Ok(SampledText { prompt_ids: Vec::new(), completion, text })
    }

    /// The reply as an action, with the calls as data after those in the text.
    fn finish(&mut self, reply: RawReply, mut read: Reply, show: &mut ShowAnswer<'_>) -> ModelReply {
        for call in reply.calls {
            match call {
                RawCall::Call(call) => {
                    if let Some(id) = &call.id {
                        self.calls.insert(id.clone(), (reply.content.clone(), call.clone()));
                    }
                    show(AnswerEvent::Call(&call));
                    read.tool_calls.push(call);
                }
                RawCall::Malformed(why) => {
                    show(AnswerEvent::Malformed(&why));
                    read.errors.push(why);
                }
            }
        }
        ModelReply {
            action: Action {
                text: reply.content,
                token_ids: Vec::new(),
                tool_calls: read.tool_calls,
                errors: read.errors,
                finish_reason: reply.finish_reason,
            },
            content: read.content,
            reasoning: reply.reasoning.or(read.reasoning),
            prompt: Some(reply.usage.prompt_tokens as usize).filter(|tokens| *tokens > 0),
            tokens: reply.usage.response_tokens as usize,
            stopped: reply.stopped,
        }
    }
}

/// The recipe's format; `auto` is the most common text format, because the server's template is not
/// known.
pub(super) fn format(choice: FormatChoice) -> Result<Format> {
    match choice {
        FormatChoice::Auto => Format::from_name("hermes"),
        FormatChoice::Is(format) => Ok(format),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::config::ServerApi;
    use crate::mdp::Message;

    /// A server that stops sending is distinguished from one that closes the connection.
    #[test]
    fn a_silent_server_times_out() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\": []}\n\n";
        for (head, expected) in [("", "can't reach URL: no data for"), (head, "URL interrupted its reply: no data for")]
        {
            // On a slow machine the head may not arrive within the shortest of these times.
            let timed_out = [300, 3000, 30_000].map(Duration::from_millis).into_iter().any(|silence| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let base = format!("http://{}", listener.local_addr().unwrap());
                let silent = std::thread::spawn(move || {
                    let (mut stream, _) = listener.accept().unwrap();
                    // The client may have closed the connection.
                    let _ = stream.write_all(head.as_bytes());
                    stream
                });
                let options = ServerOptions { silence, ..options(&base, ServerApi::Auto, "m") };
                let mut remote = RemoteModel::new(options, ServerSampling::default(), None, 0).unwrap();
                let question = Observation::Messages(vec![Message::user("Hello")]);
                let error = remote.reply(&question, &[], crate::telemetry::ctrl_c(), &mut |_| ()).err().unwrap();
                drop(silent.join().unwrap());
                let message = error.message.replace(&base, "URL");
                message == format!("{expected} {} s", silence.as_secs_f64())
            });
            assert!(timed_out, "{expected}");
        }
    }
}
