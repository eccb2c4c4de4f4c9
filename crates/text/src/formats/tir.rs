//! Tool-integrated reasoning in Markdown (ToRA, MathTIR, ToRL): a program in a ```` ```python ````
//! fence, then
//! ```` ```output ````, where generation stops and the environment writes the program's output.

use super::code_block::{CODE_FORMAT, CodeSyntax};
use crate::malformed::ReplyError;
use crate::tool_format::ToolFormat;

const FENCE: &str = "```";
/// Opens a program.
const OPEN: &str = "```python";
/// Ends a reply that waits for a result.
const OUTPUT: &str = "```output";
const LANGUAGES: [&str; 3] = ["python", "py", "python3"];

/// A Markdown program and ```` ```output ````, with results in the same turn (ToRA, MathTIR, ToRL).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "tir",
    syntax: Some(
        "To run a program, write it in a fenced block, and open a block for its output. The output follows there, and \
         you go on from there. For example:",
    ),
    holds_call: Some(|text| last_program(text).is_some()),
    scan: |tool, _| CODE.scan(tool),
    write: |text, calls| CODE.write(text, calls),
    code: Some(&CODE),
    ..CODE_FORMAT
};

const CODE: CodeSyntax = CodeSyntax {
    code: [OPEN, "```\n```output"],
    result: [OUTPUT, FENCE],
    stop: OUTPUT,
    opens_result: true,
    program,
    waits,
    // The text up to the closing fence.
    result_after: |before, after| {
        let line_end = after.starts_with('\n') || after.starts_with("\r\n");
        after.find("\n```").filter(|_| line_end && waits(before)).map(|close| close + "\n```".len())
    },
};

/// The last program, unless text follows it.
fn program(reply: &str) -> Option<Result<String, ReplyError>> {
    let last = last_program(reply)?;
    let Some(code) = last.code else {
        return Some(Err(ReplyError::UnclosedProgram { open: OPEN, close: FENCE }));
    };
    let code = code.trim_end();
    last.is_last.then(|| {
        if code.trim().is_empty() { Err(ReplyError::EmptyProgram { block: OPEN }) } else { Ok(code.to_owned()) }
    })
}

fn waits(reply: &str) -> bool {
    reply.trim_end().ends_with(OUTPUT)
        && last_program(reply).is_some_and(|program| program.is_last && program.code.is_some())
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
    use super::*;
    use crate::formats::same_turn;
    use crate::testing::{format, read};
    use crate::tool_format::Preceding;
    use crate::tool_format::{Reply, Turn};
    use r1_base::mdp::Message;

    fn turns(messages: &[Message], preceding: &Preceding<'_>) -> Vec<Turn> {
        same_turn::turns(messages, preceding, &format("tir")).unwrap()
    }

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
            assert_eq!(waits(text), expected.is_some() && text.ends_with(OUTPUT), "{text}");
        }
        assert_eq!(parse("```python\n1").errors, ["```python was not closed with ```, so nothing was run."]);
        assert_eq!(parse("```python\n\n```").errors, ["The ```python block is empty."]);
    }

    #[test]
    fn results_follow_the_output_fence() {
        let assistant = |text: &str| Message::assistant(text);
        let (reply, result) = ("```python\n1\n```\n```output", "\n1\n```\n");
        let made = turns(&[assistant(reply), Message::tool("1\n"), assistant("so 1")], &Preceding::default());
        let expected =
            [(reply, true), (result, false), ("so 1", true)].map(|(text, is_policy)| (text.to_owned(), is_policy));
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].parts, expected);
        // The same in one message.
        assert_eq!(CODE.split(&made[0].content()), expected);
        // The reply is not in the list.
        let preceding = Preceding { open: true, reply };
        assert_eq!(turns(&[Message::tool("1")], &preceding)[0].parts, [(result.to_owned(), false)]);
        // If the policy ended its turn without an output fence, the result is a user turn.
        let made = turns(&[assistant("```python\n1\n```"), Message::tool("1")], &Preceding::default());
        assert_eq!((made.len(), made[1].content().as_str()), (2, "```output\n1\n```"));
    }

    proptest::proptest! {
        #[test]
        fn split_parts_concatenate_to_the_text(text in "(```python\n|```\n|```output\n|<think>|\\PC|\n){0,40}") {
            let parts = CODE.split(&text);
            proptest::prop_assert_eq!(parts.iter().map(|(text, _)| text.as_str()).collect::<String>(), text);
        }
    }
}
