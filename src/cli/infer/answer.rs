//! What a conversation gives: events while an answer is sampled, replies, answers, totals.

use crate::mdp::{Completion, FinishReason, ToolCall, ToolRecord};

/// An event to show while an answer is sampled.
#[derive(Debug)]
pub(super) enum AnswerEvent<'a> {
    /// More content.
    Text(&'a str),
    /// More reasoning.
    Thought(&'a str),
    Call(&'a ToolCall),
    /// An error message about a call that could not be parsed.
    Malformed(&'a str),
    End,
    /// The reply was not the last one: the tools' results follow, and the policy continues.
    Turn {
        text: &'a str,
        reasoning: Option<&'a str>,
    },
    Result {
        name: &'a str,
        text: &'a str,
    },
    /// Text printed by the script.
    Log(&'a str),
}

/// Receives the events.
pub(super) type ShowAnswer<'a> = dyn FnMut(AnswerEvent<'_>) + 'a;

pub(super) struct ModelReply {
    pub(super) completion: Completion,
    /// Without reasoning and calls.
    pub(super) content: String,
    pub(super) reasoning: Option<String>,
    /// Tokens of the prompt, if known.
    pub(super) prompt: Option<usize>,
    /// Stopped by Ctrl-C.
    pub(super) stopped: bool,
}

#[derive(Default)]
pub(super) struct QuestionAnswer {
    /// The policy's last reply, without reasoning and calls.
    pub(super) text: String,
    pub(super) reasoning: Option<String>,
    /// The executed calls of all replies.
    pub(super) tool_calls: Vec<ToolRecord>,
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    /// Seconds of sampling.
    pub(super) sampling_seconds: f64,
    pub(super) stopped: bool,
    /// The reason why the last reply ended.
    pub(super) finish: Option<FinishReason>,
    /// It was stopped before a reply began or during a tool call: the question is undone.
    pub(super) undone: bool,
}

/// Totals of a conversation, for `/stats`.
#[derive(Clone, Copy, Default)]
pub(super) struct ChatStats {
    pub(super) questions: usize,
    pub(super) replies: u32,
    pub(super) tool_calls: usize,
    pub(super) tokens: usize,
    pub(super) sampling_seconds: f64,
    /// Tokens of the last prompt with its reply; `None` if unknown.
    pub(super) context: Option<usize>,
}
