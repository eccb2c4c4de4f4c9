//! Anthropic's messages API: the request, and the events of the response.
//!
//! Differences from OpenAI's: system prompts are a separate field, a message is a list of blocks,
//! neighbouring messages of one role are one message, results of tools are blocks of a user message
//! and come first in it, and blocks of text are not empty.

use serde_json::{Map, Value, json};

use super::api::ChatApi;
use super::failure::{ServerFailure, error_of};
use super::reply::{PartialReply, Show, tokens};
use super::sampling::ServerSampling;
use crate::error::{Error, Kind, Result};
use crate::mdp::{ChatMessage, ChatPart, FinishReason, ServerChat, ToolCall};

pub(super) static API: ChatApi = ChatApi {
    key_variable: "ANTHROPIC_API_KEY",
    key_header: ("x-api-key", ""),
    headers: &[("anthropic-version", "2023-06-01")],
    path: "/messages",
    example: "https://api.anthropic.com/v1",
    server: "a server with Anthropic's messages API",
    lacking: "its events have no `type`",
    body: |model, chat, sampling, _| body(model, chat, sampling),
    wants_new_limit: |_| false,
    event,
};

/// Maximum tokens of a reply if there is no setting; the API requires a number.
const MAX_TOKENS: usize = 4096;

/// The body of a request.
///
/// # Errors
/// [`Kind::Usage`] for a parameter that the API lacks.
fn body(model: &str, chat: &ServerChat, sampling: &ServerSampling) -> Result<Value> {
    let kwargs = !sampling.template_kwargs.is_empty();
    let lacking = [
        ("min_p", sampling.min_p.is_some()),
        ("repetition_penalty", sampling.repetition_penalty.is_some()),
        ("seed", sampling.seed.is_some()),
        ("template_kwargs", kwargs),
    ];
    if let Some((name, _)) = lacking.iter().find(|(_, is_given)| *is_given) {
        return Err(Error::new(Kind::Usage, format!("Anthropic's messages API has no `{name}`")).hint("leave it out"));
    }
    let system: Vec<&str> = chat.messages.iter().filter_map(system_text).collect();
    let mut body = Map::from_iter([
        ("model".to_owned(), model.into()),
        ("messages".to_owned(), messages(&chat.messages).into()),
        ("max_tokens".to_owned(), sampling.max_tokens.unwrap_or(MAX_TOKENS).into()),
        ("stream".to_owned(), true.into()),
    ]);
    let fields = [
        ("system", Some(system.join("\n\n")).filter(|text| !text.trim().is_empty()).map(Value::from)),
        ("temperature", sampling.temperature.map(Value::from)),
        ("top_p", sampling.top_p.map(Value::from)),
        ("top_k", sampling.top_k.map(Value::from)),
        ("stop_sequences", Some(&sampling.stop).filter(|stop| !stop.is_empty()).map(|stop| stop.as_slice().into())),
        ("tools", Some(&chat.tools).filter(|tools| !tools.is_empty()).map(|tools| tools.iter().map(tool).collect())),
    ];
    body.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Ok(body.into())
}

fn system_text(message: &ChatMessage) -> Option<&str> {
    if let ChatMessage::System(text) = message { Some(text) } else { None }
}

/// A tool from its schema in OpenAI's format.
fn tool(schema: &Value) -> Value {
    let function = schema.get("function").unwrap_or(schema);
    let mut tool = json!({ "name": function["name"], "input_schema": function["parameters"] });
    if tool["input_schema"].is_null() {
        tool["input_schema"] = json!({ "type": "object", "properties": {} });
    }
    if let Some(description) = function.get("description") {
        tool["description"] = description.clone();
    }
    tool
}

/// The messages without system messages.
fn messages(all: &[ChatMessage]) -> Vec<Value> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    let text_block = |text: &str| (!text.trim().is_empty()).then(|| json!({ "type": "text", "text": text }));
    for message in all {
        let (role, blocks) = match message {
            ChatMessage::System(_) => continue,
            ChatMessage::User(text) => ("user", text_block(text).into_iter().collect::<Vec<_>>()),
            ChatMessage::UserParts(parts) => {
                let block = |part: &ChatPart| match part {
                    ChatPart::Text(text) => text_block(text),
                    ChatPart::Image { media_type, base64 } => {
                        let source = json!({ "type": "base64", "media_type": media_type, "data": base64 });
                        Some(json!({ "type": "image", "source": source }))
                    }
                };
                ("user", parts.iter().filter_map(block).collect())
            }
            ChatMessage::Assistant { text, calls } => {
                ("assistant", text_block(text).into_iter().chain(calls.iter().map(call)).collect())
            }
            ChatMessage::Result { id, text } => {
                ("user", vec![json!({ "type": "tool_result", "tool_use_id": id, "content": text })])
            }
        };
        match turns.last_mut().filter(|(last, _)| *last == role) {
            Some((_, last)) => {
                // Results come before text.
                let results = last.iter().take_while(|block| block["type"] == "tool_result").count();
                let is_result = matches!(message, ChatMessage::Result { .. });
                let at = if is_result { results } else { last.len() };
                last.splice(at..at, blocks);
            }
            None if blocks.is_empty() => {}
            None => turns.push((role, blocks)),
        }
    }
    turns.into_iter().map(|(role, blocks)| json!({ "role": role, "content": blocks })).collect()
}

fn call(call: &ToolCall) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments })
}

/// Adds an event of a streamed response, or a complete message.
fn event(reply: &mut PartialReply, event: &Value, show: &mut Show<'_>) -> Result<(), ServerFailure> {
    let Some(kind) = event["type"].as_str() else {
        return match (error_of(event), event.as_object()) {
            (Some(message), _) => Err(ServerFailure::Failed(message)),
            // It keeps the connection open.
            (None, Some(fields)) if fields.is_empty() => Ok(()),
            _ => Err(ServerFailure::Foreign("its events have no `type`".to_owned())),
        };
    };
    reply.is_of_api = true;
    match kind {
        "message_start" => usage(reply, &event["message"]["usage"]),
        "content_block_start" => block(reply, event["index"].as_u64(), &event["content_block"], show)?,
        "content_block_delta" => {
            let delta = &event["delta"];
            reply.add_content(text(delta, "text")?, show);
            reply.add_reasoning(text(delta, "thinking")?, show);
            if let Some(more) = delta["partial_json"].as_str() {
                reply.pieces += 1;
                reply.call(event["index"].as_u64().unwrap_or(0)).arguments.push_str(more);
            }
        }
        "message_delta" => {
            usage(reply, &event["usage"]);
            end(reply, &event["delta"]["stop_reason"])?;
        }
        "message" => {
            usage(reply, &event["usage"]);
            match &event["content"] {
                Value::Array(blocks) => {
                    (0..).zip(blocks).try_for_each(|(index, content)| block(reply, Some(index), content, show))?;
                }
                // Servers that imitate the API.
                Value::String(text) => reply.add_content(text, show),
                Value::Null => {}
                other => return Err(ServerFailure::Foreign(format!("`content` of its answer is not a list: {other}"))),
            }
            end(reply, &event["stop_reason"])?;
        }
        "error" => {
            let message = error_of(event).unwrap_or_else(|| event.to_string());
            return Err(ServerFailure::Failed(message));
        }
        // `ping`, the ends of blocks, and events of later versions.
        _ => {}
    }
    Ok(())
}

/// The text of a field, which may be absent.
fn text<'a>(of: &'a Value, field: &str) -> Result<&'a str, ServerFailure> {
    match &of[field] {
        Value::String(text) => Ok(text),
        Value::Null => Ok(""),
        other => Err(ServerFailure::Foreign(format!("`{field}` of its answer is not text: {other}"))),
    }
}

/// The beginning of a block, or a complete one.
fn block(
    reply: &mut PartialReply,
    index: Option<u64>,
    block: &Value,
    show: &mut Show<'_>,
) -> Result<(), ServerFailure> {
    if let Value::String(text) = block {
        reply.add_content(text, show);
        return Ok(());
    }
    reply.add_content(text(block, "text")?, show);
    reply.add_reasoning(text(block, "thinking")?, show);
    if block["type"] != "tool_use" {
        return Ok(());
    }
    reply.pieces += 1;
    let call = reply.call(index.unwrap_or(0));
    block["id"].as_str().unwrap_or_default().clone_into(&mut call.id);
    block["name"].as_str().unwrap_or_default().clone_into(&mut call.name);
    // A streamed block begins with an empty input, whose text follows.
    if block["input"].as_object().is_some_and(|input| !input.is_empty()) {
        call.arguments = block["input"].to_string();
    }
    Ok(())
}

fn usage(reply: &mut PartialReply, usage: &Value) {
    let count = |name: &str| tokens(&usage[name]);
    if let Some(fresh) = count("input_tokens") {
        let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"].into_iter().filter_map(count);
        reply.prompt_tokens = Some(fresh + cached.sum::<u64>());
    }
    if let Some(tokens) = count("output_tokens") {
        reply.response_tokens = Some(tokens);
    }
}

fn end(reply: &mut PartialReply, reason: &Value) -> Result<(), ServerFailure> {
    match reason.as_str() {
        Some("refusal") => return Err(ServerFailure::Filtered),
        Some("max_tokens" | "model_context_window_exceeded") => reply.finish = Some(FinishReason::Length),
        Some(_) => reply.finish = Some(FinishReason::Stop),
        None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::remote::RawCall;

    #[test]
    fn neighbouring_messages_of_a_role_are_one_with_results_first() {
        let call = |id: &str| ToolCall { id: Some(id.to_owned()), name: "f".to_owned(), arguments: json!({ "n": 1 }) };
        let user = |text: &str| ChatMessage::User(text.to_owned());
        let result = |id: &str| ChatMessage::Result { id: id.to_owned(), text: format!("result {id}") };
        let merged = messages(&[
            ChatMessage::System("s".to_owned()),
            user("one"),
            user("two"),
            ChatMessage::Assistant { text: String::new(), calls: vec![call("a"), call("b")] },
            result("a"),
            user("a call could not be read"),
            result("b"),
            ChatMessage::Assistant { text: " ".to_owned(), calls: Vec::new() },
            user("three"),
        ]);
        let text = |text: &str| json!({ "type": "text", "text": text });
        let results = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": format!("result {id}") });
        let used = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": { "n": 1 } });
        assert_eq!(
            merged,
            [
                json!({ "role": "user", "content": [text("one"), text("two")] }),
                json!({ "role": "assistant", "content": [used("a"), used("b")] }),
                json!({ "role": "user", "content": [
                    results("a"), results("b"), text("a call could not be read"), text("three")
                ] }),
            ]
        );
    }

    #[test]
    fn parameters_that_the_api_lacks_are_refused() {
        let sampling = ServerSampling { min_p: Some(0.1), ..ServerSampling::default() };
        let error = body("m", &ServerChat::default(), &sampling).unwrap_err();
        assert_eq!(error.message, "Anthropic's messages API has no `min_p`");
        let plain = body("m", &ServerChat::default(), &ServerSampling::default()).unwrap();
        assert_eq!(plain, json!({ "model": "m", "messages": [], "max_tokens": MAX_TOKENS, "stream": true }));
    }

    #[test]
    fn complete_messages_and_errors_are_read() {
        let mut reply = PartialReply::default();
        let whole = json!({
            "type": "message", "stop_reason": "max_tokens",
            "content": [
                { "type": "thinking", "thinking": "Hm." },
                { "type": "text", "text": "I compute." },
                { "type": "tool_use", "id": "t", "name": "f", "input": { "n": 2 } },
            ],
            "usage": { "input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 3 },
        });
        event(&mut reply, &whole, &mut |_| ()).unwrap();
        let completion = reply.finish(4, false, 0);
        assert_eq!((completion.content.as_str(), completion.reasoning.as_deref()), ("I compute.", Some("Hm.")));
        assert_eq!((completion.usage.prompt_tokens, completion.usage.response_tokens), (12, 3));
        assert_eq!(completion.finish_reason, FinishReason::Length);
        let call = ToolCall { id: Some("r1c000004".to_owned()), name: "f".to_owned(), arguments: json!({ "n": 2 }) };
        assert_eq!(completion.calls, [RawCall::Call(call)]);
        let error = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
        let failure = event(&mut PartialReply::default(), &error, &mut |_| ()).unwrap_err();
        assert_eq!(failure, ServerFailure::Failed("Overloaded".to_owned()));
        let foreign = event(&mut PartialReply::default(), &json!({ "ok": true }), &mut |_| ()).unwrap_err();
        assert!(matches!(foreign, ServerFailure::Foreign(_)));
    }
}
