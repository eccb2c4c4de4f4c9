//! Replies read piece by piece: a [`Stream`] takes text as it is sampled and says what has become certain.
//!
//! Reading a whole reply is the same thing with one piece, so that what was streamed and what was parsed can't differ.
//! Each format is a [`Scan`]: it looks at the front of what is left and says what stands there, or that only more text
//! can tell. What it decided once, more text must not change.

use super::format::Reply;
use crate::error::Error;
use crate::mdp::ToolCall;

/// Something that became certain about a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// More of the content. All of them together are [`Reply::content`].
    Content(String),
    /// More of the thinking. All of them together are [`Reply::reasoning`].
    Reasoning(String),
    Call(ToolCall),
    /// What was wrong with a call that could not be read, in words for the policy.
    Error(String),
}

/// What stands at the front of the text that is left; lengths in bytes.
pub(super) enum Step {
    Content(usize),
    Thought(usize),
    /// Tags and separators, which say nothing of their own.
    Skip(usize),
    /// A tag between two paragraphs of content or thinking.
    Break(usize),
    /// Calls, or what is wrong with them.
    Calls(usize, Vec<Result<ToolCall, String>>),
    /// Only more text can tell.
    More,
}

/// A format's way to read.
pub(super) trait Scan {
    /// What stands at the front of `rest`, which is not empty; `done`: nothing follows it, so `More` is no answer.
    fn step(&mut self, rest: &str, done: bool) -> Step;

    /// What the reply as a whole calls, for formats where its last block counts.
    fn end(&mut self, _whole: &str) -> Vec<Result<ToolCall, String>> {
        Vec::new()
    }

    /// What failed in a recipe's own format; looked at behind [`Scan::end`].
    fn failed(&mut self) -> Option<Error> {
        None
    }
}

/// Most calls that are read of one reply. Every broken one may look through all that follows for its end.
pub(super) const CALLS: usize = 256;

/// Reads one reply in pieces.
pub struct Stream<'a> {
    scan: Box<dyn Scan + 'a>,
    text: String,
    /// Where what is left begins.
    at: usize,
    content: Trimmed,
    reasoning: Trimmed,
    calls: usize,
    reply: Reply,
    events: Vec<Event>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(scan: Box<dyn Scan + 'a>) -> Self {
        Self {
            scan,
            text: String::new(),
            at: 0,
            content: Trimmed::default(),
            reasoning: Trimmed::default(),
            calls: 0,
            reply: Reply::default(),
            events: Vec::new(),
        }
    }

    /// Takes more text and gives what it made certain.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        self.text.push_str(piece);
        self.read(false);
        std::mem::take(&mut self.events)
    }

    /// Takes text without looking at it yet.
    pub(super) fn push_unread(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The reply is over: what was still open, and all of it.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of a recipe's own format fails.
    pub fn finish(mut self) -> Result<(Vec<Event>, Reply), Error> {
        self.read(true);
        for call in self.scan.end(&self.text) {
            self.take(call);
        }
        if let Some(error) = self.scan.failed() {
            return Err(error);
        }
        self.reply.content = self.content.text;
        self.reply.reasoning = Some(self.reasoning.text).filter(|text| !text.is_empty());
        Ok((self.events, self.reply))
    }

    fn read(&mut self, done: bool) {
        while self.at < self.text.len() {
            if self.calls >= CALLS {
                if self.calls == CALLS {
                    self.calls += 1;
                    self.take(Err(format!("There are more than {CALLS} tool calls: the rest is not read.")));
                }
                self.at = self.text.len();
                break;
            }
            let rest = &self.text[self.at..];
            let used = match self.scan.step(rest, done) {
                Step::Content(used) => {
                    self.content.push(&rest[..used], &mut self.events, Event::Content);
                    used
                }
                Step::Thought(used) => {
                    self.reasoning.push(&rest[..used], &mut self.events, Event::Reasoning);
                    used
                }
                Step::Skip(used) => used,
                Step::Break(used) => {
                    self.content.push("\n\n", &mut self.events, Event::Content);
                    self.reasoning.push("\n\n", &mut self.events, Event::Reasoning);
                    used
                }
                Step::Calls(used, calls) => {
                    for call in calls.into_iter().take(CALLS - self.calls) {
                        self.calls += 1;
                        let number = self.calls;
                        self.take(call.map_err(|why| format!("Tool call {number} can't be read: {why}.")));
                    }
                    used
                }
                Step::More => break,
            };
            if used == 0 {
                break;
            }
            self.at += used;
        }
    }

    fn take(&mut self, call: Result<ToolCall, String>) {
        match call {
            Ok(call) => {
                self.events.push(Event::Call(call.clone()));
                self.reply.tool_calls.push(call);
            }
            Err(error) => {
                self.events.push(Event::Error(error.clone()));
                self.reply.errors.push(error);
            }
        }
    }
}

/// Text without the white space around it, given out as soon as it is certain.
#[derive(Default)]
struct Trimmed {
    text: String,
    /// White space that is the text's only if more follows.
    held: String,
}

impl Trimmed {
    fn push(&mut self, piece: &str, events: &mut Vec<Event>, event: fn(String) -> Event) {
        let piece = if self.text.is_empty() { piece.trim_start() } else { piece };
        let solid = piece.trim_end();
        if !solid.is_empty() {
            let new = format!("{}{solid}", self.held);
            self.held.clear();
            self.text.push_str(&new);
            events.push(event(new));
        }
        if !self.text.is_empty() {
            self.held.push_str(&piece[solid.len()..]);
        }
    }
}

/// How many bytes at the end of `rest` could be the beginning of one of `tags`.
pub(super) fn held(rest: &str, tags: &[&str]) -> usize {
    let begins = |tag: &&str| {
        let longest = (tag.len() - 1).min(rest.len());
        (1..=longest).rev().find(|&length| tag.is_char_boundary(length) && rest.ends_with(&tag[..length]))
    };
    tags.iter().filter_map(begins).max().unwrap_or(0)
}

/// Where the first of `tags` stands, and which.
pub(super) fn find<'t>(rest: &str, tags: &[&'t str]) -> Option<(usize, &'t str)> {
    tags.iter().filter_map(|&tag| Some((rest.find(tag)?, tag))).min_by_key(|&(at, tag)| (at, usize::MAX - tag.len()))
}

/// Text up to the first of `tags`: `Err` is the step that gives it out, `Ok` the tag that stands at the very front.
pub(super) fn text_before<'t>(
    rest: &str,
    tags: &[&'t str],
    done: bool,
    step: fn(usize) -> Step,
) -> Result<&'t str, Step> {
    match find(rest, tags) {
        Some((0, tag)) => Ok(tag),
        Some((at, _)) => Err(step(at)),
        None if done => Err(step(rest.len())),
        None => match rest.len() - held(rest, tags) {
            0 => Err(Step::More),
            length => Err(step(length)),
        },
    }
}

/// Splits thinking off the front of a reply: `<think>a</think>b`. Thinking that never ends is all there is, unless a
/// call ends it.
pub(super) struct Think<'t> {
    /// Tags that open and close a thought; the first pair is the one that a prompt may have opened.
    pairs: &'static [(&'static str, &'static str)],
    /// What begins a call: outside of a finished thought it ends the thought.
    calls: Vec<&'t str>,
    state: Thinking,
}

enum Thinking {
    Front { begun: bool },
    Inside(&'static str),
    Over,
}

/// What most models write.
pub(super) const THINK: &[(&str, &str)] = &[("<think>", "</think>")];

impl<'t> Think<'t> {
    pub(super) fn new(begun: bool, pairs: &'static [(&'static str, &'static str)], calls: &[&'t str]) -> Self {
        Self { pairs, calls: calls.to_vec(), state: Thinking::Front { begun } }
    }

    /// The next step of the thought, or `None` once it is over and `rest` is the answer.
    pub(super) fn step(&mut self, rest: &str, done: bool) -> Option<Step> {
        match self.state {
            Thinking::Over => None,
            Thinking::Front { begun } => {
                let front = rest.trim_start();
                for &(open, close) in self.pairs {
                    if front.starts_with(open) {
                        self.state = Thinking::Inside(close);
                        return Some(Step::Skip(rest.len() - front.len() + open.len()));
                    }
                    if open.starts_with(front) && !done {
                        return Some(Step::More);
                    }
                }
                self.state = match self.pairs.first() {
                    Some((_, close)) if begun => Thinking::Inside(close),
                    _ => Thinking::Over,
                };
                self.step(rest, done)
            }
            Thinking::Inside(close) => {
                if let Some(end) = rest.find(close) {
                    if end > 0 {
                        return Some(Step::Thought(end));
                    }
                    self.state = Thinking::Over;
                    return Some(Step::Skip(close.len()));
                }
                match find(rest, &self.calls) {
                    // The thought may still be closed behind it; then the call was only thought about.
                    Some((0, _)) if !done => Some(Step::More),
                    Some((0, _)) => {
                        self.state = Thinking::Over;
                        None
                    }
                    Some((at, _)) => Some(Step::Thought(at)),
                    None if done => Some(Step::Thought(rest.len())),
                    None => {
                        let tags: Vec<&str> = self.calls.iter().copied().chain([close]).collect();
                        Some(match rest.len() - held(rest, &tags) {
                            0 => Step::More,
                            length => Step::Thought(length),
                        })
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_that_may_begin_is_held_back() {
        for (rest, tags, expected) in [
            ("text <tool", &["<tool_call>"][..], 5),
            ("text <", &["<tool_call>", "</think>"], 1),
            ("text", &["<tool_call>"], 0),
            ("｜tool", &["<｜tool▁call｜>"], 0),
            ("<｜tool▁", &["<｜tool▁call｜>"], "<｜tool▁".len()),
            ("", &["<a>"], 0),
        ] {
            assert_eq!(held(rest, tags), expected, "{rest}");
        }
    }

    /// A reply that opens a call over and over is read in a time that grows with its length, not with its square.
    #[test]
    fn calls_without_end_are_not_read() {
        let text = "<tool_call>".repeat(100_000);
        let reply = crate::text::testing::read("hermes", &text, false, &[]);
        assert_eq!((reply.tool_calls.len(), reply.errors.len()), (0, CALLS + 1));
        assert!(reply.errors[CALLS].starts_with("There are more than 256 tool calls"), "{}", reply.errors[CALLS]);
    }

    #[test]
    fn space_around_text_is_not_given_out() {
        let (mut text, mut events) = (Trimmed::default(), Vec::new());
        for piece in [" ", "\na ", " ", "b\n", ""] {
            text.push(piece, &mut events, Event::Content);
        }
        assert_eq!(events, [Event::Content("a".to_owned()), Event::Content("  b".to_owned())]);
        assert_eq!(text.text, "a  b");
    }
}
