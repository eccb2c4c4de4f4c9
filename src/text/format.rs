//! How a policy writes tool calls and how results come back: [`Format`], and what the formats share.

use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Message, Role, ToolCall};

use super::{hermes, retool};

/// A way to write tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `<code>…</code>`, answered inside the same turn by `<interpreter>…</interpreter>` (ReTool, arXiv:2504.11536).
    Retool,
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, answered in a turn of its own (Hermes, Qwen2.5, Qwen3).
    Hermes,
}

impl Format {
    pub const ALL: [Self; 2] = [Self::Retool, Self::Hermes];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retool => "retool",
            Self::Hermes => "hermes",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            Error::new(Kind::Script, format!("unknown format `{name}`")).hint(suggest(name, Self::ALL.map(Self::name)))
        })
    }

    /// Strings that end a reply.
    pub(super) fn stop_strings(self) -> Vec<String> {
        match self {
            Self::Retool => vec![retool::CLOSE.to_owned()],
            Self::Hermes => Vec::new(),
        }
    }

    /// A conversation's turns. `open`: the first message goes on in a turn of the policy that waits for a result.
    pub(super) fn turns(self, messages: &[Message], open: bool) -> Vec<Turn> {
        match self {
            Self::Retool => retool::turns(messages, open),
            Self::Hermes => messages.iter().map(hermes::turn).collect(),
        }
    }

    /// Whether a reply that was not ended by an end-of-turn token waits for a result inside its own turn.
    pub(super) fn leaves_open(self, reply: &str) -> bool {
        self == Self::Retool && retool::waits(reply)
    }
}

/// What a reply says, read with a format.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The text without reasoning and (Hermes) without calls.
    pub content: String,
    /// What stood in `<think>…</think>`.
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// What was wrong with calls that could not be read, in words for the policy.
    pub errors: Vec<String>,
}

/// One turn of a chat template: a message, or what a format merges into one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    pub role: Role,
    /// The content and who wrote it: `(text, by the policy)`.
    pub parts: Vec<(String, bool)>,
    /// Thinking that the content does not hold.
    pub reasoning: Option<String>,
    pub name: Option<String>,
    pub tool_call_id: Option<String>,
    /// The policy ended the turn itself; otherwise the environment did, or it is still open.
    pub ended: bool,
    /// Goes on where an earlier turn, not in this list, stopped.
    pub continued: bool,
}

impl Turn {
    pub(super) fn new(role: Role, text: String) -> Self {
        let sampled = role == Role::Assistant;
        Self {
            role,
            parts: vec![(text, sampled)],
            reasoning: None,
            name: None,
            tool_call_id: None,
            ended: sampled,
            continued: false,
        }
    }

    pub(super) fn content(&self) -> String {
        self.parts.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// An assistant's turn that ends with a result: the policy goes on inside it.
    pub(super) fn is_answered(&self) -> bool {
        self.role == Role::Assistant && self.parts.last().is_some_and(|(_, sampled)| !sampled)
    }
}

/// Splits thinking off the front: `<think>a</think>b` is `(Some(a), b)`. With `begun`, the prompt has opened the
/// block already. Thinking that never ends is all there is.
pub(super) fn split_reasoning(text: &str, begun: bool) -> (Option<&str>, &str) {
    let inner = match text.trim_start().strip_prefix("<think>") {
        Some(inner) => inner,
        None if begun => text,
        None => return (None, text),
    };
    let (reasoning, rest) = inner.split_once("</think>").unwrap_or((inner, ""));
    (Some(reasoning.trim()).filter(|reasoning| !reasoning.is_empty()), rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;
    use crate::text::testing::shared;

    /// Recorded cases of vLLM for Qwen3 and DeepSeek-R1, whose prompts open the block.
    #[test]
    fn recorded_reasoning_agrees() {
        let Some(dir) = shared("tool-call-parsers") else { return };
        let mut good = 0;
        for line in std::fs::read_to_string(dir.join("reasoning.jsonl")).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let parser = row["parser"].as_str().unwrap();
            if row["kind"] != "complete" || !(parser.starts_with("Qwen3") || parser.starts_with("DeepSeekR1")) {
                continue;
            }
            let begun = !row["test"].as_str().unwrap().contains("thinking_disabled");
            let reply = hermes::parse(row["input"].as_str().unwrap(), begun);
            let expected = |key: &str| row["expected"][key].as_str().unwrap_or_default().trim().to_owned();
            assert_eq!(reply.reasoning.unwrap_or_default(), expected("reasoning"), "{row}");
            // Calls in another format than Hermes are errors here, and content there.
            if reply.errors.is_empty() {
                assert_eq!(reply.content, expected("content"), "{row}");
            }
            good += 1;
        }
        eprintln!("reasoning cases: {good} agree");
        assert!(good > 5);
    }

    #[test]
    fn an_unknown_format_names_the_nearest() {
        let error = Format::from_name("retol").map_err(|error| error.to_string());
        assert_eq!(error, Err("unknown format `retol`\n  hint: did you mean `retool`?".to_owned()));
        assert_eq!(Format::from_name("hermes"), Ok(Format::Hermes));
    }

    #[test]
    fn reasoning_is_split_off_the_front() {
        for (text, begun, reasoning, rest) in [
            ("plain", false, None, "plain"),
            ("<think>\na\n</think>\n\nb", false, Some("a"), "\n\nb"),
            (" \n<think>a</think>", false, Some("a"), ""),
            ("<think></think>b", false, None, "b"),
            ("<think>never ends", false, Some("never ends"), ""),
            ("b <think>a</think>", false, None, "b <think>a</think>"),
            ("a</think>b", false, None, "a</think>b"),
            ("a</think>b", true, Some("a"), "b"),
            ("<think>a</think>b", true, Some("a"), "b"),
        ] {
            assert_eq!(split_reasoning(text, begun), (reasoning, rest), "{text:?}");
        }
    }
}
