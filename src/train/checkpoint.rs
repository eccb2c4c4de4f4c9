//! The contents of a checkpoint, and restoring its optimiser.

use std::path::{Path, PathBuf};

use tch::Tensor;

use super::files::{self, ModelFiles};
use super::weights::trained;
use crate::error::{Error, Kind, Result};
use crate::model::{Model, write_tensors};
use crate::rl::adamw::AdamW;
use crate::rl::ema::Ema;
use crate::store::{RunDir, State, trainer_state};

/// In the folder `trainer_state` of a checkpoint: moments and master weights of the policy's
/// optimiser.
const OPTIMIZER: &str = "optimizer.safetensors";
/// In the same folder: the average of the weights, if the run has one.
const EMA: &str = "ema.safetensors";

/// The contents of every checkpoint, a pure function of the state of training: a resumed run
/// writes the same bytes as one that was never interrupted.
pub(super) struct Contents<'a> {
    pub(super) model: &'a Model,
    pub(super) files: &'a ModelFiles,
    pub(super) optimizer: &'a AdamW,
    pub(super) ema: Option<&'a Ema>,
    pub(super) state: &'a State,
}

impl Contents<'_> {
    /// Writes the checkpoint of `state.step`; `more` adds to its folder `trainer_state`. The newest
    /// `keep` stay (0: all).
    ///
    /// # Errors
    /// `Kind::Numeric` names a weight that is not finite, `Kind::Store` the path that can't be
    /// written. No checkpoint is written then, and earlier ones stay.
    pub(super) fn write(&self, run: &RunDir, keep: usize, more: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let Self { model, files, optimizer, ema, state } = self;
        require_finite(&trained(model), "the weight")?;
        require_finite(&optimizer.state(), "the optimiser state")?;
        run.checkpoint(state.step, keep, |dir, own| {
            model.save_trained(dir)?;
            files.write(dir)?;
            write_tensors(&own.join(OPTIMIZER), &optimizer.state())?;
            if let Some(ema) = ema {
                require_finite(&ema.state(), "the average of the weight")?;
                write_tensors(&own.join(EMA), &ema.state())?;
            }
            more(own)?;
            state.save(dir)
        })
    }
}

/// The error that ends a run, with a note about the weights after its last step.
pub(super) fn with_kept(error: Error, step: u64, saved: Result<PathBuf>) -> Error {
    let kept = match saved {
        Ok(path) => format!("the weights after step {step} are kept in {}", path.display()),
        Err(failed) => format!("the weights after step {step} could not be kept: {}", failed.message),
    };
    let hint = error.hint.as_ref().map_or_else(|| kept.clone(), |hint| format!("{hint}; {kept}"));
    Error { hint: Some(hint), ..error }
}

/// Refuses tensors that contain NaN or infinity: a run cannot resume from them.
pub(super) fn require_finite(tensors: &[(String, Tensor)], what: &str) -> Result<()> {
    for (name, tensor) in tensors.iter().filter(|(_, tensor)| tensor.is_floating_point()) {
        if tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
            return Err(Error::new(
                Kind::Numeric,
                format!("{what} `{name}` contains NaN or infinity; no checkpoint is written"),
            )
            .hint("lower trainer.lr, and resume from the last checkpoint"));
        }
    }
    Ok(())
}

/// Restores the optimiser's state of a checkpoint.
pub(super) fn load_optimizer(optimizer: &mut AdamW, checkpoint: &Path) -> Result<()> {
    optimizer.load_state(files::read_tensors(&trainer_state(checkpoint).join(OPTIMIZER))?)
}

/// Restores the average of the weights of a checkpoint.
pub(super) fn load_average(average: &mut Ema, checkpoint: &Path) -> Result<()> {
    average.load_state(&files::read_tensors(&trainer_state(checkpoint).join(EMA))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tensors_that_are_not_finite_are_named() {
        let tensor = |value: f32| ("w".to_owned(), Tensor::from_slice(&[1.0_f32, value]));
        require_finite(&[tensor(2.0), ("step".to_owned(), Tensor::from_slice(&[3_i64]))], "the weight").unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = require_finite(&[tensor(1.0), tensor(bad)], "the weight").unwrap_err();
            assert_eq!(error.kind, Kind::Numeric);
            assert!(error.message.starts_with("the weight `w` contains NaN or infinity"), "{error}");
        }
    }
}
