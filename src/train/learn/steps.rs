//! The steps of a batch of trajectories, with the columns that reward shaping and estimators read.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::pack::Row;
use crate::rl::rewards::{Grouping, ReturnScale, RewardShaping, Shaping, shape};
use crate::rl::rows::{Batch, StepRow};
use crate::text::Renderer;

/// The steps of a batch of trajectories in order: one row per step, in the form that estimators
/// read.
#[derive(Debug)]
pub struct Steps {
    pub(crate) rows: Vec<StepRow>,
    /// The index in `rows` of each trajectory's first step.
    first: Vec<usize>,
}

impl Steps {
    /// The steps of `trajectories`. `greedy` says which trajectories are greedy baselines.
    pub fn of(trajectories: &[Trajectory], greedy: impl Fn(usize) -> bool) -> Self {
        let (mut rows, mut first) = (Vec::new(), Vec::with_capacity(trajectories.len()));
        for (index, trajectory) in trajectories.iter().enumerate() {
            first.push(rows.len());
            let greedy = greedy(index);
            if trajectory.steps.is_empty() && trajectory.status.is_failure() {
                // A trajectory that failed before its first response: a row without tokens keeps it
                // as a member of its group.
                let status = Some(trajectory.status);
                rows.push(StepRow { status, greedy, ..StepRow::new(trajectory.group, index as u64, 0, 0, 0.0) });
            }
            rows.extend(StepRow::of(trajectory, index).into_iter().map(|row| StepRow { greedy, ..row }));
        }
        let mut steps = Self { rows, first };
        steps.mark_shared_steps(trajectories);
        steps
    }

    /// Sets `shared` of every step that a fork shares to the trajectory that sampled it.
    fn mark_shared_steps(&mut self, trajectories: &[Trajectory]) {
        let places: HashMap<&str, usize> = trajectories.iter().map(|t| t.id.as_str()).zip(0..).collect();
        for (index, trajectory) in trajectories.iter().enumerate() {
            for step in 0..trajectory.shared_steps() {
                // A parent may be a fork itself.
                let mut sampler = index;
                while let Some(fork) = trajectories[sampler].fork.as_ref().filter(|fork| step < fork.step as usize)
                    && let Some(&parent) = places.get(fork.parent.as_str())
                    && parent != sampler
                {
                    sampler = parent;
                }
                self.rows[self.first[index] + step].shared = (sampler != index).then_some(sampler as u64);
            }
        }
    }

    pub(crate) fn of_trajectory(&self, trajectory: usize) -> std::ops::Range<usize> {
        self.first[trajectory]..self.first.get(trajectory + 1).copied().unwrap_or(self.rows.len())
    }

    /// The last step of a trajectory, if it has any.
    pub(crate) fn last(&mut self, trajectory: usize) -> Option<&mut StepRow> {
        let index = self.of_trajectory(trajectory).next_back()?;
        self.rows.get_mut(index)
    }

    /// Sets the anchor of every step: the newest observation, which is the text that its prompt
    /// adds to the previous steps.
    pub(crate) fn set_anchors(&mut self, trajectories: &[Trajectory], renderer: &Renderer) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            let mut seen: Vec<u32> = Vec::new();
            for (position, step) in self.of_trajectory(index).zip(&trajectory.steps) {
                let new = step.prompt_ids.strip_prefix(seen.as_slice()).unwrap_or(&step.prompt_ids);
                self.rows[position].anchor = Some(renderer.tokenizer().decode(new, false));
                seen = [step.prompt_ids.as_slice(), &step.response_ids].concat();
            }
        }
    }

    /// Sets the named parts of the reward, at the last step of each trajectory.
    pub(crate) fn set_reward_parts(&mut self, trajectories: &[Trajectory]) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            if let Some(last) = self.last(index) {
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
    fn set_tags(&mut self, trajectories: &[Trajectory]) -> Result<()> {
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
            for row in self.of_trajectory(index) {
                self.rows[row].tag = number as u64;
            }
        }
        Ok(())
    }

    /// Moves the rewards of tool calls from the rewards of their steps to the process rewards,
    /// which are shaped separately.
    fn set_process_rewards(&mut self, trajectories: &[Trajectory]) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            for (position, step) in self.of_trajectory(index).zip(&trajectory.steps) {
                let earned = step.tools.iter().map(|tool| tool.reward).sum::<f64>();
                if earned != 0.0 {
                    self.rows[position].rewards = vec![step.reward - earned];
                    self.rows[position].process = vec![earned];
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
        &mut self,
        shaping: &RewardShaping,
        returns: &mut Option<ReturnScale>,
        trajectories: &[Trajectory],
    ) -> Result<()> {
        let settings = self.scaled(&shaping.settings, returns)?;
        if let Some((Grouping::Inductive, _)) = settings.normalize {
            self.set_tags(trajectories)?;
        }
        if settings.has_parts() {
            self.set_process_rewards(trajectories);
        }
        self.rows = shape(&self.rows, &RewardShaping { settings, kl: shaping.kl }, false)?;
        Ok(())
    }

    /// Updates the running standard deviation of the returns, if the recipe uses one, and returns
    /// the shaping with its factor. The first batch is included.
    ///
    /// # Errors
    /// `Kind::Numeric` names the trajectory whose rewards are NaN or infinite.
    pub(crate) fn scaled(&self, shaping: &Shaping, returns: &mut Option<ReturnScale>) -> Result<Shaping> {
        let Some(gamma) = shaping.running else { return Ok(shaping.clone()) };
        let batch = Batch::new(&self.rows, false)?;
        let rewards: Vec<Vec<f64>> =
            batch.counted().map(|path| batch.steps(path).map(StepRow::reward).collect()).collect();
        let scale = returns.filter(|scale| scale.gamma.to_bits() == gamma.to_bits());
        let mut scale = scale.unwrap_or_else(|| ReturnScale::new(gamma));
        scale.update(&rewards);
        *returns = Some(scale);
        Ok(Shaping { scale: Some(scale.factor()), ..shaping.clone() })
    }

    /// Copies the columns of the training rows to the steps that their tokens belong to.
    pub(crate) fn read_columns(&mut self, rows: &[Row]) {
        self.read_column(rows, |row| &row.logp_old, |step| &mut step.logp_old);
        self.read_column(rows, |row| &row.logp_ref, |step| &mut step.logp_ref);
        self.read_column(rows, |row| &row.sum_pi_squared, |step| &mut step.sum_pi_squared);
        self.read_column(rows, |row| &row.values, |step| &mut step.values);
    }

    /// Copies one column, which replaces what the steps have. Nothing is copied if the rows do not
    /// have the column.
    pub(crate) fn read_column(
        &mut self,
        rows: &[Row],
        column: fn(&Row) -> &Vec<f32>,
        field: fn(&mut StepRow) -> &mut Vec<f64>,
    ) {
        if rows.iter().all(|row| column(row).is_empty()) {
            return;
        }
        let mut last = None;
        for (row, numbers) in rows.iter().map(|row| (row, column(row))) {
            for index in (0..row.len()).filter(|&index| row.loss_mask[index]) {
                let step = self.first[row.trajectory] + row.steps[index] as usize;
                let list = field(&mut self.rows[step]);
                if last != Some(step) {
                    list.clear();
                    last = Some(step);
                }
                list.push(f64::from(numbers[index]));
            }
        }
        // Shared steps have tokens only in the rows of the trajectory that sampled them.
        for index in 0..self.rows.len() {
            let StepRow { shared, step, .. } = self.rows[index];
            if let Some(sampler) = shared {
                let sampled = field(&mut self.rows[self.first[sampler as usize] + step as usize]).clone();
                *field(&mut self.rows[index]) = sampled;
            }
        }
    }

    /// The critic's value of the next observation, for the last step of each truncated trajectory.
    pub(crate) fn set_next_values(&mut self, values: &[Option<f64>]) {
        for (trajectory, value) in values.iter().enumerate() {
            if let Some(last) = value.and_then(|_| self.last(trajectory)) {
                last.next_value = *value;
            }
        }
    }
}
