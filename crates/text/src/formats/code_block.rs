//! Formats that run the program at the end of a reply and write its result into the same turn:
//! their tags (`retool`, `tir`) and their parser.

use super::shared::{argument, code_call, on_a_line};
use crate::malformed::ReplyError;
use crate::stream::FormatParser;
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

/// What the formats of programs have in common.
pub(super) const CODE_FORMAT: ToolFormat = ToolFormat {
    example: |_, code_tool| Some(code_call(code_tool, "print(6 * 7)")),
    is_native: false,
    shows_tools: false,
    ..ToolFormat::TEXT
};

/// The tags around programs and results.
pub(crate) struct CodeSyntax {
    /// The lines before and after a program.
    pub(super) code: [&'static str; 2],
    /// The lines before and after a result.
    pub(super) result: [&'static str; 2],
    /// The string that ends a reply with a program.
    pub(crate) stop: &'static str,
    /// Whether a reply with a program has the line before its result.
    pub(super) opens_result: bool,
    /// The program at the end of a reply, or why it can't be run. `None` without a program to run.
    pub(super) program: fn(&str) -> Option<Result<String, ReplyError>>,
    /// Whether a reply (not ended by an end-of-turn token) waits for a result.
    pub(super) waits: fn(&str) -> bool,
    /// The length of the result that follows a text of the policy, in an assistant's text of
    /// published data.
    pub(super) result_after: fn(&str, &str) -> Option<usize>,
}

impl CodeSyntax {
    /// A parser of replies; `tool` is the tool that a program calls.
    pub(super) fn scan<'a>(&self, tool: &'a str) -> Box<dyn FormatParser + 'a> {
        Box::new(CodeScan { tool, program: self.program })
    }

    /// Appends programs to the text.
    pub(super) fn write(&self, text: String, calls: &[ToolCall]) -> String {
        let [before, after] = self.code;
        let tagged = |call: &ToolCall| format!("{before}\n{}\n{after}", argument(call, "code"));
        calls.iter().fold(text, |text, call| on_a_line(text, &tagged(call)))
    }

    /// A result with its tags.
    pub(super) fn result(&self, output: &str) -> String {
        let [before, after] = self.result;
        format!("{before}\n{}\n{after}", output.trim_end_matches('\n'))
    }

    /// The first result that follows `reply`.
    pub(super) fn first_result(&self, reply: &str, output: &str) -> String {
        let result = self.result(output);
        if !self.opens_result {
            return format!("\n{result}\n");
        }
        let rest = &result[self.result[0].len()..];
        format!("{}\n", if reply.ends_with('\n') { &rest[1..] } else { rest })
    }

    /// Splits an assistant's text of published data into text of the policy and results: `(text, by
    /// the policy)`.
    pub(super) fn split(&self, text: &str) -> Vec<(String, bool)> {
        let mut parts = Vec::new();
        let (mut text_start, mut from) = (0, 0);
        while let Some(offset) = text[from..].find(self.stop) {
            let start = from + offset + self.stop.len();
            from = start;
            let Some(length) = (self.result_after)(&text[text_start..start], &text[start..]) else { continue };
            let end = start + length + usize::from(text[start + length..].starts_with('\n'));
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

/// Parses a reply. The program stays in the content.
struct CodeScan<'a> {
    /// The tool that the program calls.
    tool: &'a str,
    program: fn(&str) -> Option<Result<String, ReplyError>>,
}

impl FormatParser for CodeScan<'_> {
    /// Programs inside the reasoning count too.
    fn end(&mut self, whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        let call = |code: String| code_call(self.tool, &code);
        (self.program)(whole).map(|code| code.map(call)).into_iter().collect()
    }
}
