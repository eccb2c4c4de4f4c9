//! The trajectories of one step: a group of samples for each task, in the order of the data, with
//! refills for groups without variance.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::{Branch, Learner};
use crate::engine::Stats;
use crate::error::Result;
use crate::mdp::{Sampling, StreamSeed, Trajectory, environment_seed};
use crate::rl::filter;
use crate::rollout::{Spec, Tree};
use crate::script::Split;
use crate::store::RunProgress;
use crate::telemetry::Reporter;
use crate::train::start::session::Session;

/// What a rollout samples, besides the settings of the recipe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Draw<'a> {
    /// Number of groups that the step has drawn before.
    pub(crate) first: usize,
    /// Rows of the data, one per group, instead of the next ones.
    pub(crate) rows: Option<&'a [u64]>,
    /// A greedy baseline rollout for every group.
    pub(crate) greedy: bool,
    /// The prompt of the next observation, if a limit truncates a trajectory.
    pub(crate) next_prompt: bool,
}

/// A step's trajectories.
pub(crate) struct Collected {
    pub(crate) trajectories: Vec<Trajectory>,
    /// Trajectories from this index on are greedy baselines, which are not trained on.
    pub(crate) baselines_from: usize,
    /// Number of sampled groups, and of those that were dropped.
    pub(crate) groups: usize,
    pub(crate) dropped: usize,
    pub(crate) stats: Stats,
}

/// Rolls out `groups_per_step` tasks with `group_size` samples each. Groups that the filter of the
/// recipe drops are replaced by the next tasks. The caller advances the data position by
/// [`Collected::groups`].
pub(crate) fn collect(
    session: &mut Session,
    learner: &Learner,
    state: &RunProgress,
    draw: Draw<'_>,
    reporter: &Reporter,
) -> Result<Collected> {
    let mut collected =
        Collected { trajectories: Vec::new(), baselines_from: 0, groups: 0, dropped: 0, stats: Stats::default() };
    session.log.at(state.step + 1);
    let mut baselines = Vec::new();
    let mut kept = 0;
    for round in 0..=learner.filter.refills {
        let missing = learner.groups_per_step - kept;
        let label = if round == 0 { "sampling" } else { "refilling" };
        let from = draw.first + collected.groups;
        let rows = rows(session, state, from..from + missing, draw)?;
        let trees = trees(session, learner, state, from, &rows, draw);
        let (trajectories, stats) = session.rollout(trees, reporter, label)?;
        collected.groups += missing;
        collected.stats.add(&stats);
        let is_sample = |trajectory: &Trajectory| (trajectory.sample as usize) < learner.group_size;
        let (samples, greedy): (Vec<_>, Vec<_>) = trajectories.into_iter().partition(is_sample);
        if let Some(curriculum) = &mut session.curriculum {
            curriculum.note(&samples, &session.settings.eval.accuracy);
        }
        let varied = learner.filter.uniform.then(|| {
            let (returns, groups) = returns(&samples);
            let alone = |group: &u64| groups.iter().filter(|samples| *samples == group).count() == 1;
            // The only trajectory of a group that did not fail cannot be compared.
            let mut varied = filter::dynamic_sampling(&returns, &groups);
            varied.retain(|group| !alone(group));
            varied
        });
        let new = varied.as_ref().map_or(missing, Vec::len);
        kept += new;
        let keeps = |trajectory: &Trajectory| varied.as_ref().is_none_or(|varied| varied.contains(&trajectory.group));
        // After the last refill, groups without variance stay in the records of the step.
        let last = round == learner.filter.refills;
        collected.dropped += if last { 0 } else { missing - new };
        collected.trajectories.extend(samples.into_iter().filter(|t| last || keeps(t)));
        baselines.extend(greedy.into_iter().filter(|t| last || keeps(t)));
        if kept == learner.groups_per_step {
            break;
        }
    }
    if learner.filter.keep < 1.0 {
        let (returns, groups) = returns(&collected.trajectories);
        let best = filter::starpo_s(&returns, &groups, learner.filter.keep, filter::Keep::Largest)?;
        let all = collected.trajectories.iter().map(|t| t.group).collect::<BTreeSet<_>>().len();
        collected.dropped += all - best.len();
        collected.trajectories.retain(|trajectory| best.contains(&trajectory.group));
        baselines.retain(|trajectory| best.contains(&trajectory.group));
    }
    collected.baselines_from = collected.trajectories.len();
    collected.trajectories.append(&mut baselines);
    Ok(collected)
}

/// Returns and groups, without failures.
fn returns(trajectories: &[Trajectory]) -> (Vec<f64>, Vec<u64>) {
    let counted = trajectories.iter().filter(|trajectory| !trajectory.status.is_failure());
    counted.map(|trajectory| (trajectory.total_reward(), trajectory.group)).unzip()
}

/// The rows of the groups `numbers` of a step: the given ones, or those that the curriculum draws,
/// or the next ones, without repetition within an epoch, in an order that depends on the seed.
fn rows(
    session: &mut Session,
    state: &RunProgress,
    numbers: std::ops::Range<usize>,
    draw: Draw<'_>,
) -> Result<Vec<u64>> {
    if let Some(chosen_rows) = draw.rows {
        if let Some(curriculum) = &mut session.curriculum {
            curriculum.forget(numbers.start as u64);
        }
        return Ok(numbers.filter_map(|group| chosen_rows.get(group - draw.first).copied()).collect());
    }
    let Some(order) = &session.rows.train else { return Ok(vec![0; numbers.len()]) };
    let numbers = numbers.start as u64..numbers.end as u64;
    match &mut session.curriculum {
        Some(curriculum) => curriculum.draw(order, state.seed, numbers),
        None => Ok(numbers.map(|group| order.at(state.data_position + group, state.seed)).collect()),
    }
}

/// The rollouts of the groups of a step from `first` on, one for each row. With branches the first
/// samples of a group are roots, and the others are assigned to them in turn.
fn trees(
    session: &Session,
    learner: &Learner,
    state: &RunProgress,
    first: usize,
    rows: &[u64],
    draw: Draw<'_>,
) -> Vec<Tree> {
    let sampling = session.with_stop(session.settings.sampling.clone());
    let greedy = session.with_stop(Sampling { temperature: 0.0, ..session.settings.sampling.clone() });
    let Branch { roots, at, width, rounds } = &learner.branch;
    let roots = if *roots == 0 { learner.group_size } else { *roots };
    let mut trees = Vec::with_capacity(rows.len() * (roots + 1));
    for (group, &task_index) in (first as u64..).zip(rows) {
        let position = state.data_position + group;
        let spec = |sample: usize| {
            let is_baseline = sample == learner.group_size;
            Spec {
                id: format!("{}-{group}-{sample}", state.step + 1),
                split: Split::Train,
                task_index,
                group,
                sample: sample as u32,
                env_seed: environment_seed(state.seed ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                seed: StreamSeed {
                    seed: state.seed,
                    // No other trajectory has the number of a greedy baseline.
                    trajectory: if is_baseline {
                        !position
                    } else {
                        position * learner.group_size as u64 + sample as u64
                    },
                    step: 0,
                },
                sampling: Arc::clone(if is_baseline { &greedy } else { &sampling }),
                max_steps: None,
                max_context: session.max_context,
                served: false,
                next_prompt: draw.next_prompt,
            }
        };
        trees.extend((0..roots).map(|root| Tree {
            root: spec(root),
            branches: (roots + root..learner.group_size).step_by(roots).map(spec).collect(),
            at: at.clone(),
            width: *width,
            rounds: *rounds,
        }));
        if draw.greedy {
            trees.push(spec(learner.group_size).into());
        }
    }
    trees
}
