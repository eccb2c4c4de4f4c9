//! A recipe's own estimator: its Lua function `advantage`, called once for each group.

use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::Advantages;
use crate::rl::rows::{Batch, Path, StepRow};
use crate::script::{Estimated, GroupMember, Worker};

/// Advantages (and a critic's targets) by the recipe's function. The numbers of trajectories in `steps` are places in
/// `trajectories`.
///
/// # Errors
/// `Kind::Script` with the place in the script where it fails or returns something else than it must; `Kind::Numeric`
/// names the trajectory for which it returns NaN or infinity.
pub(super) fn advantages(
    worker: &Worker,
    steps: &[StepRow],
    trajectories: &[Trajectory],
    critic: bool,
) -> Result<Advantages> {
    let batch = Batch::new(steps, false)?;
    let mut groups: BTreeMap<u64, Vec<&Path>> = BTreeMap::new();
    let mut failed: BTreeMap<u64, usize> = BTreeMap::new();
    for path in batch.paths.iter().filter(|path| !path.greedy) {
        if path.counted {
            groups.entry(path.group).or_default().push(path);
        } else {
            *failed.entry(path.group).or_default() += 1;
        }
    }
    let mut found = Advantages::none(steps);
    for (group, paths) in &groups {
        let members: Vec<GroupMember<'_>> = paths
            .iter()
            .filter_map(|path| {
                let trajectory = trajectories.get(number(&batch, path) as usize)?;
                Some(member(&batch, path, paths, trajectory))
            })
            .collect();
        let Estimated { advantages, returns } = worker.advantage(&members, failed.get(group).copied().unwrap_or(0))?;
        if critic && returns.is_none() {
            return Err(worker.broken_advantage(
                "advantage must return a second list, of returns by step: what the critic should have predicted",
            ));
        }
        for (place, path) in paths.iter().enumerate() {
            for (step, &row) in path.rows.iter().enumerate() {
                found.counted[row] = true;
                let advantage = finite(worker, "an advantage", advantages[place][step], &steps[row])?;
                for (own, _) in found.advantages[row].iter_mut().zip(&steps[row].mask).filter(|(_, mask)| **mask) {
                    *own = advantage;
                }
                let first = steps[row].mask.iter().position(|sampled| *sampled);
                if let (Some(returns), Some(first)) = (&returns, first) {
                    found.returns[row][first] = finite(worker, "a return", returns[place][step], &steps[row])?;
                    found.targets[row][first] = true;
                }
            }
        }
    }
    found.share(steps);
    Ok(found)
}

fn number(batch: &Batch<'_>, path: &Path) -> u64 {
    path.rows.first().map_or(u64::MAX, |&row| batch.rows[row].trajectory)
}

fn finite(worker: &Worker, what: &str, value: f64, row: &StepRow) -> Result<f64> {
    if value.is_finite() {
        return Ok(value);
    }
    let function = worker.broken_advantage("").place.unwrap_or_else(|| "the recipe".to_owned());
    Err(Error::new(Kind::Numeric, format!("{what} is {value}"))
        .in_step(row.trajectory, row.step)
        .hint(format!("the function `advantage` of {function} returned it: look for divisions by zero")))
}

/// A trajectory as the function sees it.
fn member<'a>(batch: &Batch<'_>, path: &Path, group: &[&Path], trajectory: &'a Trajectory) -> GroupMember<'a> {
    let steps: Vec<&StepRow> = batch.steps(path).collect();
    let last = steps.last();
    let shared: Vec<u64> = steps.iter().map_while(|row| row.shared).collect();
    let fork = shared.last().map(|taker| {
        let parent = group.iter().position(|other| number(batch, other) == *taker);
        (parent, shared.len())
    });
    let values: Option<Vec<f64>> = steps.iter().map(|row| row.state_value()).collect();
    GroupMember {
        total: path.total,
        rewards: steps.iter().map(|row| row.reward()).collect(),
        tokens: steps.iter().map(|row| row.sampled()).collect(),
        status: trajectory.status,
        parts: &trajectory.reward_parts,
        task: &trajectory.task,
        terminated: last.is_some_and(|row| row.terminated),
        truncated: last.is_some_and(|row| row.truncated),
        fork,
        next_value: values.as_ref().and_then(|_| last.and_then(|row| row.next_value)),
        values,
    }
}
