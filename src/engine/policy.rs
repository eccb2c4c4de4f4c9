//! What rollouts need of a policy: prompt ids in, sampled ids and log-probabilities out.

use tokio::sync::oneshot;

use crate::error::Result;
use crate::mdp::{Completion, Request};

/// A policy to roll out: the engine, a scripted fake in tests, or another program's own.
pub trait Policy: Send + Sync {
    /// Starts a reply; it arrives on the receiver. A dropped sender counts as an aborted request.
    fn submit(&self, request: Request) -> oneshot::Receiver<Result<Completion>>;

    /// Says that a conversation is over, so that its cache can go.
    fn release(&self, _conversation: u64) {}
}
