//! `RUN/best`: the model of the evaluation with the best value of a metric, by default the highest
//! accuracy (`checkpoint.best`, `checkpoint.best_mode`).
//!
//! It is saved when an evaluation is better than all earlier ones, including the evaluation of the
//! initial model. A run without such an evaluation has no `best`. Its files are links to the files
//! of the checkpoint of the same step, if there is one, so that it takes no additional space at
//! first.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::{BestMode, CheckpointSettings};
use crate::error::Result;
use crate::store::{BEST, RunDir, RunProgress, latest_checkpoint, link_model};
use crate::telemetry::MetricsLog;

/// A metric of every evaluation.
pub(crate) const EVALUATED: &str = "eval/accuracy";

/// The best evaluation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BestEvaluation {
    /// 0: the initial model, which is not saved.
    pub(crate) step: u64,
    /// Of the metric `checkpoint.best`.
    pub(crate) value: f64,
}

/// Saves the model if its evaluation, with this value, is better than `best`; returns the best one.
/// `is_saved`: the newest checkpoint has this model. `save` writes it otherwise. Without a `run`
/// nothing is written.
pub(crate) fn keep(
    best: Option<BestEvaluation>,
    (value, mode): (f64, BestMode),
    state: &RunProgress,
    run: Option<&RunDir>,
    is_saved: bool,
    save: impl FnOnce(&Path) -> Result<()>,
) -> Result<Option<BestEvaluation>> {
    let step = state.step;
    if value.is_nan() || best.is_some_and(|best| !mode.is_better(value, best.value)) {
        return Ok(best);
    }
    if let Some(run) = run.filter(|_| step > 0) {
        let checkpoint = latest_checkpoint(run.path())?.filter(|(saved_step, _)| is_saved && *saved_step == step);
        run.best(|dir| {
            match &checkpoint {
                Some((_, checkpoint)) => link_model(checkpoint, dir)?,
                None => save(dir)?,
            }
            state.save(dir)
        })?;
    }
    Ok(Some(BestEvaluation { step, value }))
}

/// The best evaluation among the steps that a resumed run does not repeat. A saved model of another
/// step is removed: its step is repeated.
pub(crate) fn best_so_far(
    run: &RunDir,
    log: &MetricsLog,
    settings: &CheckpointSettings,
) -> Result<Option<BestEvaluation>> {
    let best = log.best(&settings.best, |new, best| settings.best_mode.is_better(new, best))?;
    let best = best.map(|(step, value)| BestEvaluation { step, value });
    let dir = run.path().join(BEST);
    let saved = if dir.is_dir() { Some(RunProgress::load(&dir)?.step) } else { None };
    if saved == best.map(|best| best.step).filter(|step| *step > 0) {
        return Ok(best);
    }
    if saved.is_some() {
        run.remove_best()?;
    }
    Ok(best.filter(|best| best.step == 0))
}
