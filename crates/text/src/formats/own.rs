//! A format defined by a recipe: [`OwnFormat`], functions of the script.
//!
//! The host splits off leading reasoning. Text before the first of `starts` is content and is
//! streamed; `parse` receives the complete answer.

use serde_json::Value;

use crate::malformed::{CALLS, ReplyError};
use crate::stream::{FormatParser, ParseStep, ReplyStream, THINK, Think, text_before};
use crate::tool_format::Reply;
use r1_base::error::{Error, Result};
use r1_base::mdp::{Message, ToolCall};

/// The options of a recipe's format, apart from its functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnOptions {
    /// The name used in recipes.
    pub name: String,
    /// Distinguishes versions of the script.
    pub version: String,
    /// Strings that may start a call. Text before them is content.
    pub starts: Vec<String>,
    /// Strings that end a reply.
    pub stop: Vec<String>,
    /// Results are in the policy's own turn, after a reply that ended with one of `stop`.
    pub same_turn: bool,
    /// A leading `<think>…</think>` is removed before `parse`.
    pub thinking: bool,
    /// The function `write` exists.
    pub writes: bool,
}

/// The functions of a format defined by a recipe. Every error has `Kind::Script` and names the
/// line.
pub trait OwnFormat {
    fn options(&self) -> &OwnOptions;

    /// The calls of a reply in order, and why one could not be parsed.
    fn parse(&self, text: &str, tools: &[Value]) -> Result<Vec<Result<ToolCall, ReplyError>>>;

    fn write(&self, calls: &[ToolCall]) -> Result<String>;

    /// The text that shows results to the policy; `None` without the function.
    fn results(&self, results: &[Message]) -> Result<Option<String>>;

    /// The text that describes the tools; `None` without the function.
    fn describe(&self, tools: &[Value]) -> Result<Option<String>>;
}

/// Parses a complete reply with a format that is not shared between threads.
///
/// # Errors
/// Errors of `parse`.
pub fn read_with(format: &dyn OwnFormat, text: &str, begun: bool, tools: &[Value]) -> Result<Reply> {
    stream(format, begun, tools).read_whole(text)
}

/// A streaming parser for a reply.
pub(crate) fn stream<'a>(format: &'a dyn OwnFormat, begun: bool, tools: &'a [Value]) -> ReplyStream<'a> {
    let options = format.options();
    let starts: Vec<&str> = options.starts.iter().map(String::as_str).collect();
    let think = Think::new(begun, if options.thinking { THINK } else { &[] }, &starts);
    let reader = RecipeFormatReader { format, tools, starts, answer: String::new(), parsed: None, failed: None };
    ReplyStream::new(think, Box::new(reader))
}

/// Reads one reply.
struct RecipeFormatReader<'a> {
    format: &'a dyn OwnFormat,
    tools: &'a [Value],
    starts: Vec<&'a str>,
    /// The part of the answer that was streamed as content.
    answer: String,
    /// The result of `parse`.
    parsed: Option<Vec<Result<ToolCall, ReplyError>>>,
    failed: Option<Error>,
}

impl RecipeFormatReader<'_> {
    /// Parses the answer that ends with `rest`; returns whether it has calls or malformed calls.
    fn parse(&mut self, rest: &str) -> bool {
        let answer = format!("{}{rest}", self.answer);
        let calls = self.format.parse(&answer, self.tools).unwrap_or_else(|error| {
            self.failed = Some(error);
            Vec::new()
        });
        !self.parsed.insert(calls).is_empty()
    }
}

impl FormatParser for RecipeFormatReader<'_> {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if self.parsed.is_some() {
            return ParseStep::Content(rest.len());
        }
        match text_before(rest, &self.starts, done, ParseStep::Content) {
            Err(ParseStep::Content(length)) => {
                self.answer.push_str(&rest[..length]);
                ParseStep::Content(length)
            }
            Err(step) => step,
            Ok(_) if !done => ParseStep::More,
            Ok(_) if self.parse(rest) => ParseStep::Skip(rest.len()),
            // It only looked like a call.
            Ok(_) => ParseStep::Content(rest.len()),
        }
    }

    fn end(&mut self, _whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        if self.parsed.is_none() {
            self.parse("");
        }
        let mut calls = self.parsed.take().unwrap_or_default();
        if calls.len() > CALLS {
            calls.truncate(CALLS);
            calls.push(Err(ReplyError::TooManyCalls));
        }
        calls
    }

    fn failed(&mut self) -> Option<Error> {
        self.failed.take()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::shared::call;
    use super::*;
    use crate::testing::renderer_of;
    use crate::{Event, Extension, Format};
    use r1_base::error::Kind;

    /// `<search>query</search>`, as in Search-R1 (arXiv:2503.09516).
    struct Search(OwnOptions);

    fn search(same_turn: bool) -> Format {
        Format::of_recipe(Search(OwnOptions {
            name: "search".to_owned(),
            starts: vec!["<search>".to_owned()],
            stop: vec!["</search>".to_owned()],
            same_turn,
            thinking: true,
            writes: true,
            ..OwnOptions::default()
        }))
    }

    impl OwnFormat for Search {
        fn options(&self) -> &OwnOptions {
            &self.0
        }

        fn parse(&self, text: &str, _tools: &[Value]) -> Result<Vec<Result<ToolCall, ReplyError>>> {
            let Some((_, inner)) = text.split_once("<search>") else { return Ok(Vec::new()) };
            Ok(match inner.split_once("</search>") {
                Some(("boom", _)) => return Err(Error::new(Kind::Script, "boom").at("a.lua:3")),
                Some(("", _)) => Vec::new(),
                Some((query, _)) => vec![Ok(call("search", json!({ "query": query })))],
                None => vec![Err(ReplyError::Own("<search> was not closed.".to_owned()))],
            })
        }

        fn write(&self, calls: &[ToolCall]) -> Result<String> {
            let text = |call: &ToolCall| call.arguments["query"].as_str().unwrap_or_default().to_owned();
            Ok(calls.iter().map(|call| format!("<search>{}</search>", text(call))).collect::<Vec<_>>().concat())
        }

        fn results(&self, results: &[Message]) -> Result<Option<String>> {
            let texts: Vec<String> = results.iter().map(|result| result.content.text()).collect();
            Ok(Some(format!("<information>{}</information>", texts.join("; "))))
        }

        fn describe(&self, tools: &[Value]) -> Result<Option<String>> {
            Ok(Some(format!("{} tools", tools.len())))
        }
    }

    #[test]
    fn text_before_a_call_is_streamed_and_the_call_follows() {
        let format = search(false);
        let mut stream = format.stream(false, "", &[]);
        let mut events = stream.push("<think>hm</think>I look it ");
        events.extend(stream.push("up. <sea"));
        assert_eq!(
            events,
            [
                Event::Reasoning("hm".to_owned()),
                Event::Content("I look it".to_owned()),
                Event::Content(" up.".to_owned())
            ]
        );
        assert_eq!(stream.push("rch>a b</search>"), []);
        let (events, reply) = stream.finish().unwrap();
        assert_eq!(events, [Event::Call(call("search", json!({ "query": "a b" })))]);
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("hm"), "I look it up."));
    }

    #[test]
    fn text_without_a_tool_call_is_content() {
        let read = |text: &str| search(false).read(text, false, "", &[]);
        let reply = read("a <search></search> b").unwrap();
        assert_eq!((reply.content.as_str(), reply.tool_calls.len()), ("a <search></search> b", 0));
        let reply = read("<think>never closed <search>x</search>").unwrap();
        assert_eq!((reply.reasoning.as_deref(), reply.tool_calls.len()), (Some("never closed"), 1));
        let reply = read("a <search>b").unwrap();
        assert_eq!((reply.content.as_str(), reply.errors.len()), ("a", 1));
        let error = read("<search>boom</search>").unwrap_err();
        assert_eq!((error.message.as_str(), error.place.as_deref()), ("boom", Some("a.lua:3")));
    }

    #[test]
    fn the_tools_are_described_in_the_system_message() {
        let renderer = renderer_of(search(false));
        let tools = [json!({ "type": "function" })];
        let text = |messages: &[Message]| renderer.prompt_text(messages, &tools).unwrap();
        let alone = text(&[Message::user("q")]);
        assert!(alone.starts_with("<|im_start|>system\n1 tools<|im_end|>\n<|im_start|>user\nq"), "{alone}");
        let after = text(&[Message::system("Be brief."), Message::user("q")]);
        assert!(after.starts_with("<|im_start|>system\nBe brief.\n\n1 tools<|im_end|>"), "{after}");
        assert!(!renderer.prompt_text(&[Message::user("q")], &[]).unwrap().contains("tools"));
    }

    /// The text that a second prompt appends to a reply.
    fn added(renderer: &crate::Renderer, reply: &str, ended: bool) -> String {
        let tools = [json!({ "type": "function" })];
        let shown = vec![Message::user("q")];
        let tokenizer = renderer.tokenizer();
        let mut response = tokenizer.encode(reply).unwrap();
        response.extend(renderer.stop_ids().first().filter(|_| ended));
        let now = [shown.clone(), vec![Message::assistant(reply), Message::tool("1"), Message::tool("2")]].concat();
        let Extension::Appends(ids) = renderer.extend(&shown, &response, reply, &now, &tools).unwrap() else {
            return "rewritten".to_owned();
        };
        // A prompt rendered from scratch has the same text.
        let whole = renderer.prompt_text(&now, &tools).unwrap();
        let text = tokenizer.decode(&ids, false);
        assert!(whole.ends_with(&text), "{whole}");
        text
    }

    #[test]
    fn results_are_in_the_turn_that_the_format_sets() {
        let answer = "<information>1; 2</information>";
        let other = renderer_of(search(false));
        let expected = format!("\n<|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(added(&other, "<search>a</search>", true), expected);
        let same = renderer_of(search(true));
        assert_eq!(added(&same, "<search>a</search>", false), answer);
        // The policy ended its turn: the results are a user message.
        assert_eq!(added(&same, "<search>a", true), expected);
    }

    #[test]
    fn calls_of_a_message_are_written_into_its_text() {
        for same_turn in [false, true] {
            let renderer = renderer_of(search(same_turn));
            let mut message = Message::assistant("Look:");
            message.tool_calls = vec![call("search", json!({ "query": "a" }))];
            let text = renderer.prompt_text(&[Message::user("q"), message, Message::tool("1")], &[]).unwrap();
            assert!(text.contains("Look:\n<search>a</search>"), "{text}");
        }
    }
}
