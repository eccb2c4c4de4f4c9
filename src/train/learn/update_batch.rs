//! The rows of an update: the tokens of the trained trajectories, with a column for each number
//! that the loss reads.

use std::collections::BTreeMap;

use super::privileged::Prefixes;
use crate::config::{Input, Learner, Over, RoutingReplay};
use crate::error::Result;
use crate::mdp::{Routing, Trajectory};
use crate::rl::losses::explained_variance;
use crate::rl::pack::{self, Row};
use crate::train::rules::objective::Objective;

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
    pub(crate) fn split(&self, parts: usize, together: Over) -> Vec<Self> {
        if parts == 1 {
            return vec![self.clone()];
        }
        let units = match together {
            Over::Group => self.groups(),
            Over::Step | Over::Trajectory => self.rows.iter().map(|row| row.trajectory).collect(),
        };
        let places = |part: usize| -> Vec<usize> {
            (0..self.rows.len()).filter(|&index| units[index] % parts == part).collect()
        };
        (0..parts).map(places).filter(|places| !places.is_empty()).map(|places| self.take(&places)).collect()
    }

    /// Some of the rows.
    pub(crate) fn take(&self, places: &[usize]) -> Self {
        let rows = places.iter().map(|&index| self.rows[index].clone()).collect();
        Self { rows, group_of: self.group_of.clone(), prefixes: self.prefixes.clone() }
    }

    /// The group of each row.
    pub(crate) fn groups(&self) -> Vec<usize> {
        let of = |row: &Row| self.group_of.get(row.trajectory).copied().unwrap_or(row.trajectory);
        self.rows.iter().map(of).collect()
    }

    /// Adds the inputs of custom losses: the groups and the rewards of `trajectories`.
    pub(crate) fn read_by_custom_loss(&mut self, objective: &Objective, trajectories: &[Trajectory]) {
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
    pub(crate) fn target_count(&self) -> usize {
        target_count(&self.rows)
    }

    /// The share of the variance of the returns that the values before the update explain: 1 is
    /// perfect, 0 no better than a constant. NaN if the returns are all equal.
    pub(crate) fn explained_variance(&self) -> f64 {
        let (values, returns): (Vec<f64>, Vec<f64>) = self.targets().unzip();
        explained_variance(&values, &returns)
    }

    /// The mean value at the critic's targets.
    pub(crate) fn mean_value(&self) -> f64 {
        let (sum, count) = self.targets().fold((0.0, 0.0), |(sum, count), (value, _)| (sum + value, count + 1.0));
        sum / f64::max(count, 1.0)
    }

    /// Value and return at each of the critic's targets.
    fn targets(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.rows.iter().flat_map(|row| {
            let places = (0..row.targets.len()).filter(|&index| row.targets[index]);
            places.map(|index| (f64::from(row.values[index]), row.returns[index]))
        })
    }
}

/// Number of tokens of rows for which the critic has targets.
pub(crate) fn target_count(rows: &[Row]) -> usize {
    rows.iter().flat_map(|row| &row.targets).filter(|target| **target).count()
}

/// The rows of the trajectories that are trained on, numbered by their index in `trajectories`;
/// failures and greedy baselines are excluded. Without `trainer.routing_replay` they have no
/// routing.
///
/// # Errors
/// Errors of [`pack::merge`].
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

/// The trajectories of some rows, by their index in the step.
pub(crate) fn trajectories_of(rows: &[Row], members: &[usize]) -> Vec<u64> {
    let mut numbers: Vec<u64> = members.iter().map(|&i| rows[i].trajectory as u64).collect();
    numbers.dedup();
    numbers
}

pub(crate) fn set_column(rows: &mut [Row], column: Vec<Vec<f32>>, field: fn(&mut Row) -> &mut Vec<f32>) {
    for (row, values) in rows.iter_mut().zip(column) {
        *field(row) = values;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;

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
