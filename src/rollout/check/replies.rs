//! Scripted responses of different kinds, without a policy.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::mdp::{FinishReason, ToolCall};
use crate::text::Renderer;
use crate::text::schema::{self, ArgumentError};

/// A kind of response, the same at every step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplyKind {
    Empty,
    /// Random words, different at each step.
    Words,
    /// A word of the prompt, different at each step.
    Echo(usize),
    /// A response of maximum length, truncated.
    Longest,
    /// A tool call with valid arguments.
    Call(String),
    /// A call of every tool.
    AllCalls,
    /// A truncated call.
    HalfCall,
    UnknownTool,
    /// A call with invalid arguments.
    WrongArguments(String),
    /// A program in a Markdown code block.
    Block,
    /// A value of the task, in common forms of answers.
    Answer {
        column: String,
        form: usize,
    },
}

#[derive(Clone, Copy)]
pub(super) struct ReplyContext<'a> {
    pub(super) task: &'a Value,
    pub(super) tools: &'a [Value],
    /// The text of the last message, or of the prompt.
    pub(super) shown: &'a str,
    pub(super) step: usize,
    /// Maximum tokens of the response.
    pub(super) limit: usize,
}

/// Number of ways to select words from the prompt.
const ECHOES: usize = 4;

/// A scripted response.
pub(super) struct TestReply {
    pub(super) text: String,
    pub(super) finish_reason: FinishReason,
}

/// Forms of an answer; `{}` is the value.
const FORMS: [&str; 4] = ["{}", "<answer>{}</answer>", "<answer>\\boxed{{}}</answer>", "The answer is \\boxed{{}}."];

/// Usual names of columns with answers; the first existing one is used.
const ANSWERS: [&str; 8] = ["answer", "answers", "solution", "target", "label", "expected", "ground_truth", "gold"];

impl ReplyKind {
    /// The kinds tested on a task.
    pub(super) fn all(task: &Value, tools: &[Value]) -> Vec<Self> {
        let mut kinds = vec![Self::Empty, Self::Words, Self::Longest];
        kinds.extend((0..ECHOES).map(Self::Echo));
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        kinds.extend(names.iter().map(|name| Self::Call((*name).to_owned())));
        if names.len() > 1 {
            kinds.push(Self::AllCalls);
        }
        if let Some(first) = names.first() {
            kinds.extend([Self::HalfCall, Self::UnknownTool, Self::WrongArguments((*first).to_owned())]);
        }
        if tools.iter().any(|tool| tool.pointer("/function/parameters/properties/code").is_some()) {
            kinds.push(Self::Block);
        }
        let column = |name: &&str| task.get(*name).and_then(plain).is_some();
        let answer = ANSWERS.iter().copied().find(column).map(str::to_owned);
        let short = || {
            let columns = task.as_object()?;
            let short_column = columns.iter().find(|(_, value)| plain(value).is_some_and(|text| text.len() < 40));
            short_column.map(|(name, _)| name.clone())
        };
        if let Some(column) = answer.or_else(short) {
            kinds.extend((0..FORMS.len()).map(|form| Self::Answer { column: column.clone(), form }));
        }
        kinds
    }

    /// Whether it is an invalid call that the policy should be able to correct.
    pub(super) fn is_broken_call(&self) -> bool {
        matches!(self, Self::HalfCall | Self::UnknownTool | Self::WrongArguments(_))
    }

    /// Whether the result depends on the task: such kinds are tested on every row.
    pub(super) fn depends_on_task(&self) -> bool {
        matches!(self, Self::Words | Self::Answer { .. })
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Empty => "an empty reply".to_owned(),
            Self::Words => "a reply of random words".to_owned(),
            Self::Echo(_) => "a word of the prompt".to_owned(),
            Self::Longest => "a reply of full length".to_owned(),
            Self::Block => "a program in a block".to_owned(),
            Self::Call(tool) => format!("a call of `{tool}`"),
            Self::AllCalls => "a call of every tool".to_owned(),
            Self::HalfCall => "a truncated call".to_owned(),
            Self::UnknownTool => "a call of an unknown tool".to_owned(),
            Self::WrongArguments(tool) => format!("a call of `{tool}` with wrong arguments"),
            Self::Answer { column, .. } => format!("the task's own `{column}`"),
        }
    }

    /// The response at a step; `None` if the format cannot write it.
    ///
    /// # Errors
    /// Errors of a recipe's own format.
    pub(super) fn reply(&self, renderer: &Renderer, now: &ReplyContext<'_>) -> Result<Option<TestReply>> {
        let ReplyContext { task, tools, shown, step, limit } = *now;
        let format = renderer.format();
        let call = |name: &str, arguments: Value| ToolCall { id: None, name: name.to_owned(), arguments };
        let example_of = |tool: &Value| {
            let function = &tool["function"];
            call(function["name"].as_str().unwrap_or_default(), example(&function["parameters"], "", 0))
        };
        if self.is_call() && !format.can_write() {
            return Ok(None);
        }
        let written = |call: ToolCall| format.write(String::new(), &[call]);
        let write = |calls: &[ToolCall]| {
            let text = format.write(String::new(), calls)?;
            let read = renderer.parse(&text, tools)?;
            Ok::<_, Error>((read.tool_calls.len() == calls.len() && read.errors.is_empty()).then_some(text))
        };
        let of = |name: &String| tools.iter().find(|tool| tool["function"]["name"] == **name);
        let text = match self {
            Self::Empty => Some(String::new()),
            Self::Words => Some(filler(step, 12)),
            Self::Echo(which) => echo(shown, step, *which),
            Self::Block => Some("```python\nprint(1 + 1)\n```".to_owned()),
            Self::Longest => {
                let mut ids = renderer.tokenizer().encode(&filler(step, limit))?;
                ids.truncate(limit);
                let text = renderer.tokenizer().decode(&ids, false);
                return Ok(Some(TestReply { text, finish_reason: FinishReason::Length }));
            }
            Self::Call(name) => of(name).map(|tool| write(&[example_of(tool)])).transpose()?.flatten(),
            Self::AllCalls => write(&tools.iter().map(example_of).collect::<Vec<_>>())?,
            Self::HalfCall => tools.first().map(|tool| written(example_of(tool))).transpose()?.map(|whole| {
                let cut = whole.char_indices().nth(whole.chars().count() * 2 / 3).map_or(0, |(at, _)| at);
                whole[..cut].to_owned()
            }),
            Self::UnknownTool => Some(written(call("no_such_tool", json!({})))?),
            Self::WrongArguments(name) => Some(written(call(name, json!({ "no_such_argument": [1] })))?),
            Self::Answer { column, form } => {
                task.get(column).and_then(plain).map(|answer| FORMS[*form].replace("{}", &answer))
            }
        };
        Ok(text.map(|text| TestReply { text, finish_reason: FinishReason::Stop }))
    }

    /// Whether it consists of calls in the format.
    fn is_call(&self) -> bool {
        self.is_broken_call() || matches!(self, Self::Call(_) | Self::AllCalls)
    }
}

/// A number or text of the task.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(items) => items.first().and_then(plain),
        _ => None,
    }
}

/// Words in an order that depends on the step.
fn filler(step: usize, count: usize) -> String {
    const WORDS: [&str; 12] =
        ["stone", "seven", "under", "the", "river", "maybe", "42", "green", "then", "why", "left", "up"];
    let mut text = String::new();
    for index in 0..count {
        let word = WORDS[(index * 7 + step * 5 + index / 3) % WORDS.len()];
        let _ = write!(text, "{}{word}", if index > 0 { " " } else { "" });
    }
    text
}

/// A word of the prompt.
fn echo(shown: &str, step: usize, which: usize) -> Option<String> {
    let all: Vec<&str> = shown.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    // Names of possible answers are usually at the end.
    let index = (which * 5 + step * (2 * which + 3)) % all.len().max(1);
    all.iter().rev().nth(index).map(|word| (*word).to_owned())
}

/// A value that matches a schema, as far as possible; `name` is its name.
fn example(schema: &Value, name: &str, depth: usize) -> Value {
    let first = |keyword: &str| schema[keyword].as_array().and_then(|values| values.first()).cloned();
    if let Some(value) = schema.get("const").or_else(|| schema.get("default")).or_else(|| schema.get("example")) {
        return value.clone();
    }
    if let Some(value) = first("enum").or_else(|| first("examples")) {
        return value;
    }
    if let Some(one) = first("anyOf").or_else(|| first("oneOf")).filter(|_| depth < 8) {
        return example(&one, name, depth + 1);
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str).unwrap_or_default(),
        kind => kind.as_str().unwrap_or_default(),
    };
    let bound = |keyword: &str| schema[keyword].as_f64();
    match kind {
        "integer" | "number" => {
            let low = bound("minimum").or_else(|| bound("exclusiveMinimum").map(|low| low + 1.0));
            let high = bound("maximum").or_else(|| bound("exclusiveMaximum").map(|high| high - 1.0));
            let value = low.unwrap_or(1.0).max(if high.is_some_and(|high| high < 1.0) { f64::MIN } else { 1.0 });
            let value = high.map_or(value, |high| value.min(high)).max(low.unwrap_or(f64::MIN));
            if kind == "integer" { json!(value.ceil() as i64) } else { json!(value) }
        }
        "boolean" => json!(true),
        "null" => Value::Null,
        "array" => {
            let count = schema["minItems"].as_u64().unwrap_or(1) as usize;
            Value::Array(vec![example(&schema["items"], name, depth + 1); count.min(16)])
        }
        "object" if depth < 8 => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let names = required.iter().filter_map(Value::as_str);
            let field = |name: &str| (name.to_owned(), example(&schema["properties"][name], name, depth + 1));
            Value::Object(names.map(field).collect::<Map<_, _>>())
        }
        _ => {
            // A program is the only text that must be meaningful.
            let text = if name == "code" { "print(1 + 1)" } else { "stone" };
            let length = schema["minLength"].as_u64().unwrap_or(0).min(10_000) as usize;
            let limit = schema["maxLength"].as_u64().unwrap_or(u64::MAX).min(10_000) as usize;
            let long = text.chars().chain(std::iter::repeat('x'));
            json!(long.take(text.len().max(length).min(limit)).collect::<String>())
        }
    }
}

/// Arguments for a tool that match its schema; the reason if none were found.
pub(super) fn arguments(tool: &Value) -> Result<Value, ArgumentError> {
    let parameters = &tool["function"]["parameters"];
    let made = example(parameters, "", 0);
    schema::check(parameters, &made).map(|()| made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::text::schema::check;

    #[test]
    fn examples_fit_their_schemas() {
        for schema in [
            json!({ "type": "object", "properties": { "code": { "type": "string" } }, "required": ["code"] }),
            json!({ "type": "integer", "minimum": 3, "maximum": 9 }),
            json!({ "type": "integer", "maximum": -4 }),
            json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5 }),
            json!({ "type": "string", "minLength": 9, "maxLength": 9 }),
            json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 3 }),
            json!({ "enum": ["b", "c"] }),
            json!({ "anyOf": [{ "type": "null" }, { "type": "string" }] }),
            json!({ "type": ["integer", "null"] }),
        ] {
            let made = example(&schema, "x", 0);
            let fits = check(&schema, &made);
            // Open intervals without integers are not supported; the error says so.
            assert!(fits.is_ok() || schema.get("exclusiveMaximum").is_some(), "{schema}: {made}: {fits:?}");
        }
        let tool = json!({ "function": { "name": "x", "parameters": { "type": "string", "pattern": "^[0-9]+$" } } });
        assert!(arguments(&tool).is_err());
    }

    #[test]
    fn check_answers_a_task_with_its_own_answer() {
        let kinds = ReplyKind::all(&json!({ "problem": "1 + 1", "answer": 2 }), &[]);
        assert!(kinds.contains(&ReplyKind::Answer { column: "answer".to_owned(), form: 2 }));
        assert!(!kinds.iter().any(ReplyKind::is_broken_call));
        assert_eq!(ReplyKind::all(&json!({ "text": "x".repeat(100) }), &[]).len(), 3 + ECHOES);
    }
}
