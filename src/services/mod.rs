//! Models and environments for programs: the thread that owns the tensors and the thread that runs scripts, asked in plain
//! data ([`Services`]).
//!
//! The thread starts with the first question, so that a program without a model starts at once. Questions are
//! answered in turn; replies that a model is asked for at the same time (`r1.join`) are written together.

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

/// What the thread is asked.
struct Question {
    function: String,
    arguments: Json,
    reply: oneshot::Sender<Result<Json>>,
    /// Where trajectories ask the model for their replies, in `model.serve`.
    queue: Option<Queue>,
}

/// Models on a thread of their own; dropped, it ends.
pub struct TensorThread {
    reporter: Reporter,
    questions: Mutex<Option<mpsc::Sender<Question>>>,
    envs: Mutex<Option<UnboundedSender<envs::Job>>>,
}

impl TensorThread {
    /// A thread that tells `reporter` about fetches from the hub.
    pub fn new(reporter: Reporter) -> Self {
        Self { reporter, questions: Mutex::new(None), envs: Mutex::new(None) }
    }

    fn send(&self, question: Question) -> Result<()> {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if questions.is_none() {
            let (sender, receiver) = mpsc::channel();
            let reporter = self.reporter.clone();
            std::thread::Builder::new()
                .name("r1-tensors".to_owned())
                .spawn(move || answer(&receiver, reporter))
                .map_err(|error| Error::new(Kind::Internal, format!("can't start the tensor thread: {error}")))?;
            *questions = Some(sender);
        }
        let gone = || Error::new(Kind::Internal, "the tensor thread has stopped");
        questions.as_ref().ok_or_else(gone)?.send(question).map_err(|_| gone())
    }
}

impl TensorThread {
    /// Asks the tensor thread. Sent now, not when somebody waits: closing a model is asked without waiting.
    fn ask(&self, function: &str, arguments: Json, queue: Option<Queue>) -> BoxFuture<'static, Result<Json>> {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Question { function: function.to_owned(), arguments, reply, queue });
        async move {
            sent?;
            answer.await.map_err(|_| Error::new(Kind::Internal, "the tensor thread has stopped"))?
        }
        .boxed()
    }

    /// Asks the thread of scripts, which starts with the first question.
    fn ask_env(
        &self,
        function: &str,
        arguments: Json,
        policy: Option<EngineClient>,
    ) -> BoxFuture<'static, Result<Json>> {
        let (reply, answer) = oneshot::channel();
        let gone = || Error::new(Kind::Internal, "the thread of scripts has stopped");
        let sent = || {
            let mut envs = self.envs.lock().unwrap_or_else(PoisonError::into_inner);
            if envs.is_none() {
                *envs = Some(envs::start(self.reporter.clone())?);
            }
            let job = envs::Job { function: function.to_owned(), arguments, policy, reply };
            envs.as_ref().ok_or_else(gone)?.send(job).map_err(|_| gone())
        };
        let sent = sent();
        async move {
            sent?;
            answer.await.map_err(|_| gone())?
        }
        .boxed()
    }
}

impl Services for TensorThread {
    fn call(&self, function: &str, arguments: Json) -> BoxFuture<'static, Result<Json>> {
        if function == "env.run" {
            // The model answers on its thread what the trajectories ask on theirs.
            let (client, queue) = engine::channel();
            let served = self.ask("model.serve", arguments.clone(), Some(queue));
            let run = self.ask_env(function, arguments, Some(client));
            return async move {
                let run = run.await;
                served.await?;
                run
            }
            .boxed();
        }
        if function.starts_with("env.") {
            return self.ask_env(function, arguments, None);
        }
        self.ask(function, arguments, None)
    }
}

const GENERATE: &str = "model.generate";

/// How long a model waits for others that want a reply too: functions of `r1.join` ask one right after the other.
const OTHERS: Duration = Duration::from_millis(1);

/// The questions that follow for a reply of the same model. The first that is another one is put off.
fn together(first: Question, questions: &mpsc::Receiver<Question>, put_off: &mut VecDeque<Question>) -> Vec<Question> {
    let mut batch = vec![first];
    while batch.len() < models::TOGETHER {
        let Some(next) = put_off.pop_front().or_else(|| questions.recv_timeout(OTHERS).ok()) else { break };
        if next.function == GENERATE && next.arguments["model"] == batch[0].arguments["model"] {
            batch.push(next);
        } else {
            put_off.push_front(next);
            break;
        }
    }
    batch
}

fn answer(questions: &mpsc::Receiver<Question>, reporter: Reporter) {
    let mut models = Models::new(reporter);
    let mut trainings = Trainings::default();
    let mut put_off = VecDeque::new();
    while let Some(question) = put_off.pop_front().or_else(|| questions.recv().ok()) {
        if question.function == GENERATE {
            let (asked, replies): (Vec<Json>, Vec<_>) = together(question, questions, &mut put_off)
                .into_iter()
                .map(|question| (question.arguments, question.reply))
                .unzip();
            for (reply, answer) in replies.into_iter().zip(models.generate(&asked)) {
                let _ = reply.send(answer);
            }
            continue;
        }
        let Question { function, arguments, reply, queue } = question;
        // Nobody waits for the answer to a closing.
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

    fn question(function: &str, model: u64) -> Question {
        let (reply, _) = oneshot::channel();
        Question { function: function.to_owned(), arguments: json!({ "model": model }), reply, queue: None }
    }

    #[test]
    fn replies_of_one_model_are_asked_for_together() {
        let (sender, questions) = mpsc::channel();
        for (function, model) in [(GENERATE, 1), (GENERATE, 1), (GENERATE, 2), ("model.close", 1), (GENERATE, 1)] {
            sender.send(question(function, model)).unwrap();
        }
        let mut put_off = VecDeque::new();
        let mut batches = Vec::new();
        while let Some(next) = put_off.pop_front().or_else(|| questions.try_recv().ok()) {
            if next.function == GENERATE {
                batches.push((GENERATE, together(next, &questions, &mut put_off).len()));
            } else {
                batches.push(("close", 1));
            }
        }
        // In the order of the questions: a model is not used after it was closed.
        assert_eq!(batches, [(GENERATE, 2), (GENERATE, 1), ("close", 1), (GENERATE, 1)]);
    }
}
