//! Llama 3: a call is a JSON object with `name` and `parameters`, bare or after `<|python_tag|>`;
//! `;` separates several. After the tag there may also be a built-in tool, `python.call(code="…")`,
//! or a bare program.

use super::json::{self, ParsedStart};
use super::shared::{code_call, on_a_line};
use crate::literal::{self, LiteralFault};
use crate::malformed::Malformed;
use crate::stream::{FormatParser, ParseStep, text_before};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const TAG: &str = "<|python_tag|>";
const BRACE: &str = "{";

/// `{"name": …, "parameters": …}`, with or without `<|python_tag|>` (Llama 3).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "llama3",
    fits: |template| {
        template.contains(TAG) || (template.contains("<|start_header_id|>") && template.contains("\"parameters\""))
    },
    syntax: Some(
        "To call one, reply with nothing but a JSON object with its name and parameters. The result is in the next \
         message. For example:",
    ),
    call_tags: &[TAG],
    end_tokens: &["<|eot_id|>", "<|eom_id|>"],
    scan: |tool, _| Box::new(Llama { tool, tagged: false, called: false }),
    write,
    ..ToolFormat::TEXT
};

struct Llama<'a> {
    /// The tool that a bare program calls.
    tool: &'a str,
    /// Directly after the tag.
    tagged: bool,
    /// Directly after a call.
    called: bool,
}

impl Llama<'_> {
    /// At a `{`: a call or plain text.
    fn object(&mut self, rest: &str, done: bool) -> ParseStep {
        let Some(front) = json::leading_value(rest, done) else { return ParseStep::More };
        let (result, used) = match front {
            ParsedStart::Value(value, used) => {
                let calls = ["parameters", "arguments", "function"].iter().any(|key| value.get(*key).is_some());
                let named = value.get("name").is_some() && calls;
                if !self.tagged && !named {
                    return ParseStep::Content(used);
                }
                (json::call(value), used)
            }
            ParsedStart::Nothing => return ParseStep::Skip(rest.len()),
            ParsedStart::Broken(error) => {
                if !self.tagged && !meant(rest) {
                    return ParseStep::Content(1);
                }
                // Skips the rest of the line.
                let Some(end) = rest.find('\n').or(done.then_some(rest.len())) else { return ParseStep::More };
                (Err(Malformed::json(error, false)), end)
            }
        };
        self.call(result, used)
    }

    fn call(&mut self, result: Result<ToolCall, Malformed>, used: usize) -> ParseStep {
        (self.tagged, self.called) = (false, true);
        ParseStep::Calls(used, vec![result])
    }

    /// After the tag.
    fn tagged(&mut self, rest: &str, done: bool) -> ParseStep {
        let inner = rest.trim_start();
        if inner.len() < rest.len() {
            return ParseStep::Skip(rest.len() - inner.len());
        }
        if rest.starts_with(BRACE) {
            return self.object(rest, done);
        }
        let name = rest.split_once(".call(").map(|(name, _)| name);
        let name = name.filter(|name| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_'));
        let built_in = name.map(|name| literal::read_call(rest).map(|(call, used)| (name, call, used)));
        match built_in {
            Some(Ok((name, call, used))) => self.call(Ok(ToolCall { name: name.to_owned(), ..call }), used),
            _ if !done => ParseStep::More,
            Some(Err(LiteralFault::Cut)) => ParseStep::Calls(rest.len(), vec![Err(Malformed::CUT_OFF)]),
            // A program, up to the end of the reply. It may start with a function call.
            _ => ParseStep::Calls(rest.len(), vec![Ok(code_call(self.tool, rest.trim_end()))]),
        }
    }
}

/// Whether a malformed object was meant as a call.
fn meant(text: &str) -> bool {
    let inner = text.strip_prefix('{').unwrap_or(text).trim_start();
    let key = |name: &str| {
        let after = inner.strip_prefix('"')?.strip_prefix(name)?.strip_prefix('"')?;
        after.trim_start().strip_prefix(':').map(str::trim_start)
    };
    key("name").is_some() || key("type").is_some_and(|value| value.starts_with("\"function\""))
}

impl FormatParser for Llama<'_> {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if self.tagged {
            return self.tagged(rest, done);
        }
        if self.called {
            let after = rest.trim_start();
            if after.is_empty() && !done {
                return ParseStep::More;
            }
            self.called = false;
            if after.starts_with(';') {
                return ParseStep::Skip(rest.len() - after.len() + 1);
            }
        }
        match text_before(rest, &[TAG, BRACE], done, ParseStep::Content) {
            Ok(TAG) => {
                self.tagged = true;
                ParseStep::Skip(TAG.len())
            }
            Ok(_) => self.object(rest, done),
            Err(step) => step,
        }
    }
}

/// Appends the calls to the text.
fn write(text: String, calls: &[ToolCall]) -> String {
    let calls: Vec<String> = calls.iter().map(|call| json::written(call, "parameters")).collect();
    on_a_line(text, &calls.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::formats::shared::call;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str) -> Reply {
        read("llama3", text, false, &[])
    }

    #[test]
    fn json_objects_and_programs_are_tool_calls() {
        let reply = parse("{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}; {\"name\": \"g\", \"arguments\": {}}");
        assert_eq!(reply.tool_calls, [call("f", json!({"a": "}"})), call("g", json!({}))]);
        assert_eq!(reply.content, "");
        let reply = parse("Run it. <|python_tag|>\nprint({1})\n");
        assert_eq!(reply.tool_calls, [call("python", json!({"code": "print({1})"}))]);
        assert_eq!(reply.content, "Run it.");
        let reply =
            parse("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}, \"name\": \"f\"}");
        assert_eq!(reply.tool_calls, [call("f", json!({}))]);
        for text in ["a set {1, 2} and {\"a\": 1} and {", "{hello", "{\"name\": \"Ann\"}"] {
            let reply = parse(text);
            assert_eq!((reply.content.as_str(), reply.tool_calls.len(), reply.errors.len()), (text, 0, 0));
        }
    }

    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (text, error) in [
            ("{\"name\": \"f\", \"parameters\": {'a': 1}}", "not valid JSON, key must be a string at line 1 column 30"),
            ("{\"name\": \"f\", \"param", "it is cut off"),
            ("<|python_tag|>{\"a\": 1}", "`name` is missing"),
            ("<|python_tag|>python.call(code=\"pri", "it is cut off"),
            ("{\"name\": \"f\", \"parameters\": [1]}", "`arguments` must be a JSON object, found a list"),
        ] {
            let reply = parse(text);
            assert_eq!(reply.errors, [format!("Tool call 1 can't be read: {error}.")], "{text}");
            assert_eq!((reply.tool_calls.len(), reply.content.as_str()), (0, ""), "{text}");
        }
    }
}
