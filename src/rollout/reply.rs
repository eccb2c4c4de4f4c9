//! Parses a response of the policy: its text after the reply prefix, and its tool calls.

use serde_json::Value;

use super::served;
use crate::error::Result;
use crate::mdp::{Action, Completion};
use crate::text::Renderer;

/// The text of a response: the prefix and the sampled tokens, without the end of the turn.
pub(super) fn text(renderer: &Renderer, prefix: &str, completion: &Completion) -> String {
    if let Some(server) = &completion.server {
        return server.text.clone();
    }
    let ids = match completion.token_ids.split_last() {
        Some((last, rest)) if renderer.stop_ids().contains(last) => rest,
        _ => &completion.token_ids,
    };
    format!("{prefix}{}", renderer.tokenizer().decode(ids, false))
}

/// The action of a response: its text, and the tool calls that the format finds in it.
///
/// # Errors
/// `Kind::Script` if `parse` of the recipe's own format fails.
pub(super) fn read(renderer: &Renderer, tools: &[Value], prefix: &str, completion: &Completion) -> Result<Action> {
    if let Some(action) = served::read(renderer, tools, completion)? {
        return Ok(action);
    }
    let text = text(renderer, prefix, completion);
    let reply = renderer.parse(&text, tools)?;
    Ok(Action {
        text,
        token_ids: completion.token_ids.clone(),
        tool_calls: reply.tool_calls,
        errors: reply.errors,
        finish_reason: completion.finish_reason,
    })
}
