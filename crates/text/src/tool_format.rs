//! A tool-call format as data, and what formats read and write: replies and turns.

use serde_json::Value;

use super::formats::code_block::CodeSyntax;
use super::stream::{FormatParser, THINK};
use super::template::Template;
use r1_base::mdp::{Role, ToolCall};

/// A tool-call format.
#[allow(clippy::struct_excessive_bools)] // independent of each other
pub(super) struct ToolFormat {
    /// The name used in recipes.
    pub name: &'static str,
    /// Whether the format fits a chat template. `auto` is the first of `formats::ALL` that fits.
    pub fits: fn(&Template) -> bool,
    /// How calls are written, for a description by the host; an example of a call follows it.
    /// `None` for formats that describe tools themselves.
    pub syntax: Option<&'static str>,
    /// A call that shows the syntax, from the tools and the tool that bare code calls; `None`: a
    /// call of the first tool.
    pub example: fn(&[Value], &str) -> Option<ToolCall>,
    /// Tags around reasoning at the start of a reply; a prompt may open the first pair.
    pub thinking: &'static [(&'static str, &'static str)],
    /// Tags that start a call: they end reasoning that is not closed.
    pub call_tags: &'static [&'static str],
    /// Special tokens that end a reply, in addition to the template's end-of-turn token.
    pub end_tokens: &'static [&'static str],
    /// The text that a template may print after a reply that is not the last one, if it differs
    /// from the end-of-turn token.
    pub later_end: Option<&'static str>,
    /// Whether calls are passed to the template, as in the model's own training; otherwise they are
    /// part of the content.
    pub is_native: bool,
    /// Whether a reply's own headers must be removed before rendering, even without calls.
    pub hides_headers: bool,
    /// Whether the tools are passed to the template. For formats with plain-text calls the
    /// template's own instructions about calls would contradict the prompt.
    pub shows_tools: bool,
    /// Whether results are messages with the role `tool`, for templates that print them.
    pub uses_tool_role: bool,
    /// A parser for one reply, from the tool that bare code calls and the tools' JSON schemas,
    /// which give the types of arguments where the format has none.
    pub scan: for<'a> fn(&'a str, &'a [Value]) -> Box<dyn FormatParser + 'a>,
    /// Appends calls to an assistant's text as the policy would write them.
    pub write: fn(String, &[ToolCall]) -> String,
    /// Whether a message's text already contains its calls; `None`: it is parsed.
    pub holds_call: Option<fn(&str) -> bool>,
    /// For formats that run programs, with results inside the policy's own turn.
    pub code: Option<&'static CodeSyntax>,
}

/// A parser to which every text is content.
struct TextParser;

impl FormatParser for TextParser {}

impl ToolFormat {
    /// Text without calls: what most formats agree on.
    pub(super) const TEXT: Self = Self {
        name: "",
        fits: |_| false,
        syntax: None,
        example: |_, _| None,
        thinking: THINK,
        call_tags: &[],
        end_tokens: &[],
        later_end: None,
        is_native: true,
        hides_headers: false,
        shows_tools: true,
        uses_tool_role: true,
        scan: |_, _| Box::new(TextParser),
        write: |text, _| text,
        holds_call: None,
        code: None,
    };

    /// A recipe's own format, apart from its functions.
    pub(super) const OWN: Self = Self { is_native: false, shows_tools: false, ..Self::TEXT };
}

/// The state before a list of messages.
#[derive(Clone, Copy, Default)]
pub(super) struct Preceding<'a> {
    /// The first message continues a turn of the policy that waits for a result.
    pub open: bool,
    /// The reply that waits.
    pub reply: &'a str,
}

/// What a format reads in a response; `step` of a script gets it as `action`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The text without reasoning and without calls; code that a format runs stays in it.
    pub content: String,
    /// The reasoning: `<think>…</think>`, `[THINK]…[/THINK]`, or the channel `analysis`.
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// Error messages for the policy, one per call that could not be parsed.
    pub errors: Vec<String>,
}

impl Reply {
    /// Whether two replies are equal except for the ids of their calls.
    pub(super) fn equals_without_ids(&self, other: &Self) -> bool {
        let calls = |reply: &'_ Self| -> Vec<(String, Value)> {
            reply.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect()
        };
        self.content == other.content
            && self.reasoning == other.reasoning
            && self.errors == other.errors
            && calls(self) == calls(other)
    }
}

/// One turn of a chat template: one message, or several that a format merges.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    pub role: Role,
    /// The content: `(text, written by the policy)`.
    pub parts: Vec<(String, bool)>,
    /// Reasoning that is not part of the content.
    pub reasoning: Option<String>,
    /// Calls that are not part of the content: the template renders them.
    pub calls: Vec<ToolCall>,
    pub name: Option<String>,
    pub tool_call_id: Option<String>,
    /// The policy ended the turn itself; otherwise the environment ended it, or it is still open.
    pub ended: bool,
    /// Continues an earlier turn that is not in this list.
    pub continued: bool,
}

impl Turn {
    pub(super) fn new(role: Role, text: String) -> Self {
        let sampled = role == Role::Assistant;
        Self {
            role,
            parts: vec![(text, sampled)],
            reasoning: None,
            calls: Vec::new(),
            name: None,
            tool_call_id: None,
            ended: sampled,
            continued: false,
        }
    }

    pub(super) fn content(&self) -> String {
        self.parts.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// An assistant's turn that ends with a result, so that the policy continues in it.
    pub(super) fn is_answered(&self) -> bool {
        self.role == Role::Assistant && self.parts.last().is_some_and(|(_, sampled)| !sampled)
    }
}
