//! ReTool (arXiv:2504.11536): the policy writes `<code>…</code>`, generation stops there, and the environment goes on
//! in the same turn with `<interpreter>…</interpreter>`; then the policy goes on. One assistant turn holds it all.

use super::inside::{self, Style};
use super::{code_call, code_of, on_a_line};
use crate::error::Result;
use crate::mdp::{Message, ToolCall};
use crate::text::format::{Reading, ToolFormat};
use crate::text::stream::{Scan, Step, THINK, Think};

const OPEN: &str = "<code>";
const CLOSE: &str = "</code>";
const RESULT_OPEN: &str = "<interpreter>";
const RESULT_CLOSE: &str = "</interpreter>";

/// `<code>…</code>`, answered inside the same turn by `<interpreter>…</interpreter>` (ReTool, arXiv:2504.11536).
pub(super) struct RetoolFormat;

pub(super) const FORMAT: RetoolFormat = RetoolFormat;

impl ToolFormat for RetoolFormat {
    fn name(&self) -> &'static str {
        "retool"
    }

    fn scan<'a>(&'a self, reading: Reading<'a>) -> Box<dyn Scan + 'a> {
        Box::new(Retool::new(reading.begun, reading.code_tool))
    }

    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        Ok(calls.iter().fold(text, write))
    }

    fn stop_strings(&self) -> Vec<&str> {
        vec![CLOSE]
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

impl Style for RetoolFormat {
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

/// Whether a reply (not ended by an end-of-turn token) waits for a result.
fn waits(reply: &str) -> bool {
    reply.trim_end().ends_with(CLOSE)
}

/// The result behind a block.
fn first(_before: &str, output: &str) -> String {
    format!("\n{}\n", result(output))
}

/// `<interpreter>` around a tool's output.
fn result(output: &str) -> String {
    format!("{RESULT_OPEN}\n{}\n{RESULT_CLOSE}", output.trim_end_matches('\n'))
}

/// A message's text, with its calls where the text lacks them.
fn written(message: &Message) -> String {
    let text = message.content.text();
    if text.contains(OPEN) { text } else { message.tool_calls.iter().fold(text, write) }
}

/// The text with a call behind it.
fn write(text: String, call: &ToolCall) -> String {
    on_a_line(text, &format!("{OPEN}\n{}\n{CLOSE}", code_of(call)))
}

/// Finds the results inside one assistant's text, as published ReTool data has them: an interpreter block right
/// behind `</code>` was written by the environment, the rest by the policy.
fn split(text: &str) -> Vec<(String, bool)> {
    let mut parts = Vec::new();
    let (mut own, mut rest) = (0, text);
    while let Some(close) = rest.find(CLOSE) {
        let behind = &rest[close + CLOSE.len()..];
        let start = text.len() - behind.len();
        rest = behind;
        if !behind.trim_start().starts_with(RESULT_OPEN) {
            continue;
        }
        let Some(end) = behind.find(RESULT_CLOSE) else { continue };
        let end = end + RESULT_CLOSE.len();
        let line = usize::from(behind[end..].starts_with('\n'));
        parts.push((text[own..start].to_owned(), true));
        parts.push((behind[..end + line].to_owned(), false));
        rest = &behind[end + line..];
        own = text.len() - rest.len();
    }
    if own < text.len() || parts.is_empty() {
        parts.push((text[own..].to_owned(), true));
    }
    parts
}

/// The last code block of a reply is one call; the rest of the reply, code and all, is its content.
struct Retool<'a> {
    think: Think<'static>,
    /// What code is a call of.
    tool: &'a str,
}

impl<'a> Retool<'a> {
    fn new(begun: bool, tool: &'a str) -> Self {
        Self { think: Think::new(begun, THINK, &[]), tool }
    }
}

impl Scan for Retool<'_> {
    fn step(&mut self, rest: &str, done: bool) -> Step {
        self.think.step(rest, done).unwrap_or(Step::Content(rest.len()))
    }

    /// Code is run while thinking goes on, so it counts wherever it stands.
    fn end(&mut self, whole: &str) -> Vec<Result<ToolCall, String>> {
        let call = match (whole.rfind(OPEN), whole.rfind(CLOSE)) {
            (Some(open), Some(close)) if open < close => {
                let code = without_fence(&whole[open + OPEN.len()..close]);
                if code.trim().is_empty() {
                    Err(format!("The {OPEN} block is empty."))
                } else {
                    Ok(code_call(self.tool, &code))
                }
            }
            (Some(_), _) => Err(format!("{OPEN} was not closed with {CLOSE}, so nothing was run.")),
            (None, Some(_)) => Err(format!("{CLOSE} stands without {OPEN}, so nothing was run.")),
            (None, None) => return Vec::new(),
        };
        vec![call]
    }
}

/// The program between the tags: without a Markdown fence, without the line breaks around it.
fn without_fence(code: &str) -> String {
    let code = code.trim_matches(['\n', '\r']).trim_end();
    let inner = code.trim_start();
    let Some(fenced) = inner.strip_prefix("```") else { return code.to_owned() };
    let fenced = fenced.strip_suffix("```").unwrap_or(fenced);
    // ```python\n…: what stands on the fence's own line is the language.
    let (language, body) = fenced.split_once('\n').unwrap_or(("", fenced));
    let body = if language.trim().chars().all(char::is_alphanumeric) { body } else { fenced };
    body.trim_matches(['\n', '\r']).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::inside::turns as inside_turns;
    use super::*;
    use crate::text::format::{Behind, Reply, Turn};
    use crate::text::testing::format;

    fn parse(text: &str, tool: &str, begun: bool) -> Reply {
        format("retool").read(text, begun, tool, &[]).unwrap()
    }

    fn turns(messages: &[Message], open: bool) -> Vec<Turn> {
        inside_turns(messages, &Behind { open, ..Behind::default() }, &FORMAT).unwrap()
    }

    fn code(reply: &Reply) -> Vec<&str> {
        reply.tool_calls.iter().filter_map(|call| call.arguments["code"].as_str()).collect()
    }

    #[test]
    fn the_last_code_block_is_the_call() {
        for (text, expected) in [
            ("Let me see. <code>\nprint(1)\n</code>", "print(1)"),
            ("<code>a</code> and <code>b</code>", "b"),
            ("<code>```python\nx = 1\n\nprint(x)\n```</code>", "x = 1\n\nprint(x)"),
            ("<code>\n```py\nprint(1)```\n</code>", "print(1)"),
            ("<code>\n```\nprint(1)\n</code>", "print(1)"),
            ("<code>\nif x:\n    y()\n</code>\n", "if x:\n    y()"),
            ("<think>still <code>1</code>", "1"),
            ("<think>done</think><code>1</code>", "1"),
            ("<code><code>1</code>", "1"),
        ] {
            let reply = parse(text, "python", false);
            assert_eq!(code(&reply), [expected], "{text}");
            assert!(reply.errors.is_empty(), "{text}");
            assert_eq!(reply.tool_calls[0].name, "python");
        }
        let reply = parse("<think>done</think> so <code>1</code>", "calc", false);
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("done"), "so <code>1</code>"));
        assert_eq!(reply.tool_calls[0].name, "calc");
    }

    #[test]
    fn malformed_code_is_told_in_words() {
        for (text, error) in [
            ("a <code>print(1)", "<code> was not closed with </code>, so nothing was run."),
            ("<code>1</code> <code>2", "<code> was not closed with </code>, so nothing was run."),
            ("print(1)</code>", "</code> stands without <code>, so nothing was run."),
            ("<code>\n \n</code>", "The <code> block is empty."),
            ("<code>```python\n```</code>", "The <code> block is empty."),
        ] {
            let reply = parse(text, "python", false);
            assert_eq!(reply.errors, [error], "{text}");
            assert!(reply.tool_calls.is_empty(), "{text}");
        }
        assert_eq!(parse("no code", "python", false).errors, Vec::<String>::new());
    }

    fn show(turns: &[Turn]) -> Vec<String> {
        turns
            .iter()
            .map(|turn| {
                let parts = turn.parts.iter().map(|(text, own)| if *own { text.clone() } else { format!("[{text}]") });
                let mut text = format!("{}: {}", turn.role.name(), parts.collect::<String>());
                text.push_str(if turn.ended { " END" } else { "" });
                text
            })
            .collect()
    }

    #[test]
    fn results_join_the_turn_of_the_policy() {
        let user = |text: &str| Message::user(text);
        let assistant = |text: &str| Message::assistant(text);
        let tool = |text: &str| Message::tool(text);
        let messages =
            [user("q"), assistant("a<code>1</code>"), tool("42\n"), tool("x"), assistant("so 42"), user("r")];
        let joined = "assistant: a<code>1</code>[\n<interpreter>\n42\n</interpreter>\n][<interpreter>\nx\n</interpreter>\n]so 42 END";
        assert_eq!(show(&turns(&messages, false)), ["user: [q]", joined, "user: [r]"]);
        // The policy ended its turn without closing the block: the answer is a turn of its own.
        let messages = [assistant("a<code>1"), tool("not closed"), tool("again"), assistant("b")];
        let answer = "user: [<interpreter>\nnot closed\n</interpreter>\n<interpreter>\nagain\n</interpreter>]";
        assert_eq!(show(&turns(&messages, false)), ["assistant: a<code>1 END", answer, "assistant: b END"]);
        // The environment cut in before the result, or behind it.
        let messages =
            [assistant("<code>1</code>"), user("stop"), assistant("<code>2</code>"), tool("2"), user("stop")];
        let last = "assistant: <code>2</code>[\n<interpreter>\n2\n</interpreter>\n]";
        assert_eq!(show(&turns(&messages, false)), ["assistant: <code>1</code>", "user: [stop]", last, "user: [stop]"]);
        let rest = [tool("2"), assistant("done")];
        assert_eq!(show(&turns(&rest, true)), ["assistant: [\n<interpreter>\n2\n</interpreter>\n]done END"]);
    }

    #[test]
    fn results_inside_one_text_are_found() {
        let text =
            "t <code>1</code>\n<interpreter>\n1\n</interpreter>\nso <code>2</code>, <interpreter>mine</interpreter>";
        let expected = [
            ("t <code>1</code>", true),
            ("\n<interpreter>\n1\n</interpreter>\n", false),
            ("so <code>2</code>, <interpreter>mine</interpreter>", true),
        ];
        assert_eq!(split(text), expected.map(|(text, own)| (text.to_owned(), own)));
        assert_eq!(split(""), [(String::new(), true)]);
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost_in_parts(text in "(<code>|</code>|<interpreter>|</interpreter>|<think>|</think>|```|python|\\PC|\n){0,40}") {
            let parts = split(&text);
            proptest::prop_assert_eq!(parts.iter().map(|(text, _)| text.as_str()).collect::<String>(), text);
        }
    }
}
