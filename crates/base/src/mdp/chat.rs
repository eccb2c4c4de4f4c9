//! Conversations with a policy behind a server: messages in, text and calls out, without token ids.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Message, ToolCall};

/// A conversation for a server, in the terms that the APIs share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerChat {
    pub messages: Vec<ChatMessage>,
    /// Schemas of the tools, in OpenAI's format.
    pub tools: Vec<Value>,
    /// Number of calls in earlier replies of the trajectory, which makes the ids of new ones
    /// unique.
    pub calls: usize,
}

/// A message of a [`ServerChat`].
#[derive(Clone, Debug, PartialEq)]
pub enum ChatMessage {
    System(String),
    User(String),
    /// A message with images.
    UserParts(Vec<ChatPart>),
    /// A reply; each of its calls has an id and a result.
    Assistant {
        text: String,
        calls: Vec<ToolCall>,
    },
    Result {
        id: String,
        text: String,
    },
}

/// A part of a [`ChatMessage`].
#[derive(Clone, Debug, PartialEq)]
pub enum ChatPart {
    Text(String),
    Image {
        /// Such as `image/png`.
        media_type: &'static str,
        /// The file.
        base64: String,
    },
}

/// The part of a server's reply that is not its text. The step of such a reply has no token ids and
/// no log-probabilities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerReply {
    /// The messages of the prompt, in place of its ids.
    #[serde(default)]
    pub prompt: Vec<Message>,
    /// Calls that the server returned as data; calls in the text are not repeated here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Messages about calls that could not be parsed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default)]
    pub usage: Usage,
    /// Wall time of the reply, failed attempts included.
    #[serde(default)]
    pub seconds: f64,
    /// Failed attempts before this one.
    #[serde(default)]
    pub retries: u32,
}

/// Tokens of a reply, as the server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// 0 if the server does not report it.
    pub prompt_tokens: u64,
    /// Tokens of reasoning included; if the server does not report it, the number of pieces of the
    /// stream.
    pub response_tokens: u64,
}

/// A completion of a server: the text and the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerCompletion {
    pub text: String,
    pub reply: ServerReply,
}
