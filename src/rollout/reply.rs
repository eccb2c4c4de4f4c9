//! A reply of the policy as the environment sees it: text behind the reply prefix, and the calls in it.

use serde_json::Value;

use crate::error::Result;
use crate::mdp::{Action, Completion};
use crate::text::Renderer;

/// The text of a reply: the prefix, then what was sampled, without the end of the turn.
pub(super) fn text(renderer: &Renderer, prefix: &str, completion: &Completion) -> String {
    let ids = match completion.token_ids.split_last() {
        Some((last, rest)) if renderer.stop_ids().contains(last) => rest,
        _ => &completion.token_ids,
    };
    format!("{prefix}{}", renderer.tokenizer().decode(ids, false))
}

/// The action that a reply is: its text, and the calls that the tool-call format finds in it.
///
/// # Errors
/// `Kind::Script` if `parse` of the recipe's own format fails.
pub(super) fn read(renderer: &Renderer, tools: &[Value], prefix: &str, completion: &Completion) -> Result<Action> {
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
