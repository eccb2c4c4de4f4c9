//! Channel between the rollout threads and the thread that owns the tensors.
//!
//! The channel is bounded: a request holds a permit until it is completed or cancelled. Without a
//! free permit the submitter waits in FIFO order, so that prompts do not accumulate in the queue.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use r1_base::error::Result;
use r1_base::mdp::{Completion, PendingReply, Policy, Request, Scoring};

/// Sent by clients on any thread to the thread that owns the model.
pub(super) enum EngineMessage {
    Generate {
        request: Request,
        reply: ReplyChannel,
        tokens: Option<TokenSender>,
    },
    Score {
        scoring: Scoring,
        reply: oneshot::Sender<Result<Vec<f32>>>,
    },
    /// End of a conversation: its cache can be reused.
    Release {
        conversation: u64,
    },
}

/// Reply channel of a request, and its permit of the queue.
pub(super) struct ReplyChannel {
    sender: oneshot::Sender<Result<Completion>>,
    /// `None` for requests of [`Engine::generate`](super::Engine::generate), which bypass the
    /// queue.
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReplyChannel {
    pub(super) fn send(self, completion: Result<Completion>) {
        // An error means that the receiver was dropped: the request is cancelled.
        let _ = self.sender.send(completion);
    }

    /// Whether the submitter dropped the receiver.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl From<oneshot::Sender<Result<Completion>>> for ReplyChannel {
    fn from(sender: oneshot::Sender<Result<Completion>>) -> Self {
        Self { sender, _permit: None }
    }
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub id: u32,
    /// Log-probability under the sampling distribution.
    pub logprob: f32,
}

pub(super) type TokenSender = UnboundedSender<Sampled>;

/// Client of the engine. Cheap to clone; [`Engine::serve`](super::Engine::serve) returns when the
/// last clone is dropped.
#[derive(Clone)]
pub struct EngineClient {
    calls: Sender<EngineMessage>,
    permits: Arc<Semaphore>,
}

/// Receiving end of the channel, for [`Engine::serve`](super::Engine::serve).
pub struct Queue {
    calls: Receiver<EngineMessage>,
    permits: Arc<Semaphore>,
}

/// Capacity of [`channel`]: several times the slots of an engine. Prompts of 32k tokens then take
/// 128 MiB.
pub const MAX_REQUESTS: usize = 1024;

/// Creates a client and the queue for [`Engine::serve`](super::Engine::serve).
pub fn channel() -> (EngineClient, Queue) {
    bounded(MAX_REQUESTS)
}

/// As [`channel`], for at most `capacity` queued and running requests; at least one.
pub fn bounded(capacity: usize) -> (EngineClient, Queue) {
    let (sender, receiver) = mpsc::channel();
    let permits = Arc::new(Semaphore::new(capacity.clamp(1, Semaphore::MAX_PERMITS)));
    (EngineClient { calls: sender, permits: Arc::clone(&permits) }, Queue { calls: receiver, permits })
}

impl EngineClient {
    /// As [`Policy::submit`], with a stream of the sampled tokens. It buffers at most
    /// `max_new_tokens` tokens.
    pub fn stream(&self, request: Request) -> (UnboundedReceiver<Sampled>, PendingReply) {
        let (sender, tokens) = unbounded_channel();
        (tokens, self.send(request, Some(sender)))
    }

    /// Sends immediately if a permit is free.
    fn send(&self, request: Request, tokens: Option<TokenSender>) -> PendingReply {
        let (sender, receiver) = oneshot::channel();
        let calls = self.calls.clone();
        let send = move |permit| {
            // If the engine has stopped, the sender is dropped with the call: the receiver gets an
            // aborted request.
            let reply = ReplyChannel { sender, _permit: Some(permit) };
            let _ = calls.send(EngineMessage::Generate { request, reply, tokens });
        };
        let permits = Arc::clone(&self.permits);
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            send(permit);
            return receiver.into();
        }
        // The semaphore is closed when the engine stops: `send` and its sender are dropped.
        let queued = async move { permits.acquire_owned().await.map_or((), send) };
        PendingReply::queued(queued.boxed(), receiver)
    }
}

impl Policy for EngineClient {
    fn submit(&self, request: Request) -> PendingReply {
        self.send(request, None)
    }

    fn score(&self, scoring: Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
        let (reply, receiver) = oneshot::channel();
        // If the engine has stopped, the sender is dropped with the call: the receiver gets an
        // aborted request.
        let _ = self.calls.send(EngineMessage::Score { scoring, reply });
        receiver
    }

    fn release(&self, conversation: u64) {
        // Without an engine there is no cache to release.
        let _ = self.calls.send(EngineMessage::Release { conversation });
    }
}

impl Drop for Queue {
    /// Wakes waiting submitters with an error when the engine stops.
    fn drop(&mut self) {
        self.permits.close();
    }
}

impl Queue {
    /// The next call within `timeout`. `Err` when all clients are dropped and the queue is empty.
    pub(super) fn wait(&self, timeout: Duration) -> Result<Option<EngineMessage>, Closed> {
        match self.calls.recv_timeout(timeout) {
            Ok(call) => Ok(Some(call)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Closed),
        }
    }
}

/// All clients are dropped.
pub(super) struct Closed;
