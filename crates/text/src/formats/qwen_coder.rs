//! Qwen3-Coder:
//! `<tool_call><function=NAME><parameter=KEY>\nVALUE\n</parameter></function></tool_call>`. Values
//! are bare text; the tool's JSON schema gives their types.

use serde_json::{Map, Value};

use super::shared::{call, on_a_line};
use crate::malformed::Malformed;
use crate::python;
use crate::schema;
use crate::stream::{FormatParser, ParseStep, find};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
/// The same with its parameter, as messages show it.
const NAMED_FUNCTION: &str = "<function=NAME";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const NAMED_PARAMETER: &str = "<parameter=KEY";
const PARAMETER_END: &str = "</parameter>";
/// Between parameters there is only white space.
const OUTSIDE: Malformed = Malformed::StrayOutside("<parameter=KEY>", PARAMETER_END);
/// `<tool_call><function=NAME><parameter=KEY>…` (Qwen3-Coder, Qwen3.5).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "qwen3_coder",
    fits: |template| template.contains(FUNCTION) && template.contains(PARAMETER),
    syntax: Some(
        "To call one, write a block with its name and a block for each argument; a text stands in its block without \
         quotes. The results are in the next message. For example:",
    ),
    call_tags: &[OPEN],
    holds_call: Some(|text| text.contains(FUNCTION)),
    scan: |_, tools| Box::new(QwenCoder { tools }),
    write: |text, calls| calls.iter().fold(text, write),
    ..ToolFormat::TEXT
};

struct QwenCoder<'a> {
    tools: &'a [Value],
}

impl QwenCoder<'_> {
    /// Parses a call from its first tag on; `None`: more text is needed.
    fn read(&self, block: &str, done: bool) -> Option<(Result<ToolCall, Malformed>, usize)> {
        let wrapped = block.strip_prefix(OPEN);
        let inner = wrapped.unwrap_or(block).trim_start();
        let start = block.len() - inner.len();
        if FUNCTION.starts_with(inner) && !done {
            return None;
        }
        let next = |from: usize| find(&block[from..], &[CLOSE, OPEN]).map(|(at, tag)| (from + at, tag));
        let Some(body) = inner.strip_prefix(FUNCTION) else {
            // Other text between the tags: continue after the closing tag.
            let end = next(start).map(|(at, tag)| if tag == CLOSE { at + CLOSE.len() } else { at });
            let end = end.or(done.then_some(block.len()))?;
            return Some((Err(Malformed::Expected { tag: "<function=NAME>", after: OPEN }), end));
        };
        let from = start + FUNCTION.len();
        let Some((at, tag)) = find(body, &[FUNCTION_END, FUNCTION, OPEN, CLOSE]) else {
            return done.then(|| (Err(Malformed::CutOff { missing: Some(FUNCTION_END) }), block.len()));
        };
        if tag != FUNCTION_END {
            let end = from + at + if tag == CLOSE { CLOSE.len() } else { 0 };
            return Some((Err(Malformed::NoTag(FUNCTION_END)), end));
        }
        let mut end = from + at + FUNCTION_END.len();
        let after = block[end..].trim_start();
        if after.starts_with(CLOSE) {
            end = block.len() - after.len() + CLOSE.len();
        } else if CLOSE.starts_with(after) && !done {
            return None;
        }
        Some((self.function(&body[..at]), end))
    }

    /// `NAME> <parameter=KEY>VALUE</parameter> …`
    fn function(&self, body: &str) -> Result<ToolCall, Malformed> {
        let (name, mut rest) = body.split_once('>').ok_or(Malformed::BrokenTag { tag: NAMED_FUNCTION, named: true })?;
        let name = name.trim();
        if name.is_empty() || name.contains(['<', '\n']) {
            return Err(Malformed::BrokenTag { tag: NAMED_FUNCTION, named: false });
        }
        let mut arguments = Map::new();
        while let Some(start) = rest.find(PARAMETER) {
            if !rest[..start].trim().is_empty() {
                return Err(OUTSIDE);
            }
            let inner = &rest[start + PARAMETER.len()..];
            let (key, value) =
                inner.split_once('>').ok_or(Malformed::BrokenTag { tag: NAMED_PARAMETER, named: true })?;
            let (value, after) = split_value(value);
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let key = key.trim();
            let schema = schema::parameter(self.tools, name, key);
            arguments.insert(key.to_owned(), schema::from_text(schema, value));
            rest = after;
        }
        if !rest.trim().is_empty() {
            return Err(OUTSIDE);
        }
        Ok(call(name, Value::Object(arguments)))
    }
}

/// A value and the text after its closing tag. The tag may be a part of the value: the one that
/// closes it is followed by another parameter or by nothing. A value without a closing tag ends at
/// the next parameter.
fn split_value(text: &str) -> (&str, &str) {
    let close = |at: usize| (&text[..at], &text[at + PARAMETER_END.len()..]);
    let first = match find(text, &[PARAMETER_END, PARAMETER]) {
        Some((at, PARAMETER_END)) => at,
        Some((at, _)) => return text.split_at(at),
        None => return (text, ""),
    };
    let ends = text.match_indices(PARAMETER_END).map(|(at, _)| at);
    let closing = ends.map(close).find(|(_, after)| {
        let after = after.trim_start();
        after.is_empty() || after.starts_with(PARAMETER)
    });
    closing.unwrap_or_else(|| close(first))
}

impl FormatParser for QwenCoder<'_> {
    fn tags(&self) -> &[&str] {
        &[OPEN, FUNCTION]
    }

    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        ParseStep::call(self.read(rest, done))
    }
}

/// Appends a call to the text.
fn write(text: String, call: &ToolCall) -> String {
    let mut out = format!("{OPEN}\n{FUNCTION}{}>\n", call.name);
    for (key, value) in call.arguments.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| python::dumps(value), str::to_owned);
        out.extend([PARAMETER, key.as_str(), ">\n", &value, "\n", PARAMETER_END, "\n"]);
    }
    on_a_line(text, &format!("{out}{FUNCTION_END}\n{CLOSE}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str) -> Reply {
        let tools =
            [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array"}}}}})];
        read("qwen3_coder", text, false, &tools)
    }

    #[test]
    fn argument_types_come_from_the_json_schema() {
        let reply = parse(
            "So: <tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=s>\n5\n</parameter>\n\
             <parameter=l>\n[1]\n</parameter>\n<parameter=x>7</parameter>\n</function>\n</tool_call>",
        );
        assert_eq!(reply.tool_calls, [call("f", json!({"n": 5, "s": "5", "l": [1], "x": "7"}))]);
        assert_eq!((reply.content.as_str(), reply.errors.len()), ("So:", 0));
    }

    #[test]
    fn values_are_python_literals_and_may_have_the_closing_tag() {
        let value = |key: &str, value: &str| {
            let reply = parse(&format!(
                "<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n<parameter=s>\nx\n\
                 </parameter>\n</function>\n</tool_call>"
            ));
            assert_eq!(reply.errors.len(), 0, "{value}: {:?}", reply.errors);
            assert_eq!(reply.tool_calls[0].arguments["s"], "x", "{value}");
            reply.tool_calls[0].arguments[key].clone()
        };
        assert_eq!(value("l", "['a', 1, None]"), json!(["a", 1, null]));
        assert_eq!(value("l", "[1] and more"), json!("[1] and more"));
        assert_eq!(value("n", "12345678901234567890123"), json!("12345678901234567890123"));
        assert_eq!(value("x", "<a>\n</parameter>\n</a>"), json!("<a>\n</parameter>\n</a>"));
    }

    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (block, error) in [
            ("{\"name\": \"f\"}", "expected <function=NAME> after <tool_call>"),
            ("<function=f>\n<parameter=n>5</parameter>", "</function> is missing"),
            ("<function=f\n</function>", "<function=NAME has no closing `>`"),
            ("<function=f\n<parameter=n>5</parameter></function>", "<function=NAME> has no name or no closing `>`"),
            ("<function=></function>", "<function=NAME> has no name or no closing `>`"),
            ("<function=f>n=5</function>", "unexpected text outside of <parameter=KEY>…</parameter>"),
            ("<function=f><parameter=n</function>", "<parameter=KEY has no closing `>`"),
        ] {
            let good = "<tool_call><function=ok></function></tool_call>";
            let reply = parse(&format!("{good}<tool_call>{block}</tool_call>\n{good}"));
            assert_eq!(reply.errors, [format!("Tool call 2 can't be read: {error}.")], "{block}");
            assert_eq!((reply.tool_calls.len(), reply.content.as_str()), (2, ""), "{block}");
        }
        let reply = parse("<tool_call><function=f><parameter=n>5");
        assert_eq!(reply.errors, ["Tool call 1 can't be read: it is cut off, </function> is missing."]);
    }
}
