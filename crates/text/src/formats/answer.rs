//! Reasoning and answers in tags, as game agents are trained (RAGEN, arXiv:2504.20073):
//! `<think>…</think><answer>up || left</answer>`. Each action between the separators is a call of
//! `act`.

use serde_json::{Value, json};

use super::shared::{argument, call};
use crate::describe;
use crate::malformed::{Malformed, ReplyError};
use crate::stream::{FormatParser, ParseStep};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const OPEN: &str = "<answer>";
const CLOSE: &str = "</answer>";
/// Separates two actions.
const SEPARATOR: &str = "||";
/// The tool that an action calls.
const TOOL: &str = "act";

/// `<think>…</think><answer>a || b</answer>`, one call per action (RAGEN, arXiv:2504.20073).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "answer",
    syntax: Some("To act, write the action between <answer> and </answer>, several with || between them. For example:"),
    example: |tools, _| Some(example(tools)),
    call_tags: &[OPEN],
    holds_call: Some(|text| text.contains(OPEN)),
    is_native: false,
    shows_tools: false,
    uses_tool_role: false,
    scan: |_, _| Box::new(AnswerSyntax { answered: false }),
    write,
    ..ToolFormat::TEXT
};

/// An action; other arguments can't be written.
fn example(tools: &[Value]) -> ToolCall {
    let tool = tools.iter().find(|tool| tool["function"]["name"] == TOOL);
    let example = tool.and_then(|tool| describe::first_call(std::slice::from_ref(tool)));
    let action = example.as_ref().and_then(|call| call.arguments["action"].as_str()).unwrap_or("…");
    call(TOOL, json!({ "action": action }))
}

struct AnswerSyntax {
    answered: bool,
}

impl FormatParser for AnswerSyntax {
    /// Only the first answer counts.
    fn tags(&self) -> &[&str] {
        if self.answered { &[] } else { &[OPEN] }
    }

    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if self.answered {
            return ParseStep::Content(rest.len());
        }
        let inner = &rest[OPEN.len()..];
        let Some(end) = inner.find(CLOSE) else {
            self.answered = done;
            let unclosed = (Err(Malformed::Unclosed { open: OPEN, close: CLOSE }), rest.len());
            return ParseStep::call(done.then_some(unclosed));
        };
        self.answered = true;
        let actions = inner[..end].split(SEPARATOR).map(str::trim).filter(|action| !action.is_empty());
        let mut calls: Vec<_> = actions.map(|action| Ok(call(TOOL, json!({ "action": action })))).collect();
        if calls.is_empty() {
            calls.push(Err(Malformed::NothingBetween(OPEN, CLOSE)));
        }
        ParseStep::Calls(OPEN.len() + end + CLOSE.len(), calls)
    }

    fn end(&mut self, _whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        if self.answered { Vec::new() } else { vec![Err(ReplyError::NoBlock { open: OPEN, close: CLOSE })] }
    }
}

/// Appends the actions to the text.
fn write(mut text: String, calls: &[ToolCall]) -> String {
    let actions: Vec<String> = calls.iter().map(|call| argument(call, "action")).collect();
    text.extend([OPEN, &actions.join(" || "), CLOSE]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str, begun: bool) -> Reply {
        read("answer", text, begun, &[])
    }

    #[test]
    fn actions_are_calls() {
        let expected = ["up", "left"].map(|action| call("act", json!({ "action": action })));
        for (text, begun) in [
            ("<think>hm</think><answer>up || left</answer>", false),
            ("hm</think> <answer>up||left||</answer> <answer>no</answer>", true),
            ("<think>hm<answer>up || left</answer>", false),
        ] {
            let reply = parse(text, begun);
            assert_eq!(reply.tool_calls, expected, "{text}");
            assert_eq!((reply.reasoning.as_deref(), reply.errors.len()), (Some("hm"), 0), "{text}");
        }
    }

    #[test]
    fn a_reply_without_actions_is_an_error() {
        for (text, error) in [
            ("up", "No <answer>…</answer> was found, so nothing was done."),
            ("", "No <answer>…</answer> was found, so nothing was done."),
            ("<answer> || </answer>", "Tool call 1 can't be read: there is no text between <answer> and </answer>."),
            ("<answer>up", "Tool call 1 can't be read: <answer> was not closed with </answer>."),
        ] {
            assert_eq!(parse(text, false).errors, [error], "{text}");
        }
    }
}
