//! The tokens of a stored trajectory, with what sampling and training computed for each.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::super::recorded::RecordedRun;
use crate::error::Result;
use crate::mdp::{Step, Trajectory};
use crate::store::latest_checkpoint;
use crate::telemetry::Reporter;
use crate::text::Tokenizer;

/// A token of a row. Numbers that were not stored are null.
#[derive(Default, Serialize)]
pub(super) struct StoredToken {
    id: u32,
    text: String,
    special: bool,
    /// Sampled by the policy.
    sampled: bool,
    /// Of a sampled token: whether it was in the loss.
    trained: Option<bool>,
    clipped: Option<bool>,
    logprob: Option<f64>,
    advantage: Option<f64>,
    mismatch: Option<f64>,
    entropy: Option<f64>,
    value: Option<f64>,
    #[serde(rename = "return")]
    target: Option<f64>,
    reference: Option<f64>,
}

/// The rows of a trajectory: a step whose prompt extends the one before adds its new tokens to the
/// row, as in training. `advantages` has a number for each step, for files without one for each
/// token.
pub(super) fn rows(trajectory: &Trajectory, advantages: &[Value], tokenizer: &Tokenizer) -> Vec<Vec<StoredToken>> {
    let token = |id: u32| StoredToken {
        id,
        text: tokenizer.decode(&[id], false),
        special: tokenizer.decode(&[id], true).is_empty(),
        ..StoredToken::default()
    };
    let mut rows: Vec<Vec<StoredToken>> = Vec::new();
    for (number, step) in trajectory.steps.iter().enumerate() {
        let same_row = rows.last_mut().filter(|row| {
            let ids = || row.iter().map(|token| token.id);
            !step.new_row
                && step.prompt_ids.len() >= row.len()
                && ids().eq(step.prompt_ids[..row.len()].iter().copied())
        });
        let mut begun = Vec::new();
        let continues = same_row.is_some();
        let row = same_row.unwrap_or(&mut begun);
        row.extend(step.prompt_ids[row.len()..].iter().map(|id| token(*id)));
        let advantage = advantages.get(number).and_then(Value::as_f64);
        row.extend(step.response_ids.iter().enumerate().map(|(index, id)| sampled(token(*id), step, index, advantage)));
        if !continues {
            rows.push(begun);
        }
    }
    rows
}

/// A sampled token with its numbers. `advantage` is that of the step.
fn sampled(token: StoredToken, step: &Step, index: usize, advantage: Option<f64>) -> StoredToken {
    let trained = &step.trained;
    let single = |list: &[f32]| list.get(index).copied().filter(|number| !number.is_nan()).map(f64::from);
    let logprob = single(&step.logprobs);
    StoredToken {
        sampled: true,
        trained: trained.loss_mask.get(index).copied(),
        clipped: trained.clipped.get(index).copied(),
        logprob,
        advantage: trained.advantages.get(index).copied().or(advantage),
        mismatch: single(&trained.learner_logprobs).zip(logprob).map(|(learner, sampler)| learner - sampler),
        entropy: single(&trained.entropies),
        value: single(&trained.values),
        target: single(&trained.returns),
        reference: single(&trained.reference_logprobs),
        ..token
    }
}

/// The tokenizer of the run's newest checkpoint, or of the model it started from.
pub(super) fn tokenizer(
    recorded: &mut RecordedRun,
    trajectory: &Trajectory,
    reporter: &Reporter,
) -> Result<Arc<Tokenizer>> {
    if let Some((_, checkpoint)) = latest_checkpoint(recorded.run.path())?
        && checkpoint.join("tokenizer.json").is_file()
    {
        return Tokenizer::load(&checkpoint).map(Arc::new);
    }
    Ok(Arc::clone(recorded.script_of(trajectory, reporter)?.renderer.tokenizer()))
}
