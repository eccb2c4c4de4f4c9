//! Models for scripts: the thread that owns the tensors, asked in plain data ([`Services`]).
//!
//! The thread starts with the first question, so that a program without a model starts at once. Questions are
//! answered in turn.

mod models;
mod rl;

use std::sync::{Mutex, PoisonError, mpsc};

use futures_util::future::{BoxFuture, FutureExt};
use serde_json::Value as Json;
use tokio::sync::oneshot;

use crate::error::{Error, Kind, Result};
use crate::script::Services;
use crate::telemetry::Reporter;
use models::Models;

/// What the thread is asked.
struct Question {
    function: String,
    arguments: Json,
    reply: oneshot::Sender<Result<Json>>,
}

/// Models on a thread of their own; dropped, it ends.
pub struct TensorThread {
    reporter: Reporter,
    questions: Mutex<Option<mpsc::Sender<Question>>>,
}

impl TensorThread {
    /// A thread that tells `reporter` about fetches from the hub.
    pub fn new(reporter: Reporter) -> Self {
        Self { reporter, questions: Mutex::new(None) }
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

impl Services for TensorThread {
    fn call(&self, function: &str, arguments: Json) -> BoxFuture<'static, Result<Json>> {
        // Sent now, not when somebody waits: closing a model is asked without waiting.
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Question { function: function.to_owned(), arguments, reply });
        async move {
            sent?;
            answer.await.map_err(|_| Error::new(Kind::Internal, "the tensor thread has stopped"))?
        }
        .boxed()
    }
}

fn answer(questions: &mpsc::Receiver<Question>, reporter: Reporter) {
    let mut models = Models::new(reporter);
    for Question { function, arguments, reply } in questions {
        // Nobody waits for the answer to a closing.
        let answer = if function.starts_with("rl.") {
            rl::call(&function, &arguments)
        } else {
            models.call(&function, &arguments)
        };
        let _ = reply.send(answer);
    }
}
