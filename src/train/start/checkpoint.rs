//! The contents of a checkpoint, and restoring its optimiser.

use std::path::{Path, PathBuf};

use super::files::ModelFiles;
use crate::adamw::AdamW;
use crate::error::{Error, Result};
use crate::model::{Model, write_tensors};
use crate::rl::ema::Ema;
use crate::store::{KeepRule, RunDir, RunProgress, trainer_state};
use crate::train::learn::tensors::{read_tensors, require_finite};
use crate::train::learn::weights::trained;

/// In the folder `trainer_state` of a checkpoint: moments and master weights of the policy's
/// optimiser.
const OPTIMIZER: &str = "optimizer.safetensors";
/// In the same folder: the average of the weights, if the run has one.
const EMA: &str = "ema.safetensors";

/// The contents of every checkpoint, a pure function of the state of training: a resumed run
/// writes the same bytes as one that was never interrupted.
pub(crate) struct Contents<'a> {
    pub(crate) model: &'a Model,
    pub(crate) files: &'a ModelFiles,
    pub(crate) optimizer: &'a AdamW,
    pub(crate) ema: Option<&'a Ema>,
    pub(crate) state: &'a RunProgress,
}

impl Contents<'_> {
    /// Writes the checkpoint of `state.step`; `more` adds to its folder `trainer_state`. Of the
    /// earlier ones those that `keep` names stay.
    ///
    /// # Errors
    /// `Kind::Numeric` names a weight that is not finite, `Kind::Store` the path that can't be
    /// written. No checkpoint is written then, and earlier ones stay.
    pub(crate) fn write(
        &self,
        run: &RunDir,
        keep: KeepRule,
        more: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let Self { model, files, optimizer, ema, state } = self;
        require_finite(&trained(model), "the weight")?;
        require_finite(&optimizer.state(), "the optimiser state")?;
        run.checkpoint(state.step, keep, |dir, folder| {
            model.save_trained(dir)?;
            files.write(dir)?;
            write_tensors(&folder.join(OPTIMIZER), &optimizer.state())?;
            if let Some(ema) = ema {
                require_finite(&ema.state(), "the average of the weight")?;
                write_tensors(&folder.join(EMA), &ema.state())?;
            }
            more(folder)?;
            state.save(dir)
        })
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
    optimizer.load_state(read_tensors(&trainer_state(checkpoint).join(OPTIMIZER))?)
}

/// Restores the average of the weights of a checkpoint.
pub(crate) fn load_average(average: &mut Ema, checkpoint: &Path) -> Result<()> {
    average.load_state(&read_tensors(&trainer_state(checkpoint).join(EMA))?)
}
