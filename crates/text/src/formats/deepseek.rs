//! DeepSeek: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`. V3 and R1 write
//! `function`, a separator, the name and a fenced JSON block; V3.1 writes name, separator and bare
//! JSON. Both are parsed, whichever is used for writing.

use super::json::{self, Closing};
use super::shared::{call, on_a_line};
use crate::malformed::Malformed;
use crate::python;
use crate::stream::{FormatParser, ParseStep, find};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const BEGIN: &str = "<｜tool▁calls▁begin｜>";
const END: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```";
const CLOSING: Closing = Closing { tag: CALL_END, next: &[CALL, END], fence: FENCE, missing: None };

/// `<｜tool▁calls▁begin｜>…` with fenced JSON (DeepSeek V3 and R1).
pub(super) const V3: ToolFormat = ToolFormat {
    name: "deepseek_v3",
    fits: |template| template.contains(BEGIN) && template.contains("```json"),
    syntax: Some(
        "To call one, write its name and its arguments as JSON between the marks of this example. The result is in the \
         next message:",
    ),
    call_tags: &[BEGIN, CALL],
    scan: |_, _| Box::new(DeepSeek { inside: false }),
    write: |text, calls| write(text, calls, true),
    ..ToolFormat::TEXT
};

/// The same with bare JSON (V3.1).
pub(super) const V31: ToolFormat = ToolFormat {
    name: "deepseek_v31",
    fits: |template| template.contains(BEGIN) && !template.contains("```json"),
    write: |text, calls| write(text, calls, false),
    ..V3
};

struct DeepSeek {
    /// Between the tags around all calls.
    inside: bool,
}

impl FormatParser for DeepSeek {
    fn tags(&self) -> &[&str] {
        if self.inside { &[] } else { &[BEGIN, CALL] }
    }

    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if !self.inside {
            self.inside = true;
            if rest.starts_with(BEGIN) {
                return ParseStep::Skip(BEGIN.len());
            }
        }
        let block = rest.trim_start();
        let gap = rest.len() - block.len();
        if block.starts_with(END) {
            self.inside = false;
            return ParseStep::Skip(gap + END.len());
        }
        if (END.starts_with(block) || CALL.starts_with(block)) && !done {
            return ParseStep::More;
        }
        if block.is_empty() {
            return ParseStep::Skip(gap);
        }
        let call = if let Some(arguments) = block.strip_prefix(CALL) {
            read_call(arguments, done).map(|(call, used)| (call, CALL.len() + used))
        } else {
            let end = find(block, &[CALL, END]).map(|(at, _)| at).or(done.then_some(block.len()));
            end.map(|end| (Err(Malformed::Expected { tag: CALL, after: BEGIN }), end))
        };
        ParseStep::call(call.map(|(call, used)| (call, gap + used)))
    }
}

/// Parses a call after its opening tag.
fn read_call(block: &str, done: bool) -> Option<(Result<ToolCall, Malformed>, usize)> {
    let cut_off = || done.then(|| (Err(Malformed::CUT_OFF), block.len()));
    let Some((at, tag)) = find(block, &[SEPARATOR, CALL_END, CALL, END]) else { return cut_off() };
    if tag != SEPARATOR {
        return Some((Err(Malformed::NoTag(SEPARATOR)), CLOSING.end(block, at, done)?));
    }
    let kind = block[..at].trim();
    let after = at + SEPARATOR.len();
    // V3: the name has its own line, and the arguments are fenced.
    let (name, from) = match block[after..].split_once(FENCE) {
        Some((name, fenced)) if kind == "function" && !name.contains('<') => {
            let fenced = fenced.strip_prefix("json").unwrap_or(fenced);
            if fenced.is_empty() || "json".starts_with(fenced) {
                return cut_off();
            }
            (name.trim(), block.len() - fenced.len())
        }
        None if kind == "function" && !block[after..].contains('<') => return cut_off(),
        _ => (kind, after),
    };
    let (value, used) = json::closed_value(block, from, &CLOSING, done)?;
    let arguments = match value {
        Ok(_) if name.is_empty() => Err(Malformed::NoName { before: None }),
        value => value.and_then(json::arguments),
    };
    Some((arguments.map(|arguments| call(name, arguments)), used))
}

/// Appends the calls to the text. `fenced`: as V3 and R1 write them.
fn write(text: String, calls: &[ToolCall], fenced: bool) -> String {
    let calls: Vec<String> = calls
        .iter()
        .map(|call| {
            let (name, arguments) = (&call.name, python::dumps(&call.arguments));
            if fenced {
                format!("{CALL}function{SEPARATOR}{name}\n```json\n{arguments}\n```{CALL_END}")
            } else {
                format!("{CALL}{name}{SEPARATOR}{arguments}{CALL_END}")
            }
        })
        .collect();
    let between = if fenced { "\n" } else { "" };
    let calls = format!("{BEGIN}{}{END}", calls.join(between));
    if fenced { on_a_line(text, &calls) } else { format!("{text}{calls}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str) -> Reply {
        read("deepseek_v3", text, false, &[])
    }

    #[test]
    fn both_call_syntaxes_are_parsed() {
        let calls = [call("f", json!({"a": "```"})), call("g", json!({}))];
        for fenced in [true, false] {
            let reply = parse(&write("<think>hm</think>So.".to_owned(), &calls, fenced));
            assert_eq!((reply.tool_calls, reply.errors), (calls.to_vec(), Vec::new()));
            assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("hm"), "So."));
        }
    }

    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (block, error) in [
            (format!("{CALL}f{SEPARATOR}{{a}}{CALL_END}"), "not valid JSON, key must be a string at line 1 column 2"),
            (format!("{CALL}f{CALL_END}"), "<｜tool▁sep｜> is missing"),
            (format!("function{SEPARATOR}f\n"), "expected <｜tool▁call▁begin｜> after <｜tool▁calls▁begin｜>"),
            (format!("{CALL}f{SEPARATOR}[1]{CALL_END}"), "`arguments` must be a JSON object, found a list"),
            (format!("{CALL}{SEPARATOR}{{}}{CALL_END}"), "it has no name"),
            (
                format!("{CALL}function{SEPARATOR}f\n```json\n{{}} x\n```{CALL_END}"),
                "unexpected text between the JSON object and <｜tool▁call▁end｜>",
            ),
        ] {
            let reply = parse(&format!("a{BEGIN}{block}{CALL}ok{SEPARATOR}{{}}{CALL_END}{END}b"));
            assert_eq!(reply.errors, [format!("Tool call 1 can't be read: {error}.")], "{block}");
            assert_eq!((reply.tool_calls.len(), reply.content.as_str()), (1, "ab"), "{block}");
        }
        let reply = parse(&format!("{BEGIN}{CALL}function{SEPARATOR}f\n```js"));
        assert_eq!(reply.errors, ["Tool call 1 can't be read: it is cut off."]);
    }
}
