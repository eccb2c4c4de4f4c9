//! Tool-integrated reasoning in Markdown (ToRA, MathTIR, ToRL): a program in a ```` ```python ```` fence, then
//! ```` ```output ````, where the policy stops and the environment writes what the program printed.

use super::inside::{self, Style};
use super::{code_call, code_of, on_a_line};
use crate::error::Result;
use crate::mdp::{Message, ToolCall};
use crate::text::format::{Reading, ToolFormat};
use crate::text::stream::{Scan, Step, THINK, Think};

const FENCE: &str = "```";
/// Ends a reply that waits for a result.
const OUTPUT: &str = "```output";
const LANGUAGES: [&str; 3] = ["python", "py", "python3"];

/// A Markdown program and ```` ```output ````, answered inside the same turn (ToRA, MathTIR, ToRL).
pub(super) struct TirFormat;

pub(super) const FORMAT: TirFormat = TirFormat;

impl ToolFormat for TirFormat {
    fn name(&self) -> &'static str {
        "tir"
    }

    fn scan<'a>(&'a self, reading: Reading<'a>) -> Box<dyn Scan + 'a> {
        Box::new(Tir::new(reading.begun, reading.code_tool))
    }

    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        Ok(calls.iter().fold(text, write))
    }

    fn stop_strings(&self) -> Vec<&str> {
        vec![OUTPUT]
    }

    fn is_native(&self) -> bool {
        false
    }

    fn shows_tools(&self) -> bool {
        false
    }

    fn inside(&self) -> Option<&dyn Style> {
        Some(self)
    }
}

impl Style for TirFormat {
    fn waits(&self, reply: &str) -> bool {
        waits(reply)
    }

    fn answers(&self, before: &str, results: &[Message]) -> Result<Vec<String>> {
        Ok(inside::one_by_one(results, |place, output| {
            if place == 0 { first(before, output) } else { format!("{}\n", result(output)) }
        }))
    }

    fn stray(&self, results: &[Message]) -> Result<String> {
        Ok(inside::one_by_one(results, |_, output| result(output)).join("\n"))
    }

    fn split(&self, text: &str) -> Vec<(String, bool)> {
        split(text)
    }

    fn written(&self, message: &Message) -> Result<String> {
        Ok(written(message))
    }
}

/// The program at the end of a reply is one call; the rest of the reply, program and all, is its content.
struct Tir<'a> {
    think: Think<'static>,
    /// What a program is a call of.
    tool: &'a str,
}

impl<'a> Tir<'a> {
    fn new(begun: bool, tool: &'a str) -> Self {
        Self { think: Think::new(begun, THINK, &[]), tool }
    }
}

impl Scan for Tir<'_> {
    fn step(&mut self, rest: &str, done: bool) -> Step {
        self.think.step(rest, done).unwrap_or(Step::Content(rest.len()))
    }

    fn end(&mut self, whole: &str) -> Vec<Result<ToolCall, String>> {
        let Some(last) = last_program(whole) else { return Vec::new() };
        let Some(code) = last.code else {
            return vec![Err("```python was not closed with ```, so nothing was run.".to_owned())];
        };
        if !last.asks {
            // A program that prose follows is shown, not run.
            return Vec::new();
        }
        let code = code.trim_end();
        if code.trim().is_empty() {
            return vec![Err("The ```python block is empty.".to_owned())];
        }
        vec![Ok(code_call(self.tool, code))]
    }
}

/// The last Python block of a text.
struct Program<'t> {
    /// `None` if its fence is not closed.
    code: Option<&'t str>,
    /// Nothing follows it, or only the opening of its output.
    asks: bool,
}

fn last_program(text: &str) -> Option<Program<'_>> {
    let mut last: Option<Program<'_>> = None;
    // The block that is open: whether it is a program, and where its text begins.
    let mut open: Option<(bool, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (start, end) = (at, at + line.len());
        at = end;
        let fence = line.trim().strip_prefix(FENCE);
        match (open, fence) {
            (None, Some(language)) => {
                let program = LANGUAGES.contains(&language.trim().to_ascii_lowercase().as_str());
                open = Some((program, end));
                if program {
                    last = Some(Program { code: None, asks: false });
                } else if let Some(last) = &mut last {
                    last.asks &= line.trim() == OUTPUT && end == text.len();
                }
            }
            (Some((program, from)), Some("")) => {
                open = None;
                match &mut last {
                    Some(last) if program => *last = Program { code: Some(&text[from..start]), asks: true },
                    _ => {}
                }
            }
            (None, None) if !line.trim().is_empty() => {
                if let Some(last) = &mut last {
                    last.asks = false;
                }
            }
            _ => {}
        }
    }
    last
}

/// Whether a reply (not ended by an end-of-turn token) waits for a result.
fn waits(reply: &str) -> bool {
    reply.trim_end().ends_with(OUTPUT)
        && last_program(reply).is_some_and(|program| program.asks && program.code.is_some())
}

/// The result behind a program, whose output the policy has opened itself.
fn first(before: &str, output: &str) -> String {
    let line = if before.ends_with('\n') { "" } else { "\n" };
    format!("{line}{}\n{FENCE}\n", output.trim_end_matches('\n'))
}

fn result(output: &str) -> String {
    format!("{OUTPUT}\n{}\n{FENCE}", output.trim_end_matches('\n'))
}

/// A message's text, with its calls where the text lacks them.
fn written(message: &Message) -> String {
    let text = message.content.text();
    if last_program(&text).is_some() { text } else { message.tool_calls.iter().fold(text, write) }
}

/// The text with a call behind it.
fn write(text: String, call: &ToolCall) -> String {
    on_a_line(text, &format!("{FENCE}python\n{}\n{FENCE}\n{OUTPUT}", code_of(call)))
}

/// Finds the results inside one assistant's text, as published data has them: behind a program and
/// ```` ```output ````, up to the closing fence, the environment wrote; the rest is the policy's.
fn split(text: &str) -> Vec<(String, bool)> {
    let mut parts = Vec::new();
    let (mut own, mut from) = (0, 0);
    while let Some(found) = text[from..].find(OUTPUT) {
        let start = from + found + OUTPUT.len();
        from = start;
        let line_end = text[start..].starts_with('\n') || text[start..].starts_with("\r\n");
        let Some(close) = text[start..].find("\n```").filter(|_| line_end && waits(&text[own..start])) else {
            continue;
        };
        let end = start + close + "\n```".len();
        let end = end + usize::from(text[end..].starts_with('\n'));
        parts.push((text[own..start].to_owned(), true));
        parts.push((text[start..end].to_owned(), false));
        (own, from) = (end, end);
    }
    if own < text.len() || parts.is_empty() {
        parts.push((text[own..].to_owned(), true));
    }
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::inside::turns;
    use super::*;
    use crate::text::format::{Behind, Reply};
    use crate::text::testing::read;

    fn parse(text: &str) -> Reply {
        read("tir", text, false, &[])
    }

    #[test]
    fn the_program_at_the_end_is_the_call() {
        for (text, expected) in [
            ("So:\n```python\nprint(1)\n```\n```output", Some("print(1)")),
            ("```py\nif x:\n    y()\n```", Some("if x:\n    y()")),
            ("```python\n1\n```\n```output\n1\n```\n```python\n2\n```\n", Some("2")),
            ("<think>hm\n```python\n1\n```\n```output", Some("1")),
            ("```python\n1\n```\nprints 1.", None),
            ("```text\n1\n```", None),
            ("no code", None),
        ] {
            let reply = parse(text);
            let code = reply.tool_calls.first().and_then(|call| call.arguments["code"].as_str());
            assert_eq!((code, reply.errors.len()), (expected, 0), "{text}");
            assert_eq!(waits(text), expected.is_some() && text.ends_with(OUTPUT), "{text}");
        }
        assert_eq!(parse("```python\n1").errors, ["```python was not closed with ```, so nothing was run."]);
        assert_eq!(parse("```python\n\n```").errors, ["The ```python block is empty."]);
    }

    #[test]
    fn results_go_on_where_the_policy_stopped() {
        let assistant = |text: &str| Message::assistant(text);
        let (reply, result) = ("```python\n1\n```\n```output", "\n1\n```\n");
        let made =
            turns(&[assistant(reply), Message::tool("1\n"), assistant("so 1")], &Behind::default(), &FORMAT).unwrap();
        let expected = [(reply, true), (result, false), ("so 1", true)].map(|(text, own)| (text.to_owned(), own));
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].parts, expected);
        // The same in one text.
        assert_eq!(split(&made[0].content()), expected);
        // Behind a reply that is not in the list.
        let behind = Behind { open: true, reply };
        assert_eq!(turns(&[Message::tool("1")], &behind, &FORMAT).unwrap()[0].parts, [(result.to_owned(), false)]);
        // A policy that ended its turn without asking is answered by the user.
        let made = turns(&[assistant("```python\n1\n```"), Message::tool("1")], &Behind::default(), &FORMAT).unwrap();
        assert_eq!((made.len(), made[1].content().as_str()), (2, "```output\n1\n```"));
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost_in_parts(text in "(```python\n|```\n|```output\n|<think>|\\PC|\n){0,40}") {
            let parts = split(&text);
            proptest::prop_assert_eq!(parts.iter().map(|(text, _)| text.as_str()).collect::<String>(), text);
        }
    }
}
