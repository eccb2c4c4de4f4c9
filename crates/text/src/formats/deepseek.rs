//! DeepSeek: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`. V3 and R1 write
//! `function`, a separator, the name and a fenced JSON block; V3.1 writes name, separator and bare
//! JSON. Both are parsed, whichever is used for writing.

use super::json::{self, ParsedStart};
use super::shared::{call, on_a_line};
use crate::Template;
use crate::malformed::{Malformed, Stray};
use crate::python;
use crate::stream::{FormatParser, ParseStep, THINK, Think, find, text_before};
use crate::tool_format::{ReadOptions, ToolFormat};
use r1_base::error::Result;
use r1_base::mdp::ToolCall;

const BEGIN: &str = "<｜tool▁calls▁begin｜>";
const END: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// `<｜tool▁calls▁begin｜>…` with fenced JSON (DeepSeek V3 and R1), or with bare JSON (V3.1).
pub(super) struct DeepSeekFormat {
    fenced: bool,
}

pub(super) const V3: DeepSeekFormat = DeepSeekFormat { fenced: true };
pub(super) const V31: DeepSeekFormat = DeepSeekFormat { fenced: false };

impl ToolFormat for DeepSeekFormat {
    fn name(&self) -> &str {
        if self.fenced { "deepseek_v3" } else { "deepseek_v31" }
    }

    fn fits(&self, template: &Template) -> bool {
        template.contains(BEGIN) && template.contains("```json") == self.fenced
    }

    fn syntax(&self) -> Option<&'static str> {
        Some(
            "To call one, write its name and its arguments as JSON between the marks of this example. The result is in the \
             next message:",
        )
    }

    fn scan<'a>(&'a self, options: ReadOptions<'a>) -> Box<dyn FormatParser + 'a> {
        Box::new(DeepSeek::new(options.begun))
    }

    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        Ok(write(text, calls, self.fenced))
    }
}

struct DeepSeek {
    think: Think<'static>,
    /// Between the tags around all calls.
    inside: bool,
}

impl DeepSeek {
    fn new(begun: bool) -> Self {
        Self { think: Think::new(begun, THINK, &[BEGIN, CALL]), inside: false }
    }
}

impl FormatParser for DeepSeek {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if let Some(step) = self.think.step(rest, done) {
            return step;
        }
        if !self.inside {
            return match text_before(rest, &[BEGIN, CALL], done, ParseStep::Content) {
                Ok(BEGIN) => {
                    self.inside = true;
                    ParseStep::Skip(BEGIN.len())
                }
                Ok(_) => {
                    self.inside = true;
                    self.step(rest, done)
                }
                Err(step) => step,
            };
        }
        let block = rest.trim_start();
        let gap = rest.len() - block.len();
        if block.starts_with(END) {
            self.inside = false;
            return ParseStep::Skip(gap + END.len());
        }
        if block.is_empty() {
            return if done { ParseStep::Skip(gap) } else { ParseStep::More };
        }
        if (END.starts_with(block) || CALL.starts_with(block)) && !done {
            return ParseStep::More;
        }
        let Some(inner) = block.strip_prefix(CALL) else {
            let Some(end) = find(block, &[CALL, END]).map(|(at, _)| at).or(done.then_some(block.len())) else {
                return ParseStep::More;
            };
            return ParseStep::Calls(gap + end, vec![Err(Malformed::Expected { tag: CALL, after: BEGIN })]);
        };
        match read_call(inner, done) {
            Some((call, used)) => ParseStep::Calls(gap + CALL.len() + used, vec![call]),
            None => ParseStep::More,
        }
    }
}

/// Parses a call after its opening tag.
fn read_call(block: &str, done: bool) -> Option<(Result<ToolCall, Malformed>, usize)> {
    // After a malformed call, parsing continues after its closing tag or at the next tag.
    let end = |from: usize| {
        let tag = find(&block[from..], &[CALL_END, CALL, END]);
        tag.map(|(at, tag)| from + at + if tag == CALL_END { CALL_END.len() } else { 0 })
            .or(done.then_some(block.len()))
    };
    let Some((at, tag)) = find(block, &[SEPARATOR, CALL_END, CALL, END]) else {
        return done.then(|| (Err(Malformed::CUT_OFF), block.len()));
    };
    if tag != SEPARATOR {
        return Some((Err(Malformed::NoTag(SEPARATOR)), end(at)?));
    }
    let kind = block[..at].trim();
    let after = at + SEPARATOR.len();
    // V3: the name has its own line, and the arguments are fenced.
    let (name, from) = match block[after..].split_once("```") {
        Some((name, fenced)) if kind == "function" && !name.contains('<') => {
            let fenced = fenced.strip_prefix("json").unwrap_or(fenced);
            if fenced.is_empty() || "json".starts_with(fenced) {
                return done.then(|| (Err(Malformed::CUT_OFF), block.len()));
            }
            (name.trim(), block.len() - fenced.len())
        }
        None if kind == "function" && !block[after..].contains('<') => {
            return done.then(|| (Err(Malformed::CUT_OFF), block.len()));
        }
        _ => (kind, after),
    };
    let (value, used) = match json::leading_value(&block[from..], done)? {
        ParsedStart::Value(value, used) => (value, from + used),
        ParsedStart::Nothing => return Some((Err(Malformed::CUT_OFF), block.len())),
        ParsedStart::Broken(error) => {
            let closed = block[from..].contains(CALL_END);
            return Some((Err(Malformed::json(error, closed)), end(from)?));
        }
    };
    let close = block[used..].trim_start();
    let tail = close.strip_prefix("```").unwrap_or(close).trim_start();
    if tail.starts_with(CALL_END) {
        let used = block.len() - tail.len() + CALL_END.len();
        let result = if name.is_empty() {
            Err(Malformed::NoName { before: None })
        } else {
            json::arguments(value).map(|arguments| call(name, arguments))
        };
        return Some((result, used));
    }
    if !done && ("```".starts_with(close) || CALL_END.starts_with(tail)) {
        return None;
    }
    if tail.is_empty() {
        // A call may also end with the reply.
        return Some((json::arguments(value).map(|arguments| call(name, arguments)), block.len()));
    }
    Some((Err(Malformed::Stray(Stray::BeforeTag(CALL_END))), end(used)?))
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
