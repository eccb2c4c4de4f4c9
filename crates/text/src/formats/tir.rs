//! Tool-integrated reasoning in Markdown (ToRA, MathTIR, ToRL): a program in a ```` ```python ````
//! fence, then
//! ```` ```output ````, where generation stops and the environment writes the program's output.

use super::code_block::{CodeFormat, CodeSyntax};
use crate::malformed::ProgramError;

const FENCE: &str = "```";
/// Opens a program.
const OPEN: &str = "```python";
/// Ends a reply that waits for a result.
const OUTPUT: &str = "```output";
const LANGUAGES: [&str; 3] = ["python", "py", "python3"];

/// A Markdown program and ```` ```output ````, with results in the same turn (ToRA, MathTIR, ToRL).
pub(super) struct Tir;

pub(super) const FORMAT: CodeFormat<Tir> = CodeFormat(Tir);

impl CodeSyntax for Tir {
    const NAME: &'static str = "tir";
    const STOP: &'static str = OUTPUT;
    const SYNTAX: &'static str = "To run a program, write it in a fenced block, and open a block for its output. The \
                                  output follows there, and you go on from there. For example:";

    /// The last program, unless text follows it.
    fn program(reply: &str) -> Option<Result<String, ProgramError>> {
        let last = last_program(reply)?;
        let Some(code) = last.code else {
            return Some(Err(ProgramError::Unclosed { open: OPEN, close: FENCE }));
        };
        let code = code.trim_end();
        last.is_last.then(|| {
            if code.trim().is_empty() { Err(ProgramError::Empty { block: OPEN }) } else { Ok(code.to_owned()) }
        })
    }

    fn has_program(text: &str) -> bool {
        last_program(text).is_some()
    }

    fn waits(reply: &str) -> bool {
        reply.trim_end().ends_with(OUTPUT)
            && last_program(reply).is_some_and(|program| program.is_last && program.code.is_some())
    }

    fn tagged(code: &str) -> String {
        format!("{FENCE}python\n{code}\n{FENCE}\n{OUTPUT}")
    }

    /// The policy has written the opening ```` ```output ````.
    fn first_result(reply: &str, output: &str) -> String {
        let line = if reply.ends_with('\n') { "" } else { "\n" };
        format!("{line}{}\n{FENCE}\n", output.trim_end_matches('\n'))
    }

    fn result(output: &str) -> String {
        format!("{OUTPUT}\n{}\n{FENCE}", output.trim_end_matches('\n'))
    }

    /// After a program, ```` ```output ```` and the text up to the closing fence are a result, all
    /// other text is the policy's.
    fn split(text: &str) -> Vec<(String, bool)> {
        let mut parts = Vec::new();
        let (mut text_start, mut from) = (0, 0);
        while let Some(offset) = text[from..].find(OUTPUT) {
            let start = from + offset + OUTPUT.len();
            from = start;
            let line_end = text[start..].starts_with('\n') || text[start..].starts_with("\r\n");
            let Some(close) = text[start..].find("\n```").filter(|_| line_end && Self::waits(&text[text_start..start]))
            else {
                continue;
            };
            let end = start + close + "\n```".len();
            let end = end + usize::from(text[end..].starts_with('\n'));
            parts.push((text[text_start..start].to_owned(), true));
            parts.push((text[start..end].to_owned(), false));
            (text_start, from) = (end, end);
        }
        if text_start < text.len() || parts.is_empty() {
            parts.push((text[text_start..].to_owned(), true));
        }
        parts
    }
}

/// The last Python block of a text.
struct PythonBlock<'t> {
    /// `None` if its fence is not closed.
    code: Option<&'t str>,
    /// No text follows it except the opening of its output.
    is_last: bool,
}

fn last_program(text: &str) -> Option<PythonBlock<'_>> {
    let mut last: Option<PythonBlock<'_>> = None;
    // The open block: whether it is a program, and the start of its text.
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
                    last = Some(PythonBlock { code: None, is_last: false });
                } else if let Some(last) = &mut last {
                    last.is_last &= line.trim() == OUTPUT && end == text.len();
                }
            }
            (Some((program, from)), Some("")) => {
                open = None;
                match &mut last {
                    Some(last) if program => *last = PythonBlock { code: Some(&text[from..start]), is_last: true },
                    _ => {}
                }
            }
            (None, None) if !line.trim().is_empty() => {
                if let Some(last) = &mut last {
                    last.is_last = false;
                }
            }
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::same_turn::turns;
    use super::*;
    use crate::testing::read;
    use crate::tool_format::Preceding;
    use crate::tool_format::Reply;
    use r1_base::mdp::Message;

    fn parse(text: &str) -> Reply {
        read("tir", text, false, &[])
    }

    #[test]
    fn the_program_at_the_end_is_the_tool_call() {
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
            assert_eq!(Tir::waits(text), expected.is_some() && text.ends_with(OUTPUT), "{text}");
        }
        assert_eq!(parse("```python\n1").errors, ["```python was not closed with ```, so nothing was run."]);
        assert_eq!(parse("```python\n\n```").errors, ["The ```python block is empty."]);
    }

    #[test]
    fn results_follow_the_output_fence() {
        let assistant = |text: &str| Message::assistant(text);
        let (reply, result) = ("```python\n1\n```\n```output", "\n1\n```\n");
        let made = turns(&[assistant(reply), Message::tool("1\n"), assistant("so 1")], &Preceding::default(), &FORMAT)
            .unwrap();
        let expected =
            [(reply, true), (result, false), ("so 1", true)].map(|(text, is_policy)| (text.to_owned(), is_policy));
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].parts, expected);
        // The same in one message.
        assert_eq!(Tir::split(&made[0].content()), expected);
        // The reply is not in the list.
        let preceding = Preceding { open: true, reply };
        assert_eq!(turns(&[Message::tool("1")], &preceding, &FORMAT).unwrap()[0].parts, [(result.to_owned(), false)]);
        // If the policy ended its turn without an output fence, the result is a user turn.
        let made =
            turns(&[assistant("```python\n1\n```"), Message::tool("1")], &Preceding::default(), &FORMAT).unwrap();
        assert_eq!((made.len(), made[1].content().as_str()), (2, "```output\n1\n```"));
    }

    proptest::proptest! {
        #[test]
        fn split_parts_concatenate_to_the_text(text in "(```python\n|```\n|```output\n|<think>|\\PC|\n){0,40}") {
            let parts = Tir::split(&text);
            proptest::prop_assert_eq!(parts.iter().map(|(text, _)| text.as_str()).collect::<String>(), text);
        }
    }
}
