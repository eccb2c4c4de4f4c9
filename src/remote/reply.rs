//! A reply of a server, while it arrives and complete.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::mdp::{FinishReason, ToolCall, Usage};

/// New text of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Content(&'a str),
    Reasoning(&'a str),
}

/// Receives new text.
pub(super) type Show<'a> = dyn FnMut(Piece<'_>) + 'a;

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

/// The reply so far.
#[derive(Debug, Default)]
pub(super) struct PartialReply {
    pub(super) content: String,
    pub(super) reasoning: String,
    /// By their index in the reply.
    pub(super) calls: BTreeMap<u64, PartialCall>,
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
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

impl PartialReply {
    pub(super) fn add_content(&mut self, more: &str, show: &mut Show<'_>) {
        if !more.is_empty() {
            self.content.push_str(more);
            self.pieces += 1;
            show(Piece::Content(more));
        }
    }

    pub(super) fn add_reasoning(&mut self, more: &str, show: &mut Show<'_>) {
        if !more.is_empty() {
            self.reasoning.push_str(more);
            self.pieces += 1;
            show(Piece::Reasoning(more));
        }
    }

    /// The reply at its end. `earlier`: calls of earlier replies; the ids of new calls continue
    /// their numbers, because servers may repeat ids.
    pub(super) fn finish(self, earlier: usize, stopped: bool, retries: u32) -> RawReply {
        let (mut calls, mut count) = (Vec::new(), earlier);
        for (number, PartialCall { name, arguments, .. }) in (1..).zip(self.calls.into_values()) {
            let text = if arguments.trim().is_empty() { "{}" } else { arguments.as_str() };
            match serde_json::from_str::<Value>(text) {
                Ok(arguments) if arguments.is_object() && !name.is_empty() => {
                    // Nine letters and digits, the form that the strictest servers require.
                    let id = Some(format!("r1c{count:06}"));
                    count += 1;
                    calls.push(RawCall::Call(ToolCall { id, name, arguments }));
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
