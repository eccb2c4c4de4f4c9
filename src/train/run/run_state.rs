//! The part of a run's state that every loop has: script, progress, and the records in the run
//! directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::CheckpointSettings;
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::script::Script;
use crate::store::{KeepRule, NOTES_ASIDE, Origins, RunDir, RunProgress, latest_checkpoint, set_notes_aside};
use crate::telemetry::{MetricsLog, Reporter, counted};
use crate::train::options::RunOptions;
use crate::train::ranks::Ranks;
use crate::train::shards::Shards;
use crate::train::start::checkpoint::{Contents, with_kept};
use crate::train::start::checkpoint_parts::CheckpointParts;
use crate::train::start::checkpoint_writer::CheckpointWriter;
use crate::train::start::files;
use crate::train::start::interrupt::InterruptState;
use crate::train::start::resume::StartState;
use crate::train::watch::tensorboard;

/// Read and changed by the operations of a loop, of reinforcement learning (`Training`) and of
/// supervised training (`sft`).
pub(crate) struct RunState {
    pub(crate) script: Script,
    /// As typed, with the overrides in effect.
    pub(crate) options: RunOptions,
    pub(crate) reporter: Reporter,
    pub(crate) dir: Arc<RunDir>,
    pub(crate) log: MetricsLog,
    pub(crate) origins: Origins,
    /// The progress, which checkpoints have.
    pub(crate) state: RunProgress,
    /// Completed steps when this process began.
    pub(crate) began_after: u64,
    pub(crate) standing: InterruptState,
    pub(crate) writer: CheckpointWriter,
    /// The processes that compute updates.
    pub(crate) learners: Ranks,
    /// Set if each of them writes a part of a checkpoint.
    pub(crate) parts: Option<CheckpointParts>,
}

impl RunState {
    /// Opens the records of a run in its directory, which has its configuration already; what a
    /// resumed run repeats is removed.
    pub(crate) fn open(opened: StartState, dir: Arc<RunDir>, origins: Origins, reporter: &Reporter) -> Result<Self> {
        let (state, repeats_from) = (opened.state(), opened.repeats_from());
        if repeats_from.is_some() && opened.options.ranks.is_first() {
            let keep = keep_rule(&opened.script.settings.checkpoint);
            dir.repeats_after(opened.checkpoint().map(|path| (state.step, path)), keep, opened.damaged())?;
            if opened.differs() {
                let moved = set_notes_aside(dir.path(), state.step)?;
                if moved > 0 {
                    reporter.warn(&format!(
                        "the notes about {} after step {} are moved to {NOTES_ASIDE}: the repeated steps have other \
                         trajectories",
                        counted(moved, "trajectory", "trajectories"),
                        state.step
                    ));
                }
            }
        }
        let mut log = MetricsLog::open(dir.path(), repeats_from)?;
        let StartState { script, options, standing, .. } = opened;
        tensorboard::settings(&mut log, &script)?;
        if let Some(port) = options.metrics_port {
            // A cold start is `NAME/sft`.
            let above =
                if options.cold_start { dir.path().parent().and_then(Path::parent) } else { dir.path().parent() };
            let name = above.and_then(|above| dir.path().strip_prefix(above).ok()).unwrap_or(dir.path());
            log.serve(name.display().to_string(), port)?;
        }
        let began_after = state.step;
        let (reporter, writer, learners) = (reporter.clone(), CheckpointWriter::default(), options.ranks.clone());
        Ok(Self {
            script,
            options,
            reporter,
            dir,
            log,
            origins,
            state,
            began_after,
            standing,
            writer,
            learners,
            parts: None,
        })
    }

    /// Whether this process writes trajectories, checkpoints and models. The other processes of the
    /// run have a temporary directory, which has only their metrics.
    pub(crate) fn writes(&self) -> bool {
        self.options.ranks.is_first()
    }

    pub(crate) fn fetching(&self) -> Fetching<'_> {
        self.options.fetching(&self.reporter)
    }

    /// The run begins: `saved` says whether there is a checkpoint of its state, `verb` is the
    /// command that resumes it.
    pub(crate) fn begins(&self, saved: bool, verb: &str) {
        let command = self.options.resume_command(verb, self.dir.path());
        self.standing.opened(self.state.step, saved.then_some(self.state.step), command);
    }

    /// Each process writes its part of a divided optimiser state from now on, if all of them see
    /// the directory of the run.
    pub(crate) fn divide_checkpoints(&mut self, shards: &mut Shards) -> Result<()> {
        self.parts = CheckpointParts::open(&self.dir, &self.learners)?;
        shards.set_writes_parts(self.parts.is_some());
        Ok(())
    }

    /// Whether there is another step before step `last` has ended.
    ///
    /// # Errors
    /// `Kind::Interrupted` if there is one and the user stops the run before it.
    pub(crate) fn goes_on(&self, last: usize) -> Result<bool> {
        let goes_on = self.state.step < last as u64;
        if goes_on {
            self.check_stop()?;
        }
        Ok(goes_on)
    }

    /// # Errors
    /// `Kind::Interrupted` if the user stops the run before its next step.
    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.options.ranks.largest(self.standing.is_stopping())? {
            return Err(Error::new(Kind::Interrupted, "stopped before the next step"));
        }
        Ok(())
    }

    /// Called before the gradients of an update. The weights may not change yet: a checkpoint may
    /// still read them, unless their memory is freed meanwhile.
    ///
    /// # Errors
    /// `Kind::Interrupted` if the user stops the run at once, and errors of the checkpoint.
    pub(crate) fn begin_gradients(&self) -> Result<()> {
        if self.script.settings.trainer.zero_stage() >= 3 {
            self.writer.release()?;
        }
        let at_once = self.learners.largest(self.standing.is_stopping_at_once())?;
        if !at_once && self.standing.update_begins() {
            return Ok(());
        }
        Err(Error::new(Kind::Interrupted, "stopped before the update"))
    }

    /// Called before an update whose weights may change at any time.
    ///
    /// # Errors
    /// Errors of [`begin_gradients`](Self::begin_gradients), and of the checkpoint that is written
    /// in the background.
    pub(crate) fn begin_update(&self) -> Result<()> {
        self.writer.release()?;
        self.begin_gradients()
    }

    /// Writes a checkpoint, unless the newest one is of this step already.
    ///
    /// # Errors
    /// `Kind::Numeric` for weights that are not finite, `Kind::Store` for a file that can't be
    /// written, also of the previous checkpoint.
    pub(crate) fn save(&self, contents: Contents<'_>) -> Result<PathBuf> {
        self.standing.saving(|| {
            self.begin_save(contents)?;
            self.writer.finish()
        })?;
        if !self.writes() {
            return Ok(self.dir.path().to_owned());
        }
        let newest = latest_checkpoint(self.dir.path())?;
        newest.map(|(_, path)| path).ok_or_else(|| Error::new(Kind::Internal, "there is no checkpoint"))
    }

    /// Begins to write a checkpoint in the background, unless the newest one is of this step
    /// already. [`CheckpointWriter::release`] waits until its tensors are read.
    ///
    /// # Errors
    /// Errors of the previous checkpoint.
    pub(crate) fn begin_save(&self, contents: Contents<'_>) -> Result<()> {
        self.writer.finish()?;
        let step = self.state.step;
        if self.standing.is_saved(step) {
            return Ok(());
        }
        let (parts, standing, settings) = (self.parts.clone(), self.standing.clone(), &self.script.settings.checkpoint);
        let shard_bytes = (settings.max_shard_mb * 1e6) as u64;
        if !self.writes() {
            let Some(parts) = parts else { return Ok(()) };
            let (part, path) = (contents.unwritten(shard_bytes, Some(&parts))?, self.dir.path().to_owned());
            self.standing.save_begins();
            return self.writer.start(move |read| {
                part.write_part(&parts, read)?;
                standing.saved(step);
                Ok(path)
            });
        }
        let (checkpoint, keep) = (contents.unwritten(shard_bytes, parts.as_ref())?, keep_rule(settings));
        let dir = Arc::clone(&self.dir);
        self.standing.save_begins();
        self.writer.start(move |read| {
            let path = checkpoint.write(&dir, keep, parts.as_ref(), read)?;
            standing.saved(step);
            Ok(path)
        })
    }

    /// The error that ends a run before the update of a step: the weights of the step before are
    /// saved, and the error says where.
    pub(crate) fn with_saved(&self, error: Error, save: impl FnOnce() -> Result<PathBuf>) -> Error {
        let step = self.state.step;
        // A checkpoint of this step may be in the background.
        let is_saved = self.writer.finish().is_ok() && self.standing.is_saved(step);
        if step == 0 || is_saved || error.kind == Kind::Interrupted || !self.writes() {
            return error;
        }
        with_kept(error, step, save())
    }

    /// Writes the model of a checkpoint alone to `out`, in the layout of Hugging Face; `kind` is
    /// its compute type.
    pub(crate) fn export(&self, model: &Path, out: Option<&Path>, kind: tch::Kind) -> Result<()> {
        let Some(out) = out.filter(|_| self.writes()) else { return Ok(()) };
        let (settings, origin) = (&self.script.settings.checkpoint, self.origins.model.as_ref());
        files::export(model, out, settings, kind, origin, self.fetching())
    }
}

fn keep_rule(settings: &CheckpointSettings) -> KeepRule {
    KeepRule { newest: settings.keep, every: settings.keep_every }
}

pub(crate) fn no_training_data(options: &RunOptions) -> Error {
    Error::new(Kind::Data, "the recipe has no training data")
        .at_path(&options.script)
        .hint("give `data = { train = … }` in the recipe, or data.train=FILE.jsonl on the command line")
}
