//! A server as the policy of rollouts.
//!
//! Each request runs on its own thread, so that trajectories wait without blocking each other. A
//! request without a reply after all attempts is a failure of its trajectory, unless the server has
//! never replied or refuses all requests (a wrong key): then the rollout ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::failure::ServerFailure;
use super::reply::{PartialReply, RawCall, RawReply};
use super::sampling::ServerSampling;
use super::server::Server;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, FinishReason, PendingReply, Policy, Request, ServerCompletion, ServerReply};

/// A policy behind a server. Requests have a [`Request::chat`], completions a
/// [`Completion::server`] and no token ids.
pub struct ServerPolicy {
    shared: Arc<PolicyInner>,
}

struct PolicyInner {
    server: Server,
    /// Variables of the chat template.
    template_kwargs: Map<String, Value>,
    stop: Box<dyn Fn() -> bool + Send + Sync>,
    /// The server has replied at least once.
    replied: AtomicBool,
    /// It has replied in an earlier process of the same evaluation.
    replied_before: AtomicBool,
}

impl ServerPolicy {
    /// `stop` ends requests in flight (Ctrl-C).
    pub fn new(
        server: Server,
        template_kwargs: &Map<String, Value>,
        stop: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let (template_kwargs, stop) = (template_kwargs.clone(), Box::new(stop));
        Self {
            shared: Arc::new(PolicyInner {
                server,
                template_kwargs,
                stop,
                replied: AtomicBool::new(false),
                replied_before: AtomicBool::new(false),
            }),
        }
    }

    /// Tells that the server has replied to other requests of the same evaluation: one that it
    /// refuses now is the failure of its trajectory.
    pub fn has_replied_before(&self) {
        self.shared.replied_before.store(true, Ordering::Relaxed);
    }
}

impl Policy for ServerPolicy {
    fn submit(&self, request: Request) -> PendingReply {
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let complete = move || {
            let completion = shared.complete(&request, &|| sender.is_closed());
            // The receiver may have been dropped.
            let _ = sender.send(completion);
        };
        if let Err(error) = std::thread::Builder::new().name("server".to_owned()).spawn(complete) {
            let (sender, receiver) = oneshot::channel();
            let _ = sender.send(Err(Error::new(Kind::Env, format!("can't start a thread: {error}"))));
            return receiver.into();
        }
        receiver.into()
    }
}

impl PolicyInner {
    /// # Errors
    /// [`Kind::Env`] if this request has no reply, about `policy.max_context` if the prompt is too
    /// long; [`Kind::Model`] if no request will have one; [`Kind::Interrupted`].
    fn complete(&self, request: &Request, is_dropped: &dyn Fn() -> bool) -> Result<Completion> {
        let Some(chat) = &request.chat else {
            return Err(Error::new(Kind::Internal, "a server takes messages, and the request has token ids"));
        };
        let started = Instant::now();
        let limit = Some(request.sampling.max_seconds).filter(|&seconds| seconds > 0.0);
        let limit = limit.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let is_late = || limit.is_some_and(|limit| started.elapsed() >= limit);
        let stop = || (self.stop)() || is_dropped() || is_late();
        let sampling = ServerSampling::of(&request.sampling, &self.template_kwargs);
        let reply = match self.server.reply(chat, &sampling, &stop, &mut |_| ()) {
            // A content filter withheld the reply: the policy gave no answer.
            Err(ServerFailure::Filtered) => PartialReply::default().finish(0, false, 0),
            Ok(reply) => reply,
            Err(failure) => return Err(self.error(&failure)),
        };
        if reply.stopped && ((self.stop)() || is_dropped()) {
            return Err(Error::new(Kind::Interrupted, "stopped"));
        }
        if reply.stopped && reply.content.is_empty() {
            let message = format!("{} sent no reply within {} s", self.server.base(), request.sampling.max_seconds);
            return Err(Error::new(Kind::Env, message).hint("raise sampling.max_seconds"));
        }
        self.replied.store(true, Ordering::Relaxed);
        Ok(completion(reply, started.elapsed()))
    }

    fn error(&self, failure: &ServerFailure) -> Error {
        let error = self.server.error(failure);
        if matches!(failure, ServerFailure::Refused { overflow: true, .. }) {
            return Error { kind: Kind::Env, ..error }.about_setting("policy.max_context");
        }
        let refuses_some =
            matches!(failure, ServerFailure::Refused { .. }) && self.replied_before.load(Ordering::Relaxed);
        let none_will = failure.is_of_all_requests() || !(self.replied.load(Ordering::Relaxed) || refuses_some);
        Error { kind: if none_will { error.kind } else { Kind::Env }, ..error }
    }
}

/// A reply as a completion.
pub fn completion(reply: RawReply, elapsed: Duration) -> Completion {
    let RawReply { content, reasoning, calls, finish_reason, usage, stopped, retries } = reply;
    let (mut tool_calls, mut errors) = (Vec::new(), Vec::new());
    for call in calls {
        match call {
            RawCall::Call(call) => tool_calls.push(call),
            RawCall::Malformed(why) => errors.push(why),
        }
    }
    let finish_reason = if stopped { FinishReason::Deadline } else { finish_reason };
    let seconds = elapsed.as_secs_f64();
    let reply = ServerReply { prompt: Vec::new(), tool_calls, errors, reasoning, usage, seconds, retries };
    Completion::of_server(ServerCompletion { text: content, reply }, finish_reason)
}
