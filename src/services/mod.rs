//! Models and environments for programs: calls with plain data ([`Services`]) to the thread that
//! owns the tensors and to the thread that runs scripts.
//!
//! Threads start with the first call, so that a program without a model starts fast. Calls are
//! processed in order; concurrent generate calls of one model (`r1.join`) are batched.

mod at_hand;
mod envs;
mod models;
mod rl;
mod training;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::Value as Json;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::engine::{self, EngineClient, Queue};
use crate::error::{Error, Kind, Result};
use crate::script::Services;
use crate::telemetry::Reporter;
pub use at_hand::Loaded;
use models::Models;
use training::Trainings;

/// A call for the tensor thread.
struct Call {
    function: String,
    arguments: Json,
    reply: oneshot::Sender<Result<Json>>,
    /// Requests of trajectories, for `model.serve`.
    queue: Option<Queue>,
}

/// Models on a separate thread, which ends when this value is dropped.
pub struct TensorThread {
    reporter: Reporter,
    calls: Mutex<Option<mpsc::Sender<Call>>>,
    envs: Mutex<Option<UnboundedSender<envs::Job>>>,
}

impl TensorThread {
    /// Creates the services; `reporter` shows downloads from the Hub.
    pub fn new(reporter: Reporter) -> Self {
        Self { reporter, calls: Mutex::new(None), envs: Mutex::new(None) }
    }

    fn send(&self, call: Call) -> Result<()> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.is_none() {
            let (sender, receiver) = mpsc::channel();
            let reporter = self.reporter.clone();
            std::thread::Builder::new()
                .name("r1-tensors".to_owned())
                .spawn(move || answer(&receiver, reporter))
                .map_err(|error| Error::new(Kind::Internal, format!("can't start the tensor thread: {error}")))?;
            *calls = Some(sender);
        }
        let stopped = || Error::new(Kind::Internal, "the tensor thread has stopped");
        calls.as_ref().ok_or_else(stopped)?.send(call).map_err(|_| stopped())
    }
}

impl TensorThread {
    /// Calls the tensor thread. The call is sent immediately, not when the future is polled,
    /// because the close of a model is not awaited.
    fn call_tensors(&self, function: &str, arguments: Json, queue: Option<Queue>) -> BoxFuture<'static, Result<Json>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Call { function: function.to_owned(), arguments, reply, queue });
        async move {
            sent?;
            answer.await.map_err(|_| Error::new(Kind::Internal, "the tensor thread has stopped"))?
        }
        .boxed()
    }

    /// Calls the script thread, which starts with the first call.
    fn call_scripts(
        &self,
        function: &str,
        arguments: Json,
        policy: Option<EngineClient>,
    ) -> BoxFuture<'static, Result<Json>> {
        let (reply, answer) = oneshot::channel();
        let stopped = || Error::new(Kind::Internal, "the script thread has stopped");
        let sent = || {
            let mut envs = self.envs.lock().unwrap_or_else(PoisonError::into_inner);
            if envs.is_none() {
                *envs = Some(envs::start(self.reporter.clone())?);
            }
            let job = envs::Job { function: function.to_owned(), arguments, policy, reply };
            envs.as_ref().ok_or_else(stopped)?.send(job).map_err(|_| stopped())
        };
        let sent = sent();
        async move {
            sent?;
            answer.await.map_err(|_| stopped())?
        }
        .boxed()
    }
}

impl Services for TensorThread {
    fn call(&self, function: &str, arguments: Json) -> BoxFuture<'static, Result<Json>> {
        if function == "env.run" {
            // The tensor thread serves the requests of the trajectories on the script thread.
            let (client, queue) = engine::channel();
            let served = self.call_tensors("model.serve", arguments.clone(), Some(queue));
            let run = self.call_scripts(function, arguments, Some(client));
            return async move {
                let run = run.await;
                served.await?;
                run
            }
            .boxed();
        }
        if function.starts_with("env.") {
            return self.call_scripts(function, arguments, None);
        }
        self.call_tensors(function, arguments, None)
    }
}

const GENERATE: &str = "model.generate";

/// Time that a generate call waits for further ones: functions of `r1.join` call in quick
/// succession.
const BATCH_WINDOW: Duration = Duration::from_millis(1);

/// Collects the following generate calls of the same model. The first other call is deferred.
fn collect_batch(first: Call, calls: &mpsc::Receiver<Call>, deferred: &mut VecDeque<Call>) -> Vec<Call> {
    let mut batch = vec![first];
    while batch.len() < models::MAX_BATCH {
        let Some(next) = deferred.pop_front().or_else(|| calls.recv_timeout(BATCH_WINDOW).ok()) else { break };
        if next.function == GENERATE && next.arguments["model"] == batch[0].arguments["model"] {
            batch.push(next);
        } else {
            deferred.push_front(next);
            break;
        }
    }
    batch
}

fn answer(calls: &mpsc::Receiver<Call>, reporter: Reporter) {
    let mut models = Models::new(reporter);
    let mut trainings = Trainings::default();
    let mut deferred = VecDeque::new();
    while let Some(call) = deferred.pop_front().or_else(|| calls.recv().ok()) {
        if call.function == GENERATE {
            let (arguments, replies): (Vec<Json>, Vec<_>) =
                collect_batch(call, calls, &mut deferred).into_iter().map(|call| (call.arguments, call.reply)).unzip();
            for (reply, answer) in replies.into_iter().zip(models.generate(&arguments)) {
                let _ = reply.send(answer);
            }
            continue;
        }
        let Call { function, arguments, reply, queue } = call;
        // The caller of a close may not wait for the result.
        let answer = if function.starts_with("rl.") {
            rl::call(&function, &arguments)
        } else if function.starts_with("training.") {
            trainings.call(&function, &arguments)
        } else if let Some(queue) = queue {
            models.serve(&arguments, queue)
        } else {
            models.call(&function, &arguments)
        };
        let _ = reply.send(answer);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn call(function: &str, model: u64) -> Call {
        let (reply, _) = oneshot::channel();
        Call { function: function.to_owned(), arguments: json!({ "model": model }), reply, queue: None }
    }

    #[test]
    fn concurrent_generate_calls_of_one_model_are_batched() {
        let (sender, calls) = mpsc::channel();
        for (function, model) in [(GENERATE, 1), (GENERATE, 1), (GENERATE, 2), ("model.close", 1), (GENERATE, 1)] {
            sender.send(call(function, model)).unwrap();
        }
        let mut deferred = VecDeque::new();
        let mut batches = Vec::new();
        while let Some(next) = deferred.pop_front().or_else(|| calls.try_recv().ok()) {
            if next.function == GENERATE {
                batches.push((GENERATE, collect_batch(next, &calls, &mut deferred).len()));
            } else {
                batches.push(("close", 1));
            }
        }
        // The order of the calls is kept: a model is not used after its close.
        assert_eq!(batches, [(GENERATE, 2), (GENERATE, 1), ("close", 1), (GENERATE, 1)]);
    }
}
