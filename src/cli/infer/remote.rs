//! Replies of a model behind a server, in a conversation.

use std::time::{Duration, Instant};

use super::chat::{AnswerEvent, ModelReply, ShowAnswer};
use super::local::show_event;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, Request};
use crate::remote::{self, Patience, RawCall, Server, ServerOptions, ServerSampling};
use crate::rollout::{Attempt, Stage};
use crate::telemetry::Interrupt;
use crate::text::{CODE_TOOL, Format};

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
    pub(super) fn new(options: ServerOptions, sampling: ServerSampling, format: Option<Format>) -> Result<Self> {
        Ok(Self { server: Server::new(options)?, sampling, format })
    }

    pub(super) fn title(&self) -> String {
        format!("{} at {}", self.server.model(), self.server.base())
    }

    pub(super) fn reply(
        &mut self,
        (stage, attempt): (Stage<'_>, &Attempt),
        request: &Request,
        interrupt: Interrupt,
        show: &mut ShowAnswer<'_>,
    ) -> Result<ModelReply> {
        let chat = request.chat.as_ref().ok_or_else(no_messages)?;
        let (started, tools) = (Instant::now(), attempt.state().tools());
        let mut stream = self.format.as_ref().map(|format| format.stream(false, CODE_TOOL, &tools));
        let replied = self.server.reply(chat, &self.sampling, &|| interrupt.is_set(), &mut |piece| match piece {
            remote::ReplyText::Reasoning(more) => show(AnswerEvent::Thought(more)),
            remote::ReplyText::Content(more) => match &mut stream {
                Some(stream) => stream.push(more).iter().for_each(|event| show_event(event, show)),
                None => show(AnswerEvent::Text(more)),
            },
        });
        let reply = replied.map_err(|failure| self.server.error(&failure))?;
        let (mut content, calls) = (reply.content.clone(), reply.calls.clone());
        let (stopped, finish_reason) = (reply.stopped, reply.finish_reason);
        let completion = Completion { finish_reason, ..remote::completion(reply, started.elapsed()) };
        let mut reasoning = None;
        if let Some(mut stream) = stream {
            // Servers omit the stop string: it is restored if it completes a call.
            let text = attempt.read(stage, &completion)?.text;
            let mut events = stream.push(text.get(content.len()..).unwrap_or_default());
            let (last, read) = stream.finish()?;
            events.extend(last);
            for event in &events {
                show_event(event, show);
            }
            (content, reasoning) = (read.content, read.reasoning);
        }
        for call in &calls {
            show(match call {
                RawCall::Call(call) => AnswerEvent::Call(call),
                RawCall::Malformed(why) => AnswerEvent::Malformed(why),
            });
        }
        let server = completion.server.as_ref().map(|server| &server.reply);
        let prompt = server.map(|reply| reply.usage.prompt_tokens as usize).filter(|tokens| *tokens > 0);
        let reasoning = server.and_then(|reply| reply.reasoning.clone()).or(reasoning);
        Ok(ModelReply { completion, content, reasoning, prompt, stopped })
    }

    /// A response that is not shown.
    pub(super) fn sample(&self, request: &Request, interrupt: Interrupt) -> Result<Completion> {
        let chat = request.chat.as_ref().ok_or_else(no_messages)?;
        let sampling = ServerSampling {
            seed: self.sampling.seed,
            ..ServerSampling::of(&request.sampling, &self.sampling.template_kwargs)
        };
        let replied = self.server.reply(chat, &sampling, &|| interrupt.is_set(), &mut |_| ());
        let reply = replied.map_err(|failure| self.server.error(&failure))?;
        Ok(remote::completion(reply, Duration::ZERO))
    }
}

fn no_messages() -> Error {
    Error::new(Kind::Internal, "a server takes messages, and the request has token ids")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::config::ServerApi;
    use crate::mdp::{ChatMessage, ServerChat};

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
                let server = Server::new(options).unwrap();
                let chat =
                    ServerChat { messages: vec![ChatMessage::User("Hello".to_owned())], ..ServerChat::default() };
                let failure = server.reply(&chat, &ServerSampling::default(), &|| false, &mut |_| ()).err().unwrap();
                let error = server.error(&failure);
                drop(silent.join().unwrap());
                let message = error.message.replace(&base, "URL");
                message == format!("{expected} {} s", silence.as_secs_f64())
            });
            assert!(timed_out, "{expected}");
        }
    }
}
