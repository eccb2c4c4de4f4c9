//! The step in progress: what its rollouts and updates have made since the last step ended.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use super::collect::Collected;
use crate::engine::Stats;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Split, TrainedTokens, Trajectory};
use crate::store::{RunDir, read_trajectories};
use crate::telemetry::Metrics;
use crate::train::learn::update::UpdateStats;
use crate::train::ranks::Ranks;

/// The state of a step between its first operation and `next_step`, which records it.
#[derive(Default)]
pub(crate) struct OpenStep {
    /// The start of its first operation.
    pub(crate) began: Option<Instant>,
    /// The trajectories that were sampled, and the greedy baselines of their groups.
    pub(crate) sampled: Vec<Trajectory>,
    pub(crate) baselines: Vec<Trajectory>,
    /// The trajectories of dropped groups, which are stored only.
    pub(crate) dropped: Vec<Trajectory>,
    /// Groups drawn from the data.
    pub(crate) groups: usize,
    pub(crate) begun: BegunGroups,
    pub(crate) stats: Stats,
    /// What the updates computed for the tokens of trajectories, by id: an entry per step.
    pub(crate) trained: BTreeMap<String, Vec<TrainedTokens>>,
    /// The advantages and ratios of all trained tokens, for TensorBoard.
    pub(crate) token_advantages: Vec<f64>,
    pub(crate) token_ratios: Vec<f64>,
    /// Whether an update computed advantages, so that the step has a learning signal or none.
    pub(crate) compared: bool,
    /// Whether an update has begun, so that the weights are between two steps.
    pub(crate) updating: bool,
    pub(crate) update_stats: Vec<UpdateStats>,
    /// Whether the policy has changed.
    pub(crate) changed: bool,
    /// Metrics of the updates and of the program.
    pub(crate) values: Metrics,
    pub(crate) sampling_seconds: f64,
    pub(crate) training_seconds: f64,
}

/// How the groups of a step were drawn, and those that are not in its trajectories.
#[derive(Default)]
pub(crate) struct BegunGroups {
    /// Whether a program named rows of the data.
    pub(crate) chosen: bool,
    /// Positions of the groups that the next step continues.
    pub(crate) unfinished: Vec<u64>,
    /// Positions and rows of the groups that were stopped.
    pub(crate) stopped: Vec<(u64, u64)>,
}

/// The trajectories of an update, followed by the greedy baselines of their groups.
pub(crate) struct UpdateTrajectories {
    pub(crate) trajectories: Vec<Trajectory>,
    /// Trajectories from this index on are greedy baselines, which are not trained on.
    pub(crate) baselines_from: usize,
    /// The trajectories are moved out of the step, not copied.
    moved: bool,
}

impl UpdateTrajectories {
    /// Its trajectories, if they are not in the step.
    pub(crate) fn taken(&self) -> &[Trajectory] {
        if self.moved { &self.trajectories } else { &[] }
    }
}

impl OpenStep {
    /// Adds a rollout; returns the ids of its trajectories.
    pub(crate) fn add(&mut self, mut collected: Collected) -> Vec<String> {
        self.baselines.extend(collected.trajectories.split_off(collected.baselines_from));
        self.groups += collected.groups;
        self.dropped.append(&mut collected.dropped);
        self.begun.unfinished.append(&mut collected.begun.unfinished);
        self.begun.stopped.append(&mut collected.begun.stopped);
        self.stats.add(&collected.stats);
        let ids = collected.trajectories.iter().map(|trajectory| trajectory.id.clone()).collect();
        self.sampled.append(&mut collected.trajectories);
        ids
    }

    /// The trajectories of these ids: of this step, or of an earlier one of the run.
    ///
    /// # Errors
    /// `Kind::Usage` names an id that the run does not have.
    pub(crate) fn find(&self, (run, ranks): (&RunDir, &Ranks), ids: &[String]) -> Result<Vec<Trajectory>> {
        let mut earlier: BTreeMap<(Split, u64), Vec<Trajectory>> = BTreeMap::new();
        ids.iter()
            .map(|id| {
                let mut of_step = self.sampled.iter().chain(&self.dropped);
                if let Some(trajectory) = of_step.find(|trajectory| trajectory.id == *id) {
                    return Ok(trajectory.clone());
                }
                let missing = || {
                    let ids_of_step = self.sampled.iter().map(|trajectory| trajectory.id.as_str()).collect::<Vec<_>>();
                    Error::new(Kind::Usage, format!("this run has no trajectory `{id}`")).hint(suggest(id, ids_of_step))
                };
                let (split, step) = Split::of_id(id).ok_or_else(missing)?;
                let path = run.trajectories_path(split, step);
                if let Entry::Vacant(entry) = earlier.entry((split, step)) {
                    // Only rank 0 has the files.
                    let stored = if path.is_file() { read_trajectories(&path) } else { Ok(Vec::new()) };
                    let all = ranks.all_trajectories(stored.map(|stored| (stored, ())))?;
                    entry.insert(all.into_iter().next().unwrap_or_default().0);
                }
                earlier[&(split, step)].iter().find(|trajectory| trajectory.id == *id).cloned().ok_or_else(missing)
            })
            .collect()
    }

    /// The batch of these ids, with greedy baselines if the estimator needs them; `groups` has the
    /// group of each trajectory, if the program compares other trajectories than a task's. The
    /// whole step is moved, not copied; [`put_back`](Self::put_back) returns it.
    pub(crate) fn batch(
        &mut self,
        run: (&RunDir, &Ranks),
        ids: &[String],
        greedy: bool,
        groups: Option<&[u64]>,
    ) -> Result<UpdateTrajectories> {
        let moved = groups.is_none() && ids.iter().eq(self.sampled.iter().map(|sampled| &sampled.id));
        let mut trajectories = if moved { std::mem::take(&mut self.sampled) } else { self.find(run, ids)? };
        let baselines_from = trajectories.len();
        if greedy && moved {
            trajectories.append(&mut self.baselines);
        } else if greedy {
            let of: Vec<u64> = trajectories.iter().map(|trajectory| trajectory.group).collect();
            trajectories.extend(self.baselines.iter().filter(|other| of.contains(&other.group)).cloned());
        }
        if !moved {
            regroup(&mut trajectories, groups);
        }
        Ok(UpdateTrajectories { trajectories, baselines_from, moved })
    }

    /// All trajectories of the step, with others that were taken out of it or are not in it yet.
    pub(crate) fn all<'a>(&'a self, others: &[&'a [Trajectory]]) -> Vec<&'a Trajectory> {
        let others = others.iter().copied().flatten();
        others.chain(&self.sampled).chain(&self.baselines).chain(&self.dropped).collect()
    }

    /// Returns the trajectories of a batch after its use.
    pub(crate) fn put_back(&mut self, batch: UpdateTrajectories) {
        let UpdateTrajectories { mut trajectories, baselines_from, moved } = batch;
        if moved {
            self.baselines.extend(trajectories.split_off(baselines_from));
            self.sampled = trajectories;
        }
    }

    /// Keeps the numbers of an update for the records of the step; the last update of a trajectory
    /// counts.
    pub(crate) fn keep_trained(&mut self, trajectories: &[Trajectory], by_step: Vec<Option<Vec<TrainedTokens>>>) {
        let of = |(trajectory, trained): (&Trajectory, Option<Vec<TrainedTokens>>)| {
            let trained = trained?;
            trained.iter().any(|step| !step.is_empty()).then(|| (trajectory.id.clone(), trained))
        };
        self.trained.extend(trajectories.iter().zip(by_step).filter_map(of));
        self.compared = true;
    }
}

/// Moves the numbers of updates into the steps of their trajectories.
pub(crate) fn put_trained(trajectories: &mut [Trajectory], trained: &mut BTreeMap<String, Vec<TrainedTokens>>) {
    for trajectory in trajectories {
        let numbers = trained.remove(&trajectory.id).unwrap_or_default();
        for (step, numbers) in trajectory.steps.iter_mut().zip(numbers) {
            step.trained = numbers;
        }
    }
}

/// Numbers the groups consecutively: trajectories of different steps are in different groups,
/// unless `groups` has the group of each trajectory.
fn regroup(all: &mut [Trajectory], groups: Option<&[u64]>) {
    if let Some(groups) = groups {
        for (trajectory, group) in all.iter_mut().zip(groups) {
            trajectory.group = *group;
        }
        return;
    }
    let mut numbers: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for trajectory in all {
        let step = trajectory.id.split('-').next().unwrap_or_default().to_owned();
        let next = numbers.len() as u64;
        trajectory.group = *numbers.entry((step, trajectory.group)).or_insert(next);
    }
}
