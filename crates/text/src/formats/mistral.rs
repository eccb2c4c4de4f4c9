//! Mistral: `[TOOL_CALLS]` and a list of JSON objects (up to Nemo and Small 3.1), or, later,
//! `[TOOL_CALLS]name[ARGS]{…}` for each call, in some models with `[CALL_ID]…` in between.
//! Reasoning is in `[THINK]…[/THINK]`.

use serde_json::Value;

use super::json::{self, ParsedStart};
use super::shared::{call, on_a_line};
use crate::malformed::Malformed;
use crate::python;
use crate::stream::{FormatParser, ParseStep, find};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const OPEN: &str = "[TOOL_CALLS]";
const ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// `[TOOL_CALLS]…`, as a list or with `[ARGS]` (Mistral, Magistral, Devstral).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "mistral",
    fits: |template| template.contains(OPEN),
    syntax: Some(
        "To call them, write [TOOL_CALLS] and a JSON list of objects with a name and arguments. The results are in the \
         next message. For example:",
    ),
    thinking: &[("<think>", "</think>"), ("[THINK]", "[/THINK]")],
    call_tags: &[OPEN],
    scan: |_, _| Box::new(Mistral),
    write,
    ..ToolFormat::TEXT
};

struct Mistral;

impl FormatParser for Mistral {
    fn tags(&self) -> &[&str] {
        &[OPEN]
    }

    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        let block = rest[OPEN.len()..].trim_start();
        let start = rest.len() - block.len();
        let read = match block.chars().next() {
            None if done => return ParseStep::Calls(rest.len(), vec![Err(Malformed::NothingAfter(OPEN))]),
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
        ParsedStart::Value(Value::Array(items), used) if items.is_empty() => (vec![Err(Malformed::EmptyList)], used),
        ParsedStart::Value(Value::Array(items), used) => (items.into_iter().map(json::call).collect(), used),
        ParsedStart::Value(value, used) => (vec![json::call(value)], used),
        ParsedStart::Nothing => (vec![Err(Malformed::NothingAfter(OPEN))], block.len()),
        ParsedStart::Broken(error) => (vec![Err(Malformed::json(error, false))], lost(block, done)?),
    })
}

/// `name[CALL_ID]id[ARGS]{…}`
fn named(block: &str, done: bool) -> Option<(Calls, usize)> {
    let (at, tag) = find(block, &[ARGUMENTS, OPEN]).or(done.then_some((block.len(), "")))?;
    if tag != ARGUMENTS {
        return Some((vec![Err(Malformed::NoTag(ARGUMENTS))], at));
    }
    let (name, id) = block[..at].split_once(ID).map_or((&block[..at], ""), |(name, id)| (name, id.trim()));
    let name = name.trim();
    let start = at + ARGUMENTS.len();
    let (arguments, used) = match json::leading_value(&block[start..], done)? {
        ParsedStart::Value(value, used) => (json::arguments(value), used),
        ParsedStart::Nothing => (json::arguments(Value::Null), block.len() - start),
        ParsedStart::Broken(error) => (Err(Malformed::json(error, false)), lost(&block[start..], done)?),
    };
    let result = match arguments {
        Ok(_) if name.is_empty() => Err(Malformed::NoName { before: Some(ARGUMENTS) }),
        arguments => {
            arguments.map(|arguments| ToolCall { id: (!id.is_empty()).then(|| id.to_owned()), ..call(name, arguments) })
        }
    };
    Some((vec![result], start + used))
}

/// The length of a malformed call: up to the next call.
fn lost(block: &str, done: bool) -> Option<usize> {
    block.find(OPEN).or(done.then_some(block.len()))
}

/// Appends the calls to the text, as a list.
fn write(text: String, calls: &[ToolCall]) -> String {
    let written = |call: &ToolCall| {
        let object = json::written(call, "arguments");
        let Some(id) = &call.id else { return object };
        format!("{}, \"id\": {}}}", &object[..object.len() - 1], python::dumps(&id.as_str().into()))
    };
    on_a_line(text, &format!("{OPEN}[{}]", calls.iter().map(written).collect::<Vec<_>>().join(", ")))
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
