//! Special tokens in messages. Only the chat template's own text has them: text of a message that
//! spells one (`<|im_end|>` in a fetched page, in a judged reply) is encoded as ordinary text, so
//! that it can't end its turn and begin another one. `env.special_tokens_in_messages` turns this
//! off, as in transformers.
//!
//! A separator is put into such a text before the template is rendered, and the rendering is
//! encoded in parts between the separators. Messages without such a text have the ids of
//! transformers.
//!
//! The policy's own turns may contain tokens of its tool-call format (`<|python_tag|>`); there only
//! the tokens that the template prints between turns, and those that begin and end a text, are
//! disabled.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::Tokenizer;
use super::mark_text::{SEPARATOR, shown};
use super::tool_format::ToolFormat;
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{Content, Message, Part, Role};
use r1_vision::{IMAGE_TOKENS, VIDEO_TOKENS};

/// Maximum bytes of a compiled pattern; a vocabulary may have thousands of special tokens.
const PATTERN_BYTES: usize = 64 << 20;

/// Finds texts of tokens that messages must not contain.
#[derive(Clone)]
pub(super) struct Marks {
    /// In all messages but the policy's.
    others: Option<Regex>,
    /// In the policy's turns.
    assistant: Option<Regex>,
}

/// Removes the separators from a rendering.
pub(super) fn without_separators(text: &str) -> Cow<'_, str> {
    if text.contains(SEPARATOR) { text.split(SEPARATOR).map(shown).collect::<String>().into() } else { text.into() }
}

/// The end of `prefix` in a rendering that begins with it, separators left out.
pub(super) fn end_of_prefix(text: &str, prefix: &str) -> Option<usize> {
    let (mut at, mut left) = (0, prefix);
    for part in text.split(SEPARATOR) {
        if part.len() >= left.len() {
            return part.starts_with(left).then_some(at + left.len());
        }
        left = left.strip_prefix(part)?;
        at += part.len() + SEPARATOR.len();
    }
    None
}

impl Marks {
    /// The marks of a tokenizer. `between`: what the template prints around an assistant's turn.
    pub(super) fn new(tokenizer: &Tokenizer, between: &str, format: &ToolFormat) -> Result<Self> {
        let (mut others, mut assistant) = (Vec::new(), Vec::new());
        let outer = ["bos_token", "eos_token", "pad_token"].map(|name| tokenizer.named_token(name));
        let outer = outer.into_iter().collect::<Result<Vec<_>>>()?;
        for (text, special) in tokenizer.added_tokens() {
            // Some templates end turns with tokens that are not marked as special.
            let is_between = between.contains(text.as_str()) && (special || text.starts_with(['<', '[']));
            let is_outer = outer.iter().flatten().any(|token| *token == text);
            let is_of_format = format.end_tokens.contains(&text.as_str());
            // They would stand for images that the message does not have.
            let is_image = IMAGE_TOKENS.contains(&text.as_str()) || VIDEO_TOKENS.contains(&text.as_str());
            if is_image || (is_between || is_outer && !is_of_format) && !format.hides_headers {
                assistant.push(text.clone());
            }
            if special || is_between || is_image {
                others.push(text);
            }
        }
        Ok(Self { others: any_of(others, tokenizer)?, assistant: any_of(assistant, tokenizer)? })
    }

    /// Disables the marks in messages.
    pub(super) fn disabled(&self, messages: &[Message]) -> Vec<Message> {
        self.in_messages(messages, self.assistant.as_ref())
    }

    /// The same for a conversation that a model judges: none of its turns is the judge's own.
    pub(super) fn disabled_in_all(&self, messages: &[Message]) -> Vec<Message> {
        self.in_messages(messages, self.others.as_ref())
    }

    fn in_messages(&self, messages: &[Message], assistant: Option<&Regex>) -> Vec<Message> {
        let others = self.others.as_ref();
        let mut messages = messages.to_vec();
        for message in &mut messages {
            let marks = if message.role == Role::Assistant { assistant } else { others };
            match &mut message.content {
                Content::Text(text) => *text = disable(text, marks).into_owned(),
                Content::Parts(parts) => {
                    for part in parts {
                        if let Part::Text { text } = part {
                            *text = disable(text, marks).into_owned();
                        }
                    }
                }
            }
            let Message { reasoning_content, name, tool_call_id, .. } = message;
            for (text, marks) in [(reasoning_content, marks), (name, others), (tool_call_id, others)] {
                *text = text.take().map(|text| disable(&text, marks).into_owned());
            }
            for call in &mut message.tool_calls {
                call.arguments = disable_in(&call.arguments, others);
            }
        }
        messages
    }

    /// Disables the marks in the descriptions of tools, which a server may have written.
    pub(super) fn disabled_in_tools(&self, tools: &[Value]) -> Vec<Value> {
        tools.iter().map(|tool| disable_in(tool, self.others.as_ref())).collect()
    }
}

/// A pattern of any of the texts, the longest first.
fn any_of(mut texts: Vec<String>, tokenizer: &Tokenizer) -> Result<Option<Regex>> {
    texts.retain(|text| !text.is_empty());
    if texts.is_empty() {
        return Ok(None);
    }
    texts.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    let pattern = texts.iter().map(|text| regex::escape(text)).collect::<Vec<_>>().join("|");
    let built = RegexBuilder::new(&pattern).size_limit(PATTERN_BYTES).build();
    built.map(Some).map_err(|error| {
        Error::new(Kind::Model, format!("the tokenizer has too many special tokens: {error}")).at(tokenizer.origin())
    })
}

/// Puts a separator after the first character of every mark, overlapping ones included.
fn disable<'t>(text: &'t str, marks: Option<&Regex>) -> Cow<'t, str> {
    let (mut out, mut from) = (String::new(), 0);
    while let Some(mark) = marks.and_then(|marks| marks.find_at(text, from)) {
        let cut = mark.start() + mark.as_str().chars().next().map_or(1, char::len_utf8);
        out.push_str(&text[from..cut]);
        out.push_str(SEPARATOR);
        from = cut;
    }
    if from == 0 {
        return text.into();
    }
    out.push_str(&text[from..]);
    out.into()
}

/// The value with marks disabled in its texts and names.
fn disable_in(value: &Value, marks: Option<&Regex>) -> Value {
    match value {
        Value::String(text) => disable(text, marks).into_owned().into(),
        Value::Array(items) => items.iter().map(|item| disable_in(item, marks)).collect(),
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| (disable(name, marks).into_owned(), disable_in(value, marks));
            Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
        }
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests;
