//! Tool-call formats: how a policy writes tool calls and how it receives the results.
//!
//! A built-in format is one file in `formats` that implements [`ToolFormat`], and one line in
//! `formats::ALL`. [`OwnFormat`](super::OwnFormat) is a format defined by a recipe.

use std::sync::Arc;

use serde_json::Value;

use super::formats::native::{self, Ability};
use super::formats::{self, hermes, inside};
use super::stream::{Scan, Stream};
use super::template::Template;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Message, Role, ToolCall};

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
    fn scan<'a>(&'a self, options: ReadOptions<'a>) -> Box<dyn Scan + 'a>;

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

    /// What a template may print after a reply that is not the last one, if it differs from the
    /// end-of-turn token.
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

    /// For formats with results inside the policy's own turn.
    fn inside(&self) -> Option<&dyn inside::Style> {
        None
    }

    /// The text of a user message that holds the results, instead of messages with the role `tool`.
    fn results(&self, _results: &[Message]) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Parses a complete text.
pub(super) fn read(scan: Box<dyn Scan + '_>, text: &str) -> Result<Reply> {
    let mut stream = Stream::new(scan);
    stream.push_unread(text);
    Ok(stream.finish()?.1)
}

/// A tool-call format: built in, or defined by a recipe.
#[derive(Clone)]
pub struct Format(Inner);

#[derive(Clone)]
enum Inner {
    BuiltIn(&'static dyn ToolFormat),
    Own(Arc<dyn ToolFormat>),
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        let (own, other) = (self.inner(), other.inner());
        own.name() == other.name() && own.version() == other.version()
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of the format that fits the chat template.
pub const AUTO: &str = "auto";

/// The tool that bare code calls by default.
pub const CODE_TOOL: &str = "python";

impl Format {
    /// Every built-in format.
    pub fn all() -> impl Iterator<Item = Self> {
        formats::ALL.iter().map(|format| Self(Inner::BuiltIn(*format)))
    }

    pub(super) fn own(format: Arc<dyn ToolFormat>) -> Self {
        Self(Inner::Own(format))
    }

    pub(super) fn inner(&self) -> &dyn ToolFormat {
        match &self.0 {
            Inner::BuiltIn(format) => *format,
            Inner::Own(format) => format.as_ref(),
        }
    }

    /// The name used in recipes.
    pub fn name(&self) -> &str {
        self.inner().name()
    }

    /// Whether a recipe defines it.
    pub fn is_own(&self) -> bool {
        matches!(self.0, Inner::Own(_))
    }

    /// The built-in format with this name.
    ///
    /// # Errors
    /// `Kind::Script` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::all().find(|format| format.name() == name).ok_or_else(|| Self::unknown(name, &[]))
    }

    /// The error for a name that is neither a built-in format nor in `own`.
    pub fn unknown(name: &str, own: &[&str]) -> Error {
        let names = formats::ALL.iter().map(|format| format.name()).chain([AUTO]).chain(own.iter().copied());
        Error::new(Kind::Script, format!("unknown format `{name}`")).hint(suggest(name, names))
    }

    /// The built-in format that fits a chat template; Hermes if none does.
    pub fn of(template: &Template) -> Self {
        let fitting = formats::ALL.iter().find(|format| format.fits(template));
        Self(Inner::BuiltIn(fitting.copied().unwrap_or(&hermes::FORMAT)))
    }

    /// A streaming parser for a reply. `begun`: the prompt has opened a `<think>` block.
    /// `code_tool`: the tool that bare code calls. `tools`: their JSON schemas give the types of
    /// arguments where the format has none.
    pub fn stream<'a>(&'a self, begun: bool, code_tool: &'a str, tools: &'a [Value]) -> Stream<'a> {
        Stream::new(self.inner().scan(ReadOptions { begun, code_tool, tools }))
    }

    /// Parses a complete reply. [`Reply::errors`] has the calls that can't be parsed.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of a recipe's own format fails.
    pub fn read(&self, text: &str, begun: bool, code_tool: &str, tools: &[Value]) -> Result<Reply> {
        read(self.inner().scan(ReadOptions { begun, code_tool, tools }), text)
    }

    /// Appends calls to an assistant's text as the policy would write them.
    ///
    /// # Errors
    /// `Kind::Script` if a recipe's own format has no `write`, or it fails.
    pub fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        if calls.is_empty() { Ok(text) } else { self.inner().write(text, calls) }
    }

    /// Whether calls can be written: a recipe's own format may lack `write`.
    pub fn can_write(&self) -> bool {
        self.inner().can_write()
    }

    /// A tool's result as the text of a user message, for templates without the role `tool`.
    ///
    /// # Errors
    /// `Kind::Script` if `result` of a recipe's own format fails.
    pub fn result(&self, message: &Message) -> Result<String> {
        let format = self.inner();
        if let Some(style) = format.inside() {
            return style.stray(std::slice::from_ref(message));
        }
        Ok(format.results(std::slice::from_ref(message))?.unwrap_or_else(|| message.content.text()))
    }

    /// Strings that end a reply.
    pub fn stop_strings(&self) -> Vec<&str> {
        self.inner().stop_strings()
    }

    /// The turns of a conversation.
    pub(super) fn turns(
        &self,
        messages: &[Message],
        preceding: &Preceding<'_>,
        ability: Ability,
        begun: bool,
        tools: &[Value],
    ) -> Result<Vec<Turn>> {
        match self.inner().inside() {
            Some(style) => inside::turns(messages, preceding, style),
            None => native::turns(self.inner(), messages, ability, begun, tools),
        }
    }

    /// Whether a reply without an end-of-turn token waits for a result inside its own turn.
    pub(super) fn leaves_open(&self, reply: &str) -> bool {
        self.inner().inside().is_some_and(|style| style.waits(reply))
    }
}

/// The state before a list of messages.
#[derive(Clone, Copy, Default)]
pub(super) struct Preceding<'a> {
    /// The first message continues a turn of the policy that waits for a result.
    pub open: bool,
    /// The reply that waits.
    pub reply: &'a str,
}

/// A parsed reply.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;
    use crate::reference_data::reference_data;
    use crate::text::testing::format;

    #[test]
    fn an_unknown_tool_call_format_names_the_nearest() {
        let error = Format::from_name("retol").map_err(|error| error.to_string());
        assert_eq!(error, Err("unknown format `retol`\n  hint: did you mean `retool`?".to_owned()));
        for format in Format::all() {
            assert_eq!(Format::from_name(format.name()), Ok(format));
        }
    }

    #[test]
    fn reasoning_is_split_off_the_start_of_a_reply() {
        for (text, begun, reasoning, rest) in [
            ("plain", false, None, "plain"),
            ("<think>\na\n</think>\n\nb", false, Some("a"), "b"),
            (" \n<think>a</think>", false, Some("a"), ""),
            ("<think></think>b", false, None, "b"),
            ("<think>never ends", false, Some("never ends"), ""),
            ("b <think>a</think>", false, None, "b <think>a</think>"),
            ("a</think>b", false, None, "a</think>b"),
            ("a</think>b", true, Some("a"), "b"),
            ("<think>a</think>b", true, Some("a"), "b"),
        ] {
            let reply = format("hermes").read(text, begun, "python", &[]).unwrap();
            assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (reasoning, rest), "{text:?}");
        }
    }

    /// The format chosen for each real template. Prints the list.
    #[test]
    #[ignore = "needs the reference data: just test-data"]
    fn chat_templates_select_their_tool_call_format() {
        let dir = reference_data("chat-templates/templates");
        let of = |name: &str| {
            let source = std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap();
            Format::of(&Template::new(&source, None, name, "", "").unwrap())
        };
        for (name, expected) in [
            ("llamacpp__Qwen-Qwen2.5-7B-Instruct", "hermes"),
            ("llamacpp__Qwen-Qwen3-0.6B", "hermes"),
            ("llamacpp__NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes"),
            ("llamacpp__Qwen3-Coder", "qwen3_coder"),
            ("llamacpp__Qwen3.5-4B", "qwen3_coder"),
            ("llamacpp__meta-llama-Llama-3.1-8B-Instruct", "llama3"),
            ("llamacpp__meta-llama-Llama-3.2-3B-Instruct", "llama3"),
            ("vllm__tool_chat_template_llama3.2_pythonic", "pythonic"),
            ("sglang__tool_chat_template_llama4_pythonic", "pythonic"),
            ("llamacpp__mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
            ("llamacpp__mistralai-Ministral-3-14B-Reasoning-2512", "mistral"),
            ("llamacpp__deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3"),
            ("sglang__tool_chat_template_deepseekv3", "deepseek_v3"),
            ("llamacpp__deepseek-ai-DeepSeek-V3.1", "deepseek_v31"),
            ("llamacpp__openai-gpt-oss-120b", "harmony"),
            ("llamacpp__google-gemma-2-2b-it", "hermes"),
        ] {
            assert_eq!(of(name).name(), expected, "{name}");
        }
        let mut found: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                *found.entry(of(path.file_stem().unwrap().to_str().unwrap()).name().to_owned()).or_default() += 1;
            }
        }
        eprintln!("formats of {} templates: {found:?}", found.values().sum::<usize>());
    }
}
