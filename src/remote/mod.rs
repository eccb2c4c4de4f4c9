//! Models behind servers: OpenAI's chat completions API and Anthropic's messages API, streamed as
//! server-sent events.
//!
//! [`Server`] is the client: it sends a conversation, reads the reply as it arrives, and sends the
//! request again if the server is busy. `openai` and `anthropic` write the requests and read the
//! events, each as an `api`, `stream` reads server-sent events, `failure` has the reasons why there
//! is no reply, and `message` their error messages.
//! [`ServerPolicy`] is a server as the policy of rollouts.

mod anthropic;
mod api;
mod failure;
mod message;
mod openai;
mod policy;
mod reply;
mod sampling;
mod server;
mod stream;
#[cfg(test)]
mod tests;

pub use failure::ServerFailure;
pub use policy::{ServerPolicy, completion};
pub use reply::{RawCall, RawReply, ReplyText};
pub use sampling::ServerSampling;
pub use server::{Patience, Server, ServerOptions};
