//! Formats that run the program at the end of a reply and write its result into the same turn:
//! [`CodeFormat`] is the format, [`CodeSyntax`] its tags (`retool`, `tir`).

use serde_json::Value;

use super::same_turn::{self, SameTurn};
use super::shared::{code_call, code_of, on_a_line};
use crate::malformed::{ProgramError, ReplyError};
use crate::stream::{FormatParser, ParseStep, THINK, Think};
use crate::tool_format::{ReadOptions, ToolFormat};
use r1_base::error::Result;
use r1_base::mdp::{Message, ToolCall};

/// The tags around programs and results.
pub(super) trait CodeSyntax: Send + Sync {
    /// The name used in recipes.
    const NAME: &'static str;
    /// The string that ends a reply with a program.
    const STOP: &'static str;
    /// How programs are written, for the policy.
    const SYNTAX: &'static str;

    /// The program at the end of a reply, or why it can't be run. `None` without a program to run.
    fn program(reply: &str) -> Option<Result<String, ProgramError>>;

    /// Whether a text contains a program.
    fn has_program(text: &str) -> bool;

    /// Whether a reply (not ended by an end-of-turn token) waits for a result.
    fn waits(reply: &str) -> bool;

    /// A program with its tags, up to the string that ends the reply.
    fn tagged(code: &str) -> String;

    /// The result that follows `reply`.
    fn first_result(reply: &str, output: &str) -> String;

    /// A result with its tags.
    fn result(output: &str) -> String;

    /// Splits an assistant's text of published data into text of the policy and results: `(text, by
    /// the policy)`.
    fn split(text: &str) -> Vec<(String, bool)>;
}

/// A format with this syntax.
pub(super) struct CodeFormat<S>(pub(super) S);

impl<S: CodeSyntax> ToolFormat for CodeFormat<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn syntax(&self) -> Option<&'static str> {
        Some(S::SYNTAX)
    }

    fn example(&self, _tools: &[Value], code_tool: &str) -> Option<ToolCall> {
        Some(code_call(code_tool, "print(6 * 7)"))
    }

    fn scan<'a>(&'a self, options: ReadOptions<'a>) -> Box<dyn FormatParser + 'a> {
        let think = Think::new(options.begun, THINK, &[]);
        Box::new(CodeScan { think, tool: options.code_tool, program: S::program })
    }

    fn write(&self, text: String, calls: &[ToolCall]) -> Result<String> {
        Ok(calls.iter().fold(text, |text, call| on_a_line(text, &S::tagged(&code_of(call)))))
    }

    fn stop_strings(&self) -> Vec<&str> {
        vec![S::STOP]
    }

    fn is_native(&self) -> bool {
        false
    }

    fn shows_tools(&self) -> bool {
        false
    }

    fn inside(&self) -> Option<&dyn SameTurn> {
        Some(self)
    }
}

impl<S: CodeSyntax> SameTurn for CodeFormat<S> {
    fn waits(&self, reply: &str) -> bool {
        S::waits(reply)
    }

    fn answers(&self, before: &str, results: &[Message]) -> Result<Vec<String>> {
        Ok(same_turn::one_by_one(results, |index, output| {
            if index == 0 { S::first_result(before, output) } else { format!("{}\n", S::result(output)) }
        }))
    }

    fn results_without_call(&self, results: &[Message]) -> Result<String> {
        Ok(same_turn::one_by_one(results, |_, output| S::result(output)).join("\n"))
    }

    fn split(&self, text: &str) -> Vec<(String, bool)> {
        S::split(text)
    }

    fn written(&self, message: &Message) -> Result<String> {
        let text = message.content.text();
        if S::has_program(&text) { Ok(text) } else { self.write(text, &message.tool_calls) }
    }
}

/// Parses a reply. The program stays in the content.
struct CodeScan<'a> {
    think: Think<'static>,
    /// The tool that the program calls.
    tool: &'a str,
    program: fn(&str) -> Option<Result<String, ProgramError>>,
}

impl FormatParser for CodeScan<'_> {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        self.think.step(rest, done).unwrap_or(ParseStep::Content(rest.len()))
    }

    /// Programs inside the reasoning count too.
    fn end(&mut self, whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        let call = |code: String| code_call(self.tool, &code);
        (self.program)(whole).map(|code| code.map(call).map_err(ReplyError::Program)).into_iter().collect()
    }
}
