//! OpenAI's chat completions API: the request, and the events of the response.

use serde_json::{Map, Value, json};

use super::failure::{Failure, error_of};
use super::reply::{PartialReply, Show};
use super::sampling::ServerSampling;
use crate::mdp::{Chat, ChatMessage, FinishReason, ToolCall};

/// The names of the limit on a reply's tokens: of most servers, and of OpenAI's reasoning models.
const MAX_TOKENS: &str = "max_tokens";
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

/// The body of a request. `new_limit`: the model requires `max_completion_tokens`.
pub(super) fn body(model: &str, chat: &Chat, sampling: &ServerSampling, new_limit: bool) -> Value {
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

fn call(call: &ToolCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments.to_string() });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// Whether a server refuses `max_tokens` because its model requires `max_completion_tokens`.
pub(super) fn wants_new_limit(refusal: &[u8]) -> bool {
    serde_json::from_slice::<Value>(refusal).is_ok_and(|refusal| refusal["error"]["param"] == MAX_TOKENS)
}

/// Adds a piece of a streamed response, or a complete one.
pub(super) fn event(reply: &mut PartialReply, event: &Value, show: &mut Show<'_>) -> Result<(), Failure> {
    let count = |name: &str| event["usage"][name].as_u64();
    if let Some(tokens) = count("completion_tokens") {
        reply.response_tokens = Some(tokens);
        reply.prompt_tokens = count("prompt_tokens");
    }
    let Some(choices) = event["choices"].as_array() else {
        let foreign = || Failure::Foreign("its answer has no `choices`".to_owned());
        return Err(error_of(event).map_or_else(foreign, Failure::Failed));
    };
    let Some(choice) = choices.first() else { return Ok(()) };
    let delta = choice.get("delta").or_else(|| choice.get("message")).unwrap_or(&Value::Null);
    let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
    if let Some(more) = text("reasoning_content").or_else(|| text("reasoning")) {
        reply.add_reasoning(more, show);
    }
    for name in ["content", "refusal"] {
        reply.add_content(text(name).unwrap_or_default(), show);
    }
    let calls = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    for call in calls {
        reply.pieces += 1;
        let index = call["index"].as_u64().unwrap_or_else(|| index_of(reply, call, calls.len()));
        let pieces = reply.calls.entry(index).or_default();
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
    match choice["finish_reason"].as_str() {
        Some("content_filter") => return Err(Failure::Filtered),
        Some("length") => reply.finish = Some(FinishReason::Length),
        Some(_) => reply.finish = Some(FinishReason::Stop),
        None => {}
    }
    Ok(())
}

/// The index of a call's piece from a server that omits it: a new id or name starts a call, a piece
/// without either continues the last one. Several pieces in one event are separate calls.
fn index_of(reply: &PartialReply, call: &Value, at_once: usize) -> u64 {
    let next = reply.calls.last_key_value().map_or(0, |(index, _)| index + 1);
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(id) = text(&call["id"]) {
        return reply.calls.iter().find(|(_, pieces)| pieces.id == id).map_or(next, |(index, _)| *index);
    }
    if text(&call["function"]["name"]).is_some() || at_once > 1 { next } else { next.saturating_sub(1) }
}
