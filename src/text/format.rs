//! How a policy writes tool calls and how results come back: [`Format`], and what the formats share.

use serde_json::Value;

use super::formats::native::Ability;
use super::formats::{
    answer, deepseek, harmony, hermes, inside, llama, mistral, native, pythonic, qwen_coder, retool, tir,
};
use super::stream::{Scan, Stream};
use super::template::Template;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Message, Role, ToolCall};

/// A way to write tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, answered in a turn of its own (Hermes, Qwen2.5, Qwen3).
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>…` (Qwen3-Coder, Qwen3.5).
    QwenCoder,
    /// `{"name": …, "parameters": …}`, with or without `<|python_tag|>` (Llama 3).
    Llama,
    /// `[name(key="value"), …]` (Llama 3.2 and 4, Gemma 3, OLMo 3).
    Pythonic,
    /// `[TOOL_CALLS]…`, as a list or with `[ARGS]` (Mistral, Magistral, Devstral).
    Mistral,
    /// `<｜tool▁calls▁begin｜>…` with fenced JSON (DeepSeek V3 and R1).
    DeepSeekV3,
    /// The same with bare JSON (DeepSeek V3.1).
    DeepSeekV31,
    /// Channels and recipients (gpt-oss).
    Harmony,
    /// `<code>…</code>`, answered inside the same turn by `<interpreter>…</interpreter>` (ReTool, arXiv:2504.11536).
    Retool,
    /// A Markdown program and ```` ```output ````, answered inside the same turn (ToRA, MathTIR, ToRL).
    Tir,
    /// `<think>…</think><answer>a || b</answer>`, an action a call (RAGEN, arXiv:2504.20073).
    Answer,
}

/// The name of the format that a chat template asks for.
pub const AUTO: &str = "auto";

/// The tool that bare code calls unless told otherwise.
pub const CODE_TOOL: &str = "python";

impl Format {
    pub const ALL: [Self; 11] = [
        Self::Hermes,
        Self::QwenCoder,
        Self::Llama,
        Self::Pythonic,
        Self::Mistral,
        Self::DeepSeekV3,
        Self::DeepSeekV31,
        Self::Harmony,
        Self::Retool,
        Self::Tir,
        Self::Answer,
    ];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hermes => "hermes",
            Self::QwenCoder => "qwen3_coder",
            Self::Llama => "llama3",
            Self::Pythonic => "pythonic",
            Self::Mistral => "mistral",
            Self::DeepSeekV3 => "deepseek_v3",
            Self::DeepSeekV31 => "deepseek_v31",
            Self::Harmony => "harmony",
            Self::Retool => "retool",
            Self::Tir => "tir",
            Self::Answer => "answer",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).into_iter().chain([AUTO]);
            Error::new(Kind::Script, format!("unknown format `{name}`")).hint(suggest(name, names))
        })
    }

    /// The format of this name; `auto` is what the template asks for.
    pub fn named(name: &str, template: &Template) -> Result<Self> {
        if name == AUTO { Ok(Self::of(template)) } else { Self::from_name(name) }
    }

    /// The format that a chat template's own words ask for; Hermes where it says nothing of calls.
    pub fn of(template: &Template) -> Self {
        let has = |text: &str| template.says(text);
        if has("<|channel|>") && has("<|message|>") {
            Self::Harmony
        } else if has("[TOOL_CALLS]") {
            Self::Mistral
        } else if has("<｜tool▁calls▁begin｜>") {
            if has("```json") { Self::DeepSeekV3 } else { Self::DeepSeekV31 }
        } else if has("<function=") && has("<parameter=") {
            Self::QwenCoder
        } else if has("<tool_call>") {
            Self::Hermes
        } else if has("func_name1(param") || has("<function_calls>") || has("<|python_start|>") {
            Self::Pythonic
        } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) {
            Self::Llama
        } else {
            Self::Hermes
        }
    }

    /// Reads a reply piece by piece. `begun`: the prompt has opened a `<think>` block. `code_tool` is what bare code is
    /// a call of. `tools`: their schemas say what is a number where the format doesn't.
    pub fn stream<'a>(self, begun: bool, code_tool: &'a str, tools: &'a [Value]) -> Stream<'a> {
        let scan: Box<dyn Scan + 'a> = match self {
            Self::Hermes => Box::new(hermes::Hermes::new(begun)),
            Self::QwenCoder => Box::new(qwen_coder::QwenCoder::new(begun, tools)),
            Self::Llama => Box::new(llama::Llama::new(begun, code_tool)),
            Self::Pythonic => Box::new(pythonic::Pythonic::new(begun)),
            Self::Mistral => Box::new(mistral::Mistral::new(begun)),
            Self::DeepSeekV3 | Self::DeepSeekV31 => Box::new(deepseek::DeepSeek::new(begun)),
            Self::Harmony => Box::new(harmony::Harmony::new(code_tool)),
            Self::Retool => Box::new(retool::Retool::new(begun, code_tool)),
            Self::Tir => Box::new(tir::Tir::new(begun, code_tool)),
            Self::Answer => Box::new(answer::Answer::new(begun)),
        };
        Stream::new(scan)
    }

    /// Reads a whole reply. Never fails: what can't be read is told in [`Reply::errors`].
    pub fn read(self, text: &str, begun: bool, code_tool: &str, tools: &[Value]) -> Reply {
        let mut stream = self.stream(begun, code_tool, tools);
        stream.push_unread(text);
        stream.finish().1
    }

    /// An assistant's text with calls behind it, as the policy would have written them.
    pub fn write(self, text: String, calls: &[ToolCall]) -> String {
        match self {
            _ if calls.is_empty() => text,
            Self::Hermes => calls.iter().fold(text, hermes::write),
            Self::QwenCoder => calls.iter().fold(text, qwen_coder::write),
            Self::Llama => llama::write(text, calls),
            Self::Pythonic => pythonic::write(text, calls),
            Self::Mistral => mistral::write(text, calls),
            Self::DeepSeekV3 => deepseek::write(text, calls, true),
            Self::DeepSeekV31 => deepseek::write(text, calls, false),
            Self::Harmony => harmony::write(text, calls),
            Self::Retool => calls.iter().fold(text, retool::write),
            Self::Tir => calls.iter().fold(text, tir::write),
            Self::Answer => answer::write(text, calls),
        }
    }

    /// A tool's output as the policy's turn would hold it, for those who can't write in that turn; bare in a format
    /// that answers in turns of their own.
    pub fn result(self, output: &str) -> String {
        match self {
            Self::Retool => (retool::STYLE.result)(output),
            Self::Tir => (tir::STYLE.result)(output),
            _ => output.to_owned(),
        }
    }

    /// Strings that end a reply.
    pub fn stop_strings(self) -> &'static [&'static str] {
        match self {
            Self::Retool => &[retool::CLOSE],
            Self::Tir => &[tir::OUTPUT],
            _ => &[],
        }
    }

    /// Special tokens that end a reply, besides the template's own end of turn.
    pub(super) fn end_tokens(self) -> &'static [&'static str] {
        match self {
            Self::Harmony => &["<|call|>", "<|return|>"],
            Self::Llama => &["<|eot_id|>", "<|eom_id|>"],
            _ => &[],
        }
    }

    /// What a template may print behind a reply that is not the last, where it differs from how replies end.
    pub(super) fn later_end(self) -> Option<&'static str> {
        (self == Self::Harmony).then_some("<|end|>")
    }

    /// Whether the template is given calls to write, as the model was trained; otherwise they are text in the content.
    pub(super) fn is_native(self) -> bool {
        !matches!(self, Self::Hermes | Self::Retool | Self::Tir | Self::Answer)
    }

    /// Whether the template must never see a reply's own headers, calls or not.
    pub(super) fn hides_headers(self) -> bool {
        self == Self::Harmony
    }

    /// Whether the template is told of the tools. Where calls are plain text, its own words about calls would only
    /// contradict the prompt.
    pub(super) fn shows_tools(self) -> bool {
        !matches!(self, Self::Retool | Self::Tir | Self::Answer)
    }

    /// Whether a message's text has its calls in it already.
    pub(super) fn holds_call(self, text: &str) -> bool {
        match self {
            Self::Hermes => hermes::holds_call(text),
            Self::QwenCoder => qwen_coder::holds_call(text),
            Self::Answer => answer::holds_call(text),
            _ => {
                let reply = self.read(text, false, "", &[]);
                !reply.tool_calls.is_empty() || !reply.errors.is_empty()
            }
        }
    }

    /// A conversation's turns.
    pub(super) fn turns(
        self,
        messages: &[Message],
        behind: &Behind<'_>,
        ability: Ability,
        begun: bool,
        tools: &[Value],
    ) -> Vec<Turn> {
        match self {
            Self::Retool => inside::turns(messages, behind, &retool::STYLE),
            Self::Tir => inside::turns(messages, behind, &tir::STYLE),
            _ => native::turns(self, messages, ability, begun, tools),
        }
    }

    /// Whether a reply that was not ended by an end-of-turn token waits for a result inside its own turn.
    pub(super) fn leaves_open(self, reply: &str) -> bool {
        match self {
            Self::Retool => retool::waits(reply),
            Self::Tir => tir::waits(reply),
            _ => false,
        }
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

    #[test]
    fn an_unknown_format_names_the_nearest() {
        let error = Format::from_name("retol").map_err(|error| error.to_string());
        assert_eq!(error, Err("unknown format `retol`\n  hint: did you mean `retool`?".to_owned()));
        for format in Format::ALL {
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
            let reply = Format::Hermes.read(text, begun, "python", &[]);
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
            ("llamacpp__Qwen-Qwen2.5-7B-Instruct", Format::Hermes),
            ("llamacpp__Qwen-Qwen3-0.6B", Format::Hermes),
            ("llamacpp__NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Format::Hermes),
            ("llamacpp__Qwen3-Coder", Format::QwenCoder),
            ("llamacpp__Qwen3.5-4B", Format::QwenCoder),
            ("llamacpp__meta-llama-Llama-3.1-8B-Instruct", Format::Llama),
            ("llamacpp__meta-llama-Llama-3.2-3B-Instruct", Format::Llama),
            ("vllm__tool_chat_template_llama3.2_pythonic", Format::Pythonic),
            ("sglang__tool_chat_template_llama4_pythonic", Format::Pythonic),
            ("llamacpp__mistralai-Mistral-Nemo-Instruct-2407", Format::Mistral),
            ("llamacpp__mistralai-Ministral-3-14B-Reasoning-2512", Format::Mistral),
            ("llamacpp__deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", Format::DeepSeekV3),
            ("sglang__tool_chat_template_deepseekv3", Format::DeepSeekV3),
            ("llamacpp__deepseek-ai-DeepSeek-V3.1", Format::DeepSeekV31),
            ("llamacpp__openai-gpt-oss-120b", Format::Harmony),
            ("llamacpp__google-gemma-2-2b-it", Format::Hermes),
        ] {
            assert_eq!(of(name), expected, "{name}");
        }
        let mut found: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                *found.entry(of(path.file_stem().unwrap().to_str().unwrap()).name()).or_default() += 1;
            }
        }
        eprintln!("formats of {} templates: {found:?}", found.values().sum::<usize>());
    }
}
