//! The training loops, read top to bottom: `policy_loop` and [`sft`]; [`evaluate`] is shared by
//! them.
//!
//! There is no trainer base class and there are no callbacks: a loop with different needs has its
//! own file.

mod advantages;
mod agent;
mod best;
mod checkpoint;
mod cold_start;
mod collect;
mod combinations;
mod critic;
mod curriculum;
mod custom_estimator;
mod demonstrations;
mod eval_parts;
mod eval_policy;
mod eval_run;
mod eval_samples;
pub mod evaluate;
mod failures;
mod files;
mod generated;
mod generation;
mod given_advantages;
mod health;
mod held_out;
mod interrupt;
mod learn;
mod learning_signal;
mod manual;
mod masks;
mod metrics;
mod mini_batches;
mod new_model;
mod objective;
mod order;
mod origins;
mod plan;
mod policy_loop;
mod privileged;
mod profile;
mod reload;
mod report;
mod resume;
mod row_check;
mod rules;
mod score;
mod script_log;
mod selection;
mod server;
mod session;
mod setup;
pub mod sft;
mod shared_state;
mod steps;
mod tensorboard;
mod unused;
mod update;
mod update_batch;
mod validate;
mod value;
mod weights;

use std::path::{Path, PathBuf};

use crate::config::Trainer;
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::telemetry::{Interrupt, Reporter};

use cold_start::Started;
use resume::Opened;

pub use advantages::{AdvantageBatch, AdvantageConfig, AdvantageSource};
pub use agent::{Agent, LoadedAgent};
pub use cold_start::check as check_cold_start;
pub use eval_run::{EvalOptions, Evaluated, evaluate_models};
pub use generation::{model_sampling, sets_sampling};
pub use manual::Manual;
pub use masks::{ShownToken, ShownTrajectory, masks};
pub use objective::Objective;
pub use plan::{Plan, plan};
pub use policy_loop::compute_advantages;
pub use report::far_files_in_words;
pub use script_log::in_words as log_in_words;
pub use server::counting_renderer;
pub use session::context_limit_message;
pub use steps::Steps;
pub use unused::unused_settings;
pub use update::{Update, UpdateStats};
pub use update_batch::{UpdateBatch, training_rows};
pub use validate::{ValidatedTrainer, validate};

/// Options of a training command.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches of the command line")]
pub struct RunOptions {
    pub script: PathBuf,
    /// `key=value`, as typed.
    pub overrides: Vec<String>,
    /// The directory of run directories.
    pub runs_dir: PathBuf,
    pub name: Option<String>,
    /// The run directory to resume.
    pub resume: Option<PathBuf>,
    /// CPU threads, if they were given; part of the command that resumes the run.
    pub threads: Option<u16>,
    /// Also write the final model, or its adapter, here (HF layout, PEFT's).
    pub out: Option<PathBuf>,
    /// Whether example trajectories and all plots are printed.
    pub verbose: bool,
    /// Whether changes of the script are ignored during the run.
    pub no_reload: bool,
    /// Whether the first step is profiled (`profile/` in the run directory).
    pub profile: bool,
    /// This supervised run is the cold start of another run, which prints the next commands.
    pub cold_start: bool,
    /// Counts Ctrl-C and other stop signals: the first ends the loop after its step, the second at
    /// once (docs/resume.md).
    pub interrupt: Option<Interrupt>,
}

impl RunOptions {
    fn fetching<'a>(&self, reporter: &'a Reporter) -> Fetching<'a> {
        Fetching { reporter, interrupt: self.interrupt }
    }

    /// The command line that resumes the run `run`. Its settings are not part of it, because the
    /// run keeps them.
    fn resume_command(&self, verb: &str, run: &Path) -> String {
        let quoted = |path: &Path| report::quoted(&path.display().to_string());
        let mut command = format!("r1 {verb} {} --resume {}", quoted(&self.script), quoted(run));
        if let Some(out) = &self.out {
            command.extend([" --out ", &quoted(out)]);
        }
        if let Some(threads) = self.threads {
            command.extend([" --threads ", &threads.to_string()]);
        }
        if self.no_reload {
            command.push_str(" --no-reload");
        }
        command
    }
}

/// The result of a run, for the closing lines and for `--json`.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Summary {
    pub run_dir: PathBuf,
    pub checkpoint: Option<PathBuf>,
    pub steps: usize,
    pub seconds: f64,
    /// Evaluation before and after training; empty for supervised runs without one.
    pub before: Option<evaluate::Evaluation>,
    pub after: Option<evaluate::Evaluation>,
    /// The model with the lowest held-out loss, if supervised training has `data.eval`; of
    /// reinforcement learning the one with the highest held-out accuracy, if it is better than the
    /// initial one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<PathBuf>,
    /// Stopped by Ctrl-C before its last step.
    pub interrupted: bool,
}

/// Trains the recipe's policy by reinforcement learning; returns a summary.
pub fn run(options: &RunOptions, reporter: &Reporter) -> Result<Summary> {
    let opened = match cold_start::run(Opened::new(options, reporter)?, reporter)? {
        Started::Ready(opened) => *opened,
        Started::Interrupted(summary) => return Ok(*summary),
    };
    match &opened.script.settings.trainer {
        Trainer::Grpo(_) | Trainer::Ppo(_) => policy_loop::run(opened, reporter),
        Trainer::Sft(_) => Err(Error::new(Kind::Usage, "this recipe's trainer is r1.sft")
            .at_path(&options.script)
            .hint(format!("run it with `r1 sft {}`", options.script.display()))),
    }
}

/// Whether an action with an interval of `every` steps (0: never) is due after `step`; the last
/// step is handled separately.
fn due(step: u64, every: usize, total: usize) -> bool {
    every > 0 && step.is_multiple_of(every as u64) && step < total as u64
}
