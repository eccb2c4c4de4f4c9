//! Reasoning and answers in tags, as game agents are trained (RAGEN, arXiv:2504.20073):
//! `<think>…</think><answer>up || left</answer>`. Each action between the separators is a call of
//! `act`.

use serde_json::{Value, json};

use super::shared::call;
use crate::describe;
use crate::malformed::{Empty, Malformed, ReplyError};
use crate::stream::{FormatParser, ParseStep, THINK, Think, text_before};
use crate::tool_format::{ReadOptions, ToolFormat};
use r1_base::error::Result;
use r1_base::mdp::ToolCall;

const OPEN: &str = "<answer>";
const CLOSE: &str = "</answer>";
/// Separates two actions.
const SEPARATOR: &str = "||";
/// The tool that an action calls.
const TOOL: &str = "act";
/// `<think>…</think><answer>a || b</answer>`, one call per action (RAGEN, arXiv:2504.20073).
pub(super) struct AnswerFormat;

pub(super) const FORMAT: AnswerFormat = AnswerFormat;

impl ToolFormat for AnswerFormat {
    fn name(&self) -> &'static str {
        "answer"
    }

    fn syntax(&self) -> Option<&'static str> {
        Some("To act, write the action between <answer> and </answer>, several with || between them. For example:")
    }

    /// An action; other arguments can't be written.
    fn example(&self, tools: &[Value], _code_tool: &str) -> Option<ToolCall> {
        let tool = tools.iter().find(|tool| tool["function"]["name"] == TOOL);
        let example = tool.and_then(|tool| describe::first_call(std::slice::from_ref(tool)));
        let action = example.as_ref().and_then(|call| call.arguments["action"].as_str()).unwrap_or("…");
        Some(call(TOOL, json!({ "action": action })))
    }

    fn scan<'a>(&'a self, options: ReadOptions<'a>) -> Box<dyn FormatParser + 'a> {
        Box::new(AnswerSyntax::new(options.begun))
    }

    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        Ok(write(text, calls))
    }

    fn holds_call(&self, text: &str) -> Result<bool> {
        Ok(text.contains(OPEN))
    }

    fn is_native(&self) -> bool {
        false
    }

    fn shows_tools(&self) -> bool {
        false
    }

    fn uses_tool_role(&self) -> bool {
        false
    }
}

struct AnswerSyntax {
    think: Think<'static>,
    answered: bool,
}

impl AnswerSyntax {
    fn new(begun: bool) -> Self {
        Self { think: Think::new(begun, THINK, &[OPEN]), answered: false }
    }
}

impl FormatParser for AnswerSyntax {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if let Some(step) = self.think.step(rest, done) {
            return step;
        }
        if self.answered {
            // Only the first answer counts.
            return ParseStep::Content(rest.len());
        }
        if let Err(step) = text_before(rest, &[OPEN], done, ParseStep::Content) {
            return step;
        }
        let inner = &rest[OPEN.len()..];
        let Some(end) = inner.find(CLOSE) else {
            if !done {
                return ParseStep::More;
            }
            self.answered = true;
            return ParseStep::Calls(rest.len(), vec![Err(Malformed::Unclosed { open: OPEN, close: CLOSE })]);
        };
        self.answered = true;
        let actions = inner[..end].split(SEPARATOR).map(str::trim).filter(|action| !action.is_empty());
        let mut calls: Vec<_> = actions.map(|action| Ok(call(TOOL, json!({ "action": action })))).collect();
        if calls.is_empty() {
            calls.push(Err(Malformed::Empty(Empty::Between(OPEN, CLOSE))));
        }
        ParseStep::Calls(OPEN.len() + end + CLOSE.len(), calls)
    }

    fn end(&mut self, _whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        if self.answered { Vec::new() } else { vec![Err(ReplyError::NoBlock { open: OPEN, close: CLOSE })] }
    }
}

/// Appends the actions to the text.
fn write(mut text: String, calls: &[ToolCall]) -> String {
    let actions: Vec<String> = calls
        .iter()
        .map(|call| match call.arguments.get("action") {
            Some(Value::String(action)) => action.clone(),
            _ => crate::python::dumps(&call.arguments),
        })
        .collect();
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
