//! Hermes: calls are JSON objects between `<tool_call>` tags, any number per reply. The chat
//! template writes the results into a separate turn (role `tool`). Qwen2.5 and Qwen3 were trained
//! on it.

use super::json::{self, Closing};
use super::shared::on_a_line;
use crate::malformed::Malformed;
use crate::stream::{FormatParser, ParseStep};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const CLOSING: Closing = Closing { tag: CLOSE, next: &[OPEN], fence: "", missing: Some(CLOSE) };

/// `<tool_call>{"name": …, "arguments": …}</tool_call>`, results in a separate turn (Hermes,
/// Qwen2.5, Qwen3).
pub(crate) const FORMAT: ToolFormat = ToolFormat {
    name: "hermes",
    fits: |template| template.contains(OPEN),
    syntax: Some(
        "To call one, write a JSON object with its name and arguments between <tool_call> and </tool_call>, a block for \
         each call. The results are in the next message. For example:",
    ),
    call_tags: &[OPEN],
    holds_call: Some(|text| text.contains(OPEN)),
    is_native: false,
    scan: |_, _| Box::new(Hermes),
    write: |text, calls| calls.iter().fold(text, write),
    ..ToolFormat::TEXT
};

struct Hermes;

impl FormatParser for Hermes {
    fn tags(&self) -> &[&str] {
        &[OPEN]
    }

    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        let inner = rest[OPEN.len()..].trim_start();
        let start = rest.len() - inner.len();
        let closes = inner.starts_with(CLOSE);
        if closes || inner.starts_with(OPEN) || (inner.is_empty() && done) {
            let used = start + if closes { CLOSE.len() } else { 0 };
            return ParseStep::Calls(used, vec![Err(Malformed::NothingBetweenTags)]);
        }
        let value = json::closed_value(rest, OPEN.len(), &CLOSING, done);
        ParseStep::call(value.map(|(value, used)| (value.and_then(json::call), used)))
    }
}

/// Appends a call to the text.
fn write(text: String, call: &ToolCall) -> String {
    on_a_line(text, &format!("{OPEN}\n{}\n{CLOSE}", json::written(call, "arguments")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str, begun: bool) -> Reply {
        read("hermes", text, begun, &[])
    }

    fn calls(reply: &Reply) -> Vec<(&str, String)> {
        reply.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.to_string())).collect()
    }

    #[test]
    fn tool_calls_are_parsed_anywhere_in_a_reply() {
        let reply = parse(
            "<think>\nhm\n</think>\n\nFirst.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\"}}\n\
             </tool_call><tool_call>{\"arguments\": \"{\\\"b\\\": 2}\", \"name\": \"g\"}</tool_call> then \
             <tool_call> {\"name\": \"h\"} ",
            false,
        );
        assert_eq!(reply.reasoning.as_deref(), Some("hm"));
        assert_eq!(reply.content, "First.\n then");
        let expected = [("f", r#"{"a":"</tool_call>"}"#), ("g", r#"{"b":2}"#), ("h", "{}")];
        assert_eq!(calls(&reply), expected.map(|(name, arguments)| (name, arguments.to_owned())));
        assert_eq!(reply.errors, Vec::<String>::new());
    }

    /// The error message for a malformed call; the calls around it are parsed.
    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (block, error) in [
            ("{\"name\": \"f\", \"arguments\": {\"a\": 1}", "not valid JSON, expected `,` or `}` at line 1 column 36"),
            ("{\"name\": \"f\", \"arguments\": {'a': 1}}", "not valid JSON, key must be a string at line 1 column 29"),
            ("{\"name\": \"f\" \"arguments\": {}}", "not valid JSON, expected `,` or `}` at line 1 column 14"),
            ("f(1)", "not valid JSON, expected ident at line 1 column 2"),
            ("", "there is no text between the tags"),
            (" \n ", "there is no text between the tags"),
            ("[1]", "expected a JSON object with `name` and `arguments`, found a list"),
            ("{\"arguments\": {}}", "`name` is missing"),
            ("{\"name\": 3, \"arguments\": {}}", "`name` must be a non-empty string, found a number"),
            ("{\"name\": \"f\", \"arguments\": [1]}", "`arguments` must be a JSON object, found a list"),
            (
                "{\"name\": \"f\", \"arguments\": \"x=1\"}",
                "`arguments` is a string that is not valid JSON, expected value at line 1 column 1",
            ),
            ("{\"name\": \"f\"} {\"name\": \"g\"}", "unexpected text between the JSON object and </tool_call>"),
        ] {
            let good = "<tool_call>{\"name\": \"ok\"}</tool_call>";
            let reply = parse(&format!("{good}<tool_call>{block}</tool_call>\n{good}"), false);
            assert_eq!(reply.errors, [format!("Tool call 2 can't be read: {error}.")], "{block}");
            assert_eq!(reply.tool_calls.len(), 2, "{block}");
            assert_eq!(reply.content, "", "{block}");
        }
        let reply = parse("a <tool_call>{\"name\": \"f", false);
        assert_eq!(reply.errors, ["Tool call 1 can't be read: it is cut off, </tool_call> is missing."]);
        assert_eq!((reply.content.as_str(), reply.tool_calls.len()), ("a", 0));
        assert_eq!(parse("a </tool_call> b", false).content, "a </tool_call> b");
    }

    #[test]
    fn a_tool_call_ends_unclosed_reasoning() {
        let reply = parse("<think>I need f.\n<tool_call>{\"name\": \"f\"}</tool_call>", false);
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("I need f."), ""));
        assert_eq!(calls(&reply), [("f", "{}".to_owned())]);
        // A call inside the reasoning is not a call.
        let reply = parse("<think>maybe <tool_call>{\"name\": \"f\"}</tool_call></think>no", false);
        assert_eq!((reply.content.as_str(), reply.tool_calls.len()), ("no", 0));
    }

    #[test]
    fn tool_calls_are_written_as_the_policy_writes_them() {
        let call = ToolCall { id: None, name: "f".to_owned(), arguments: json!({"a": [1, 2.0], "b": "é\n"}) };
        let text = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 2.0], \"b\": \"é\\n\"}}\n</tool_call>";
        assert_eq!(write("Let me see.".to_owned(), &call), text);
        assert_eq!(parse(text, false).tool_calls, [call]);
    }
}
