//! Context budgets: errors that show the number of tokens per message.

use std::fmt::Write;

use serde_json::Value as Json;

use crate::error::{Error, Kind, Result};
use crate::mdp::Observation;
use crate::text::Renderer;

/// Maximum number of messages listed in an error, largest first.
const SHOWN: usize = 8;

/// Checks that the output of a context function fits its budget. `is_least` is for a context whose
/// droppable messages have all been dropped.
///
/// # Errors
/// [`Kind::Env`] with the tokens per message, if it does not.
pub fn check(
    renderer: &Renderer,
    tools: &[Json],
    observation: &Observation,
    budget: usize,
    is_least: bool,
) -> Result<()> {
    let tokens = count(renderer, tools, observation)?;
    if tokens <= budget {
        return Ok(());
    }
    let (what, hint) = if is_least {
        let hint = "keep fewer messages (keep_first, keep_last), shorten tool results, or raise policy.max_context if the \
                    model allows it";
        (format!("the messages that the context keeps have {tokens} tokens and the budget is {budget}"), hint)
    } else {
        let hint = "r1.context(state.messages):drop_oldest_until(budget.tokens) drops the oldest messages";
        (format!("context returned {tokens} tokens and its budget is {budget}"), hint)
    };
    Err(Error::new(Kind::Env, format!("{what}: {}", sizes(renderer, observation, tokens))).hint(hint))
}

/// The error for a prompt that leaves no room for a response.
pub fn overflow(
    renderer: &Renderer,
    tools: &[Json],
    observation: &Observation,
    tokens: usize,
    context: usize,
) -> Error {
    // A prompt that continues sampled ids may differ by a few tokens from its messages rendered
    // again.
    let counted = count(renderer, tools, observation).unwrap_or(tokens);
    let sizes = sizes(renderer, observation, counted);
    Error::new(Kind::Env, format!("the prompt has {tokens} tokens and the context holds {context}: {sizes}"))
        .hint("shorten it in the recipe's context function, or raise policy.max_context if the model allows it")
}

fn count(renderer: &Renderer, tools: &[Json], observation: &Observation) -> Result<usize> {
    match observation {
        Observation::Messages(messages) => renderer.count(messages, tools),
        Observation::Text(text) => renderer.tokenizer().encode(text).map(|ids| ids.len()),
        Observation::TokenIds(ids) => Ok(ids.len()),
    }
}

/// `messages[1] system 40, messages[2] user 812, template and tools 96`
fn sizes(renderer: &Renderer, observation: &Observation, tokens: usize) -> String {
    let messages = match observation {
        Observation::Messages(messages) => messages,
        Observation::Text(_) => return format!("its text {tokens}"),
        Observation::TokenIds(_) => return format!("its token_ids {tokens}"),
    };
    let size = |text: &str| renderer.tokenizer().encode(text).map_or(0, |ids| ids.len());
    let mut parts: Vec<(usize, &str, usize)> = messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let calls: usize = message.tool_calls.iter().map(|call| size(&call.arguments.to_string())).sum();
            let reasoning = message.reasoning_content.as_deref().map_or(0, size);
            (index + 1, message.role.name(), size(&message.content.text()) + calls + reasoning)
        })
        .collect();
    let listed: usize = parts.iter().map(|(.., size)| size).sum();
    parts.sort_by_key(|(index, _, size)| (std::cmp::Reverse(*size), *index));
    let rest = parts.split_off(parts.len().min(SHOWN));
    parts.sort_unstable();
    let mut text = String::new();
    for (index, role, size) in parts {
        let _ = write!(text, "messages[{index}] {role} {size}, ");
    }
    if !rest.is_empty() {
        let _ = write!(text, "{} shorter ones {}, ", rest.len(), rest.iter().map(|(.., size)| size).sum::<usize>());
    }
    let _ = write!(text, "template and tools {}", tokens.saturating_sub(listed));
    text
}
