//! How a policy writes tool calls and how results come back.
//!
//! A built-in format is one file in `formats`, which implements [`ToolFormat`], and one line in `formats::ALL`. A format of
//! a recipe's own is [`OwnFormat`](super::OwnFormat).

use std::sync::Arc;

use serde_json::Value;

use super::formats::native::{self, Ability};
use super::formats::{self, hermes, inside};
use super::stream::{Scan, Stream};
use super::template::Template;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Message, Role, ToolCall};

/// What the reading of a reply depends on.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    /// The prompt has opened a `<think>` block.
    pub begun: bool,
    /// What bare code is a call of.
    pub code_tool: &'a str,
    /// The tools' schemas: they say what is a number where the format does not.
    pub tools: &'a [Value],
}

/// A way to write tool calls. What is not the same for all formats is a method; those that most share have a default.
///
/// Built-in formats never fail. The functions of a recipe's own format may: their errors name the line of the script.
pub(super) trait ToolFormat: Send + Sync {
    /// The name in recipes.
    fn name(&self) -> &str;

    /// Tells apart formats of one name: the version of the script that defines it.
    #[allow(clippy::unnecessary_literal_bound)] // not where a recipe defines it
    fn version(&self) -> &str {
        ""
    }

    /// Whether a chat template is for this format. The first of `formats::ALL` that says so is `auto`.
    fn fits(&self, _template: &Template) -> bool {
        false
    }

    /// Reads one reply.
    fn scan<'a>(&'a self, reading: Reading<'a>) -> Box<dyn Scan + 'a>;

    /// An assistant's text with calls behind it, as the policy would have written them. There is at least one.
    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String>;

    /// Whether [`ToolFormat::write`] is there.
    fn can_write(&self) -> bool {
        true
    }

    /// Whether a message's text has its calls in it already.
    fn holds_call(&self, text: &str) -> Result<bool> {
        let reply = read(self.scan(Reading { begun: false, code_tool: "", tools: &[] }), text)?;
        Ok(!reply.tool_calls.is_empty() || !reply.errors.is_empty())
    }

    /// Strings that end a reply.
    fn stop_strings(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Special tokens that end a reply, besides the template's own end of turn.
    fn end_tokens(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a template may print behind a reply that is not the last, where it differs from how replies end.
    fn later_end(&self) -> Option<&'static str> {
        None
    }

    /// Whether the template is given calls to write, as the model was trained; otherwise they are text in the content.
    fn is_native(&self) -> bool {
        true
    }

    /// Whether the template must never see a reply's own headers, calls or not.
    fn hides_headers(&self) -> bool {
        false
    }

    /// Whether the template is given the tools. Where calls are plain text, its own words about calls would only
    /// contradict the prompt.
    fn shows_tools(&self) -> bool {
        true
    }

    /// Whether results are messages of the role `tool`, where the template prints them.
    fn uses_tool_role(&self) -> bool {
        true
    }

    /// Text for the system message that describes the tools, where the template does not.
    fn describe(&self, _tools: &[Value]) -> Result<Option<String>> {
        Ok(None)
    }

    /// Results inside the policy's own turn, for formats that have them there.
    fn inside(&self) -> Option<&dyn inside::Style> {
        None
    }

    /// The text of a user's message that holds results, in place of messages of the role `tool`.
    fn results(&self, _results: &[Message]) -> Result<Option<String>> {
        Ok(None)
    }
}

/// Reads a whole text.
pub(super) fn read(scan: Box<dyn Scan + '_>, text: &str) -> Result<Reply> {
    let mut stream = Stream::new(scan);
    stream.push_unread(text);
    Ok(stream.finish()?.1)
}

/// A tool-call format: a built-in one, or a recipe's own.
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

/// The tool that bare code calls unless another is named.
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

    /// The name in recipes.
    pub fn name(&self) -> &str {
        self.inner().name()
    }

    /// Whether a recipe defines it.
    pub fn is_own(&self) -> bool {
        matches!(self.0, Inner::Own(_))
    }

    /// The built-in format of this name.
    ///
    /// # Errors
    /// `Kind::Script` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::all().find(|format| format.name() == name).ok_or_else(|| Self::unknown(name, &[]))
    }

    /// The error for a name that is neither a built-in format nor one of `own`.
    pub fn unknown(name: &str, own: &[&str]) -> Error {
        let names = formats::ALL.iter().map(|format| format.name()).chain([AUTO]).chain(own.iter().copied());
        Error::new(Kind::Script, format!("unknown format `{name}`")).hint(suggest(name, names))
    }

    /// The built-in format that fits a chat template; Hermes where none does.
    pub fn of(template: &Template) -> Self {
        let fitting = formats::ALL.iter().find(|format| format.fits(template));
        Self(Inner::BuiltIn(fitting.copied().unwrap_or(&hermes::FORMAT)))
    }

    /// Reads a reply piece by piece. `begun`: the prompt has opened a `<think>` block. `code_tool` is what bare code is
    /// a call of. `tools`: their schemas say what is a number where the format does not.
    pub fn stream<'a>(&'a self, begun: bool, code_tool: &'a str, tools: &'a [Value]) -> Stream<'a> {
        Stream::new(self.inner().scan(Reading { begun, code_tool, tools }))
    }

    /// Reads a whole reply. What can't be read is in [`Reply::errors`].
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of a recipe's own format fails.
    pub fn read(&self, text: &str, begun: bool, code_tool: &str, tools: &[Value]) -> Result<Reply> {
        read(self.inner().scan(Reading { begun, code_tool, tools }), text)
    }

    /// An assistant's text with calls behind it, as the policy would have written them.
    ///
    /// # Errors
    /// `Kind::Script` if a recipe's own format has no `write`, or it fails.
    pub fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        if calls.is_empty() { Ok(text) } else { self.inner().write(text, calls) }
    }

    /// Whether it can write calls: a recipe's own format may have no `write`.
    pub fn can_write(&self) -> bool {
        self.inner().can_write()
    }

    /// A tool's result as a user's message shows it to a policy that has no place for messages of tools.
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

    /// A conversation's turns.
    pub(super) fn turns(
        &self,
        messages: &[Message],
        behind: &Behind<'_>,
        ability: Ability,
        begun: bool,
        tools: &[Value],
    ) -> Result<Vec<Turn>> {
        match self.inner().inside() {
            Some(style) => inside::turns(messages, behind, style),
            None => native::turns(self.inner(), messages, ability, begun, tools),
        }
    }

    /// Whether a reply that was not ended by an end-of-turn token waits for a result inside its own turn.
    pub(super) fn leaves_open(&self, reply: &str) -> bool {
        self.inner().inside().is_some_and(|style| style.waits(reply))
    }
}

/// What a list of messages goes on behind.
#[derive(Clone, Copy, Default)]
pub(super) struct Behind<'a> {
    /// The first message goes on in a turn of the policy that waits for a result.
    pub open: bool,
    /// The reply that waits.
    pub reply: &'a str,
}

/// What a reply says, read with a format.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The text without reasoning and, unless the format runs code out of it, without calls.
    pub content: String,
    /// What the policy thought: `<think>…</think>`, `[THINK]…[/THINK]`, or the channel `analysis`.
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// What was wrong with calls that could not be read, in words for the policy.
    pub errors: Vec<String>,
}

impl Reply {
    /// Whether two replies say the same; ids of calls are names, not words.
    pub(super) fn says(&self, other: &Self) -> bool {
        let calls = |reply: &'_ Self| -> Vec<(String, Value)> {
            reply.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect()
        };
        self.content == other.content
            && self.reasoning == other.reasoning
            && self.errors == other.errors
            && calls(self) == calls(other)
    }
}

/// One turn of a chat template: a message, or what a format merges into one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    pub role: Role,
    /// The content and who wrote it: `(text, by the policy)`.
    pub parts: Vec<(String, bool)>,
    /// Thinking that the content does not hold.
    pub reasoning: Option<String>,
    /// Calls that the content does not hold: the template writes them.
    pub calls: Vec<ToolCall>,
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

    /// An assistant's turn that ends with a result: the policy goes on inside it.
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
    fn an_unknown_format_names_the_nearest() {
        let error = Format::from_name("retol").map_err(|error| error.to_string());
        assert_eq!(error, Err("unknown format `retol`\n  hint: did you mean `retool`?".to_owned()));
        for format in Format::all() {
            assert_eq!(Format::from_name(format.name()), Ok(format));
        }
    }

    #[test]
    fn reasoning_is_split_off_the_front() {
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

    /// What each real template asks for. Prints the list.
    #[test]
    #[ignore = "needs the reference data: just test-data"]
    fn templates_say_their_format() {
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
