//! Replies that no policy sampled: typed by a person, written by a test.

use super::attempt::{Attempt, Stage, read_reply};
use crate::error::Result;
use crate::mdp::{Action, Completion, FinishReason, Support, ToolCall};

/// A text as a reply. One that stops ends with the policy's own end of turn; special tokens may be spelled out.
pub fn typed(stage: Stage<'_>, text: &str, finish_reason: FinishReason) -> Result<Completion> {
    let mut token_ids = stage.renderer.tokenizer().encode_with_special(text)?;
    if finish_reason == FinishReason::Stop {
        token_ids.extend(stage.renderer.stop_ids().first());
    }
    Ok(Completion {
        logprobs: vec![0.0; token_ids.len()],
        token_ids,
        support: Support::default(),
        top_logprobs: Vec::new(),
        finish_reason,
        prefilled: 0,
    })
}

/// A reply with calls behind its text, written as the policy would, and what the environment gets: the calls as its format
/// reads them, or as they are where it has no way to write them.
pub fn typed_calls(
    stage: Stage<'_>,
    attempt: &Attempt,
    text: &str,
    calls: Vec<ToolCall>,
) -> Result<(Completion, Action)> {
    let renderer = attempt.renderer(stage);
    let written = renderer.format().write(text.to_owned(), &calls);
    let completion = typed(stage, &written, FinishReason::Stop)?;
    let mut action = read_reply(renderer, attempt.state().tools(), &completion);
    if action.tool_calls.is_empty() && action.errors.is_empty() {
        action.tool_calls = calls;
    }
    Ok((completion, action))
}
