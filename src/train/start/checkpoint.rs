//! The contents of a checkpoint, and restoring its optimiser.

use std::path::{Path, PathBuf};

use super::checkpoint_parts::CheckpointParts;
use super::files::ModelFiles;

use crate::adamw::AdamW;
use crate::error::{Error, Kind, Result};
use crate::model::{Model, UnwrittenFile};
use crate::rl::ema::Ema;
use crate::store::{KeepRule, RunDir, RunProgress, trainer_state};
use crate::train::learn::tensors::{read_optimizer, read_tensors};

/// In the folder `trainer_state` of a checkpoint: moments and master weights of the policy's
/// optimiser, `optimizer.safetensors` or the parts of several processes.
pub(crate) const OPTIMIZER: &str = "optimizer";
/// In the same folder: the average of the weights, if the run has one.
const EMA: &str = "ema.safetensors";

/// The contents of every checkpoint, a pure function of the state of training: a resumed run
/// writes the same bytes as one that was never interrupted.
pub(crate) struct Contents<'a> {
    pub(crate) model: &'a Model,
    pub(crate) files: &'a ModelFiles,
    /// The states of the optimisers, or the parts of this process.
    pub(crate) optimizers: Vec<UnwrittenFile>,
    pub(crate) ema: Option<&'a Ema>,
    pub(crate) state: &'a RunProgress,
    /// Further files of the folder `trainer_state`.
    pub(crate) more: Vec<UnwrittenFile>,
}

/// The files of a checkpoint before they are written. Their tensors share the memory of the run's
/// tensors, which must not change until then.
pub(crate) struct UnwrittenCheckpoint {
    model: Vec<UnwrittenFile>,
    trainer_state: Vec<UnwrittenFile>,
    state: RunProgress,
}

impl Contents<'_> {
    /// The files of this process: all, or those of its part. Weights are in files of at most
    /// `shard_bytes`.
    pub(crate) fn unwritten(self, shard_bytes: u64, parts: Option<&CheckpointParts>) -> Result<UnwrittenCheckpoint> {
        let (rank, size) = parts.map_or((0, 1), CheckpointParts::rank);
        let mut model = self.model.unwritten_trained(shard_bytes)?;
        model.extend(self.files.unwritten());
        let model = model.into_iter().filter_map(|file| file.of_rank(rank, size)).collect();
        let average = |ema: &Ema| UnwrittenFile::tensors(EMA, "the average of the weight", &ema.state());
        let of_first = self.ema.map(average).into_iter().chain(self.more).filter(|_| rank == 0);
        let trainer_state = self.optimizers.into_iter().chain(of_first).collect();
        Ok(UnwrittenCheckpoint { model, trainer_state, state: self.state.clone() })
    }
}

impl UnwrittenCheckpoint {
    /// Writes the checkpoint. Of the earlier ones those that `keep` names stay. `read` is called as
    /// soon as the tensors may change: they are written then, and the disk may not have them yet.
    /// `parts` are of other processes.
    ///
    /// # Errors
    /// `Kind::Numeric` names a tensor that is not finite: a run can't resume from it. `Kind::Store`
    /// has the path that can't be written. No checkpoint is written then, and earlier ones stay.
    pub(crate) fn write(
        &self,
        run: &RunDir,
        keep: KeepRule,
        parts: Option<&CheckpointParts>,
        read: impl FnOnce(),
    ) -> Result<PathBuf> {
        let Self { model, trainer_state, state } = self;
        self.require_finite()?;
        run.checkpoint(state.step, keep, |dir, folder| {
            model.iter().try_for_each(|file| file.write_unsynced(dir))?;
            trainer_state.iter().try_for_each(|file| file.write_unsynced(folder))?;
            read();
            parts.map_or(Ok(()), |parts| parts.collect(state.step, dir))?;
            state.save(dir)
        })
    }

    /// Writes the files of a process other than rank 0, which collects them.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_part(&self, parts: &CheckpointParts, read: impl FnOnce()) -> Result<()> {
        let Self { model, trainer_state, state } = self;
        self.require_finite()?;
        parts.write(state.step, |dir, folder| {
            model.iter().try_for_each(|file| file.write_unsynced(dir))?;
            trainer_state.iter().try_for_each(|file| file.write_unsynced(folder))?;
            read();
            Ok(())
        })
    }

    fn require_finite(&self) -> Result<()> {
        let Self { model, trainer_state, .. } = self;
        for file in model.iter().chain(trainer_state) {
            file.require_finite().map_err(|error| match error.kind {
                Kind::Numeric => Error { message: format!("{}; no checkpoint is written", error.message), ..error }
                    .hint("lower trainer.lr, and resume from the last checkpoint"),
                _ => error,
            })?;
        }
        Ok(())
    }
}

/// The error that ends a run, with a note about the weights after its last step.
pub(crate) fn with_kept(error: Error, step: u64, saved: Result<PathBuf>) -> Error {
    let kept = match saved {
        Ok(path) => format!("the weights after step {step} are kept in {}", path.display()),
        Err(failed) => format!("the weights after step {step} could not be kept: {}", failed.message),
    };
    with_note(error, kept)
}

/// An error with a note after its hint.
pub(crate) fn with_note(error: Error, note: String) -> Error {
    let hint = match &error.hint {
        Some(hint) => format!("{hint}; {note}"),
        None => note,
    };
    Error { hint: Some(hint), ..error }
}

/// Restores the optimiser's state of a checkpoint.
pub(crate) fn load_optimizer(optimizer: &mut AdamW, checkpoint: &Path) -> Result<()> {
    optimizer.load_state(read_optimizer(&trainer_state(checkpoint), OPTIMIZER)?)
}

/// Restores the average of the weights of a checkpoint.
pub(crate) fn load_average(average: &mut Ema, checkpoint: &Path) -> Result<()> {
    average.load_state(&read_tensors(&trainer_state(checkpoint).join(EMA))?)
}
