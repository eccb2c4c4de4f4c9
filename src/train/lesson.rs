//! What an update learns from: rows of the trajectories that count, with what is known about each of their tokens.

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
use crate::rl::pack::{self, Row};
use crate::telemetry::Metrics;

/// Rows and numbers for their sampled tokens: every list has an entry for every token of every row.
#[derive(Clone, Debug, Default)]
pub struct Lesson {
    pub rows: Vec<Row>,
    pub advantages: Vec<Vec<f64>>,
    /// Log-probabilities before the update, where they are not those of the sampler.
    pub old: Option<Vec<Vec<f32>>>,
    /// Under the reference policy.
    pub reference: Option<Vec<Vec<f32>>>,
    /// Off-policy weights.
    pub weights: Option<Vec<Vec<f32>>>,
    pub targets: Option<Targets>,
    /// The total reward of each token's trajectory, where the loss reads it.
    pub rewards: Option<Vec<Vec<f32>>>,
    /// The group of each trajectory, by the number that its rows have; empty: each is a group of its own.
    pub group_of: Vec<usize>,
}

/// What a critic learns.
#[derive(Clone, Debug)]
pub struct Targets {
    pub returns: Vec<Vec<f64>>,
    /// Where the critic is asked.
    pub asked: Vec<Vec<bool>>,
    /// What it said before the update.
    pub values: Vec<Vec<f32>>,
    /// What the critic alone reads before its rows.
    pub prefixes: Prefixes,
}

impl Lesson {
    /// The lesson in parts, all rows of a trajectory in the same one, and of a group where the loss compares groups; parts
    /// without rows are left out.
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
        fn of<T: Clone>(all: &[T], places: &[usize]) -> Vec<T> {
            places.iter().map(|&place| all[place].clone()).collect()
        }
        let lists = |all: &Option<Vec<Vec<f32>>>| all.as_ref().map(|all| of(all, places));
        Self {
            rows: of(&self.rows, places),
            advantages: of(&self.advantages, places),
            old: lists(&self.old),
            reference: lists(&self.reference),
            weights: lists(&self.weights),
            rewards: lists(&self.rewards),
            group_of: self.group_of.clone(),
            targets: self.targets.as_ref().map(|targets| Targets {
                returns: of(&targets.returns, places),
                asked: of(&targets.asked, places),
                values: of(&targets.values, places),
                prefixes: targets.prefixes.clone(),
            }),
        }
    }

    /// The group of each row.
    pub(super) fn groups(&self) -> Vec<usize> {
        let of = |row: &Row| self.group_of.get(row.trajectory).copied().unwrap_or(row.trajectory);
        self.rows.iter().map(of).collect()
    }

    /// Whether a row has an advantage, so that it moves the weights.
    pub(super) fn moves(&self, row: usize) -> bool {
        self.advantages[row].iter().any(|advantage| *advantage != 0.0)
    }
}

/// [`rows`], without the record of routing unless the learner replays it.
pub(super) fn rows_for(
    learner: &Learner,
    trajectories: &[Trajectory],
    companion: impl Fn(usize) -> bool,
) -> Result<Vec<Row>> {
    let mut rows = rows(trajectories, companion)?;
    if learner.routing_replay == RoutingReplay::Off {
        for row in &mut rows {
            row.routing = Routing::default();
        }
    }
    Ok(rows)
}

/// The rows of the trajectories that are trained on, numbered by their place in `trajectories`.
pub(super) fn rows(trajectories: &[Trajectory], companion: impl Fn(usize) -> bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        if !trajectory.status.is_failure() && !companion(index) {
            rows.extend(pack::merge(trajectory, index)?);
        }
    }
    Ok(rows)
}

/// What only a loss of the recipe's own reads, in a lesson over `trajectories`.
pub(super) fn for_custom(lesson: Lesson, objective: &Objective, trajectories: &[Trajectory]) -> Lesson {
    if objective.custom.is_none() {
        return lesson;
    }
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    let mut number = |group: u64| {
        let next = seen.len();
        *seen.entry(group).or_insert(next)
    };
    let group_of = trajectories.iter().map(|trajectory| number(trajectory.group)).collect();
    let total = |row: &Row| vec![trajectories[row.trajectory].total_reward() as f32; row.len()];
    let rewards = objective.reads(Input::Rewards).then(|| lesson.rows.iter().map(total).collect());
    Lesson { rewards, group_of, ..lesson }
}

/// Log-probabilities of the rows' sampled tokens, as far as anybody wants them.
pub(super) struct Scores {
    /// The learner's own before the update, if they take the place of the sampler's.
    pub(super) old: Option<Vec<Vec<f32>>>,
    pub(super) reference: Option<Vec<Vec<f32>>>,
    /// Weights for the difference of the two.
    pub(super) weights: Option<Vec<Vec<f32>>>,
    /// Sums of squared probabilities, for estimators that want them.
    squares: Option<Vec<Vec<f32>>>,
    /// Difference of sampler and learner, where it was measured ahead of the updates.
    mismatch: Option<f64>,
}

/// Scores the rows with the current weights and those of the reference, if the recipe wants either.
pub(super) fn scores(
    rows: &[Row],
    training: &Training,
    learner: &Learner,
    objective: &Objective,
    temperature: f64,
) -> Result<Scores> {
    let (mut old, mut weights, mut mismatch) = (None, None, None);
    if learner.recompute_above > 0.0 {
        let own = score(&training.session.model, rows, temperature, learner.tokens_per_batch)?;
        let difference = largest_difference(rows, &own);
        mismatch = Some(difference);
        if difference > learner.recompute_above {
            weights = off_policy(rows, &own, objective)?;
            old = Some(own);
        }
    }
    let reference = match &training.reference {
        _ if !objective.has_reference() => None,
        Some(reference) => Some(reference.score(rows, temperature, learner.tokens_per_batch)?),
        None => None,
    };
    let squares = if training.objective.needs(Need::Squares) {
        Some(sum_pi_squared(&training.session.model, rows, temperature, learner.tokens_per_batch)?)
    } else {
        None
    };
    Ok(Scores { old, reference, weights, squares, mismatch })
}

/// Weights of tokens whose sampler was not quite the learner; a sequence is a trajectory.
fn off_policy(rows: &[Row], own: &[Vec<f32>], objective: &Objective) -> Result<Option<Vec<Vec<f32>>>> {
    if objective.importance.is_none() && objective.rejection.is_none() {
        return Ok(None);
    }
    let mut places = Vec::new();
    let (mut ratios, mut sequence) = (Vec::new(), Vec::new());
    for (number, row) in rows.iter().enumerate() {
        for place in (0..row.len()).filter(|&place| row.loss_mask[place]) {
            places.push((number, place));
            ratios.push(own[number][place] - row.logprobs[place]);
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
    let mut found: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.len()]).collect();
    for ((row, place), weight) in places.into_iter().zip(Vec::<f32>::try_from(weights)?) {
        found[row][place] = weight;
    }
    Ok(Some(found))
}

impl Scores {
    /// Tells the estimator what is known.
    pub(super) fn fill(&self, steps: &mut super::steps::Steps, rows: &[Row]) {
        if let Some(reference) = &self.reference {
            steps.fill(rows, reference, |row| &mut row.logp_ref);
        }
        if let Some(squares) = &self.squares {
            steps.fill(rows, squares, |row| &mut row.sum_pi_squared);
        }
        if let Some(old) = &self.old {
            steps.fill(rows, old, |row| &mut row.logp_old);
        }
    }

    /// Largest difference of sampler and learner: only the first update sees the weights that sampled. `None` where
    /// nothing was scored.
    pub(super) fn mismatch(&self, updates: &[UpdateStats]) -> Option<f64> {
        let first = || updates.iter().find(|update| update.sampled > 0).map(|update| update.mismatch);
        self.mismatch.or_else(first)
    }

    pub(super) fn log(&self, metrics: &mut Metrics, rows: &[Row], updates: &[UpdateStats]) {
        if let Some(mismatch) = self.mismatch(updates) {
            metrics.set("mismatch/max_abs", mismatch);
        }
        if self.mismatch.is_some() {
            metrics.set("mismatch/recomputed", f64::from(u8::from(self.old.is_some())));
        }
        if let Some(weights) = &self.weights {
            let (mut rejected, mut sampled) = (0.0, 0.0);
            for (row, weights) in rows.iter().zip(weights) {
                for (weight, _) in weights.iter().zip(&row.loss_mask).filter(|(_, sampled)| **sampled) {
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
    use crate::mdp::Support;

    #[test]
    fn weights_are_the_learners_share_of_the_samplers() {
        let row = |trajectory: usize, logprobs: [f32; 2]| Row {
            ids: vec![1, 2, 3],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0, logprobs[0], logprobs[1]],
            steps: vec![0; 3],
            support: Support::default(),
            routing: Routing::default(),
            trajectory,
        };
        let rows = [row(0, [-1.0, -2.0]), row(3, [-1.0, -1.0])];
        let own = [vec![0.0, -0.5, -2.0], vec![0.0, -2.0, 1.0]];
        let weights = |importance: serde_json::Value| {
            let importance = importance.as_object().cloned();
            let learner = Learner { importance, recompute_above: 1.0, ..Default::default() };
            let objective = Objective::new(&learner, &crate::mdp::Sampling::default(), false).unwrap();
            off_policy(&rows, &own, &objective).unwrap().unwrap()
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
    fn a_trajectory_stays_in_one_part() {
        let row = |trajectory| Row {
            ids: vec![1],
            loss_mask: vec![true],
            logprobs: vec![0.0],
            steps: vec![0],
            support: Support::default(),
            routing: Routing::default(),
            trajectory,
        };
        let rows: Vec<Row> = [0, 0, 1, 2, 2, 5].map(row).into();
        let advantages = (0..6).map(|number| vec![f64::from(number)]).collect();
        let lesson = Lesson { rows, advantages, ..Lesson::default() };
        let numbers = |parts| -> Vec<Vec<usize>> {
            let of = |part: &Lesson| part.rows.iter().map(|row| row.trajectory).collect();
            lesson.split(parts, Over::Step).iter().map(of).collect()
        };
        assert_eq!(numbers(2), [vec![0, 0, 2, 2], vec![1, 5]]);
        assert_eq!(numbers(1), [vec![0, 0, 1, 2, 2, 5]]);
        assert_eq!(numbers(8), [vec![0, 0], vec![1], vec![2, 2], vec![5]]);
        assert_eq!(lesson.split(2, Over::Step)[1].advantages, [vec![2.0], vec![5.0]]);
        let grouped = Lesson { group_of: vec![0, 0, 0, 1, 1, 1], ..lesson.clone() };
        let rows = |part: &Lesson| part.rows.iter().map(|row| row.trajectory).collect::<Vec<_>>();
        let parts: Vec<_> = grouped.split(2, Over::Group).iter().map(rows).collect();
        assert_eq!(parts, [vec![0, 0, 1, 2, 2], vec![5]]);
        assert!(!lesson.moves(0) && lesson.moves(1));
    }
}
