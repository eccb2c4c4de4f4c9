//! Messages, observations and actions, in the format of the OpenAI chat API.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::names;

names! {
    /// The author of a message.
    #[derive(Hash)]
    pub enum Role {
        System = "system",
        User = "user",
        Assistant = "assistant",
        /// The result of a tool call.
        Tool = "tool",
    }
}

/// A message's content: a string, or parts if it has more than text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message. Images and videos are stored once, by the SHA-256 of their bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    Text { text: String },
    Image { hash: String },
    Video { hash: String },
}

impl Content {
    /// The concatenated text of all parts; images and videos are skipped.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Text { text } => text.as_str(),
                    Part::Image { .. } | Part::Video { .. } => "",
                })
                .collect(),
        }
    }

    /// The text as people read it, with marks in the place of images.
    pub fn shown(&self) -> String {
        let Self::Parts(parts) = self else { return self.text() };
        let shown = |part: &Part| match part {
            Part::Text { text } => text.clone(),
            Part::Image { hash } => format!("[image {}]", hash.get(..8).unwrap_or(hash)),
            Part::Video { hash } => format!("[video {}]", hash.get(..8).unwrap_or(hash)),
        };
        parts.iter().map(shown).collect()
    }

    fn parts(&self) -> &[Part] {
        if let Self::Parts(parts) = self { parts } else { &[] }
    }

    /// The images and videos.
    pub fn media(&self) -> Vec<Part> {
        self.parts().iter().filter(|part| !matches!(part, Part::Text { .. })).cloned().collect()
    }

    /// The hashes of the images and videos.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        self.parts().iter().filter_map(|part| match part {
            Part::Image { hash } | Part::Video { hash } => Some(hash.as_str()),
            Part::Text { .. } => None,
        })
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A tool call as written by the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub name: String,
    /// A JSON object; formats without named arguments use the key `code`.
    pub arguments: Value,
}

/// Maximum nesting of a call's arguments. Plain data may be nested 100 deep, and the arguments are
/// inside a state and its messages.
pub const ARGUMENTS_DEPTH: usize = 64;

impl ToolCall {
    /// Whether the arguments are nested more than [`ARGUMENTS_DEPTH`] deep.
    pub fn is_too_deep(&self) -> bool {
        fn is_deeper(value: &Value, limit: usize) -> bool {
            match value {
                Value::Array(items) => limit == 0 || items.iter().any(|item| is_deeper(item, limit - 1)),
                Value::Object(fields) => limit == 0 || fields.values().any(|item| is_deeper(item, limit - 1)),
                _ => false,
            }
        }
        is_deeper(&self.arguments, ARGUMENTS_DEPTH)
    }
}

/// What scripts write, chat templates render and trajectories store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: Role,
    #[serde(default)]
    pub content: Content,
    /// The reasoning before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls in an assistant message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The name of the tool, in a tool message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            name: None,
            tool_call_id: None,
        }
    }

    pub fn system(content: impl Into<Content>) -> Self {
        Self::new(Role::System, content)
    }

    pub fn user(content: impl Into<Content>) -> Self {
        Self::new(Role::User, content)
    }

    pub fn assistant(content: impl Into<Content>) -> Self {
        Self::new(Role::Assistant, content)
    }

    pub fn tool(content: impl Into<Content>) -> Self {
        Self::new(Role::Tool, content)
    }
}

/// The observation of the policy at a step: exactly one of the three.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Observation {
    Messages(Vec<Message>),
    Text(String),
    TokenIds(Vec<u32>),
}

/// The policy's complete reply at a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The reply as text, without the end-of-turn token.
    pub text: String,
    pub token_ids: Vec<u32>,
    pub tool_calls: Vec<ToolCall>,
    /// Error messages for calls that could not be parsed; the policy receives them as observations.
    pub errors: Vec<String>,
    pub finish_reason: super::FinishReason,
}
