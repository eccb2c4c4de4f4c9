//! The end of responses, and the outcome of the requests of one serve.

use super::Engine;
use super::running::Running;
use r1_base::error::{Error, Result};
use r1_base::mdp::FinishReason;

/// Outcome of the requests of one serve.
#[derive(Default)]
pub(super) struct ServeOutcome {
    replied: bool,
    numeric: Option<Error>,
}

impl ServeOutcome {
    pub(super) fn count(&mut self, error: Option<&Error>) {
        match error {
            None => self.replied = true,
            Some(error) => {
                self.numeric.get_or_insert_with(|| error.clone());
            }
        }
    }

    /// An error if no request had finite logits.
    pub(super) fn into_result(self) -> Result<()> {
        match self.numeric {
            Some(error) if !self.replied => Err(error),
            _ => Ok(()),
        }
    }
}

impl Engine {
    /// Completes running requests, which are in order.
    pub(super) fn end(&mut self, ended: Vec<(usize, Result<FinishReason>)>, outcome: &mut ServeOutcome) {
        // In reverse order, so that indices stay valid.
        let mut leaving: Vec<(Running, Result<FinishReason>)> = Vec::with_capacity(ended.len());
        for (index, reason) in ended.into_iter().rev() {
            leaving.push((self.running.remove(index), reason));
        }
        for (running, reason) in leaving.into_iter().rev() {
            outcome.count(reason.as_ref().err());
            self.complete(running, reason);
        }
    }

    /// Ends all requests in flight with the tokens sampled so far.
    pub(super) fn end_all(&mut self) {
        for running in std::mem::take(&mut self.running) {
            self.complete(running, Ok(FinishReason::Length));
        }
        for pending in std::mem::take(&mut self.waiting) {
            let (reply, completion) = pending.cancelled_before_start(FinishReason::Length);
            self.answer(reply, Ok(completion));
        }
    }

    /// Sends the reply of a request and gives its slot back.
    pub(super) fn complete(&mut self, running: Running, reason: Result<FinishReason>) {
        let routing = self.slots.routing(running.slot);
        if reason.is_ok() {
            self.slots.park(running.slot);
        } else {
            self.slots.discard(running.slot);
        }
        let (reply, completion) = running.finish(reason, routing);
        self.answer(reply, completion);
    }
}
