//! Responses that no policy sampled: typed by a user, or written by a test.

use super::attempt::{Attempt, Stage};
use crate::error::Result;
use crate::mdp::{Action, Completion, FinishReason, Support, ToolCall};
use crate::text::Renderer;

/// A text as a response. A finished one ends with the policy's end-of-turn token; special tokens
/// may be written out.
pub fn typed(renderer: &Renderer, text: &str, finish_reason: FinishReason) -> Result<Completion> {
    // The prompt already contains the reply prefix.
    let text = text.strip_prefix(renderer.reply_prefix()).unwrap_or(text);
    let mut token_ids = renderer.tokenizer().encode_with_special(text)?;
    if finish_reason == FinishReason::Stop {
        token_ids.extend(renderer.stop_ids().first());
    }
    Ok(Completion {
        logprobs: vec![0.0; token_ids.len()],
        token_ids,
        support: Support::default(),
        top_logprobs: Vec::new(),
        routing: crate::mdp::Routing::default(),
        finish_reason,
        prefilled: 0,
        server: None,
    })
}

/// A response with calls after its text, in the policy's format, and the resulting action: the
/// calls as the format parses them, or unchanged if the format cannot write them.
pub fn typed_calls(
    stage: Stage<'_>,
    attempt: &Attempt,
    text: &str,
    calls: Vec<ToolCall>,
) -> Result<(Completion, Action)> {
    let renderer = attempt.renderer(stage);
    let format = renderer.format();
    let written = if format.can_write() { format.write(text.to_owned(), &calls)? } else { text.to_owned() };
    let completion = typed(renderer, &written, FinishReason::Stop)?;
    let mut action = attempt.read(stage, &completion)?;
    if action.tool_calls.is_empty() && action.errors.is_empty() {
        action.tool_calls = calls;
    }
    Ok((completion, action))
}
