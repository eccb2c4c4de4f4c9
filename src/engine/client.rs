//! The channel between the threads that run trajectories and the thread that owns the tensors.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::Policy;
use crate::error::Result;
use crate::mdp::{Completion, Request};

/// What travels to the engine.
pub(super) enum Call {
    Generate {
        request: Request,
        reply: Reply,
        tokens: Option<Tokens>,
    },
    /// The conversation is over.
    Release {
        conversation: u64,
    },
}

pub(super) type Reply = oneshot::Sender<Result<Completion>>;

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
}

/// The engine's end of the channel, for [`Engine::serve`](super::Engine::serve).
pub struct Queue {
    calls: Receiver<Call>,
}

/// A client and the queue that [`Engine::serve`](super::Engine::serve) reads.
pub fn channel() -> (EngineClient, Queue) {
    let (sender, receiver) = mpsc::channel();
    (EngineClient { calls: sender }, Queue { calls: receiver })
}

impl EngineClient {
    /// As [`Policy::submit`], and the tokens one by one. At most `max_new_tokens` of them wait to be read.
    pub fn stream(&self, request: Request) -> (UnboundedReceiver<Sampled>, oneshot::Receiver<Result<Completion>>) {
        let (sender, tokens) = unbounded_channel();
        (tokens, self.send(request, Some(sender)))
    }

    fn send(&self, request: Request, tokens: Option<Tokens>) -> oneshot::Receiver<Result<Completion>> {
        let (reply, receiver) = oneshot::channel();
        // When the engine is gone the call, and with it the sender, is dropped: the receiver sees an aborted request.
        let _ = self.calls.send(Call::Generate { request, reply, tokens });
        receiver
    }
}

impl Policy for EngineClient {
    /// Dropping the receiver cancels the request.
    fn submit(&self, request: Request) -> oneshot::Receiver<Result<Completion>> {
        self.send(request, None)
    }

    fn release(&self, conversation: u64) {
        // Without an engine there is no cache to give back.
        let _ = self.calls.send(Call::Release { conversation });
    }
}

impl Queue {
    /// Waits for the next call; none when every client is gone.
    pub(super) fn wait(&self) -> Option<Call> {
        self.calls.recv().ok()
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
