//! A recipe's own estimator: its Lua function `advantage`, called once for each group.

use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::Advantages;
use crate::rl::rows::{Batch, Path, StepRow};
use crate::script::{Estimated, GroupInput, GroupMember, Script, Worker};

/// The recipe's function `advantage` in a virtual machine that stays for the whole run. A changed
/// script gets a new one.
///
/// The function may not keep state that changes its results: a resumed run starts with a new
/// virtual machine, and its weights would differ. Therefore the first group is estimated again
/// after every batch, and a different result is an error.
pub struct ScriptEstimator {
    worker: Worker,
    critic: bool,
    probe: Option<Probe>,
}

/// A group with its result, to check that the function returns the same again.
#[derive(Debug)]
struct Probe {
    group: GroupInput,
    result: Estimated,
}

impl ScriptEstimator {
    /// The function of `script`; `critic`: whether it must also return the critic's targets.
    pub(crate) fn new(script: &Script, critic: bool) -> Result<Self> {
        Ok(Self { worker: Worker::new(script, None)?, critic, probe: None })
    }

    /// Whether the virtual machine uses so much memory that a new one should replace it.
    pub(crate) fn needs_replacement(&self) -> bool {
        self.worker.needs_replacement()
    }

    /// Advantages (and a critic's targets). The numbers of trajectories in `steps` are indices of
    /// `trajectories`.
    ///
    /// # Errors
    /// `Kind::Script` with the place in the script where the function fails, returns something that
    /// is not allowed, or gives different numbers for the same group; `Kind::Numeric` names the
    /// trajectory whose number is NaN or infinite.
    pub(crate) fn estimate(&mut self, steps: &[StepRow], trajectories: &[Trajectory]) -> Result<Advantages> {
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
        let worker = &self.worker;
        let mut found = Advantages::none(steps);
        for (group, paths) in &groups {
            let members: Vec<GroupMember<'_>> = paths
                .iter()
                .filter_map(|path| {
                    let trajectory = trajectories.get(number(&batch, path) as usize)?;
                    Some(member(&batch, path, paths, trajectory))
                })
                .collect();
            let input = GroupInput::new(&members, failed.get(group).copied().unwrap_or(0));
            let result = worker.advantage(&input)?;
            let Estimated { advantages, returns } = &result;
            if self.critic && returns.is_none() {
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
            self.probe.get_or_insert(Probe { group: input, result });
        }
        self.check_repeatable()?;
        found.share(steps);
        Ok(found)
    }

    /// Refuses a function whose result depends on earlier calls.
    fn check_repeatable(&self) -> Result<()> {
        let Some(Probe { group, result }) = &self.probe else { return Ok(()) };
        if self.worker.advantage(group)?.is_same(result) {
            return Ok(());
        }
        let message = "advantage returned different numbers for the same group in a second call";
        Err(self.worker.broken_advantage(message).hint(
            "it may not keep state between calls, because a resumed run does not have it (docs/guide/your-own-algorithm.md)",
        ))
    }
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

/// The argument that describes a trajectory.
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
