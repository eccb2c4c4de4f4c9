//! The log-probabilities of an update's rows before it, and how far the sampler's are from them.

use tch::Tensor;

use super::score::{Reference, largest_difference, score, sum_pi_squared};
use super::training_rows::set_column;
use super::update::{UpdateSettings, UpdateStats};
use crate::error::{Error, Kind, Result};
use crate::model::Model;
use crate::rl::advantages::AlgorithmNeed;
use crate::rl::pack::Row;
use crate::telemetry::Metrics;
use crate::train::rules::objective::Objective;
use crate::train::shards::Shards;

/// Computes the log-probabilities that the objective reads, under the current weights and under the
/// reference policy, and the off-policy weights.
pub(crate) fn compute_logprobs(
    rows: &mut [Row],
    model: &Model,
    reference: Option<&Reference>,
    settings: UpdateSettings<'_>,
    shards: &Shards,
) -> Result<SamplerMismatch> {
    let UpdateSettings { learner, objective, temperature, .. } = settings;
    let mut mismatch = SamplerMismatch::default();
    if learner.recompute_above > 0.0 {
        let logprobs = score(model, rows, temperature, learner.tokens_at_once(), shards)?;
        let difference = largest_difference(rows, &logprobs);
        mismatch.measured = Some(difference);
        if difference > learner.recompute_above {
            mismatch.recomputed = true;
            set_column(rows, logprobs, |row| &mut row.logp_old);
            set_off_policy_weights(rows, objective)?;
        }
    }
    if objective.has_reference()
        && let Some(reference) = reference
    {
        let scores = reference.score(rows, temperature, learner.tokens_at_once(), shards)?;
        set_column(rows, scores, |row| &mut row.logp_ref);
    }
    if objective.needs(AlgorithmNeed::Squares) {
        let squares = sum_pi_squared(model, rows, temperature, learner.tokens_at_once(), shards)?;
        set_column(rows, squares, |row| &mut row.sum_pi_squared);
    }
    Ok(mismatch)
}

/// Weights of tokens by the ratio of learner and sampler; a sequence is a trajectory.
fn set_off_policy_weights(rows: &mut [Row], objective: &Objective) -> Result<()> {
    if objective.importance.is_none() && objective.rejection.is_none() {
        return Ok(());
    }
    let mut places = Vec::new();
    let (mut ratios, mut sequence) = (Vec::new(), Vec::new());
    for (number, row) in rows.iter().enumerate() {
        for index in (0..row.len()).filter(|&index| row.loss_mask[index]) {
            places.push((number, index));
            ratios.push(row.logp_old[index] - row.logprobs[index]);
            sequence.push(row.trajectory as i64);
        }
    }
    let (ratios, sequence) = (Tensor::f_from_slice(&ratios)?, Tensor::f_from_slice(&sequence)?);
    let mut weights = ratios.f_ones_like()?;
    if let Some(importance) = &objective.importance {
        weights = weights.f_mul(&importance.weights(&ratios, &sequence)?)?;
    }
    if let Some(rejection) = &objective.rejection {
        weights = weights.f_mul(&rejection.mask(&ratios, &sequence)?)?;
    }
    for row in rows.iter_mut() {
        row.weights = vec![0.0; row.len()];
    }
    for ((row, index), weight) in places.into_iter().zip(Vec::<f32>::try_from(weights)?) {
        rows[row].weights[index] = weight;
    }
    Ok(())
}

/// The difference of the log-probabilities of sampler and learner.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SamplerMismatch {
    /// The largest difference, if it was measured before the updates.
    measured: Option<f64>,
    /// Whether the learner's log-probabilities replace the sampler's.
    recomputed: bool,
}

impl SamplerMismatch {
    /// The largest difference. Without a measurement before the updates it is the difference in the
    /// first update, which has the weights of the rollout. `None` if nothing was scored.
    pub(crate) fn largest(&self, updates: &[UpdateStats]) -> Option<f64> {
        let first = || updates.iter().find(|update| update.sampled > 0).map(|update| update.mismatch);
        self.measured.or_else(first)
    }

    pub(crate) fn log(&self, metrics: &mut Metrics, rows: &[Row], updates: &[UpdateStats]) {
        if let Some(mismatch) = self.largest(updates) {
            metrics.set("mismatch/max_abs", mismatch);
        }
        if self.measured.is_some() {
            metrics.set("mismatch/recomputed", f64::from(u8::from(self.recomputed)));
        }
        if rows.iter().any(|row| !row.weights.is_empty()) {
            let (mut rejected, mut sampled) = (0.0, 0.0);
            for row in rows {
                for (weight, _) in row.weights.iter().zip(&row.loss_mask).filter(|(_, sampled)| **sampled) {
                    rejected += f64::from(u8::from(*weight == 0.0));
                    sampled += 1.0;
                }
            }
            metrics.set("mismatch/rejected", rejected / f64::max(sampled, 1.0));
        }
    }
}

/// Stops if sampler and learner differ by more than the recipe allows.
pub(crate) fn refuse_mismatch(mismatch: f64, limit: f64) -> Result<()> {
    if limit <= 0.0 || mismatch <= limit {
        return Ok(());
    }
    Err(Error::new(
        Kind::Numeric,
        format!(
            "sampler and learner differ by {mismatch:.2e} in a log-probability; trainer.max_mismatch is {limit:.2e}"
        ),
    )
    .hint("compute in f32 (policy.dtype=f32), or raise the limit"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;
    use crate::config::Learner;

    #[test]
    fn off_policy_weights_are_ratios_of_learner_and_sampler() {
        let row = |trajectory: usize, logprobs: [f32; 2]| Row {
            ids: vec![1, 2, 3],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0, logprobs[0], logprobs[1]],
            steps: vec![0; 3],
            trajectory,
            ..Row::default()
        };
        let mut rows = [row(0, [-1.0, -2.0]), row(3, [-1.0, -1.0])];
        rows[0].logp_old = vec![0.0, -0.5, -2.0];
        rows[1].logp_old = vec![0.0, -2.0, 1.0];
        let weights = |importance: serde_json::Value| {
            let importance = Some(serde_json::from_value(importance).unwrap());
            let learner = Learner { importance, recompute_above: 1.0, ..Default::default() };
            let objective = Objective::new(&learner, &crate::mdp::Sampling::default(), false).unwrap();
            let mut rows = rows.clone();
            set_off_policy_weights(&mut rows, &objective).unwrap();
            rows.map(|row| row.weights)
        };
        let close = |actual: &[Vec<f32>], want: [[f32; 2]; 2]| {
            actual.iter().zip(want).all(|(actual, want)| {
                actual[0] == 0.0 && (actual[1] - want[0]).abs() < 1e-5 && (actual[2] - want[1]).abs() < 1e-5
            })
        };
        let (e, two) = (f32::exp, 2.0);
        assert!(close(&weights(serde_json::json!({ "cap": 2.0 })), [[e(0.5), 1.0], [e(-1.0), two]]));
        // Over a trajectory their product, 1.65 and 2.72, the second cut.
        assert!(close(&weights(serde_json::json!({ "scope": "sequence", "cap": 2.0 })), [[e(0.5); 2], [two; 2]]));
    }
}
