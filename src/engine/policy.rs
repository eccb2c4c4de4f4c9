//! The interface between rollouts and a policy: prompt ids in, sampled ids and log-probabilities out.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, Request};

/// A policy to roll out: the engine, a scripted fake in tests, or another program's own.
pub trait Policy: Send + Sync {
    /// Starts a reply, or, where the policy has as many requests as it takes, puts it off until there is room.
    fn submit(&self, request: Request) -> PendingReply;

    /// The log-probabilities of ids behind the first `from`, each given those before it.
    fn score(&self, _scoring: Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
        let (sender, receiver) = oneshot::channel();
        let error = Error::new(Kind::Script, "this policy has no log-probabilities of texts");
        let _ = sender.send(Err(error));
        receiver
    }

    /// Says that a conversation is over, so that its cache can go.
    fn release(&self, _conversation: u64) {}
}

/// Ids whose log-probabilities are requested.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    pub ids: Vec<u32>,
    /// The first that is scored; at least 1.
    pub from: usize,
    pub temperature: f64,
    /// Under the reference policy.
    pub reference: bool,
}

/// The future of a reply. Dropping it cancels the request. A dropped sender counts as an aborted request.
pub struct PendingReply {
    /// The queued request. Polling sends it; poll immediately if the order matters.
    queued: Option<BoxFuture<'static, ()>>,
    reply: oneshot::Receiver<Result<Completion>>,
}

impl PendingReply {
    /// A request that waits for room: `queued` sends it.
    pub(super) fn later(queued: BoxFuture<'static, ()>, reply: oneshot::Receiver<Result<Completion>>) -> Self {
        Self { queued: Some(queued), reply }
    }

    /// Blocks a thread without a runtime. If the request is queued, the policy must run on another thread.
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

/// Of a request that has been sent.
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
