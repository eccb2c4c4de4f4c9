//! Streaming parser for replies: [`ReplyStream`] takes text as it is sampled and returns the events
//! that are certain.
//!
//! A complete reply is parsed as a stream with one piece, so streamed and complete parsing give the
//! same result. Each format is a [`FormatParser`]: it returns the next step for the start of the
//! remaining text, or that more text is needed. More text must not change an earlier step.

use super::malformed::{CALLS, Malformed, ReplyError};
use super::tool_format::Reply;
use r1_base::error::Error;
use r1_base::mdp::ToolCall;

/// A parsing event that later text does not change.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// More content. [`Reply::content`] is the concatenation.
    Content(String),
    /// More reasoning. [`Reply::reasoning`] is the concatenation.
    Reasoning(String),
    Call(ToolCall),
    /// An error message for the policy about a call that could not be parsed.
    Error(String),
}

/// The start of the remaining text; lengths in bytes.
pub(super) enum ParseStep {
    Content(usize),
    Thought(usize),
    /// Tags and separators without content.
    Skip(usize),
    /// A tag between two paragraphs of content or reasoning.
    Break(usize),
    /// Calls, and those that could not be parsed.
    Calls(usize, Vec<Result<ToolCall, Malformed>>),
    /// More text is needed.
    More,
}

impl ParseStep {
    /// One call with its length; `None` if more text is needed.
    pub(super) fn call(call: Option<(Result<ToolCall, Malformed>, usize)>) -> Self {
        call.map_or(Self::More, |(call, used)| Self::Calls(used, vec![call]))
    }
}

/// The parser of a format, for the text after the reasoning.
pub(super) trait FormatParser {
    /// Tags before which text is content. Without tags, every text is parsed by `step`.
    fn tags(&self) -> &[&str] {
        &[]
    }

    /// The next step for `rest`, which is not empty. With `done` no text follows, and `More` is not
    /// allowed.
    fn step(&mut self, rest: &str, _done: bool) -> ParseStep {
        ParseStep::Content(rest.len())
    }

    /// The calls of the reply as a whole, for formats that use its last block.
    fn end(&mut self, _whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        Vec::new()
    }

    /// The error of a recipe's own format; read after [`FormatParser::end`].
    fn failed(&mut self) -> Option<Error> {
        None
    }
}

/// Parses one reply in pieces.
pub struct ReplyStream<'a> {
    think: Think<'a>,
    scan: Box<dyn FormatParser + 'a>,
    text: String,
    /// Start of the remaining text.
    at: usize,
    content: Trimmed,
    reasoning: Trimmed,
    calls: usize,
    reply: Reply,
    events: Vec<Event>,
}

impl<'a> ReplyStream<'a> {
    pub(super) fn new(think: Think<'a>, scan: Box<dyn FormatParser + 'a>) -> Self {
        Self {
            think,
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

    /// Appends text and returns the new events.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        self.text.push_str(piece);
        self.read(false);
        std::mem::take(&mut self.events)
    }

    /// Parses a complete reply.
    pub(super) fn read_whole(mut self, text: &str) -> Result<Reply, Error> {
        self.text.push_str(text);
        Ok(self.finish()?.1)
    }

    /// Ends the reply: returns the remaining events and the parsed reply.
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
                    self.take(Err(ReplyError::TooManyCalls));
                }
                self.at = self.text.len();
                break;
            }
            let rest = &self.text[self.at..];
            let step = self.think.step(rest, done).unwrap_or_else(|| answer_step(&mut *self.scan, rest, done));
            let used = match step {
                ParseStep::Content(used) => {
                    self.content.push(&rest[..used], &mut self.events, Event::Content);
                    used
                }
                ParseStep::Thought(used) => {
                    self.reasoning.push(&rest[..used], &mut self.events, Event::Reasoning);
                    used
                }
                ParseStep::Skip(used) => used,
                ParseStep::Break(used) => {
                    self.content.push("\n\n", &mut self.events, Event::Content);
                    self.reasoning.push("\n\n", &mut self.events, Event::Reasoning);
                    used
                }
                ParseStep::Calls(used, calls) => {
                    for call in calls.into_iter().take(CALLS - self.calls) {
                        self.calls += 1;
                        let number = self.calls;
                        self.take(call.map_err(|why| ReplyError::Call { number, why }));
                    }
                    used
                }
                ParseStep::More => break,
            };
            if used == 0 {
                break;
            }
            self.at += used;
        }
    }

    fn take(&mut self, call: Result<ToolCall, ReplyError>) {
        let call =
            call.and_then(
                |call| {
                    if call.is_too_deep() { Err(ReplyError::TooDeep { function: call.name }) } else { Ok(call) }
                },
            );
        match call {
            Ok(call) => {
                self.events.push(Event::Call(call.clone()));
                self.reply.tool_calls.push(call);
            }
            Err(error) => {
                let error = error.to_string();
                self.events.push(Event::Error(error.clone()));
                self.reply.errors.push(error);
            }
        }
    }
}

/// The next step for text after the reasoning.
fn answer_step(scan: &mut dyn FormatParser, rest: &str, done: bool) -> ParseStep {
    let tags = scan.tags();
    if !tags.is_empty()
        && let Err(step) = text_before(rest, tags, done, ParseStep::Content)
    {
        return step;
    }
    scan.step(rest, done)
}

/// Text without surrounding white space, passed on as soon as it is certain.
#[derive(Default)]
struct Trimmed {
    text: String,
    /// White space that belongs to the text only if more text follows.
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

/// Bytes at the end of `rest` that may be the start of one of `tags`.
fn held(rest: &str, tags: &[&str]) -> usize {
    let begins = |tag: &&str| {
        let longest = (tag.len() - 1).min(rest.len());
        (1..=longest).rev().find(|&length| tag.is_char_boundary(length) && rest.ends_with(&tag[..length]))
    };
    tags.iter().filter_map(begins).max().unwrap_or(0)
}

/// The position of the first of `tags`, and the tag: the longest one there. Text after it is not
/// read: a reply with many tags would otherwise take time quadratic in its length.
pub(super) fn find<'t>(rest: &str, tags: &[&'t str]) -> Option<(usize, &'t str)> {
    let may_start = |letter: char| tags.iter().any(|tag| tag.starts_with(letter));
    rest.match_indices(may_start).find_map(|(at, _)| {
        let here = tags.iter().copied().filter(|tag| rest[at..].starts_with(tag));
        here.max_by_key(|tag| tag.len()).map(|tag| (at, tag))
    })
}

/// Text before the first of `tags`: `Err` is the step that emits it, `Ok` is the tag at the start
/// of `rest`.
pub(super) fn text_before<'t>(
    rest: &str,
    tags: &[&'t str],
    done: bool,
    step: impl Fn(usize) -> ParseStep,
) -> Result<&'t str, ParseStep> {
    match find(rest, tags) {
        Some((0, tag)) => Ok(tag),
        Some((at, _)) => Err(step(at)),
        None if done => Err(step(rest.len())),
        None => match rest.len() - held(rest, tags) {
            0 => Err(ParseStep::More),
            length => Err(step(length)),
        },
    }
}

/// Splits reasoning off the start of a reply: `<think>a</think>b`. Unclosed reasoning extends to
/// the end, or to a call.
pub(super) struct Think<'t> {
    /// Tags around reasoning; a prompt may open the first pair.
    pairs: &'static [(&'static str, &'static str)],
    /// Tags that start a call: they end unclosed reasoning.
    calls: Vec<&'t str>,
    state: Thinking,
}

enum Thinking {
    Front { begun: bool },
    Inside(&'static str),
    Over,
}

/// The tags of most models.
pub(super) const THINK: &[(&str, &str)] = &[("<think>", "</think>")];

impl<'t> Think<'t> {
    pub(super) fn new(begun: bool, pairs: &'static [(&'static str, &'static str)], calls: &[&'t str]) -> Self {
        Self { pairs, calls: calls.to_vec(), state: Thinking::Front { begun } }
    }

    /// The next step of the reasoning, or `None` when it is over and `rest` is the answer.
    pub(super) fn step(&mut self, rest: &str, done: bool) -> Option<ParseStep> {
        match self.state {
            Thinking::Over => None,
            Thinking::Front { begun } => {
                let front = rest.trim_start();
                for &(open, close) in self.pairs {
                    if front.starts_with(open) {
                        self.state = Thinking::Inside(close);
                        return Some(ParseStep::Skip(rest.len() - front.len() + open.len()));
                    }
                    if open.starts_with(front) && !done {
                        return Some(ParseStep::More);
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
                        return Some(ParseStep::Thought(end));
                    }
                    self.state = Thinking::Over;
                    return Some(ParseStep::Skip(close.len()));
                }
                let tags: Vec<&str> = self.calls.iter().copied().chain([close]).collect();
                match text_before(rest, &tags, done, ParseStep::Thought) {
                    Err(step) => Some(step),
                    // The reasoning may still be closed later; then the call is part of the
                    // reasoning.
                    Ok(_) if !done => Some(ParseStep::More),
                    Ok(_) => {
                        self.state = Thinking::Over;
                        None
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
    fn a_possible_start_of_a_tag_is_held_back() {
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

    /// Parsing a reply that opens calls repeatedly takes time linear in its length, not quadratic.
    #[test]
    fn the_number_of_parsed_tool_calls_is_limited() {
        let text = "<tool_call>".repeat(100_000);
        let reply = crate::testing::read("hermes", &text, false, &[]);
        assert_eq!((reply.tool_calls.len(), reply.errors.len()), (0, CALLS + 1));
        assert!(reply.errors[CALLS].starts_with("There are more than 256 tool calls"), "{}", reply.errors[CALLS]);
    }

    /// A character that starts a call of a format and is ordinary text here.
    #[test]
    fn the_time_of_parsing_is_linear_in_the_length_of_the_reply() {
        let seconds = |format: &str, piece: &str, count: usize| {
            let text = piece.repeat(count);
            let clock = r1_base::clock::Clock::of_this_thread();
            let before = clock.now();
            let reply = crate::testing::read(format, &text, false, &[]);
            assert_eq!((reply.content.len(), reply.tool_calls.len()), (text.len(), 0), "{format}");
            (clock.now() - before) as f64
        };
        for (format, piece) in [("pythonic", "["), ("pythonic", "[a b"), ("llama3", "f'{"), ("hermes", "<a")] {
            // Quadratic time would be 400 times as long.
            let (short, long) = (seconds(format, piece, 5_000), seconds(format, piece, 100_000));
            assert!(long < short * 100.0 + 2e8, "{format} {piece}: {short} and {long} ns");
        }
    }

    #[test]
    fn white_space_around_content_is_not_streamed() {
        let (mut text, mut events) = (Trimmed::default(), Vec::new());
        for piece in [" ", "\na ", " ", "b\n", ""] {
            text.push(piece, &mut events, Event::Content);
        }
        assert_eq!(events, [Event::Content("a".to_owned()), Event::Content("  b".to_owned())]);
        assert_eq!(text.text, "a  b");
    }
}
