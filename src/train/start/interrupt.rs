//! Ctrl-C during a run: an immediate message, and an end that saves the weights if possible.
//!
//! The first signal ends the run after the current step, or ends an evaluation. The second one ends
//! it immediately. While trajectories are sampled the weights are still the weights of the last
//! step, so a checkpoint of them is written; in the middle of an update no checkpoint is written,
//! and the newest one remains.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Kind, Result};
use crate::telemetry::{Interrupt, Reporter, SignalGuard};

/// The state of a run, shared with the thread that handles signals.
#[derive(Clone)]
pub(crate) struct InterruptState {
    inner: Arc<Mutex<StopState>>,
    interrupt: Option<Interrupt>,
    _handler: Option<Arc<SignalGuard>>,
}

#[derive(Default)]
struct StopState {
    phase: Phase,
    /// Number of completed steps.
    step: u64,
    /// The step of the newest checkpoint.
    saved: Option<u64>,
    /// The weights have changed since then.
    changed: bool,
    /// The command that resumes the run.
    again: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The run is loading; there is nothing to save.
    #[default]
    Starting,
    /// The model has the weights of the last step.
    Whole,
    /// The weights are changing.
    Updating,
    Saving,
}

impl InterruptState {
    /// Handles signals from now on.
    ///
    /// # Errors
    /// `Kind::Internal` if no thread can be started.
    pub(crate) fn new(interrupt: Option<Interrupt>, reporter: &Reporter) -> Result<Self> {
        let inner: Arc<Mutex<StopState>> = Arc::default();
        let (shared, reporter) = (Arc::clone(&inner), reporter.clone());
        let handler = interrupt.map(|interrupt| {
            interrupt.on_signal(move |count| {
                // Held until the message is printed, so that no update begins before that.
                let inner = lock(&shared);
                let (message, leaves) = inner.answer(count);
                reporter.answer(&message);
                if leaves {
                    leave();
                }
            })
        });
        Ok(Self { inner, interrupt, _handler: handler.transpose()?.map(Arc::new) })
    }

    /// The run is open: `step` steps are done, `saved` is its newest checkpoint, `again` the
    /// command that resumes it.
    pub(crate) fn opened(&self, step: u64, saved: Option<u64>, again: String) {
        *lock(&self.inner) = StopState { phase: Phase::Whole, step, saved, changed: false, again };
    }

    /// What continues the run, if it is not a command.
    pub(crate) fn continued_by(&self, again: String) {
        lock(&self.inner).again = again;
    }

    /// Whether the run ends after its step.
    pub(crate) fn is_stopping(&self) -> bool {
        self.interrupt.is_some_and(Interrupt::is_set)
    }

    /// Whether the run ends at once.
    pub(crate) fn is_stopping_at_once(&self) -> bool {
        self.interrupt.is_some_and(|interrupt| interrupt.count() >= 2)
    }

    /// Called before the weights change. False if the run ends before that, with the current
    /// weights.
    #[must_use]
    pub(crate) fn update_begins(&self) -> bool {
        let mut inner = lock(&self.inner);
        let goes_on = self.interrupt.is_none_or(|interrupt| interrupt.count() < 2);
        if goes_on {
            (inner.phase, inner.changed) = (Phase::Updating, true);
        }
        goes_on
    }

    /// A step is complete, including its update.
    pub(crate) fn step_is_done(&self, step: u64) {
        let mut inner = lock(&self.inner);
        (inner.phase, inner.step) = (Phase::Whole, step);
    }

    /// The content of a checkpoint has changed without a step.
    pub(crate) fn changed(&self) {
        lock(&self.inner).changed = true;
    }

    /// Whether the newest checkpoint is of `step` and has the current weights.
    pub(crate) fn is_saved(&self, step: u64) -> bool {
        let inner = lock(&self.inner);
        inner.saved == Some(step) && !inner.changed
    }

    /// The current state is being written.
    pub(crate) fn save_begins(&self) {
        lock(&self.inner).changed = false;
    }

    /// The newest checkpoint is of `step`.
    pub(crate) fn saved(&self, step: u64) {
        lock(&self.inner).saved = Some(step);
    }

    /// Waits for a checkpoint, which `write` writes.
    pub(crate) fn saving<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        lock(&self.inner).phase = Phase::Saving;
        let written = write();
        lock(&self.inner).phase = Phase::Whole;
        written
    }
}

impl StopState {
    /// The message after signal number `count`, and whether the process ends then.
    fn answer(&self, count: u32) -> (String, bool) {
        let Self { phase, step, saved, again, .. } = self;
        let kept = match saved {
            Some(saved) => format!("the newest checkpoint is that of step {saved}; continue with\n    {again}"),
            None => "the run has no checkpoint yet".to_owned(),
        };
        match (phase, count) {
            (Phase::Starting, 1) => {
                ("stopping before the first step; press Ctrl-C again to stop at once".to_owned(), false)
            }
            (Phase::Starting, _) => ("stopped before the first step".to_owned(), true),
            (Phase::Whole | Phase::Updating, 1) => {
                ("stopping after this step; press Ctrl-C again to stop at once".to_owned(), false)
            }
            (Phase::Saving, 1) => (format!("stopping when the checkpoint of step {step} is written"), false),
            (Phase::Whole, _) if *saved == Some(*step) => (format!("stopping at once; {kept}"), false),
            (Phase::Whole | Phase::Saving, _) => {
                let advice = "press Ctrl-C again to leave without it";
                (format!("stopping at once: writing a checkpoint of step {step}; {advice}"), false)
            }
            (Phase::Updating, _) => (format!("stopped in the middle of step {}: {kept}", step + 1), true),
        }
    }
}

fn lock(inner: &Mutex<StopState>) -> MutexGuard<'_, StopState> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process without waiting for other threads.
#[allow(unsafe_code)]
fn leave() -> ! {
    crate::tools::kill_servers();
    // SAFETY: no code runs afterwards. Files that were being written have temporary names.
    unsafe { libc::_exit(i32::from(Kind::Interrupted.exit_code())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_during_an_update_ends_the_process() {
        let at = |phase, step, saved| StopState {
            phase,
            step,
            saved,
            changed: false,
            again: "r1 run a.lua --resume runs/a".to_owned(),
        };
        let (message, leaves) = at(Phase::Updating, 4, Some(2)).answer(1);
        assert!(message.contains("after this step") && !leaves, "{message}");
        let (message, leaves) = at(Phase::Updating, 4, Some(2)).answer(2);
        assert!(
            message.contains("in the middle of step 5") && message.contains("that of step 2; continue with") && leaves
        );
        let (message, leaves) = at(Phase::Whole, 4, Some(2)).answer(2);
        assert!(message.contains("writing a checkpoint of step 4") && !leaves, "{message}");
        let (message, leaves) = at(Phase::Whole, 4, Some(4)).answer(2);
        assert!(message.contains("that of step 4") && !leaves, "{message}");
        assert!(at(Phase::Starting, 0, None).answer(2).1);
        assert!(!at(Phase::Saving, 4, Some(2)).answer(2).1);
    }
}
