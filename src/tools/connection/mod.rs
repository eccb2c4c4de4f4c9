//! Connections of scripts that stay open between requests: a WebSocket of one trajectory
//! ([`Socket`]), and a program that trajectories share ([`ConnectedProgram`]).
//!
//! They run on the thread of the servers. A server counts as hostile: it may close the connection,
//! hang, answer twice or with something else. Each of these is a [`ConnectionError`] that the
//! script can handle.

mod program;
mod socket;

pub use program::{ConnectedProgram, ProgramOptions, ProgramSession};
pub use socket::{Socket, SocketOptions, websocket_as_http};

/// The cause of a missing answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// The host has an address that is not public, and only public ones are allowed.
    NotPublic(String),
    /// Any other failure.
    Failed(String),
}

impl From<String> for ConnectionError {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl ConnectionError {
    /// The reason as text.
    pub fn message(self) -> String {
        match self {
            Self::NotPublic(why) | Self::Failed(why) => why,
        }
    }
}
