//! Tool-call formats: how a policy writes tool calls and how it receives the results.
//!
//! A built-in format is a [`ToolFormat`] in one file of `formats`, and one line in `formats::ALL`.
//! [`OwnFormat`] is a format defined by a recipe.

use std::sync::Arc;

use serde_json::Value;

use super::formats::native::{self, TemplateSupport};
use super::formats::own::{self, OwnFormat};
use super::formats::shared::on_a_line;
use super::formats::{self, hermes, same_turn};
use super::stream::{ReplyStream, Think};
use super::template::Template;
use super::tool_format::{Preceding, Reply, ToolFormat, Turn};
use r1_base::error::{Error, Kind, Result, suggest};
use r1_base::mdp::{Message, ToolCall};

/// A tool-call format: built in, or defined by a recipe.
#[derive(Clone)]
pub struct Format {
    rules: &'static ToolFormat,
    recipe_format: Option<Arc<dyn OwnFormat + Send + Sync>>,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        let version =
            |format: &Self| format.recipe_format().map(|recipe_format| recipe_format.options().version.clone());
        self.name() == other.name() && version(self) == version(other)
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
        formats::ALL.iter().map(|rules| Self { rules, recipe_format: None })
    }

    /// A format defined by a recipe.
    pub fn of_recipe(format: impl OwnFormat + Send + Sync + 'static) -> Self {
        Self { rules: &ToolFormat::OWN, recipe_format: Some(Arc::new(format)) }
    }

    pub(super) fn rules(&self) -> &'static ToolFormat {
        self.rules
    }

    /// The functions of a recipe's format.
    pub(super) fn recipe_format(&self) -> Option<&dyn OwnFormat> {
        self.recipe_format.as_deref().map(|recipe_format| recipe_format as &dyn OwnFormat)
    }

    /// The name used in recipes.
    pub fn name(&self) -> &str {
        self.recipe_format().map_or(self.rules.name, |recipe_format| &recipe_format.options().name)
    }

    /// Whether a recipe defines it.
    pub fn is_own(&self) -> bool {
        self.recipe_format.is_some()
    }

    /// The built-in format with this name.
    ///
    /// # Errors
    /// `Kind::Script` with the nearest names.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::all().find(|format| format.name() == name).ok_or_else(|| Self::unknown(name, &[]))
    }

    /// The error for a name that is neither a built-in format nor in `recipe_names`.
    pub fn unknown(name: &str, recipe_names: &[&str]) -> Error {
        let names = formats::ALL.iter().map(|format| format.name).chain([AUTO]).chain(recipe_names.iter().copied());
        Error::new(Kind::Script, format!("unknown format `{name}`")).hint(suggest(name, names))
    }

    /// The built-in format that fits a chat template; Hermes if none does.
    pub fn of(template: &Template) -> Self {
        let fitting = formats::ALL.iter().find(|format| (format.fits)(template));
        Self { rules: fitting.copied().unwrap_or(&hermes::FORMAT), recipe_format: None }
    }

    /// A streaming parser for a reply. `begun`: the prompt has opened a `<think>` block.
    /// `code_tool`: the tool that bare code calls. `tools`: their JSON schemas give the types of
    /// arguments where the format has none.
    pub fn stream<'a>(&'a self, begun: bool, code_tool: &'a str, tools: &'a [Value]) -> ReplyStream<'a> {
        if let Some(recipe_format) = self.recipe_format() {
            return own::stream(recipe_format, begun, tools);
        }
        let think = Think::new(begun, self.rules.thinking, self.rules.call_tags);
        ReplyStream::new(think, (self.rules.scan)(code_tool, tools))
    }

    /// Parses a complete reply. [`Reply::errors`] has the calls that can't be parsed.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of a recipe's own format fails.
    pub fn read(&self, text: &str, begun: bool, code_tool: &str, tools: &[Value]) -> Result<Reply> {
        self.stream(begun, code_tool, tools).read_whole(text)
    }

    /// Whether a message's text already contains its calls.
    pub(super) fn holds_call(&self, text: &str) -> Result<bool> {
        if let Some(holds_call) = self.rules.holds_call {
            return Ok(holds_call(text));
        }
        let reply = self.read(text, false, "", &[])?;
        Ok(!reply.tool_calls.is_empty() || !reply.errors.is_empty())
    }

    /// Appends calls to an assistant's text as the policy would write them.
    ///
    /// # Errors
    /// `Kind::Script` if a recipe's own format has no `write`, or it fails.
    pub fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        match self.recipe_format() {
            _ if calls.is_empty() => Ok(text),
            Some(recipe_format) => Ok(on_a_line(text, &recipe_format.write(calls)?)),
            None => Ok((self.rules.write)(text, calls)),
        }
    }

    /// Whether calls can be written: a recipe's own format may lack `write`.
    pub fn can_write(&self) -> bool {
        self.recipe_format().is_none_or(|recipe_format| recipe_format.options().writes)
    }

    /// The text that shows results to the policy, by a function of the recipe.
    pub(super) fn own_results(&self, results: &[Message]) -> Result<Option<String>> {
        self.recipe_format().map_or(Ok(None), |recipe_format| recipe_format.results(results))
    }

    /// Strings that end a reply.
    pub fn stop_strings(&self) -> Vec<&str> {
        match self.recipe_format() {
            Some(recipe_format) => recipe_format.options().stop.iter().map(String::as_str).collect(),
            None => self.rules.code.map(|code| code.stop).into_iter().collect(),
        }
    }

    pub(super) fn turns(
        &self,
        messages: &[Message],
        preceding: &Preceding<'_>,
        ability: TemplateSupport,
        begun: bool,
        tools: &[Value],
    ) -> Result<Vec<Turn>> {
        if self.is_same_turn() {
            same_turn::turns(messages, preceding, self)
        } else {
            native::turns(self, messages, ability, begun, tools)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;
    use crate::reference_data::reference_data;
    use crate::testing::format;

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
        let mut counts: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                *counts.entry(of(path.file_stem().unwrap().to_str().unwrap()).name().to_owned()).or_default() += 1;
            }
        }
        eprintln!("formats of {} templates: {counts:?}", counts.values().sum::<usize>());
    }
}
