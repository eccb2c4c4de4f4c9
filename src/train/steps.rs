//! The steps of a batch of trajectories, as estimators take them, and what is told of each before one runs.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::pack::Row;
use crate::rl::rewards::{ReturnScale, Shaping};
use crate::rl::rows::{Batch, StepRow};
use crate::text::Renderer;

/// The steps of a batch of trajectories as estimators take them, in order.
pub(super) struct Steps {
    pub(super) rows: Vec<StepRow>,
    /// The place in `rows` of each trajectory's first step.
    first: Vec<usize>,
}

impl Steps {
    /// `greedy` tells the companions, whose rewards are a baseline for others.
    pub(super) fn of(trajectories: &[Trajectory], greedy: impl Fn(usize) -> bool) -> Self {
        let (mut rows, mut first) = (Vec::new(), Vec::with_capacity(trajectories.len()));
        for (index, trajectory) in trajectories.iter().enumerate() {
            first.push(rows.len());
            let greedy = greedy(index);
            if trajectory.steps.is_empty() && trajectory.status.is_failure() {
                // It failed before its first reply. Its group is known to have lost a member by a row without tokens.
                let status = Some(trajectory.status);
                rows.push(StepRow { status, greedy, ..StepRow::new(trajectory.group, index as u64, 0, 0, 0.0) });
            }
            rows.extend(StepRow::of(trajectory, index).into_iter().map(|row| StepRow { greedy, ..row }));
        }
        let mut steps = Self { rows, first };
        steps.join(trajectories);
        steps
    }

    /// Says of every step that a fork shares which trajectory took it.
    fn join(&mut self, trajectories: &[Trajectory]) {
        let places: HashMap<&str, usize> = trajectories.iter().map(|t| t.id.as_str()).zip(0..).collect();
        for (index, trajectory) in trajectories.iter().enumerate() {
            for step in 0..trajectory.shared_steps() {
                // A parent may be a fork itself.
                let mut taker = index;
                while let Some(fork) = trajectories[taker].fork.as_ref().filter(|fork| step < fork.step as usize)
                    && let Some(&parent) = places.get(fork.parent.as_str())
                    && parent != taker
                {
                    taker = parent;
                }
                self.rows[self.first[index] + step].shared = (taker != index).then_some(taker as u64);
            }
        }
    }

    pub(super) fn of_trajectory(&self, trajectory: usize) -> std::ops::Range<usize> {
        self.first[trajectory]..self.first.get(trajectory + 1).copied().unwrap_or(self.rows.len())
    }

    /// The last step of a trajectory, if it has any.
    pub(super) fn last(&mut self, trajectory: usize) -> Option<&mut StepRow> {
        let place = self.of_trajectory(trajectory).next_back()?;
        self.rows.get_mut(place)
    }

    /// Gives every step what its policy was shown that the steps before did not show: the newest observation.
    pub(super) fn anchor(&mut self, trajectories: &[Trajectory], renderer: &Renderer) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            let mut seen: Vec<u32> = Vec::new();
            for (place, step) in self.of_trajectory(index).zip(&trajectory.steps) {
                let new = step.prompt_ids.strip_prefix(seen.as_slice()).unwrap_or(&step.prompt_ids);
                self.rows[place].anchor = Some(renderer.tokenizer().decode(new, false));
                seen = [step.prompt_ids.as_slice(), &step.response_ids].concat();
            }
        }
    }

    /// Gives the last step of each trajectory the named parts of its reward.
    pub(super) fn parts(&mut self, trajectories: &[Trajectory]) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            if let Some(last) = self.last(index) {
                last.parts.clone_from(&trajectory.reward_parts);
            }
        }
    }

    /// Gives every step the kind of its task, for normalisation among tasks of one kind: the column `tag` of its row, or
    /// else `data_source`. Kinds are numbered in the order in which they appear.
    ///
    /// # Errors
    /// `Kind::Data` names the first row that has neither.
    pub(super) fn tag(&mut self, trajectories: &[Trajectory]) -> Result<()> {
        let mut kinds: Vec<&Value> = Vec::new();
        for (index, trajectory) in trajectories.iter().enumerate() {
            let columns = ["tag", "data_source"].into_iter().filter_map(|name| trajectory.task.get(name));
            let Some(own) = columns.into_iter().find(|value| !value.is_null()) else {
                let message =
                    "trainer.shaping.normalize compares tasks of one kind (\"inductive\"), and a row has no `tag`";
                return Err(Error::new(Kind::Data, message)
                    .at(format!("training row {}", trajectory.task_index + 1))
                    .hint("give every row a column `tag`, or compare by \"state\" or \"batch\""));
            };
            let number = kinds.iter().position(|kind| *kind == own).unwrap_or_else(|| {
                kinds.push(own);
                kinds.len() - 1
            });
            for place in self.of_trajectory(index) {
                self.rows[place].tag = number as u64;
            }
        }
        Ok(())
    }

    /// Takes what tool calls earned out of the rewards of their steps, where it is shaped apart.
    pub(super) fn part(&mut self, trajectories: &[Trajectory]) {
        for (index, trajectory) in trajectories.iter().enumerate() {
            for (place, step) in self.of_trajectory(index).zip(&trajectory.steps) {
                let earned = step.tools.iter().map(|tool| tool.reward).sum::<f64>();
                if earned != 0.0 {
                    self.rows[place].rewards = vec![step.reward - earned];
                    self.rows[place].process = vec![earned];
                }
            }
        }
    }

    /// Takes the rewards of the trajectories that count into the running deviation of the run, if the recipe wants one,
    /// and gives the shaping with its factor. The first batch is part of it.
    ///
    /// # Errors
    /// `Kind::Numeric` names the trajectory whose rewards are NaN or infinite.
    pub(super) fn scaled(&self, shaping: &Shaping, returns: &mut Option<ReturnScale>) -> Result<Shaping> {
        let Some(gamma) = shaping.running else { return Ok(shaping.clone()) };
        let batch = Batch::new(&self.rows, false)?;
        let rewards: Vec<Vec<f64>> =
            batch.counted().map(|path| batch.steps(path).map(StepRow::reward).collect()).collect();
        let own = returns.filter(|own| own.gamma.to_bits() == gamma.to_bits());
        let mut own = own.unwrap_or_else(|| ReturnScale::new(gamma));
        own.update(&rewards);
        *returns = Some(own);
        Ok(Shaping { scale: Some(own.factor()), ..shaping.clone() })
    }

    /// Brings a number per token of training rows to the steps they are made of.
    pub(super) fn fill(&mut self, rows: &[Row], numbers: &[Vec<f32>], field: fn(&mut StepRow) -> &mut Vec<f64>) {
        let mut last = None;
        for (row, numbers) in rows.iter().zip(numbers) {
            for place in (0..row.len()).filter(|&place| row.loss_mask[place]) {
                let step = self.first[row.trajectory] + row.steps[place] as usize;
                let list = field(&mut self.rows[step]);
                // What was there before, such as the sampler's own, makes way.
                if last != Some(step) {
                    list.clear();
                    last = Some(step);
                }
                list.push(f64::from(numbers[place]));
            }
        }
        // Shared steps have tokens in the rows of the trajectory that took them only.
        for place in 0..self.rows.len() {
            let StepRow { shared, step, .. } = self.rows[place];
            if let Some(taker) = shared {
                let taken = field(&mut self.rows[self.first[taker as usize] + step as usize]).clone();
                *field(&mut self.rows[place]) = taken;
            }
        }
    }
}
