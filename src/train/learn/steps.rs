//! The steps of a batch of trajectories in order, one row per step, with the columns that reward
//! shaping and estimators read.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::pack::Row;
use crate::rl::rewards::{Grouping, ReturnScale, RewardShaping, Shaping, shape};
use crate::rl::rows::{Batch, StepRow};
use crate::text::Renderer;

/// The steps of `trajectories`. `greedy` says which trajectories are greedy baselines.
pub fn training_steps(trajectories: &[Trajectory], greedy: impl Fn(usize) -> bool) -> Vec<StepRow> {
    let mut steps = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let greedy = greedy(index);
        if trajectory.steps.is_empty() && trajectory.status.is_failure() {
            // A trajectory that failed before its first response: a row without tokens keeps it
            // as a member of its group.
            let status = Some(trajectory.status);
            steps.push(StepRow { status, greedy, ..StepRow::new(trajectory.group, index as u64, 0, 0, 0.0) });
        }
        steps.extend(StepRow::of(trajectory, index).into_iter().map(|row| StepRow { greedy, ..row }));
    }
    mark_shared_steps(&mut steps, trajectories);
    steps
}

/// Sets `shared` of every step that a fork shares to the trajectory that sampled it.
fn mark_shared_steps(steps: &mut [StepRow], trajectories: &[Trajectory]) {
    let places: HashMap<&str, usize> = trajectories.iter().map(|t| t.id.as_str()).zip(0..).collect();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let first = of_trajectory(steps, index).start;
        for step in 0..trajectory.shared_steps() {
            // A parent may be a fork itself.
            let mut sampler = index;
            while let Some(fork) = trajectories[sampler].fork.as_ref().filter(|fork| step < fork.step as usize)
                && let Some(&parent) = places.get(fork.parent.as_str())
                && parent != sampler
            {
                sampler = parent;
            }
            steps[first + step].shared = (sampler != index).then_some(sampler as u64);
        }
    }
}

/// The indices of a trajectory's steps.
pub(crate) fn of_trajectory(steps: &[StepRow], trajectory: usize) -> Range<usize> {
    let first = |number: usize| steps.partition_point(|row| row.trajectory < number as u64);
    first(trajectory)..first(trajectory + 1)
}

/// The last step of a trajectory, if it has any.
fn last_step(steps: &mut [StepRow], trajectory: usize) -> Option<&mut StepRow> {
    let index = of_trajectory(steps, trajectory).next_back()?;
    steps.get_mut(index)
}

/// Sets the anchor of every step: the newest observation, which is the text that its prompt
/// adds to the previous steps.
pub(crate) fn set_anchors(steps: &mut [StepRow], trajectories: &[Trajectory], renderer: &Renderer) {
    for (index, trajectory) in trajectories.iter().enumerate() {
        let mut seen: Vec<u32> = Vec::new();
        for (position, step) in of_trajectory(steps, index).zip(&trajectory.steps) {
            let new = step.prompt_ids.strip_prefix(seen.as_slice()).unwrap_or(&step.prompt_ids);
            steps[position].anchor = Some(renderer.tokenizer().decode(new, false));
            seen = [step.prompt_ids.as_slice(), &step.response_ids].concat();
        }
    }
}

/// Sets the named parts of the reward, at the last step of each trajectory.
pub(crate) fn set_reward_parts(steps: &mut [StepRow], trajectories: &[Trajectory]) {
    for (index, trajectory) in trajectories.iter().enumerate() {
        if let Some(last) = last_step(steps, index) {
            last.parts.clone_from(&trajectory.reward_parts);
        }
    }
}

/// Sets the tag of every step, for normalisation among tasks with the same tag: the column
/// `tag` of its dataset row, or `data_source`. Tags are numbered in the order in which they
/// appear.
///
/// # Errors
/// `Kind::Data` names the first row that has neither.
fn set_tags(steps: &mut [StepRow], trajectories: &[Trajectory]) -> Result<()> {
    let mut kinds: Vec<&Value> = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let columns = ["tag", "data_source"].into_iter().filter_map(|name| trajectory.task.get(name));
        let Some(tag) = columns.into_iter().find(|value| !value.is_null()) else {
            let message =
                "trainer.shaping.normalize compares tasks of one kind (\"inductive\"), and a row has no `tag`";
            return Err(Error::new(Kind::Data, message)
                .at(format!("training row {}", trajectory.task_index + 1))
                .hint("give every row a column `tag`, or compare by \"state\" or \"batch\""));
        };
        let number = kinds.iter().position(|kind| *kind == tag).unwrap_or_else(|| {
            kinds.push(tag);
            kinds.len() - 1
        });
        for row in of_trajectory(steps, index) {
            steps[row].tag = number as u64;
        }
    }
    Ok(())
}

/// Moves the rewards of tool calls from the rewards of their steps to the process rewards,
/// which are shaped separately.
fn set_process_rewards(steps: &mut [StepRow], trajectories: &[Trajectory]) {
    for (index, trajectory) in trajectories.iter().enumerate() {
        for (position, step) in of_trajectory(steps, index).zip(&trajectory.steps) {
            let earned = step.tools.iter().map(|tool| tool.reward).sum::<f64>();
            if earned != 0.0 {
                steps[position].rewards = vec![step.reward - earned];
                steps[position].process = vec![earned];
            }
        }
    }
}

/// Shapes the rewards. `returns` is the running standard deviation of the returns, which the
/// batch updates.
///
/// # Errors
/// `Kind::Numeric` names the trajectory whose rewards are NaN or infinite; `Kind::Data` the row
/// without a tag.
pub(crate) fn shape_rewards(
    steps: &mut Vec<StepRow>,
    shaping: &RewardShaping,
    returns: &mut Option<ReturnScale>,
    trajectories: &[Trajectory],
) -> Result<()> {
    let settings = scaled(steps, &shaping.settings, returns)?;
    if let Some((Grouping::Inductive, _)) = settings.normalize {
        set_tags(steps, trajectories)?;
    }
    if settings.has_parts() {
        set_process_rewards(steps, trajectories);
    }
    *steps = shape(steps, &RewardShaping { settings, kl: shaping.kl }, false)?;
    Ok(())
}

/// Updates the running standard deviation of the returns, if the recipe uses one, and returns
/// the shaping with its factor. The first batch is included.
///
/// # Errors
/// `Kind::Numeric` names the trajectory whose rewards are NaN or infinite.
pub(crate) fn scaled(steps: &[StepRow], shaping: &Shaping, returns: &mut Option<ReturnScale>) -> Result<Shaping> {
    let Some(gamma) = shaping.running else { return Ok(shaping.clone()) };
    let batch = Batch::new(steps, false)?;
    let rewards: Vec<Vec<f64>> = batch.counted().map(|path| batch.steps(path).map(StepRow::reward).collect()).collect();
    let scale = returns.filter(|scale| scale.gamma.to_bits() == gamma.to_bits());
    let mut scale = scale.unwrap_or_else(|| ReturnScale::new(gamma));
    scale.update(&rewards);
    *returns = Some(scale);
    Ok(Shaping { scale: Some(scale.factor()), ..shaping.clone() })
}

/// Copies the columns of the training rows to the steps that their tokens belong to.
pub(crate) fn read_columns(steps: &mut [StepRow], rows: &[Row]) {
    read_column(steps, rows, |row| &row.logp_old, |step| &mut step.logp_old);
    read_column(steps, rows, |row| &row.logp_ref, |step| &mut step.logp_ref);
    read_column(steps, rows, |row| &row.sum_pi_squared, |step| &mut step.sum_pi_squared);
    read_column(steps, rows, |row| &row.values, |step| &mut step.values);
}

/// Copies one column, which replaces what the steps have. Nothing is copied if the rows do not have
/// the column.
pub(crate) fn read_column(
    steps: &mut [StepRow],
    rows: &[Row],
    column: fn(&Row) -> &Vec<f32>,
    field: fn(&mut StepRow) -> &mut Vec<f64>,
) {
    if rows.iter().all(|row| column(row).is_empty()) {
        return;
    }
    let mut last = None;
    for row in rows {
        let first = of_trajectory(steps, row.trajectory).start;
        for index in (0..row.len()).filter(|&index| row.loss_mask[index]) {
            let step = first + row.steps[index] as usize;
            let list = field(&mut steps[step]);
            if last != Some(step) {
                list.clear();
                last = Some(step);
            }
            list.push(f64::from(column(row)[index]));
        }
    }
    // Shared steps have tokens only in the rows of the trajectory that sampled them.
    for index in 0..steps.len() {
        let StepRow { shared, step, .. } = steps[index];
        if let Some(sampler) = shared {
            let first = of_trajectory(steps, sampler as usize).start;
            let sampled = field(&mut steps[first + step as usize]).clone();
            *field(&mut steps[index]) = sampled;
        }
    }
}

/// The critic's value of the next observation, for the last step of each truncated trajectory.
pub(crate) fn set_next_values(steps: &mut [StepRow], values: &[Option<f64>]) {
    for (trajectory, value) in values.iter().enumerate() {
        if let Some(last) = value.and_then(|_| last_step(steps, trajectory)) {
            last.next_value = *value;
        }
    }
}
