//! The channel between the threads that run trajectories and the thread that owns the tensors.
//!
//! It is bounded: a request holds a place from when it is sent until it is answered or cancelled. Without a free place the
//! submitter waits, in order of arrival, so that the prompts of a hundred thousand trajectories do not accumulate here.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{PendingReply, Policy, Scoring};
use crate::error::Result;
use crate::mdp::{Completion, Request};

/// What travels to the engine.
pub(super) enum Call {
    Generate {
        request: Request,
        reply: Reply,
        tokens: Option<Tokens>,
    },
    Score {
        scoring: Scoring,
        reply: oneshot::Sender<Result<Vec<f32>>>,
    },
    /// The conversation is over.
    Release {
        conversation: u64,
    },
}

/// The way back of a request, and its place in the queue.
pub(super) struct Reply {
    sender: oneshot::Sender<Result<Completion>>,
    /// `None` for the engine's own, which no queue has seen.
    _place: Option<OwnedSemaphorePermit>,
}

impl Reply {
    pub(super) fn send(self, completion: Result<Completion>) {
        // The receiver was dropped at this moment, which cancels its request.
        let _ = self.sender.send(completion);
    }

    /// The submitter no longer waits for the answer.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl From<oneshot::Sender<Result<Completion>>> for Reply {
    fn from(sender: oneshot::Sender<Result<Completion>>) -> Self {
        Self { sender, _place: None }
    }
}

/// One token, as it is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub id: u32,
    /// Under the distribution it was drawn from.
    pub logprob: f32,
}

pub(super) type Tokens = UnboundedSender<Sampled>;

/// The policy as trajectories see it. Cheap to clone; the engine serves until the last clone is gone.
#[derive(Clone)]
pub struct EngineClient {
    calls: Sender<Call>,
    places: Arc<Semaphore>,
}

/// The engine's end of the channel, for [`Engine::serve`](super::Engine::serve).
pub struct Queue {
    calls: Receiver<Call>,
    places: Arc<Semaphore>,
}

/// Requests that [`channel`] has room for: several times as many as an engine has slots. Prompts of 32k tokens take
/// 128 MiB then.
pub const MOST_REQUESTS: usize = 1024;

/// A client and the queue that [`Engine::serve`](super::Engine::serve) reads.
pub fn channel() -> (EngineClient, Queue) {
    bounded(MOST_REQUESTS)
}

/// As [`channel`], with room for `most` requests, waiting and under way together; at least one.
pub fn bounded(most: usize) -> (EngineClient, Queue) {
    let (sender, receiver) = mpsc::channel();
    let places = Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
    (EngineClient { calls: sender, places: Arc::clone(&places) }, Queue { calls: receiver, places })
}

impl EngineClient {
    /// As [`Policy::submit`], and the tokens one by one. At most `max_new_tokens` of them wait to be read.
    pub fn stream(&self, request: Request) -> (UnboundedReceiver<Sampled>, PendingReply) {
        let (sender, tokens) = unbounded_channel();
        (tokens, self.send(request, Some(sender)))
    }

    /// Sends at once if there is a place.
    fn send(&self, request: Request, tokens: Option<Tokens>) -> PendingReply {
        let (sender, receiver) = oneshot::channel();
        let calls = self.calls.clone();
        let send = move |place| {
            // When the engine is gone the call, and with it the sender, is dropped: the receiver sees an aborted request.
            let reply = Reply { sender, _place: Some(place) };
            let _ = calls.send(Call::Generate { request, reply, tokens });
        };
        let places = Arc::clone(&self.places);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            send(place);
            return receiver.into();
        }
        // Closed when the engine is gone: `send` is dropped then, and the sender with it.
        let queued = async move { places.acquire_owned().await.map_or((), send) };
        PendingReply::later(queued.boxed(), receiver)
    }
}

impl Policy for EngineClient {
    fn submit(&self, request: Request) -> PendingReply {
        self.send(request, None)
    }

    fn score(&self, scoring: Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
        let (reply, receiver) = oneshot::channel();
        // When the engine is gone, the call is dropped with its sender: the receiver sees an aborted request.
        let _ = self.calls.send(Call::Score { scoring, reply });
        receiver
    }

    fn release(&self, conversation: u64) {
        // Without an engine there is no cache to give back.
        let _ = self.calls.send(Call::Release { conversation });
    }
}

impl Drop for Queue {
    /// Wakes waiting submitters with an error when the engine stops.
    fn drop(&mut self) {
        self.places.close();
    }
}

impl Queue {
    /// The next call, if one comes within `longest`. `Err` when every client is gone and everything was read.
    pub(super) fn wait(&self, longest: Duration) -> Result<Option<Call>, Closed> {
        match self.calls.recv_timeout(longest) {
            Ok(call) => Ok(Some(call)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Closed),
        }
    }

    /// The next call that is already here. `Err` when every client is gone and everything was read.
    pub(super) fn poll(&self) -> Result<Option<Call>, Closed> {
        match self.calls.try_recv() {
            Ok(call) => Ok(Some(call)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Closed),
        }
    }
}

/// Every client is gone.
pub(super) struct Closed;
