//! Steps whose policy is behind a server: conversations and replies without token ids.

use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Completion, FinishReason, Message, Observation, ServerChat, Trajectory};
use crate::text::{CODE_TOOL, Renderer, chat_messages};

/// The refusal of an observation that a server can't take.
pub(super) fn not_messages() -> Error {
    Error::new(Kind::Script, "this recipe's context returns text or ids; a server accepts only messages")
        .hint("use a model in this process instead: leave policy.api_base out")
}

/// The conversation for the server. The steps have the calls of earlier replies.
pub(super) fn chat(
    renderer: &Renderer,
    tools: &[Value],
    observation: &Observation,
    trajectory: &Trajectory,
) -> Result<ServerChat> {
    let Observation::Messages(messages) = observation else { return Err(not_messages()) };
    let replies = || trajectory.steps.iter().filter_map(|step| Some((step.text.as_str(), step.server.as_deref()?)));
    let earlier = |id: &str| {
        replies().find_map(|(text, reply)| {
            let call = reply.tool_calls.iter().find(|call| call.id.as_deref() == Some(id))?;
            Some((text, call))
        })
    };
    let messages = chat_messages(messages, &earlier, Some(renderer.format()), renderer.images().map(AsRef::as_ref))?;
    Ok(ServerChat { messages, tools: tools.to_vec(), calls: replies().map(|(_, reply)| reply.tool_calls.len()).sum() })
}

/// The conversation of a request of the script, which has no tools.
pub(super) fn plain_chat(renderer: &Renderer, messages: &[Message]) -> Result<ServerChat> {
    let messages = chat_messages(messages, &|_| None, Some(renderer.format()), renderer.images().map(AsRef::as_ref))?;
    Ok(ServerChat { messages, ..ServerChat::default() })
}

/// The action of a server's reply: calls as data, and those in its text. Servers omit the stop
/// string; it is restored if it completes a call.
///
/// # Errors
/// `Kind::Script` if `parse` of the recipe's own format fails.
pub(super) fn read(renderer: &Renderer, tools: &[Value], completion: &Completion) -> Result<Option<Action>> {
    let Some(server) = &completion.server else { return Ok(None) };
    let parse = |text: &str| renderer.format().read(text, false, CODE_TOOL, tools);
    let mut text = server.text.clone();
    let mut parsed = parse(&text)?;
    if completion.finish_reason == FinishReason::Stop {
        for stop in renderer.stop_strings() {
            let whole = [text.as_str(), stop].concat();
            let reply = parse(&whole)?;
            if reply.tool_calls.len() > parsed.tool_calls.len() {
                (text, parsed) = (whole, reply);
                break;
            }
        }
    }
    parsed.tool_calls.extend(server.reply.tool_calls.iter().cloned());
    parsed.errors.extend(server.reply.errors.iter().cloned());
    Ok(Some(Action {
        text,
        token_ids: Vec::new(),
        tool_calls: parsed.tool_calls,
        errors: parsed.errors,
        finish_reason: completion.finish_reason,
    }))
}
