//! Mistral: `[TOOL_CALLS]` and a list of JSON objects (up to Nemo and Small 3.1), or, later,
//! `[TOOL_CALLS]name[ARGS]{…}` for each call, in some models with `[CALL_ID]…` in between.
//! Reasoning is in `[THINK]…[/THINK]`.

use serde_json::Value;

use super::json::{self, ParsedStart};
use super::shared::{call, on_a_line};
use crate::Template;
use crate::malformed::{Empty, Malformed};
use crate::python;
use crate::stream::{FormatParser, ParseStep, Think, find, text_before};
use crate::tool_format::{ReadOptions, ToolFormat};
use r1_base::error::Result;
use r1_base::mdp::ToolCall;

const OPEN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";
/// `[TOOL_CALLS]…`, as a list or with `[ARGS]` (Mistral, Magistral, Devstral).
pub(super) struct MistralFormat;

pub(super) const FORMAT: MistralFormat = MistralFormat;

impl ToolFormat for MistralFormat {
    fn name(&self) -> &'static str {
        "mistral"
    }

    fn fits(&self, template: &Template) -> bool {
        template.contains(OPEN)
    }

    fn syntax(&self) -> Option<&'static str> {
        Some(
            "To call them, write [TOOL_CALLS] and a JSON list of objects with a name and arguments. The results are in the \
             next message. For example:",
        )
    }

    fn scan<'a>(&'a self, options: ReadOptions<'a>) -> Box<dyn FormatParser + 'a> {
        Box::new(Mistral::new(options.begun))
    }

    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        Ok(write(text, calls))
    }
}

struct Mistral {
    think: Think<'static>,
}

impl Mistral {
    fn new(begun: bool) -> Self {
        Self { think: Think::new(begun, &[("<think>", "</think>"), ("[THINK]", "[/THINK]")], &[OPEN]) }
    }
}

impl FormatParser for Mistral {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if let Some(step) = self.think.step(rest, done) {
            return step;
        }
        if let Err(step) = text_before(rest, &[OPEN], done, ParseStep::Content) {
            return step;
        }
        let block = rest[OPEN.len()..].trim_start();
        let start = rest.len() - block.len();
        let read = match block.chars().next() {
            None if done => return ParseStep::Calls(rest.len(), vec![Err(Malformed::Empty(Empty::After(OPEN)))]),
            None => None,
            Some(_) if ARGUMENTS.starts_with(block) && !done => None,
            Some('[' | '{') if !block.starts_with(ARGUMENTS) => listed(block, done),
            Some(_) => named(block, done),
        };
        read.map_or(ParseStep::More, |(calls, used)| ParseStep::Calls(start + used, calls))
    }
}

type Calls = Vec<Result<ToolCall, Malformed>>;

/// `[{"name": …, "arguments": …}, …]`
fn listed(block: &str, done: bool) -> Option<(Calls, usize)> {
    Some(match json::leading_value(block, done)? {
        ParsedStart::Value(Value::Array(items), used) if items.is_empty() => {
            (vec![Err(Malformed::Empty(Empty::List))], used)
        }
        ParsedStart::Value(Value::Array(items), used) => (items.into_iter().map(json::call).collect(), used),
        ParsedStart::Value(value, used) => (vec![json::call(value)], used),
        ParsedStart::Nothing => (vec![Err(Malformed::Empty(Empty::After(OPEN)))], block.len()),
        ParsedStart::Broken(error) => (vec![Err(Malformed::json(error, false))], lost(block, done)?),
    })
}

/// `name[CALL_ID]id[ARGS]{…}`
fn named(block: &str, done: bool) -> Option<(Calls, usize)> {
    let Some((at, tag)) = find(block, &[ARGUMENTS, OPEN]) else {
        return done.then(|| (vec![Err(Malformed::NoTag(ARGUMENTS))], block.len()));
    };
    if tag == OPEN {
        return Some((vec![Err(Malformed::NoTag(ARGUMENTS))], at));
    }
    let (name, id) = block[..at].split_once(ID).map_or((&block[..at], None), |(name, id)| (name, Some(id.trim())));
    let name = name.trim();
    let start = at + ARGUMENTS.len();
    let (result, used) = match json::leading_value(&block[start..], done)? {
        ParsedStart::Value(value, used) => (json::arguments(value), used),
        ParsedStart::Nothing => (Ok(Value::Object(serde_json::Map::new())), block.len() - start),
        ParsedStart::Broken(error) => (Err(Malformed::json(error, false)), lost(&block[start..], done)?),
    };
    let result = match result {
        Ok(_) if name.is_empty() => Err(Malformed::NoName { before: Some(ARGUMENTS) }),
        Ok(arguments) => {
            Ok(ToolCall { id: id.filter(|id| !id.is_empty()).map(str::to_owned), ..call(name, arguments) })
        }
        Err(why) => Err(why),
    };
    Some((vec![result], start + used))
}

/// The length of a malformed call: up to the next call.
fn lost(block: &str, done: bool) -> Option<usize> {
    block.find(OPEN).or(done.then_some(block.len()))
}

/// Appends the calls to the text, as a list.
fn write(text: String, calls: &[ToolCall]) -> String {
    let calls: Vec<String> = calls
        .iter()
        .map(|call| {
            let name = python::dumps(&call.name.as_str().into());
            let id = call.id.as_ref().map(|id| format!(", \"id\": {}", python::dumps(&id.as_str().into())));
            format!("{{\"name\": {name}, \"arguments\": {}{}}}", python::dumps(&call.arguments), id.unwrap_or_default())
        })
        .collect();
    on_a_line(text, &format!("{OPEN}[{}]", calls.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str) -> Reply {
        read("mistral", text, false, &[])
    }

    #[test]
    fn both_call_syntaxes_are_parsed() {
        let reply = parse(
            "[THINK]hm[/THINK]So.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\"}]",
        );
        let f = ToolCall { id: Some("123456789".to_owned()), ..call("f", json!({"a": 1})) };
        assert_eq!(reply.tool_calls, [f.clone(), call("g", json!({}))]);
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("hm"), "So."));
        let reply = parse("[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}");
        assert_eq!(reply.tool_calls, [f, call("g", json!({}))]);
    }

    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (block, error) in [
            ("f", "[ARGS] is missing"),
            ("[ARGS]{}", "no name before [ARGS]"),
            ("f[ARGS]{a}", "not valid JSON, key must be a string at line 1 column 2"),
            ("[{\"name\": 1}]", "`name` must be a non-empty string, found a number"),
            ("[]", "the list is empty"),
            ("[{\"name\" \"f\"}]", "not valid JSON, expected `:` at line 1 column 10"),
        ] {
            let reply = parse(&format!("[TOOL_CALLS]{block}[TOOL_CALLS]ok[ARGS]{{}}"));
            assert_eq!(reply.errors, [format!("Tool call 1 can't be read: {error}.")], "{block}");
            assert_eq!((reply.tool_calls.len(), reply.content.as_str()), (1, ""), "{block}");
        }
        assert_eq!(parse("[TOOL_CALLS][{\"na").errors, ["Tool call 1 can't be read: it is cut off."]);
        assert_eq!(parse("[TOOL_CALLS]").errors, ["Tool call 1 can't be read: nothing follows [TOOL_CALLS]."]);
    }
}
