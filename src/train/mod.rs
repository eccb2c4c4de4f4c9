//! The training loops, read top to bottom: [`grpo`] and [`sft`]; [`evaluate`] is shared by them.
//!
//! No trainer base class and no callbacks: a loop that needs something different says so in its own file.

mod adapter;
pub mod evaluate;
mod files;
pub mod grpo;
mod metrics;
mod new_model;
mod order;
mod report;
mod session;
pub mod sft;
mod source;
mod update;

use std::path::PathBuf;

use crate::telemetry::{Interrupt, Reporter};

pub use session::{load_model, load_policy, model_sampling};
pub use source::{Fetching, MODEL_NANO, from_hub, model_dir};
pub use update::{UpdateStats, update};

/// What a training command was asked to do.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    pub script: PathBuf,
    /// `key=value`, as typed.
    pub overrides: Vec<String>,
    /// Where run directories are made.
    pub runs_dir: PathBuf,
    pub name: Option<String>,
    /// Go on with this run directory.
    pub resume: Option<PathBuf>,
    /// Also write the final model, or its adapter, here (HF layout, PEFT's).
    pub out: Option<PathBuf>,
    /// Set when somebody presses Ctrl-C; the loop ends after its step and writes a checkpoint.
    pub interrupt: Option<Interrupt>,
}

impl RunOptions {
    fn fetching<'a>(&self, reporter: &'a Reporter) -> Fetching<'a> {
        Fetching { reporter, interrupt: self.interrupt }
    }

    fn interrupted(&self) -> bool {
        self.interrupt.is_some_and(Interrupt::is_set)
    }
}

/// What a run came to, for the closing words and for `--json`.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Summary {
    pub run_dir: PathBuf,
    pub checkpoint: Option<PathBuf>,
    pub steps: usize,
    pub seconds: f64,
    /// Evaluation before and after training; empty for supervised runs without one.
    pub before: Option<evaluate::Evaluation>,
    pub after: Option<evaluate::Evaluation>,
    /// Stopped by Ctrl-C before its last step.
    pub interrupted: bool,
}

/// Whether something done every so many steps (0: never) is due after `step`; the last step has its own.
fn due(step: u64, every: usize, total: usize) -> bool {
    every > 0 && step.is_multiple_of(every as u64) && step < total as u64
}
