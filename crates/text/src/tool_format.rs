//! The trait of tool-call formats, and what it reads and writes: replies and turns.

use serde_json::Value;

use super::formats::same_turn;
use super::stream::{FormatParser, ReplyStream};
use super::template::Template;
use r1_base::error::Result;
use r1_base::mdp::{Message, Role, ToolCall};

/// Options for parsing a reply.
#[derive(Clone, Copy)]
pub(super) struct ReadOptions<'a> {
    /// The prompt has opened a `<think>` block.
    pub begun: bool,
    /// The tool that bare code calls.
    pub code_tool: &'a str,
    /// The tools' JSON schemas: they give the types of arguments where the format has none.
    pub tools: &'a [Value],
}

/// A tool-call format. Methods with a default are those for which most formats agree.
///
/// Built-in formats do not fail. The functions of a recipe's own format may: their errors name the
/// line of the script.
pub(super) trait ToolFormat: Send + Sync {
    /// The name used in recipes.
    fn name(&self) -> &str;

    /// Distinguishes formats of the same name: the version of the script that defines it.
    #[allow(clippy::unnecessary_literal_bound)] // not where a recipe defines it
    fn version(&self) -> &str {
        ""
    }

    /// Whether the format fits a chat template. `auto` is the first of `formats::ALL` that fits.
    fn fits(&self, _template: &Template) -> bool {
        false
    }

    /// Returns a parser for one reply.
    fn scan<'a>(&'a self, options: ReadOptions<'a>) -> Box<dyn FormatParser + 'a>;

    /// Appends calls to an assistant's text as the policy would write them. `calls` is not empty.
    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String>;

    /// Whether [`ToolFormat::write`] is supported.
    fn can_write(&self) -> bool {
        true
    }

    /// Whether a message's text already contains its calls.
    fn holds_call(&self, text: &str) -> Result<bool> {
        let reply = read(self.scan(ReadOptions { begun: false, code_tool: "", tools: &[] }), text)?;
        Ok(!reply.tool_calls.is_empty() || !reply.errors.is_empty())
    }

    /// Strings that end a reply.
    fn stop_strings(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Special tokens that end a reply, in addition to the template's end-of-turn token.
    fn end_tokens(&self) -> &'static [&'static str] {
        &[]
    }

    /// The text that a template may print after a reply that is not the last one, if it differs
    /// from the end-of-turn token.
    fn later_end(&self) -> Option<&'static str> {
        None
    }

    /// Whether calls are passed to the template, as in the model's own training; otherwise they are
    /// part of the content.
    fn is_native(&self) -> bool {
        true
    }

    /// Whether a reply's own headers must be removed before rendering, even without calls.
    fn hides_headers(&self) -> bool {
        false
    }

    /// Whether the tools are passed to the template. For formats with plain-text calls the
    /// template's own instructions about calls would contradict the prompt.
    fn shows_tools(&self) -> bool {
        true
    }

    /// Whether results are messages with the role `tool`, for templates that print them.
    fn uses_tool_role(&self) -> bool {
        true
    }

    /// Text for the system message that describes the tools, if the template does not.
    fn describe(&self, _tools: &[Value]) -> Result<Option<String>> {
        Ok(None)
    }

    /// How calls are written, for a description by the host; an example of a call follows it.
    /// `None` for formats that describe tools themselves.
    fn syntax(&self) -> Option<&'static str> {
        None
    }

    /// A call that shows the syntax; `None`: a call of the first tool.
    fn example(&self, _tools: &[Value], _code_tool: &str) -> Option<ToolCall> {
        None
    }

    /// For formats with results inside the policy's own turn.
    fn inside(&self) -> Option<&dyn same_turn::SameTurn> {
        None
    }

    /// The text of a user message that holds the results, instead of messages with the role `tool`.
    fn results(&self, _results: &[Message]) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Parses a complete text.
pub(super) fn read(scan: Box<dyn FormatParser + '_>, text: &str) -> Result<Reply> {
    let mut stream = ReplyStream::new(scan);
    stream.push_unread(text);
    Ok(stream.finish()?.1)
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
