//! The interface between rollouts and a policy: prompt ids in, sampled ids and log-probabilities
//! out.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::{Completion, Request};
use crate::error::{Error, Kind, Result};

/// A policy for rollouts: the engine, a scripted fake in tests, or an implementation of another
/// crate.
pub trait Policy: Send + Sync {
    /// Submits a request. If the policy is at its capacity, the request is queued.
    fn submit(&self, request: Request) -> PendingReply;

    /// Log-probabilities of the ids from index `from` on, each given the previous ids.
    fn score(&self, _scoring: Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
        let (sender, receiver) = oneshot::channel();
        let error = Error::new(Kind::Script, "this policy has no log-probabilities of texts");
        let _ = sender.send(Err(error));
        receiver
    }

    /// Waits until the trajectories of this policy shall end as aborted; their calls are dropped
    /// then.
    fn halted(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Ends a conversation, so that its cache can be reused.
    fn release(&self, _conversation: u64) {}
}

/// A request for log-probabilities of given ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    pub ids: Vec<u32>,
    /// Index of the first id to score; at least 1.
    pub from: usize,
    pub temperature: f64,
    /// Score under the reference policy.
    pub reference: bool,
}

/// Future of a completion. Dropping it cancels the request. A dropped sender counts as an aborted
/// request.
pub struct PendingReply {
    /// The queued request. Polling sends it; poll immediately if the order matters.
    queued: Option<BoxFuture<'static, ()>>,
    reply: oneshot::Receiver<Result<Completion>>,
}

impl PendingReply {
    /// A queued request, which the future `queued` sends.
    pub fn queued(queued: BoxFuture<'static, ()>, reply: oneshot::Receiver<Result<Completion>>) -> Self {
        Self { queued: Some(queued), reply }
    }

    /// Blocks a thread without a runtime. If the request is queued, the policy must run on another
    /// thread.
    pub fn blocking_recv(self) -> Result<Result<Completion>, RecvError> {
        if self.queued.is_none() {
            return self.reply.blocking_recv();
        }
        match tokio::runtime::Builder::new_current_thread().build() {
            Ok(runtime) => runtime.block_on(self),
            Err(error) => Ok(Err(Error::new(Kind::Internal, format!("can't start a runtime to wait in: {error}")))),
        }
    }
}

/// A request that was sent.
impl From<oneshot::Receiver<Result<Completion>>> for PendingReply {
    fn from(reply: oneshot::Receiver<Result<Completion>>) -> Self {
        Self { queued: None, reply }
    }
}

impl Future for PendingReply {
    type Output = Result<Result<Completion>, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(queued) = &mut self.queued {
            ready!(queued.as_mut().poll(context));
            self.queued = None;
        }
        Pin::new(&mut self.reply).poll(context)
    }
}
