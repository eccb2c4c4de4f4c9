//! The trajectories of one step: a group of samples for each task, in the order of the data, with
//! refills for groups without variance.

use std::sync::Arc;

use super::open_step::BegunGroups;
use super::step_groups::StepGroups;
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
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) trajectories: Vec<Trajectory>,
    /// Trajectories from this index on are greedy baselines, which are not trained on.
    pub(crate) baselines_from: usize,
    /// The trajectories of the groups that the filter dropped, with their greedy baselines.
    pub(crate) dropped: Vec<Trajectory>,
    /// Number of groups that were begun, dropped and unfinished ones included.
    pub(crate) groups: usize,
    /// With `rollout.oversample`: the groups that are not in the trajectories.
    pub(crate) begun: BegunGroups,
    pub(crate) stats: Stats,
}

/// A group that a step begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawnTask {
    /// Its number in the step.
    pub(crate) group: u64,
    /// Its position in the order of the data.
    pub(crate) position: u64,
    pub(crate) row: u64,
}

impl Collected {
    /// Moves trajectories that stay into `kept`, and the others to the dropped ones.
    fn sort(&mut self, all: Vec<Trajectory>, kept: &mut Vec<Trajectory>, stays: impl Fn(&Trajectory) -> bool) {
        let (stay, mut leave): (Vec<_>, Vec<_>) = all.into_iter().partition(stays);
        kept.extend(stay);
        for trajectory in &mut leave {
            trajectory.dropped = true;
        }
        self.dropped.append(&mut leave);
    }
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
    let mut collected = Collected::default();
    session.log.at(state.step + 1);
    let (mut sampled, mut baselines) = (Vec::new(), Vec::new());
    let mut kept = 0;
    let mut ahead = session.next_ahead(reporter)?;
    let oversamples = draw.rows.is_none() && (session.settings.rollout.oversample.is_on() || !state.carried.is_empty());
    for round in 0..=learner.filter.refills {
        let mut missing = learner.groups_per_step - kept;
        let mut begun = missing;
        let label = if round == 0 { "sampling" } else { "refilling" };
        let (trajectories, stats) = if let Some((groups, rollout)) = ahead.take() {
            (missing, begun) = (groups, groups);
            rollout
        } else if oversamples {
            let groups = StepGroups { learner, state, draw };
            begun = groups.begin(session, draw.first + collected.groups, missing)?;
            groups.wait(session, missing, reporter, label)?
        } else {
            let from = draw.first + collected.groups;
            let tasks = tasks(session, state, from..from + missing, draw)?;
            let trees = trees(session, learner, state, &tasks, draw);
            session.rollout(trees, reporter, label)?
        };
        collected.groups += begun;
        collected.stats.add(&stats);
        let samples = learner.group_size + extra_samples(session);
        let is_sample = |trajectory: &Trajectory| (trajectory.sample as usize) < samples;
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
        collected.sort(samples, &mut sampled, |trajectory| last || keeps(trajectory));
        collected.sort(greedy, &mut baselines, |trajectory| last || keeps(trajectory));
        if kept >= learner.groups_per_step {
            break;
        }
    }
    if oversamples {
        let groups = StepGroups { learner, state, draw };
        collected.begun = groups.end(session);
    }
    if learner.filter.keep < 1.0 {
        let (returns, groups) = returns(&sampled);
        let best = filter::starpo_s(&returns, &groups, learner.filter.keep, filter::Keep::Largest)?;
        for list in [&mut sampled, &mut baselines] {
            let all = std::mem::take(list);
            collected.sort(all, list, |trajectory| best.contains(&trajectory.group));
        }
    }
    collected.baselines_from = sampled.len();
    sampled.append(&mut baselines);
    collected.trajectories = sampled;
    Ok(collected)
}

/// Begins the rollouts of the steps after the next ones, as far as `rollout.async` allows.
pub(crate) fn begin_ahead(session: &mut Session, learner: &Learner, state: &RunProgress, draw: Draw<'_>) -> Result<()> {
    for _ in 0..session.rollouts.missing() {
        let (steps, groups) = session.rollouts.begun();
        let (step, data_position) = (state.step + steps as u64, state.data_position + groups as u64);
        if step >= learner.steps as u64 {
            break;
        }
        let state = RunProgress { step, data_position, ..state.clone() };
        let tasks = tasks(session, &state, 0..learner.groups_per_step, draw)?;
        let trees = trees(session, learner, &state, &tasks, draw);
        session.begin_ahead(trees, learner.groups_per_step)?;
    }
    Ok(())
}

/// Returns and groups, without failures.
fn returns(trajectories: &[Trajectory]) -> (Vec<f64>, Vec<u64>) {
    let counted = trajectories.iter().filter(|trajectory| !trajectory.status.is_failure());
    counted.map(|trajectory| (trajectory.total_reward(), trajectory.group)).unzip()
}

/// The tasks of the groups `numbers` of a step, which follow each other in the data.
fn tasks(
    session: &mut Session,
    state: &RunProgress,
    numbers: std::ops::Range<usize>,
    draw: Draw<'_>,
) -> Result<Vec<DrawnTask>> {
    let first = numbers.start as u64;
    let rows = rows(session, state, numbers, draw)?;
    let of = |(group, row)| DrawnTask { group, position: state.data_position + group, row };
    Ok((first..).zip(rows).map(of).collect())
}

/// Trajectories of a group beyond its size.
pub(crate) fn extra_samples(session: &Session) -> usize {
    session.settings.rollout.oversample.samples
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

/// The rollouts of the groups of a step, one for each task. With branches the first samples of a
/// group are roots, and the others are assigned to them in turn.
pub(crate) fn trees(
    session: &Session,
    learner: &Learner,
    state: &RunProgress,
    tasks: &[DrawnTask],
    draw: Draw<'_>,
) -> Vec<Tree> {
    let sampling = session.with_stop(session.settings.sampling.clone());
    let greedy = session.with_stop(Sampling { temperature: 0.0, ..session.settings.sampling.clone() });
    let Branch { roots, at, width, rounds } = &learner.branch;
    let samples = learner.group_size + extra_samples(session);
    let roots = if *roots == 0 { samples } else { *roots };
    let mut trees = Vec::with_capacity(tasks.len() * (roots + 1));
    for &DrawnTask { group, position, row } in tasks {
        let spec = |sample: usize| {
            let is_baseline = sample == samples;
            Spec {
                id: format!("{}-{group}-{sample}", state.step + 1),
                split: Split::Train,
                task_index: row,
                group,
                sample: sample as u32,
                env_seed: environment_seed(state.seed ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                seed: StreamSeed {
                    seed: state.seed,
                    // No other trajectory has the number of a greedy baseline.
                    trajectory: if is_baseline { !position } else { position * samples as u64 + sample as u64 },
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
            branches: (roots + root..samples).step_by(roots).map(spec).collect(),
            at: at.clone(),
            width: *width,
            rounds: *rounds,
        }));
        if draw.greedy {
            trees.push(spec(samples).into());
        }
    }
    trees
}
