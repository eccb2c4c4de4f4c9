//! Responses that no policy sampled: typed by a user, or written by a test. They end as sampled
//! ones do.

use super::attempt::Attempt;
use super::stage::Stage;
use crate::error::Result;
use crate::mdp::{Action, Completion, FinishReason, ToolCall};

/// A text as a response to the current prompt. A finished one ends where a sampled one would: after
/// the first stop string or end-of-turn token, otherwise an end-of-turn token is added. Special
/// tokens may be written out.
pub fn typed(stage: Stage<'_>, attempt: &Attempt, text: &str, finish_reason: FinishReason) -> Result<Completion> {
    let renderer = attempt.renderer(stage);
    // The prompt already contains the reply prefix.
    let mut text = text.strip_prefix(attempt.prefix(stage)).unwrap_or(text);
    let mut stopped = false;
    if finish_reason == FinishReason::Stop {
        let end = |stop: String| text.find(&stop).map(|start| start + stop.len());
        let first = attempt.stop_strings(stage).into_iter().filter(|stop| !stop.is_empty()).filter_map(end).min();
        stopped = first.is_some();
        text = &text[..first.unwrap_or(text.len())];
    }
    let mut token_ids = renderer.tokenizer().encode_with_special(text)?;
    if finish_reason == FinishReason::Stop {
        let stop_ids = renderer.stop_ids();
        if let Some(end) = token_ids.iter().position(|id| stop_ids.contains(id)) {
            token_ids.truncate(end + 1);
        } else if !stopped {
            token_ids.extend(stop_ids.first());
        }
    }
    Ok(Completion { logprobs: vec![0.0; token_ids.len()], token_ids, finish_reason, ..Completion::default() })
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
    let completion = typed(stage, attempt, &written, FinishReason::Stop)?;
    let mut action = attempt.read(stage, &completion)?;
    if action.tool_calls.is_empty() && action.errors.is_empty() {
        action.tool_calls = calls;
    }
    Ok((completion, action))
}
