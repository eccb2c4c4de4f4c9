//! The rows of an update: the tokens of the trained trajectories, with a column for each number
//! that the loss reads.

use std::collections::BTreeMap;

use tch::Tensor;

use super::objective::Objective;
use super::privileged::Prefixes;
use super::score::{largest_difference, score, sum_pi_squared};
use super::setup::Training;
use super::update::UpdateStats;
use crate::config::{Input, Learner, Over, RoutingReplay};
use crate::error::Result;
use crate::mdp::{Routing, Trajectory};
use crate::rl::advantages::Need;
use crate::rl::losses::explained_variance;
use crate::rl::pack::{self, Row};
use crate::telemetry::Metrics;

/// The rows of an update, with the columns that the loss reads.
#[derive(Clone, Debug, Default)]
pub struct UpdateBatch {
    pub rows: Vec<Row>,
    /// The group of each trajectory, by the trajectory number in its rows; empty: each is a
    /// separate group.
    pub group_of: Vec<usize>,
    /// Text for the critic before its rows.
    pub prefixes: Prefixes,
}

impl UpdateBatch {
    /// The batch in parts. All rows of a trajectory are in the same part, and all rows of a group
    /// if the loss compares groups. Parts without rows are left out.
    pub(super) fn split(&self, parts: usize, together: Over) -> Vec<Self> {
        if parts == 1 {
            return vec![self.clone()];
        }
        let units = match together {
            Over::Group => self.groups(),
            Over::Step | Over::Trajectory => self.rows.iter().map(|row| row.trajectory).collect(),
        };
        let places = |part: usize| -> Vec<usize> {
            (0..self.rows.len()).filter(|&place| units[place] % parts == part).collect()
        };
        (0..parts).map(places).filter(|places| !places.is_empty()).map(|places| self.take(&places)).collect()
    }

    /// Some of the rows.
    pub(super) fn take(&self, places: &[usize]) -> Self {
        let rows = places.iter().map(|&place| self.rows[place].clone()).collect();
        Self { rows, group_of: self.group_of.clone(), prefixes: self.prefixes.clone() }
    }

    /// The group of each row.
    pub(super) fn groups(&self) -> Vec<usize> {
        let of = |row: &Row| self.group_of.get(row.trajectory).copied().unwrap_or(row.trajectory);
        self.rows.iter().map(of).collect()
    }

    /// Adds the inputs of custom losses: the groups and the rewards of `trajectories`.
    pub(super) fn read_by_custom_loss(&mut self, objective: &Objective, trajectories: &[Trajectory]) {
        let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
        let mut number = |group: u64| {
            let next = seen.len();
            *seen.entry(group).or_insert(next)
        };
        self.group_of = trajectories.iter().map(|trajectory| number(trajectory.group)).collect();
        if objective.reads(Input::Rewards) {
            for row in &mut self.rows {
                row.rewards = vec![trajectories[row.trajectory].total_reward() as f32; row.len()];
            }
        }
    }

    /// Number of tokens for which the critic has targets.
    pub(super) fn target_count(&self) -> usize {
        target_count(&self.rows)
    }

    /// The share of the variance of the returns that the values before the update explain: 1 is
    /// perfect, 0 no better than a constant. NaN if the returns are all equal.
    pub(super) fn explained_variance(&self) -> f64 {
        let (values, returns): (Vec<f64>, Vec<f64>) = self.targets().unzip();
        explained_variance(&values, &returns)
    }

    /// The mean value at the critic's targets.
    pub(super) fn mean_value(&self) -> f64 {
        let (sum, count) = self.targets().fold((0.0, 0.0), |(sum, count), (value, _)| (sum + value, count + 1.0));
        sum / f64::max(count, 1.0)
    }

    /// Value and return at each of the critic's targets.
    fn targets(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.rows.iter().flat_map(|row| {
            let places = (0..row.targets.len()).filter(|&place| row.targets[place]);
            places.map(|place| (f64::from(row.values[place]), row.returns[place]))
        })
    }
}

/// Number of tokens of rows for which the critic has targets.
pub(super) fn target_count(rows: &[Row]) -> usize {
    rows.iter().flat_map(|row| &row.targets).filter(|target| **target).count()
}

/// The rows of the trajectories that are trained on, numbered by their index in `trajectories`;
/// failures and greedy baselines are excluded. Without `trainer.routing_replay` they have no
/// routing.
///
/// # Errors
/// Those of [`pack::merge`].
pub fn training_rows(
    learner: &Learner,
    trajectories: &[Trajectory],
    is_baseline: impl Fn(usize) -> bool,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        if !trajectory.status.is_failure() && !is_baseline(index) {
            rows.extend(pack::merge(trajectory, index)?);
        }
    }
    if learner.routing_replay == RoutingReplay::Off {
        for row in &mut rows {
            row.routing = Routing::default();
        }
    }
    Ok(rows)
}

/// Computes the log-probabilities that the objective reads, under the current weights and under the
/// reference policy, and the off-policy weights.
pub(super) fn compute_logprobs(
    rows: &mut [Row],
    training: &Training,
    learner: &Learner,
    objective: &Objective,
) -> Result<SamplerMismatch> {
    let temperature = training.session.settings.sampling.temperature;
    let mut mismatch = SamplerMismatch::default();
    if learner.recompute_above > 0.0 {
        let own = score(&training.session.model, rows, temperature, learner.tokens_at_once())?;
        let difference = largest_difference(rows, &own);
        mismatch.measured = Some(difference);
        if difference > learner.recompute_above {
            mismatch.recomputed = true;
            set_column(rows, own, |row| &mut row.logp_old);
            set_off_policy_weights(rows, objective)?;
        }
    }
    if objective.has_reference()
        && let Some(reference) = &training.reference
    {
        let scores = reference.score(rows, temperature, learner.tokens_at_once())?;
        set_column(rows, scores, |row| &mut row.logp_ref);
    }
    if objective.needs(Need::Squares) {
        let squares = sum_pi_squared(&training.session.model, rows, temperature, learner.tokens_at_once())?;
        set_column(rows, squares, |row| &mut row.sum_pi_squared);
    }
    Ok(mismatch)
}

/// Sets one column of the rows.
pub(super) fn set_column(rows: &mut [Row], column: Vec<Vec<f32>>, field: fn(&mut Row) -> &mut Vec<f32>) {
    for (row, own) in rows.iter_mut().zip(column) {
        *field(row) = own;
    }
}

/// Weights of tokens by the ratio of learner and sampler; a sequence is a trajectory.
fn set_off_policy_weights(rows: &mut [Row], objective: &Objective) -> Result<()> {
    if objective.importance.is_none() && objective.rejection.is_none() {
        return Ok(());
    }
    let mut places = Vec::new();
    let (mut ratios, mut sequence) = (Vec::new(), Vec::new());
    for (number, row) in rows.iter().enumerate() {
        for place in (0..row.len()).filter(|&place| row.loss_mask[place]) {
            places.push((number, place));
            ratios.push(row.logp_old[place] - row.logprobs[place]);
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
    for ((row, place), weight) in places.into_iter().zip(Vec::<f32>::try_from(weights)?) {
        rows[row].weights[place] = weight;
    }
    Ok(())
}

/// The difference of the log-probabilities of sampler and learner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SamplerMismatch {
    /// The largest difference, if it was measured before the updates.
    measured: Option<f64>,
    /// Whether the learner's log-probabilities replace those of the sampler.
    recomputed: bool,
}

impl SamplerMismatch {
    /// The largest difference. Without a measurement before the updates it is that of the first
    /// update, which has the weights of the rollout. `None` if nothing was scored.
    pub(super) fn largest(&self, updates: &[UpdateStats]) -> Option<f64> {
        let first = || updates.iter().find(|update| update.sampled > 0).map(|update| update.mismatch);
        self.measured.or_else(first)
    }

    pub(super) fn log(&self, metrics: &mut Metrics, rows: &[Row], updates: &[UpdateStats]) {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;

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
        let close = |found: &[Vec<f32>], want: [[f32; 2]; 2]| {
            found.iter().zip(want).all(|(found, want)| {
                found[0] == 0.0 && (found[1] - want[0]).abs() < 1e-5 && (found[2] - want[1]).abs() < 1e-5
            })
        };
        let (e, two) = (f32::exp, 2.0);
        assert!(close(&weights(serde_json::json!({ "cap": 2.0 })), [[e(0.5), 1.0], [e(-1.0), two]]));
        // Over a trajectory their product, 1.65 and 2.72, the second cut.
        assert!(close(&weights(serde_json::json!({ "scope": "sequence", "cap": 2.0 })), [[e(0.5); 2], [two; 2]]));
    }

    #[test]
    fn a_trajectory_stays_in_one_mini_batch() {
        let row = |trajectory| Row {
            ids: vec![1],
            loss_mask: vec![true],
            logprobs: vec![0.0],
            steps: vec![0],
            trajectory,
            ..Row::default()
        };
        let mut rows: Vec<Row> = [0, 0, 1, 2, 2, 5].map(row).into();
        (0..).zip(&mut rows).for_each(|(number, row)| row.advantages = vec![f64::from(number)]);
        let batch = UpdateBatch { rows, ..UpdateBatch::default() };
        let numbers = |parts| -> Vec<Vec<usize>> {
            let of = |part: &UpdateBatch| part.rows.iter().map(|row| row.trajectory).collect();
            batch.split(parts, Over::Step).iter().map(of).collect()
        };
        assert_eq!(numbers(2), [vec![0, 0, 2, 2], vec![1, 5]]);
        assert_eq!(numbers(1), [vec![0, 0, 1, 2, 2, 5]]);
        assert_eq!(numbers(8), [vec![0, 0], vec![1], vec![2, 2], vec![5]]);
        assert_eq!(
            batch.split(2, Over::Step)[1].rows.iter().map(|row| row.advantages[0]).collect::<Vec<_>>(),
            [2.0, 5.0]
        );
        let grouped = UpdateBatch { group_of: vec![0, 0, 0, 1, 1, 1], ..batch.clone() };
        let rows = |part: &UpdateBatch| part.rows.iter().map(|row| row.trajectory).collect::<Vec<_>>();
        let parts: Vec<_> = grouped.split(2, Over::Group).iter().map(rows).collect();
        assert_eq!(parts, [vec![0, 0, 1, 2, 2], vec![5]]);
    }
}
