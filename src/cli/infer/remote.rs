//! Replies of a model behind a server with OpenAI's chat completions API, streamed as server-sent
//! events.
//!
//! The recipe's tools are sent as OpenAI tools; calls in the recipe's text format are parsed too,
//! because some servers leave them in the text. An env keeps the text of a reply and the results of
//! its calls; the calls are stored here and inserted between the two when the conversation is sent
//! again.

mod trouble;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::chat::{ModelReply, Piece, Show};
use super::local::show_event;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, FinishReason, Message, Observation, Role, ToolCall};
use crate::net::{self, Client, Request, Response};
use crate::telemetry::Interrupt;
use crate::text::{CODE_TOOL, Format, FormatChoice, Reply, Stream};
use trouble::{ResponseError, error_of};

/// Longest wait for the next byte: a server may have a queue.
const SILENCE: Duration = Duration::from_mins(10);
/// Attempts of a request to a busy server, and the longest wait between two.
const TRIES: u32 = 4;
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// Prompt tokens of a context policy without a setting: the server does not report its limit.
const PROMPT_TOKENS: usize = 16_384;
/// Maximum bytes of a response that is not streamed, and of a streamed reply.
const WHOLE: usize = 64 << 20;
/// The names of the limit on a reply's tokens: of most servers, and of OpenAI's reasoning models.
const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

/// A model behind a server.
pub(super) struct Remote {
    client: Client,
    base: String,
    model: String,
    key: Option<String>,
    /// Sampling parameters in the API's names; others keep the server's defaults.
    sampling: Map<String, Value>,
    /// The recipe's tool-call format.
    format: Option<Format>,
    max_context: usize,
    /// Calls by their ids, with the text of their reply.
    calls: HashMap<String, (String, ToolCall)>,
}

impl Remote {
    /// `/chat/completions` is appended to `base`.
    pub(super) fn new(
        base: &str,
        model: &str,
        sampling: Map<String, Value>,
        format: Option<Format>,
        max_context: usize,
    ) -> Result<Self> {
        let base = base.trim().trim_end_matches('/').to_owned();
        if net::origin(&base).is_none() {
            return Err(Error::new(Kind::Usage, format!("--api-base is `{base}`, which is not an http URL"))
                .hint("as in --api-base http://localhost:8000/v1"));
        }
        let key = std::env::var("OPENAI_API_KEY").ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if key.as_ref().is_some_and(|key| key.bytes().any(|byte| !byte.is_ascii_graphic())) {
            return Err(Error::new(Kind::Usage, "OPENAI_API_KEY has characters that no key has"));
        }
        let (model, calls) = (model.to_owned(), HashMap::new());
        Ok(Self { client: Client::new(SILENCE)?, base, model, key, sampling, format, max_context, calls })
    }

    pub(super) fn title(&self) -> String {
        format!("{} at {}", self.model, self.base)
    }

    /// Maximum prompt tokens of a context policy.
    pub(super) fn prompt_budget(&self) -> usize {
        if self.max_context == 0 { PROMPT_TOKENS } else { self.max_context / 2 }
    }

    pub(super) fn reply(
        &mut self,
        observation: &Observation,
        tools: &[Value],
        interrupt: Interrupt,
        show: &mut Show<'_>,
    ) -> Result<ModelReply> {
        let Observation::Messages(messages) = observation else {
            return Err(Error::new(
                Kind::Script,
                "this recipe's context returns text or ids; a server accepts only messages",
            )
            .hint("use a local model instead: --model DIR"));
        };
        let mut body = json!({ "model": self.model, "messages": self.wire(messages)?, "stream": true,
            "stream_options": { "include_usage": true } });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.sampling.clone());
            if !tools.is_empty() {
                body.insert("tools".to_owned(), Value::from(tools));
            }
        }
        let stop = || interrupt.is_set();
        let format = self.format.clone();
        let stream = format.as_ref().map(|format| format.stream(false, CODE_TOOL, tools));
        let mut partial = PartialReply { stream, ..PartialReply::default() };
        let mut stopped = false;
        match self.send(&mut body, &stop).and_then(|answer| self.read_stream(answer, &mut partial, &stop, show)) {
            Ok(()) => {}
            Err(error) if error.kind == Kind::Interrupted => stopped = true,
            Err(error) => return Err(error),
        }
        let read = self.read(&mut partial, tools, show)?;
        Ok(self.finish(partial, read, stopped, show))
    }

    /// The conversation as OpenAI messages.
    fn wire(&self, messages: &[Message]) -> Result<Vec<Value>> {
        let mut wire: Vec<Value> = Vec::with_capacity(messages.len());
        // Ids of calls without a result so far.
        let mut open: Vec<&str> = Vec::new();
        for (place, message) in messages.iter().enumerate() {
            let text = message.content.text();
            match message.role {
                Role::System | Role::User => wire.push(json!({ "role": message.role.name(), "content": text })),
                Role::Assistant => {
                    let results = messages[place + 1..].iter().take_while(|next| next.role == Role::Tool);
                    open = results
                        .filter_map(|result| result.tool_call_id.as_deref())
                        .filter(|id| self.calls.get(*id).is_some_and(|(reply, _)| *reply == text))
                        .collect();
                    let calls: Vec<Value> = open
                        .iter()
                        .filter_map(|id| {
                            let (_, ToolCall { name, arguments, .. }) = self.calls.get(*id)?;
                            let function = json!({ "name": name, "arguments": arguments.to_string() });
                            Some(json!({ "id": id, "type": "function", "function": function }))
                        })
                        .collect();
                    let mut reply = json!({ "role": "assistant", "content": text });
                    if !calls.is_empty() {
                        reply["tool_calls"] = Value::from(calls);
                    }
                    wire.push(reply);
                }
                Role::Tool => {
                    let id = message.tool_call_id.as_deref().filter(|id| open.contains(id));
                    wire.push(match (id, &self.format) {
                        (Some(id), _) => json!({ "role": "tool", "tool_call_id": id, "content": text }),
                        // A result of a call that the server does not know: the call is in the
                        // text, or could not be parsed.
                        (None, Some(format)) => json!({ "role": "user", "content": format.result(message)? }),
                        (None, None) => json!({ "role": "user", "content": text }),
                    });
                }
            }
        }
        Ok(wire)
    }

    /// Sends the request, and again while the server is busy.
    fn send(&mut self, body: &mut Value, stop: &dyn Fn() -> bool) -> Result<Response> {
        let url = format!("{}/chat/completions", self.base);
        let mut tried = 0;
        loop {
            tried += 1;
            let mut headers = vec![
                ("content-type".into(), "application/json".to_owned()),
                ("accept".into(), "text/event-stream, application/json".to_owned()),
            ];
            headers.extend(self.key.iter().map(|key| ("authorization".into(), format!("Bearer {key}"))));
            let request =
                Request { method: "POST", url: url.clone(), headers, body: Some(body.to_string().into_bytes()) };
            let response = self.client.send(request, stop).map_err(|fault| self.fault(fault))?;
            let status = response.status;
            if (200..300).contains(&status) {
                return Ok(response);
            }
            if status == 400 && body.get(MAX_TOKENS).is_some() {
                let refusal = response.bytes(WHOLE, stop).unwrap_or_default();
                if !requires_max_completion_tokens(&refusal) {
                    return Err(self.refused(status, &refusal));
                }
                // Once per conversation: later requests use the other name from the start.
                for fields in [body.as_object_mut(), Some(&mut self.sampling)].into_iter().flatten() {
                    if let Some(most) = fields.remove(MAX_TOKENS) {
                        fields.insert(MAX_COMPLETION_TOKENS.to_owned(), most);
                    }
                }
                continue;
            }
            let after = response.header("retry-after").and_then(|wait| wait.parse().ok()).map(Duration::from_secs);
            let wait = after.unwrap_or(Duration::from_secs(1 << tried.min(5)));
            if !matches!(status, 429 | 502..=504) || tried >= TRIES || wait > LONGEST_WAIT {
                return Err(self
                    .moved(&response)
                    .unwrap_or_else(|| self.refused(status, &response.bytes(WHOLE, stop).unwrap_or_default())));
            }
            net::pause(wait, stop).map_err(|fault| self.fault(fault))?;
        }
    }

    /// Reads the streamed response.
    fn read_stream(
        &self,
        mut answer: Response,
        partial: &mut PartialReply<'_>,
        stop: &dyn Fn() -> bool,
        show: &mut Show<'_>,
    ) -> Result<()> {
        let kind = answer.header("content-type").unwrap_or_default();
        if kind.starts_with("application/json") {
            // A server that does not stream.
            let bytes = answer.bytes(WHOLE, stop).map_err(|fault| self.cut(fault))?;
            return partial.event(&bytes, show).map_err(|odd| self.response_error(odd));
        }
        if kind.starts_with("text/html") {
            return Err(self.response_error(ResponseError::Foreign("it sends a web page".to_owned())));
        }
        let (mut line, mut events, mut size) = (Vec::new(), 0, 0_usize);
        let mut first = true;
        while let Some(bytes) = answer.next(stop).map_err(|fault| self.cut(fault))? {
            for byte in bytes {
                if byte != b'\n' {
                    if line.len() == WHOLE {
                        return Err(self.response_error(ResponseError::Foreign(format!(
                            "it sent a line of more than {WHOLE} bytes"
                        ))));
                    }
                    line.push(byte);
                    continue;
                }
                // A byte order mark may precede the first line.
                let own = line.strip_prefix(b"\xEF\xBB\xBF".as_slice()).filter(|_| first).unwrap_or(&line);
                first = false;
                if let Some(data) = own.trim_ascii().strip_prefix(b"data:".as_slice()) {
                    let data = data.trim_ascii();
                    size += data.len();
                    if size > WHOLE {
                        let why = format!("its reply has more than {WHOLE} bytes and does not end");
                        return Err(self.response_error(ResponseError::Foreign(why)));
                    }
                    if data == b"[DONE]".as_slice() {
                        return Ok(());
                    }
                    events += 1;
                    partial.event(data, show).map_err(|odd| self.response_error(odd))?;
                }
                line.clear();
            }
        }
        match (&partial.finish, events) {
            (Some(_), _) => Ok(()),
            (None, 0) if !line.starts_with(b"data:") => {
                Err(self.response_error(ResponseError::Foreign("there is no event in what it streams".to_owned())))
            }
            (None, _) => Err(self.response_error(ResponseError::BrokeOff(None))),
        }
    }

    /// Parses the content with the recipe's format.
    fn read(&self, partial: &mut PartialReply<'_>, tools: &[Value], show: &mut Show<'_>) -> Result<Option<Reply>> {
        let (Some(format), Some(mut stream)) = (&self.format, partial.stream.take()) else { return Ok(None) };
        if partial.finish.as_deref() == Some("stop") {
            // Servers omit the stop string: it is restored if it completes a call.
            let calls = |text: &str| Ok::<_, Error>(format.read(text, false, CODE_TOOL, tools)?.tool_calls.len());
            let count = calls(&partial.content)?;
            for stop in format.stop_strings() {
                if calls(&[&partial.content, stop].concat())? > count {
                    partial.content.push_str(stop);
                    stream.push(stop).iter().for_each(|event| show_event(event, show));
                    break;
                }
            }
        }
        let (events, reply) = stream.finish()?;
        for event in &events {
            show_event(event, show);
        }
        Ok(Some(reply))
    }

    /// The reply as an action. Calls in the text get ids that no later reply uses.
    fn finish(
        &mut self,
        partial: PartialReply<'_>,
        read: Option<Reply>,
        stopped: bool,
        show: &mut Show<'_>,
    ) -> ModelReply {
        let mut read = read.unwrap_or_else(|| Reply { content: partial.content.clone(), ..Reply::default() });
        let (mut tool_calls, mut errors) = (std::mem::take(&mut read.tool_calls), std::mem::take(&mut read.errors));
        for (number, Pieces { name, arguments, .. }) in (1..).zip(partial.calls.into_values()) {
            let text = if arguments.trim().is_empty() { "{}" } else { arguments.as_str() };
            match serde_json::from_str::<Value>(text) {
                Ok(arguments) if arguments.is_object() && !name.is_empty() => {
                    // Nine letters and digits, the form that the strictest servers require.
                    let id = format!("r1c{:06}", self.calls.len());
                    let call = ToolCall { id: Some(id.clone()), name, arguments };
                    self.calls.insert(id, (partial.content.clone(), call.clone()));
                    show(Piece::Call(&call));
                    tool_calls.push(call);
                }
                _ if stopped => {}
                read => {
                    let why = read.err().map_or_else(|| "no object".to_owned(), |error| error.to_string());
                    let why =
                        format!("Tool call {number} can't be read: the arguments of `{name}` are not JSON: {why}.");
                    show(Piece::Malformed(&why));
                    errors.push(why);
                }
            }
        }
        let finish_reason = if partial.finish.as_deref() == Some("length") || stopped {
            FinishReason::Length
        } else {
            FinishReason::Stop
        };
        ModelReply {
            action: Action { text: partial.content, token_ids: Vec::new(), tool_calls, errors, finish_reason },
            content: read.content,
            reasoning: Some(partial.reasoning).filter(|text| !text.is_empty()).or(read.reasoning),
            prompt: partial.prompt,
            tokens: partial.tokens.unwrap_or(partial.pieces),
            stopped,
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

/// The reply so far.
#[derive(Default)]
struct PartialReply<'a> {
    content: String,
    /// Parses the content with the recipe's format.
    stream: Option<Stream<'a>>,
    reasoning: String,
    /// By their index in the reply.
    calls: std::collections::BTreeMap<u64, Pieces>,
    finish: Option<String>,
    /// Pieces with text, in case the server does not count tokens.
    pieces: usize,
    tokens: Option<usize>,
    prompt: Option<usize>,
}

/// A call whose arguments arrive in pieces.
#[derive(Default)]
struct Pieces {
    id: String,
    name: String,
    arguments: String,
}

impl PartialReply<'_> {
    /// Adds a piece of a streamed response, or a complete one.
    fn event(&mut self, data: &[u8], show: &mut Show<'_>) -> std::result::Result<(), ResponseError> {
        let event: Value = serde_json::from_slice(data).map_err(|error| {
            if error.is_eof() {
                ResponseError::BrokeOff(Some("what it sent is cut short".to_owned()))
            } else {
                ResponseError::Foreign(format!("what it sends is not JSON: {error}"))
            }
        })?;
        let count = |name: &str| event["usage"][name].as_u64().map(|count| count as usize);
        if let Some(tokens) = count("completion_tokens") {
            self.tokens = Some(tokens);
            self.prompt = count("prompt_tokens");
        }
        let Some(choices) = event["choices"].as_array() else {
            let foreign = || ResponseError::Foreign("its answer has no `choices`".to_owned());
            return Err(error_of(&event).map_or_else(foreign, ResponseError::Failed));
        };
        let Some(choice) = choices.first() else { return Ok(()) };
        let delta = choice.get("delta").or_else(|| choice.get("message")).unwrap_or(&Value::Null);
        let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        if let Some(more) = text("reasoning_content").or_else(|| text("reasoning")) {
            self.reasoning.push_str(more);
            self.pieces += 1;
            show(Piece::Thought(more));
        }
        if let Some(more) = text("content") {
            self.content.push_str(more);
            self.pieces += 1;
            match &mut self.stream {
                Some(stream) => stream.push(more).iter().for_each(|event| show_event(event, show)),
                None => show(Piece::Text(more)),
            }
        }
        if let Some(more) = text("refusal") {
            self.content.push_str(more);
            self.pieces += 1;
            show(Piece::Text(more));
        }
        let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        for call in calls {
            self.pieces += 1;
            let index = call["index"].as_u64().unwrap_or_else(|| self.index_of(call, calls.len()));
            let pieces = self.calls.entry(index).or_default();
            if let Some(id) = call["id"].as_str().filter(|id| !id.is_empty()) {
                id.clone_into(&mut pieces.id);
            }
            if let Some(name) = call["function"]["name"].as_str() {
                pieces.name.push_str(name);
            }
            match &call["function"]["arguments"] {
                Value::String(more) => pieces.arguments.push_str(more),
                Value::Object(whole) => pieces.arguments = Value::from(whole.clone()).to_string(),
                _ => {}
            }
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            if reason == "content_filter" {
                return Err(ResponseError::Failed("its content filter stopped the reply".to_owned()));
            }
            self.finish = Some(reason.to_owned());
        }
        Ok(())
    }

    /// The index of a call's piece from a server that omits it: a new id or name starts a call, a
    /// piece without either continues the last one. Several pieces in one event are separate calls.
    fn index_of(&self, call: &Value, at_once: usize) -> u64 {
        let next = self.calls.last_key_value().map_or(0, |(index, _)| index + 1);
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        if let Some(id) = text(&call["id"]) {
            return self.calls.iter().find(|(_, pieces)| pieces.id == id).map_or(next, |(index, _)| *index);
        }
        if text(&call["function"]["name"]).is_some() || at_once > 1 { next } else { next.saturating_sub(1) }
    }
}

/// Whether a server refuses `max_tokens` because its model requires `max_completion_tokens`.
fn requires_max_completion_tokens(refusal: &[u8]) -> bool {
    serde_json::from_slice::<Value>(refusal).is_ok_and(|refusal| refusal["error"]["param"] == MAX_TOKENS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

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
                let mut remote = Remote::new(&base, "m", Map::new(), None, 0).unwrap();
                remote.client = Client::new(silence).unwrap();
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
