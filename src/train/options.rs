//! What a training command is given, and what it returns.

use std::path::{Path, PathBuf};

use crate::config::CheckpointSettings;
use crate::hub::Fetching;
use crate::mdp::Evaluation;
use crate::telemetry::{Interrupt, Reporter};
use crate::train::ranks::Ranks;

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
    /// The run directory from whose checkpoint a new run begins.
    pub fork: Option<PathBuf>,
    /// The step of the checkpoint of `resume` or `fork`; `None`: the newest one.
    pub from_step: Option<u64>,
    /// Whether a run is resumed with changes of its script, or of settings that are not in
    /// `overrides`, only after a confirmation.
    pub confirm: bool,
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
    /// The port of the server of the newest metrics for Prometheus.
    pub metrics_port: Option<u16>,
    /// This supervised run is the cold start of another run, which prints the next commands.
    pub cold_start: bool,
    /// The processes of the run.
    pub ranks: Ranks,
    /// Counts Ctrl-C and other stop signals: the first ends the loop after its step, the second at
    /// once (docs/guide/resume.md).
    pub interrupt: Option<Interrupt>,
}

impl RunOptions {
    pub(crate) fn fetching<'a>(&self, reporter: &'a Reporter) -> Fetching<'a> {
        Fetching { reporter, interrupt: self.interrupt }
    }

    /// The command line that resumes the run `run`. Its settings are not part of it, because the
    /// run keeps them.
    pub(crate) fn resume_command(&self, verb: &str, run: &Path) -> String {
        let quoted = |path: &Path| quoted(&path.display().to_string());
        let mut command = format!("r1 {verb} {} --resume {}", quoted(&self.script), quoted(run));
        if let Some(out) = &self.out {
            command.extend([" --out ", &quoted(out)]);
        }
        if let Some(threads) = self.threads {
            command.extend([" --threads ", &threads.to_string()]);
        }
        if let Some(port) = self.metrics_port {
            command.extend([" --metrics-port ", &port.to_string()]);
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
    pub before: Option<Evaluation>,
    pub after: Option<Evaluation>,
    /// The model with the lowest held-out loss, if supervised training has `data.eval`; of
    /// reinforcement learning the one with the highest held-out accuracy, if it is better than the
    /// initial one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<PathBuf>,
    /// Stopped by Ctrl-C before its last step.
    pub interrupted: bool,
}

/// A word of a command line, quoted for a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@,=~".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Whether a checkpoint is due after `step`.
pub(crate) fn checkpoint_due(step: u64, settings: &CheckpointSettings, total: usize) -> bool {
    due(step, settings.every, total) || due(step, settings.keep_every, total)
}

/// Whether an action with an interval of `every` steps (0: never) is due after `step`; the last
/// step is handled separately.
pub(crate) fn due(step: u64, every: usize, total: usize) -> bool {
    every > 0 && step.is_multiple_of(every as u64) && step < total as u64
}
