//! A reply of a server, while it arrives and complete.

use serde_json::Value;

use crate::json;
use crate::mdp::{ARGUMENTS_DEPTH, FinishReason, ToolCall, Usage};

/// New text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyText<'a> {
    Content(&'a str),
    Reasoning(&'a str),
}

/// Receives new text.
pub(super) type Show<'a> = dyn FnMut(ReplyText<'_>) + 'a;

/// A reply without interpretation of its text.
#[derive(Clone, Debug, PartialEq)]
pub struct RawReply {
    pub content: String,
    pub reasoning: Option<String>,
    /// Calls as data, in their order.
    pub calls: Vec<RawCall>,
    pub finish_reason: FinishReason,
    pub usage: Usage,
    /// Stopped by the caller before its end.
    pub stopped: bool,
    /// Failed attempts before this one.
    pub retries: u32,
}

/// A call as data.
#[derive(Clone, Debug, PartialEq)]
pub enum RawCall {
    Call(ToolCall),
    /// The message about arguments that are not a JSON object.
    Malformed(String),
}

/// Largest number of tokens that a server may count; a larger one is no count.
const MOST_TOKENS: u64 = 1 << 32;

/// A server's count of tokens.
pub(super) fn tokens(count: &Value) -> Option<u64> {
    count.as_u64().filter(|&count| count <= MOST_TOKENS)
}

/// The reply so far.
#[derive(Debug, Default)]
pub(super) struct PartialReply {
    pub(super) content: String,
    pub(super) reasoning: String,
    /// In the order in which they began.
    pub(super) calls: Vec<PartialCall>,
    /// There was an event of the server's API.
    pub(super) is_of_api: bool,
    /// `None` until the server reports that the reply is complete.
    pub(super) finish: Option<FinishReason>,
    /// Pieces with text, in case the server does not count tokens.
    pub(super) pieces: usize,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) response_tokens: Option<u64>,
}

/// A call whose arguments arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct PartialCall {
    pub(super) index: u64,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

impl PartialReply {
    pub(super) fn add_content(&mut self, more: &str, show: &mut Show<'_>) {
        if !more.is_empty() {
            self.content.push_str(more);
            self.pieces += 1;
            show(ReplyText::Content(more));
        }
    }

    pub(super) fn add_reasoning(&mut self, more: &str, show: &mut Show<'_>) {
        if !more.is_empty() {
            self.reasoning.push_str(more);
            self.pieces += 1;
            show(ReplyText::Reasoning(more));
        }
    }

    /// Bytes of the reply so far.
    pub(super) fn bytes(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
        self.content.len() + self.reasoning.len() + calls
    }

    /// The last call with an index, or a new one.
    pub(super) fn call(&mut self, index: u64) -> &mut PartialCall {
        match self.calls.iter().rposition(|call| call.index == index) {
            Some(at) => &mut self.calls[at],
            None => self.new_call(index),
        }
    }

    pub(super) fn new_call(&mut self, index: u64) -> &mut PartialCall {
        let at = self.calls.len();
        self.calls.push(PartialCall { index, ..PartialCall::default() });
        &mut self.calls[at]
    }

    /// The reply at its end. `earlier`: calls of earlier replies; the ids of new calls continue
    /// their numbers, because servers may repeat ids.
    pub(super) fn finish(mut self, earlier: usize, stopped: bool, retries: u32) -> RawReply {
        let (mut calls, mut count) = (Vec::new(), earlier);
        self.calls.sort_by_key(|call| call.index);
        for (number, PartialCall { name, arguments, .. }) in (1..).zip(self.calls) {
            let text = if arguments.trim().is_empty() { "{}" } else { arguments.as_str() };
            match json::read_foreign(text.as_bytes()) {
                Ok(arguments) if arguments.is_object() && !name.is_empty() => {
                    // Nine letters and digits, the form that the strictest servers require.
                    let call = ToolCall { id: Some(format!("r1c{count:06}")), name, arguments };
                    if call.is_too_deep() {
                        let name = call.name;
                        calls.push(RawCall::Malformed(format!(
                            "The arguments of `{name}` are nested more than {ARGUMENTS_DEPTH} deep."
                        )));
                        continue;
                    }
                    count += 1;
                    calls.push(RawCall::Call(call));
                }
                _ if stopped => {}
                read => {
                    let why = read.err().map_or_else(|| "no object".to_owned(), |error| error.to_string());
                    calls.push(RawCall::Malformed(format!(
                        "Tool call {number} can't be read: the arguments of `{name}` are not JSON: {why}."
                    )));
                }
            }
        }
        let usage = Usage {
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            response_tokens: self.response_tokens.unwrap_or(self.pieces as u64),
        };
        let finish_reason = if stopped { FinishReason::Length } else { self.finish.unwrap_or(FinishReason::Stop) };
        let reasoning = Some(self.reasoning).filter(|text| !text.is_empty());
        RawReply { content: self.content, reasoning, calls, finish_reason, usage, stopped, retries }
    }
}
