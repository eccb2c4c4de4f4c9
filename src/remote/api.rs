//! What differs between the APIs of servers.

use serde_json::Value;

use super::failure::ServerFailure;
use super::reply::{PartialReply, Show};
use super::sampling::ServerSampling;
use crate::error::Result;
use crate::mdp::ServerChat;

/// An API.
#[derive(Debug)]
pub(super) struct ChatApi {
    /// The environment variable with the key.
    pub(super) key_variable: &'static str,
    /// The header with the key, and the text before it.
    pub(super) key_header: (&'static str, &'static str),
    /// Other headers.
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) path: &'static str,
    /// A URL, as an example.
    pub(super) example: &'static str,
    /// A server with this API, in messages.
    pub(super) server: &'static str,
    /// The description of a response without any event of the API.
    pub(super) lacking: &'static str,
    /// The body of a request; true for `max_completion_tokens`, OpenAI's new name of the limit.
    pub(super) body: fn(&str, &ServerChat, &ServerSampling, bool) -> Result<Value>,
    /// Whether a refusal says that the model requires that name.
    pub(super) wants_new_limit: fn(&[u8]) -> bool,
    /// Adds an event to the reply.
    pub(super) event: fn(&mut PartialReply, &Value, &mut Show<'_>) -> Result<(), ServerFailure>,
}
