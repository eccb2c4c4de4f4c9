//! OpenAI's chat completions API: the request, and the events of the response.

use serde_json::{Map, Value, json};

use super::api::ChatApi;
use super::failure::{ServerFailure, error_of};
use super::reply::{PartialCall, PartialReply, Show, tokens};
use super::sampling::ServerSampling;
use crate::json;
use crate::mdp::{ChatMessage, ChatPart, FinishReason, ServerChat, ToolCall};

/// The names of the limit on a reply's tokens: of most servers, and of OpenAI's reasoning models.
const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

pub(super) static API: ChatApi = ChatApi {
    key_variable: "OPENAI_API_KEY",
    key_header: ("authorization", "Bearer "),
    headers: &[],
    path: "/chat/completions",
    example: "http://localhost:8000/v1",
    server: "an OpenAI-compatible server",
    lacking: "its answer has no `choices`",
    body: |model, chat, sampling, new_limit| Ok(body(model, chat, sampling, new_limit)),
    wants_new_limit,
    event,
};

/// The body of a request. `new_limit`: the model requires `max_completion_tokens`.
fn body(model: &str, chat: &ServerChat, sampling: &ServerSampling, new_limit: bool) -> Value {
    let mut body = Map::from_iter([
        ("model".to_owned(), model.into()),
        ("messages".to_owned(), chat.messages.iter().map(message).collect()),
        ("stream".to_owned(), true.into()),
        ("stream_options".to_owned(), json!({ "include_usage": true })),
    ]);
    let limit = if new_limit { MAX_COMPLETION_TOKENS } else { MAX_TOKENS };
    let kwargs = Some(&sampling.template_kwargs).filter(|kwargs| !kwargs.is_empty());
    let fields = [
        ("temperature", sampling.temperature.map(Value::from)),
        ("top_p", sampling.top_p.map(Value::from)),
        ("top_k", sampling.top_k.map(Value::from)),
        ("min_p", sampling.min_p.map(Value::from)),
        ("repetition_penalty", sampling.repetition_penalty.map(Value::from)),
        (limit, sampling.max_tokens.map(Value::from)),
        ("seed", sampling.seed.map(Value::from)),
        ("stop", Some(&sampling.stop).filter(|stop| !stop.is_empty()).map(|stop| stop.as_slice().into())),
        ("chat_template_kwargs", kwargs.map(|kwargs| kwargs.clone().into())),
        ("tools", Some(&chat.tools).filter(|tools| !tools.is_empty()).map(|tools| tools.as_slice().into())),
    ];
    body.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    body.into()
}

fn message(message: &ChatMessage) -> Value {
    match message {
        ChatMessage::System(text) => json!({ "role": "system", "content": text }),
        ChatMessage::User(text) => json!({ "role": "user", "content": text }),
        ChatMessage::UserParts(parts) => {
            json!({ "role": "user", "content": parts.iter().map(part).collect::<Value>() })
        }
        ChatMessage::Result { id, text } => json!({ "role": "tool", "tool_call_id": id, "content": text }),
        ChatMessage::Assistant { text, calls } => {
            let mut reply = json!({ "role": "assistant", "content": text });
            if !calls.is_empty() {
                reply["tool_calls"] = calls.iter().map(call).collect();
            }
            reply
        }
    }
}

fn part(part: &ChatPart) -> Value {
    match part {
        ChatPart::Text(text) => json!({ "type": "text", "text": text }),
        ChatPart::Image { media_type, base64 } => {
            let url = format!("data:{media_type};base64,{base64}");
            json!({ "type": "image_url", "image_url": { "url": url } })
        }
    }
}

fn call(call: &ToolCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// Whether a server refuses `max_tokens` because its model requires `max_completion_tokens`.
fn wants_new_limit(refusal: &[u8]) -> bool {
    serde_json::from_slice::<Value>(refusal).is_ok_and(|refusal| refusal["error"]["param"] == MAX_TOKENS)
}

/// Adds a piece of a streamed response, or a complete one. An event without a choice, such as one
/// with `usage` or a `ping`, has no content.
fn event(reply: &mut PartialReply, event: &Value, show: &mut Show<'_>) -> Result<(), ServerFailure> {
    if let Some(count) = tokens(&event["usage"]["completion_tokens"]) {
        reply.response_tokens = Some(count);
        reply.prompt_tokens = tokens(&event["usage"]["prompt_tokens"]);
    }
    let choices = match &event["choices"] {
        Value::Array(choices) => choices,
        Value::Null => return without_choice(event),
        other => return Err(misfit("`choices`", "a list", other)),
    };
    reply.is_of_api = true;
    let Some(choice) = choices.first() else { return Ok(()) };
    let present = |name: &str| choice.get(name).filter(|value| !value.is_null());
    let delta = present("delta").or_else(|| present("message")).unwrap_or(&Value::Null);
    if delta.is_null() && present("text").is_some() {
        return Err(ServerFailure::Foreign(
            "its choices have `text`, as those of completions, not of a chat".to_owned(),
        ));
    }
    if !matches!(delta, Value::Null | Value::Object(_)) {
        return Err(misfit("`delta`", "an object", delta));
    }
    let mut add = |name: &str, value: &Value| parts(reply, name, value, name.starts_with("reasoning"), show);
    let reasoning = ["reasoning_content", "reasoning"].into_iter().find(|name| !is_empty(&delta[*name]));
    for name in reasoning.into_iter().chain(["content", "refusal"]) {
        add(name, &delta[name])?;
    }
    match &delta["tool_calls"] {
        Value::Array(calls) => calls.iter().try_for_each(|call| add_call(reply, call, calls.len()))?,
        Value::Null => {}
        other => return Err(misfit("`tool_calls`", "a list", other)),
    }
    // The form before `tool_calls`, with one call.
    if !is_empty(&delta["function_call"]) {
        reply.pieces += 1;
        add_function(reply.call(0), &delta["function_call"])?;
    }
    match choice["finish_reason"].as_str() {
        Some("content_filter") => return Err(ServerFailure::Filtered),
        Some("length") => reply.finish = Some(FinishReason::Length),
        Some("") | None => {}
        Some(_) => reply.finish = Some(FinishReason::Stop),
    }
    Ok(())
}

/// Fields that have content in other APIs.
const CONTENT: [&str; 7] = ["content", "text", "delta", "message", "output", "response", "tool_calls"];

/// An event without a choice: an error of the server, or nothing.
fn without_choice(event: &Value) -> Result<(), ServerFailure> {
    if let Some(message) = error_of(event) {
        return Err(ServerFailure::Failed(message));
    }
    match CONTENT.into_iter().find(|name| !is_empty(&event[*name])) {
        Some(name) => Err(ServerFailure::Foreign(format!("its answer has no `choices`, and has `{name}`"))),
        None => Ok(()),
    }
}

/// Whether a field has nothing in it.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn misfit(what: &str, wanted: &str, value: &Value) -> ServerFailure {
    ServerFailure::Foreign(format!("{what} of its answer is not {wanted}: {value}"))
}

/// Adds the content of a message: text, or a list of parts with text or reasoning.
fn parts(
    reply: &mut PartialReply,
    name: &str,
    content: &Value,
    is_reasoning: bool,
    show: &mut Show<'_>,
) -> Result<(), ServerFailure> {
    let refused = || misfit(&format!("`{name}`"), "text", content);
    match content {
        Value::Null => Ok(()),
        Value::String(text) if is_reasoning => {
            reply.add_reasoning(text, show);
            Ok(())
        }
        Value::String(text) => {
            reply.add_content(text, show);
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| parts(reply, name, item, is_reasoning, show)),
        Value::Object(part) => {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let (field, is_reasoning) = match kind {
                "text" | "output_text" => ("text", is_reasoning),
                "refusal" => ("refusal", is_reasoning),
                "thinking" => ("thinking", true),
                "reasoning" if part.contains_key("reasoning") => ("reasoning", true),
                "reasoning" => ("text", true),
                // Numbers of sources, without text.
                "reference" => return Ok(()),
                _ => return Err(ServerFailure::Foreign(format!("`{name}` of its answer has a part of type `{kind}`"))),
            };
            match part.get(field) {
                Some(inner @ (Value::String(_) | Value::Null)) => parts(reply, name, inner, is_reasoning, show),
                Some(inner @ Value::Array(_)) if is_reasoning => parts(reply, name, inner, is_reasoning, show),
                _ => Err(refused()),
            }
        }
        Value::Bool(_) | Value::Number(_) => Err(refused()),
    }
}

/// Adds a piece of a call, or a complete one.
fn add_call(reply: &mut PartialReply, call: &Value, at_once: usize) -> Result<(), ServerFailure> {
    reply.pieces += 1;
    let index = call["index"].as_u64().unwrap_or_else(|| index_of(reply, call, at_once));
    let id = text(&call["id"]);
    let begun = reply.call(index);
    let other_id = id.is_some_and(|id| !begun.id.is_empty() && id != begun.id);
    let no_id = id.is_none() && begun.id.is_empty() && !begun.name.is_empty();
    // Some servers give every call the index 0: one with a name and another id, or after a complete
    // one without an id, is a new call.
    let is_new = text(&call["function"]["name"]).is_some()
        && (other_id || no_id && json::read_foreign(begun.arguments.as_bytes()).is_ok_and(|read| read.is_object()));
    let pieces = if is_new { reply.new_call(index) } else { begun };
    if let Some(id) = id {
        id.clone_into(&mut pieces.id);
    }
    add_function(pieces, &call["function"])
}

fn add_function(pieces: &mut PartialCall, function: &Value) -> Result<(), ServerFailure> {
    if let Some(name) = function["name"].as_str() {
        pieces.name.push_str(name);
    }
    match &function["arguments"] {
        Value::String(more) => pieces.arguments.push_str(more),
        whole @ Value::Object(_) => pieces.arguments = whole.to_string(),
        Value::Null => {}
        other => return Err(misfit("`arguments`", "text", other)),
    }
    Ok(())
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// The index of a call's piece from a server that omits it: a new id or name starts a call, a piece
/// without either continues the last one. Several pieces in one event are separate calls.
fn index_of(reply: &PartialReply, call: &Value, at_once: usize) -> u64 {
    let next = reply.calls.iter().map(|call| call.index + 1).max().unwrap_or(0);
    if let Some(id) = text(&call["id"]) {
        return reply.calls.iter().find(|pieces| pieces.id == id).map_or(next, |pieces| pieces.index);
    }
    if text(&call["function"]["name"]).is_some() || at_once > 1 { next } else { next.saturating_sub(1) }
}
