//! Prints replies to stdout and everything else to stderr.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal, Write};

use console::Style;
use serde_json::{Value, json};

use super::super::args::OutputArgs;
use super::super::{print, print_json};
use super::chat::{AnswerEvent, QuestionAnswer};
use crate::error::{Result, without_control_characters};
use crate::mdp::{FinishReason, ToolCall};
use crate::telemetry::duration;

/// Maximum number of lines of a tool's result that are shown.
const LINES: usize = 40;

pub(super) struct Screen {
    output: OutputArgs,
    /// Output is for a person, not JSON.
    person: bool,
    /// Replies go to a terminal.
    terminal: bool,
    dim: Style,
    /// The printed text of the current reply.
    shown: RefCell<String>,
    /// Error messages about calls of the current answer.
    complaints: RefCell<Vec<String>>,
    /// The current line of stderr has reasoning.
    thinking: Cell<bool>,
}

impl Screen {
    pub(super) fn new(output: OutputArgs) -> Self {
        let person = io::stderr().is_terminal();
        let dim = Style::new().dim().force_styling(output.wants_colour() && person);
        Self {
            output,
            person,
            terminal: io::stdout().is_terminal(),
            dim,
            shown: RefCell::default(),
            complaints: RefCell::default(),
            thinking: Cell::default(),
        }
    }

    pub(super) fn piece(&self, piece: &AnswerEvent<'_>) -> Result<()> {
        if self.output.json {
            let event = match piece {
                AnswerEvent::Call(call) => json!({ "event": "call", "name": call.name, "arguments": call.arguments }),
                AnswerEvent::Malformed(why) => json!({ "event": "malformed_call", "message": why }),
                AnswerEvent::Result { name, text } => json!({ "event": "result", "name": name, "content": text }),
                AnswerEvent::Log(text) => json!({ "event": "log", "message": text }),
                AnswerEvent::Turn { text, reasoning } => {
                    let mut turn = json!({ "event": "turn", "text": text });
                    if let Some(reasoning) = reasoning {
                        turn["reasoning"] = Value::from(*reasoning);
                    }
                    turn
                }
                AnswerEvent::Text(_) | AnswerEvent::Thought(_) | AnswerEvent::End => return Ok(()),
            };
            return print_json(event);
        }
        match piece {
            AnswerEvent::Text(text) => {
                self.end_thought();
                self.shown.borrow_mut().push_str(text);
                print(&self.shown(text))
            }
            AnswerEvent::Thought(text) => {
                if self.shows_notes() {
                    self.thinking.set(true);
                    let _ = write!(io::stderr(), "{}", self.dim.apply_to(without_control_characters(text)));
                }
                Ok(())
            }
            AnswerEvent::Call(call) => {
                // Some formats run code from the reply's text, which has been shown.
                let code = call.arguments["code"].as_str();
                if code.is_some_and(|code| self.shown.borrow().contains(code.trim())) {
                    return Ok(());
                }
                self.end_line()?;
                for line in called(call) {
                    self.note(&line);
                }
                Ok(())
            }
            AnswerEvent::Malformed(why) => {
                self.end_line()?;
                self.note(&format!("  {why}"));
                self.complaints.borrow_mut().push((*why).to_owned());
                Ok(())
            }
            // The result repeats an error message that has been shown.
            AnswerEvent::Result { text, .. } if self.complaints.borrow().iter().any(|why| why == text) => Ok(()),
            AnswerEvent::Result { text, .. } => {
                let lines: Vec<&str> = text.lines().collect();
                lines.iter().take(LINES).for_each(|line| self.note(&format!("  | {line}")));
                if lines.len() > LINES {
                    self.note(&format!("  | … {} more lines", lines.len() - LINES));
                }
                Ok(())
            }
            AnswerEvent::Log(text) => {
                self.note(&format!("  {text}"));
                Ok(())
            }
            // Its text has been shown.
            AnswerEvent::Turn { .. } => Ok(()),
            AnswerEvent::End => {
                self.end_line()?;
                self.shown.borrow_mut().clear();
                Ok(())
            }
        }
    }

    /// Prints the summary of an answer that has been shown.
    pub(super) fn done(&self, answer: &QuestionAnswer) -> Result<()> {
        self.complaints.borrow_mut().clear();
        let rate = answer.tokens as f64 / answer.sampling_seconds.max(1e-9);
        if self.output.json {
            let finish = answer.finish.map(FinishReason::name);
            let mut reply = json!({
                "event": "reply", "text": answer.text, "finish_reason": finish, "tool_calls": answer.tool_calls, "tokens": answer.tokens,
                "seconds": answer.seconds, "tokens_per_second": rate, "stopped": answer.stopped,
            });
            if let Some(reasoning) = &answer.reasoning {
                reply["reasoning"] = Value::from(reasoning.as_str());
            }
            return print_json(reply);
        }
        let cut = match answer.finish {
            _ if answer.stopped => None,
            Some(FinishReason::Length) => Some("cut off: no room for more (--max-new-tokens, the context)"),
            Some(FinishReason::Deadline) => Some("cut off: out of time"),
            _ => None,
        };
        if let Some(cut) = cut.filter(|_| !self.person) {
            self.note(&format!("the reply is {cut}"));
        }
        if self.person && !answer.undone {
            let stopped = match cut {
                _ if answer.stopped => ", stopped".to_owned(),
                Some(cut) => format!(", {cut}"),
                None => String::new(),
            };
            let calls = match answer.tool_calls.len() {
                0 => String::new(),
                1 => ", 1 tool call".to_owned(),
                count => format!(", {count} tool calls"),
            };
            let plural = if answer.tokens == 1 { "" } else { "s" };
            let time = duration(answer.seconds);
            self.note(&format!("{} token{plural}{calls}, {time}, {rate:.0} tokens/s{stopped}", answer.tokens));
        }
        Ok(())
    }

    /// Prints a line on stderr.
    pub(super) fn note(&self, text: &str) {
        if self.shows_notes() {
            self.end_thought();
            // If stderr is closed, replies still go to stdout.
            let _ = writeln!(io::stderr(), "{}", self.dim.apply_to(without_control_characters(text)));
        }
    }

    /// Prints the result of a command on stdout.
    pub(super) fn print(&self, text: &str) -> Result<()> {
        if self.output.json {
            return print_json(json!({ "event": "info", "message": text }));
        }
        print(&format!("{}\n", self.shown(text)))
    }

    /// The text for stdout: unchanged, unless it goes to a terminal that it could control.
    fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.terminal { without_control_characters(text) } else { Cow::Borrowed(text) }
    }

    fn shows_notes(&self) -> bool {
        !self.output.quiet && !self.output.json
    }

    fn end_thought(&self) {
        if self.thinking.replace(false) {
            let _ = writeln!(io::stderr());
        }
    }

    fn end_line(&self) -> Result<()> {
        self.end_thought();
        let mut shown = self.shown.borrow_mut();
        if shown.is_empty() || shown.ends_with('\n') {
            return Ok(());
        }
        shown.push('\n');
        print("\n")
    }
}

/// A call as lines: the tool's name and its arguments; code as code.
fn called(call: &ToolCall) -> Vec<String> {
    let mut lines = vec![format!("  {}", call.name)];
    match call.arguments.as_object() {
        Some(fields) if fields.len() == 1 && fields.values().all(Value::is_string) => {
            let texts = fields.values().filter_map(Value::as_str);
            lines.extend(texts.flat_map(str::lines).map(|line| format!("  > {line}")));
        }
        _ => lines.push(format!("  > {}", call.arguments)),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::without_control_characters;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(without_control_characters("a\tb\nc é😀"), "a\tb\nc é😀");
        assert_eq!(without_control_characters("\x1b[2Jgone\x07\r\n"), "␛[2Jgone␇\n");
        assert_eq!(without_control_characters("\u{9b}2J\x7f"), "\u{fffd}2J␡");
    }
}
