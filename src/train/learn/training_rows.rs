//! The rows of an update: the tokens of the trained trajectories, with a column for each number
//! that the loss reads.

use std::collections::BTreeMap;

use crate::config::{Input, Learner, RoutingReplay};
use crate::error::Result;
use crate::mdp::{Routing, Trajectory};
use crate::rl::pack::{self, Row};
use crate::train::rules::objective::Objective;

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
    for (number, row) in rows.iter_mut().enumerate() {
        row.number = number;
        if learner.routing_replay == RoutingReplay::Off {
            row.routing = Routing::default();
        }
    }
    Ok(rows)
}

/// Sets the inputs of losses in Lua: the groups, and the rewards of `trajectories` if the loss
/// reads them.
pub(crate) fn set_loss_inputs(rows: &mut [Row], objective: &Objective, trajectories: &[Trajectory]) {
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    let mut number = |group: u64| {
        let next = seen.len();
        *seen.entry(group).or_insert(next)
    };
    let group_of: Vec<usize> = trajectories.iter().map(|trajectory| number(trajectory.group)).collect();
    for row in rows {
        row.group = group_of[row.trajectory];
        if objective.reads(Input::Rewards) {
            row.rewards = vec![trajectories[row.trajectory].total_reward() as f32; row.len()];
        }
    }
}

/// The trajectories of some rows, by their index in the step.
pub(crate) fn trajectories_of(rows: &[Row], members: &[usize]) -> Vec<u64> {
    let mut numbers: Vec<u64> = members.iter().map(|&i| rows[i].trajectory as u64).collect();
    numbers.dedup();
    numbers
}

/// Sets one column of the rows.
pub(crate) fn set_column(rows: &mut [Row], column: Vec<Vec<f32>>, field: fn(&mut Row) -> &mut Vec<f32>) {
    for (row, values) in rows.iter_mut().zip(column) {
        *field(row) = values;
    }
}
