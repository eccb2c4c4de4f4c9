//! ReTool (arXiv:2504.11536): the policy writes `<code>…</code>`, generation stops, the environment
//! appends `<interpreter>…</interpreter>`, and the policy continues. All of it is one assistant
//! turn.

use super::code_block::{CODE_FORMAT, CodeSyntax};
use crate::malformed::ReplyError;
use crate::tool_format::ToolFormat;

const OPEN: &str = "<code>";
const CLOSE: &str = "</code>";
const RESULT_OPEN: &str = "<interpreter>";
const RESULT_CLOSE: &str = "</interpreter>";

/// `<code>…</code>` with results in `<interpreter>…</interpreter>` in the same turn (ReTool,
/// arXiv:2504.11536).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "retool",
    syntax: Some(
        "To run a program, write it between <code> and </code>. Its output follows between <interpreter> and \
         </interpreter>, and you go on from there. For example:",
    ),
    holds_call: Some(|text| text.contains(OPEN)),
    scan: |tool, _| CODE.scan(tool),
    write: |text, calls| CODE.write(text, calls),
    code: Some(&CODE),
    ..CODE_FORMAT
};

const CODE: CodeSyntax = CodeSyntax {
    code: [OPEN, CLOSE],
    result: [RESULT_OPEN, RESULT_CLOSE],
    stop: CLOSE,
    opens_result: false,
    program,
    waits: |reply| reply.trim_end().ends_with(CLOSE),
    // An interpreter block directly after `</code>`.
    result_after: |_, after| {
        let is_result = after.trim_start().starts_with(RESULT_OPEN);
        after.find(RESULT_CLOSE).filter(|_| is_result).map(|end| end + RESULT_CLOSE.len())
    },
};

/// The last code block.
fn program(reply: &str) -> Option<Result<String, ReplyError>> {
    Some(match (reply.rfind(OPEN), reply.rfind(CLOSE)) {
        (Some(open), Some(close)) if open < close => {
            let code = without_fence(&reply[open + OPEN.len()..close]);
            if code.trim().is_empty() { Err(ReplyError::EmptyProgram { block: OPEN }) } else { Ok(code) }
        }
        (Some(_), _) => Err(ReplyError::UnclosedProgram { open: OPEN, close: CLOSE }),
        (None, Some(_)) => Err(ReplyError::UnopenedProgram { open: OPEN, close: CLOSE }),
        (None, None) => return None,
    })
}

/// The program between the tags, without a Markdown fence and surrounding line breaks.
fn without_fence(code: &str) -> String {
    let code = code.trim_matches(['\n', '\r']).trim_end();
    let inner = code.trim_start();
    let Some(fenced) = inner.strip_prefix("```") else { return code.to_owned() };
    let fenced = fenced.strip_suffix("```").unwrap_or(fenced);
    // ```python\n…: the rest of the fence's line is the language.
    let (language, body) = fenced.split_once('\n').unwrap_or(("", fenced));
    let body = if language.trim().chars().all(char::is_alphanumeric) { body } else { fenced };
    body.trim_matches(['\n', '\r']).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::formats::same_turn;
    use crate::testing::format;
    use crate::tool_format::Preceding;
    use crate::tool_format::{Reply, Turn};
    use r1_base::mdp::Message;

    fn parse(text: &str, tool: &str, begun: bool) -> Reply {
        format("retool").read(text, begun, tool, &[]).unwrap()
    }

    fn turns(messages: &[Message], open: bool) -> Vec<Turn> {
        same_turn::turns(messages, &Preceding { open, ..Preceding::default() }, &format("retool")).unwrap()
    }

    fn code(reply: &Reply) -> Vec<&str> {
        reply.tool_calls.iter().filter_map(|call| call.arguments["code"].as_str()).collect()
    }

    #[test]
    fn the_last_code_block_is_the_tool_call() {
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
    fn malformed_code_blocks_give_error_messages() {
        for (text, error) in [
            ("a <code>print(1)", "<code> was not closed with </code>, so nothing was run."),
            ("<code>1</code> <code>2", "<code> was not closed with </code>, so nothing was run."),
            ("print(1)</code>", "</code> is written without <code>, so nothing was run."),
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
                let parts = turn
                    .parts
                    .iter()
                    .map(|(text, is_policy)| if *is_policy { text.clone() } else { format!("[{text}]") });
                let mut text = format!("{}: {}", turn.role.name(), parts.collect::<String>());
                text.push_str(if turn.ended { " END" } else { "" });
                text
            })
            .collect()
    }

    #[test]
    fn results_are_part_of_the_assistant_turn() {
        let user = |text: &str| Message::user(text);
        let assistant = |text: &str| Message::assistant(text);
        let tool = |text: &str| Message::tool(text);
        let messages =
            [user("q"), assistant("a<code>1</code>"), tool("42\n"), tool("x"), assistant("so 42"), user("r")];
        let joined = "assistant: a<code>1</code>[\n<interpreter>\n42\n</interpreter>\n][<interpreter>\nx\n</interpreter>\n]so 42 END";
        assert_eq!(show(&turns(&messages, false)), ["user: [q]", joined, "user: [r]"]);
        // The policy ended its turn inside the block: the result is a user turn.
        let messages = [assistant("a<code>1"), tool("not closed"), tool("again"), assistant("b")];
        let answer = "user: [<interpreter>\nnot closed\n</interpreter>\n<interpreter>\nagain\n</interpreter>]";
        assert_eq!(show(&turns(&messages, false)), ["assistant: a<code>1 END", answer, "assistant: b END"]);
        // A user message comes before or after the result.
        let messages =
            [assistant("<code>1</code>"), user("stop"), assistant("<code>2</code>"), tool("2"), user("stop")];
        let last = "assistant: <code>2</code>[\n<interpreter>\n2\n</interpreter>\n]";
        assert_eq!(show(&turns(&messages, false)), ["assistant: <code>1</code>", "user: [stop]", last, "user: [stop]"]);
        let rest = [tool("2"), assistant("done")];
        assert_eq!(show(&turns(&rest, true)), ["assistant: [\n<interpreter>\n2\n</interpreter>\n]done END"]);
    }

    #[test]
    fn interpreter_results_in_one_message_are_split_off() {
        let text =
            "t <code>1</code>\n<interpreter>\n1\n</interpreter>\nso <code>2</code>, <interpreter>mine</interpreter>";
        let expected = [
            ("t <code>1</code>", true),
            ("\n<interpreter>\n1\n</interpreter>\n", false),
            ("so <code>2</code>, <interpreter>mine</interpreter>", true),
        ];
        assert_eq!(CODE.split(text), expected.map(|(text, is_policy)| (text.to_owned(), is_policy)));
        assert_eq!(CODE.split(""), [(String::new(), true)]);
    }

    proptest::proptest! {
        #[test]
        fn split_parts_concatenate_to_the_text(text in "(<code>|</code>|<interpreter>|</interpreter>|<think>|</think>|```|python|\\PC|\n){0,40}") {
            let parts = CODE.split(&text);
            proptest::prop_assert_eq!(parts.iter().map(|(text, _)| text.as_str()).collect::<String>(), text);
        }
    }
}
