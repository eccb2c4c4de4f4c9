//! Pythonic calls (Llama 3.2 and 4, Gemma 3, OLMo 3): `[f(a=1), g(b='x')]`, a list of calls with
//! named arguments. Llama 4 adds `<|python_start|>` and `<|python_end|>`, OLMo 3 writes one call
//! per line in `<function_calls>`.

use serde_json::Value;

use super::shared::on_a_line;
use crate::literal::{self, LiteralFault};
use crate::malformed::Malformed;
use crate::stream::{FormatParser, ParseStep, text_before};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const LIST: &str = "[";
const START: &str = "<|python_start|>";
const END: &str = "<|python_end|>";
const TAG: &str = "<function_calls>";
const TAG_END: &str = "</function_calls>";
const TAGS: &[&str] = &[LIST, START, END, TAG];
/// `[name(key="value"), …]` (Llama 3.2 and 4, Gemma 3, OLMo 3).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "pythonic",
    fits: |template| ["func_name1(param", TAG, START].iter().any(|text| template.contains(text)),
    syntax: Some(
        "To call them, reply with nothing but a list of calls as in Python, with named arguments. The results are in the \
         next message. For example:",
    ),
    call_tags: &[START, TAG],
    scan: |_, _| Box::new(Pythonic { closes: None, front: true }),
    write,
    ..ToolFormat::TEXT
};

struct Pythonic {
    /// Inside a list: its closing tag.
    closes: Option<&'static str>,
    /// Only white space and opening tags so far.
    front: bool,
}

impl Pythonic {
    /// After an opening bracket: whether a list of calls follows. In the middle of a text `[f(x)]`
    /// is not a list of calls: all arguments must be named.
    fn is_list(&self, inner: &str) -> Option<bool> {
        let inner = inner.trim_start();
        let end = inner.find(|letter: char| !letter.is_alphanumeric() && !"_.-".contains(letter))?;
        let named = inner.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
        let Some(arguments) = inner[end..].trim_start().strip_prefix('(').filter(|_| named) else {
            return if named && inner[end..].trim().is_empty() { None } else { Some(false) };
        };
        if self.front {
            return Some(true);
        }
        let arguments = arguments.trim_start();
        let end = arguments.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
        let after = arguments[end..].trim_start();
        match (end, after.chars().next()?, after.chars().nth(1)) {
            (0, ')', _) => Some(true),
            (0, ..) => Some(false),
            (_, '=', next) => next.map(|next| next != '='),
            _ => Some(false),
        }
    }

    fn in_list(&mut self, rest: &str, close: &'static str, done: bool) -> ParseStep {
        let inner = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
        let gap = rest.len() - inner.len();
        if inner.starts_with(close) {
            self.closes = None;
            return ParseStep::Skip(gap + close.len());
        }
        if close.starts_with(inner) && !done {
            return ParseStep::More;
        }
        if inner.is_empty() {
            return ParseStep::Skip(gap);
        }
        match literal::read_call(inner) {
            Ok((call, used)) => ParseStep::Calls(gap + used, vec![Ok(call)]),
            Err(LiteralFault::Cut) if !done => ParseStep::More,
            Err(LiteralFault::Cut) => ParseStep::Calls(rest.len(), vec![Err(Malformed::CUT_OFF)]),
            Err(LiteralFault::Wrong { what, at }) => {
                // Skips the rest of the line on which the fault is.
                let line_end = inner[at..].find('\n').map(|end| at + end);
                let Some(end) = line_end.or(done.then_some(inner.len())) else { return ParseStep::More };
                self.closes = None;
                ParseStep::Calls(gap + end, vec![Err(Malformed::Syntax { what, at })])
            }
        }
    }
}

impl FormatParser for Pythonic {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if let Some(close) = self.closes {
            return self.in_list(rest, close, done);
        }
        if self.front && rest.starts_with(char::is_whitespace) {
            return ParseStep::Skip(rest.len() - rest.trim_start().len());
        }
        let tag = match text_before(rest, TAGS, done, ParseStep::Content) {
            Ok(tag) => tag,
            Err(step) => {
                self.front &= matches!(step, ParseStep::More);
                return step;
            }
        };
        if tag != LIST {
            self.front = true;
            self.closes = (tag == TAG).then_some(TAG_END);
            return ParseStep::Skip(tag.len());
        }
        match self.is_list(&rest[1..]) {
            Some(true) => {
                self.closes = Some("]");
                ParseStep::Skip(1)
            }
            None if !done => ParseStep::More,
            _ => {
                self.front = false;
                ParseStep::Content(1)
            }
        }
    }
}

/// Appends the calls to the text.
fn write(text: String, calls: &[ToolCall]) -> String {
    let calls: Vec<String> = calls
        .iter()
        .map(|call| {
            let arguments = call.arguments.as_object().into_iter().flatten();
            let arguments: Vec<String> =
                arguments.map(|(key, value): (&String, &Value)| format!("{key}={}", literal::write(value))).collect();
            format!("{}({})", call.name, arguments.join(", "))
        })
        .collect();
    on_a_line(text, &format!("[{}]", calls.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::formats::shared::call;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str) -> Reply {
        read("pythonic", text, false, &[])
    }

    #[test]
    fn lists_of_pythonic_calls_are_parsed() {
        let reply = parse("I'll look: [f(a=1), g(b='x]')] as in [1] and [f(x)].");
        assert_eq!(reply.tool_calls, [call("f", json!({"a": 1})), call("g", json!({"b": "x]"}))]);
        assert_eq!((reply.content.as_str(), reply.errors.len()), ("I'll look:  as in [1] and [f(x)].", 0));
        let reply = parse("<function_calls>f()\ng(a=None)</function_calls>");
        assert_eq!(reply.tool_calls, [call("f", json!({})), call("g", json!({"a": null}))]);
    }

    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (text, error) in [
            ("[f(1)]", "every argument needs a name, as in `f(x=1)`"),
            ("[f(a=1", "it is cut off"),
            ("so [f(a=b)]", "`b` is not a literal; give strings in quotes"),
        ] {
            let reply = parse(text);
            assert_eq!(reply.errors, [format!("Tool call 1 can't be read: {error}.")], "{text}");
            assert!(reply.tool_calls.is_empty());
        }
    }
}
