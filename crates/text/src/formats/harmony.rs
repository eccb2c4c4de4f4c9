//! Harmony (gpt-oss): a reply is a list of messages,
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant…`. The channel `analysis` is
//! reasoning; a message `to=functions.NAME` is a call; the rest is content. The prompt ends with
//! `<|start|>assistant`, so a reply begins inside a header.

use super::json::{self, ParsedStart};
use super::shared::{call, code_call};
use crate::malformed::{Malformed, ReplyError};
use crate::python;
use crate::stream::{FormatParser, ParseStep, find, text_before};
use crate::tool_format::ToolFormat;
use r1_base::mdp::ToolCall;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const CALL: &str = "<|call|>";
/// Tokens that end a message; all except `<|end|>` also end the reply.
const ENDS: &[&str] = &["<|end|>", CALL, "<|return|>", START];
/// Channels and recipients (gpt-oss).
pub(super) const FORMAT: ToolFormat = ToolFormat {
    name: "harmony",
    fits: |template| template.contains(CHANNEL) && template.contains(MESSAGE),
    syntax: Some(
        "To call one, write a message to it on the channel `commentary`, with its arguments as JSON. The result is in the \
         next message. For example:",
    ),
    thinking: &[],
    end_tokens: &[CALL, "<|return|>"],
    later_end: Some("<|end|>"),
    hides_headers: true,
    scan: |tool, _| Box::new(Harmony { tool, position: HarmonyPosition::Front }),
    write,
    ..ToolFormat::TEXT
};

struct Harmony<'a> {
    /// The tool that the built-in `python` calls.
    tool: &'a str,
    position: HarmonyPosition,
}

enum HarmonyPosition {
    /// At the start of the reply.
    Front,
    /// Between messages, or in a header.
    Header,
    Body(Body),
}

#[derive(Clone)]
enum Body {
    Content,
    Thought,
    Call(String),
    /// A message of another role.
    Ignored,
}

impl Harmony<'_> {
    fn header(&mut self, rest: &str, done: bool) -> ParseStep {
        if let Some(tag) = ENDS.iter().find(|tag| rest.starts_with(**tag) && **tag != START) {
            return ParseStep::Skip(tag.len());
        }
        let Some(end) = rest.find(MESSAGE) else {
            return match addressed(rest) {
                _ if !done => ParseStep::More,
                ("assistant" | "", Some(_)) => ParseStep::Calls(rest.len(), vec![Err(Malformed::CUT_OFF)]),
                // A header without a message is skipped.
                _ => ParseStep::Skip(rest.len()),
            };
        };
        let header = &rest[..end];
        // The last channel counts: a header may be repeated.
        let channel = header.rsplit_once(CHANNEL).map_or("", |(_, channel)| channel);
        let channel = channel.split(|letter: char| letter.is_whitespace() || letter == '<').next().unwrap_or_default();
        let (role, to) = addressed(header);
        let body = match to {
            _ if !matches!(role, "assistant" | "") => Body::Ignored,
            Some(to) => Body::Call(to.strip_prefix("functions.").unwrap_or(to).to_owned()),
            None if channel == "analysis" => Body::Thought,
            None => Body::Content,
        };
        let used = end + MESSAGE.len();
        self.position = HarmonyPosition::Body(body);
        ParseStep::Break(used)
    }

    fn body(&mut self, body: &Body, rest: &str, done: bool) -> ParseStep {
        let Body::Call(name) = body else {
            return match text_before(rest, ENDS, done, |length| body.give(length)) {
                Err(step) => step,
                Ok(tag) => {
                    self.position = HarmonyPosition::Header;
                    // `header` reads the start token.
                    if tag == START { self.header(rest, done) } else { ParseStep::Skip(tag.len()) }
                }
            };
        };
        let (result, from) = match json::leading_value(rest, done) {
            None => return ParseStep::More,
            Some(ParsedStart::Value(value, used)) => (json::arguments(value), used),
            // `end` reports the empty call.
            Some(ParsedStart::Nothing) => return ParseStep::Skip(rest.len()),
            Some(ParsedStart::Broken(error)) => (Err(Malformed::json(error, find(rest, ENDS).is_some())), 0),
        };
        let Some(end) = find(&rest[from..], ENDS).map(|(at, _)| from + at).or(done.then_some(rest.len())) else {
            return ParseStep::More;
        };
        let result = if rest[from..end].trim().is_empty() || result.is_err() {
            result.map(|arguments| call(name, arguments))
        } else {
            Err(Malformed::StrayAfterObject)
        };
        // The built-in interpreter takes a program, not JSON.
        let result = match result {
            Err(_) if name == "python" && !rest[..end].trim().is_empty() => {
                Ok(code_call(self.tool, rest[..end].trim()))
            }
            result => result,
        };
        self.position = HarmonyPosition::Header;
        // An empty body is skipped together with its end token, so that the step makes progress.
        let used = if end == 0 { find(rest, ENDS).map_or(rest.len(), |(_, tag)| tag.len()) } else { end };
        ParseStep::Calls(used, vec![result])
    }
}

/// The role and the recipient (a tool) in a message header.
fn addressed(header: &str) -> (&str, Option<&str>) {
    let word = |text: &str| text.find(|letter: char| letter.is_whitespace() || letter == '<').unwrap_or(text.len());
    let role = header.rsplit_once(START).map_or("assistant", |(_, role)| &role[..word(role)]);
    let to = header.split("to=").skip(1).map(|to| &to[..word(to)]);
    (role, to.filter(|to| !to.is_empty() && *to != "assistant" && *to != "user").last())
}

impl Body {
    fn give(&self, length: usize) -> ParseStep {
        match self {
            Self::Thought => ParseStep::Thought(length),
            Self::Ignored => ParseStep::Skip(length),
            Self::Content | Self::Call(_) => ParseStep::Content(length),
        }
    }
}

impl FormatParser for Harmony<'_> {
    fn step(&mut self, rest: &str, done: bool) -> ParseStep {
        if matches!(self.position, HarmonyPosition::Front) {
            let front = rest.trim_start();
            let headers = [START, CHANNEL, MESSAGE, CONSTRAIN, "to="];
            if headers.iter().any(|tag| front.starts_with(tag)) {
                self.position = HarmonyPosition::Header;
            } else if !done && headers.iter().any(|tag| tag.starts_with(front)) {
                return ParseStep::More;
            } else {
                // No header: the reply is plain text.
                self.position = HarmonyPosition::Body(Body::Content);
            }
        }
        match &self.position {
            HarmonyPosition::Body(body) => {
                let body = body.clone();
                self.body(&body, rest, done)
            }
            HarmonyPosition::Front | HarmonyPosition::Header => self.header(rest, done),
        }
    }

    fn end(&mut self, _whole: &str) -> Vec<Result<ToolCall, ReplyError>> {
        match &self.position {
            HarmonyPosition::Body(Body::Call(name)) => vec![Err(ReplyError::NoArguments { function: name.clone() })],
            _ => Vec::new(),
        }
    }
}

/// Appends the calls to the text.
fn write(text: String, calls: &[ToolCall]) -> String {
    let mut out = text;
    for call in calls {
        if !out.is_empty() {
            if !out.starts_with("<|") {
                out = format!("{CHANNEL}commentary{MESSAGE}{out}");
            }
            out.push_str("<|end|><|start|>assistant");
        }
        let arguments = python::dumps(&call.arguments);
        let header = [CHANNEL, "commentary to=functions.", &call.name, " ", CONSTRAIN, "json", MESSAGE];
        out.extend(header);
        out.push_str(&arguments);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::read;
    use crate::tool_format::Reply;

    fn parse(text: &str) -> Reply {
        read("harmony", text, false, &[])
    }

    #[test]
    fn harmony_channels_are_content_reasoning_and_calls() {
        let reply = parse(
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>\
             <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|call|>\"}<|call|>",
        );
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("hm"), "Let me see."));
        assert_eq!(reply.tool_calls, [call("f", json!({"a": "<|call|>"}))]);
        let reply = parse(
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>4",
        );
        assert_eq!((reply.reasoning.as_deref(), reply.content.as_str()), (Some("a\n\nb"), "4"));
        let reply = parse("<|channel|>analysis to=python code<|message|>print(1)");
        assert_eq!(reply.tool_calls, [call("python", json!({"code": "print(1)"}))]);
        assert_eq!(parse("plain < text").content, "plain < text");
    }

    #[test]
    fn malformed_tool_calls_give_error_messages() {
        for (body, error) in [
            ("{a}", "not valid JSON, key must be a string at line 1 column 2"),
            ("{} x", "unexpected text after the JSON object"),
            ("[1]", "`arguments` must be a JSON object, found a list"),
            ("{\"a\": ", "it is cut off"),
        ] {
            let reply = parse(&format!(" to=functions.f<|channel|>commentary<|message|>{body}"));
            assert_eq!(reply.errors, [format!("Tool call 1 can't be read: {error}.")], "{body}");
        }
        assert_eq!(parse(" to=functions.f<|message|> ").errors, ["The call of `f` has no arguments."]);
        for header in ["to=functions.f", "to=functions.f <|constrain|>json", "to=f<|mess"] {
            let reply = parse(&format!(
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary {header}"
            ));
            assert_eq!(reply.errors, ["Tool call 1 can't be read: it is cut off."], "{header}");
        }
        assert_eq!(parse("<|channel|>commentary<|mess").errors, [""; 0]);
        let reply = parse("<|channel|>commentary to=functions.f<|message|> <|call|>");
        assert_eq!(reply.errors, ["Tool call 1 can't be read: not valid JSON, expected value at line 1 column 2."]);
    }
}
