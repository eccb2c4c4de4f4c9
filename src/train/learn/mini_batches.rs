//! The mini-batches of an epoch: whole trajectories, or the steps with one index, last index first.

use std::collections::{BTreeMap, BTreeSet};

use super::score::score;
use super::update::Update;
use super::update_batch::UpdateBatch;
use crate::config::{Learner, MiniBatchBy, Over};
use crate::error::Result;

/// The remaining mini-batches of an epoch.
pub(crate) struct MiniBatches<'a> {
    batch: &'a UpdateBatch,
    waiting: Waiting,
    /// Bound of `factors`: they stay within `1 ± clip`.
    clip: f64,
    /// The change of the probability of a trajectory's later steps by their updates; the advantages
    /// of its earlier steps are multiplied by it.
    factors: BTreeMap<usize, f64>,
}

enum Waiting {
    Whole(std::vec::IntoIter<UpdateBatch>),
    /// Step indices, the next one last.
    Steps(Vec<u32>),
}

impl<'a> MiniBatches<'a> {
    /// An epoch over `batch`; the rows of a unit `together` stay in one mini-batch.
    pub(crate) fn of(batch: &'a UpdateBatch, learner: &Learner, together: Over) -> Self {
        let waiting = match learner.mini_batch_by {
            MiniBatchBy::Trajectory => Waiting::Whole(batch.split(learner.mini_batches, together).into_iter()),
            MiniBatchBy::Step => {
                let sampled = batch.rows.iter().flat_map(|row| {
                    row.steps.iter().zip(&row.loss_mask).filter(|(_, sampled)| **sampled).map(|(step, _)| *step)
                });
                Waiting::Steps(sampled.collect::<BTreeSet<u32>>().into_iter().collect())
            }
        };
        Self { batch, waiting, clip: learner.step_ratio_clip, factors: BTreeMap::new() }
    }

    /// The next mini-batch.
    pub(crate) fn take(&mut self) -> Option<UpdateBatch> {
        match &mut self.waiting {
            Waiting::Whole(parts) => parts.next(),
            Waiting::Steps(steps) => {
                let step = steps.pop()?;
                Some(self.of_step(step))
            }
        }
    }

    /// The rows with sampled tokens in a step, up to its end; other tokens of them are not trained.
    fn of_step(&self, step: u32) -> UpdateBatch {
        let rows = &self.batch.rows;
        let here = |row: usize, index: usize| rows[row].loss_mask[index] && rows[row].steps[index] == step;
        let places: Vec<usize> = (0..rows.len()).filter(|&row| (0..rows[row].len()).any(|i| here(row, i))).collect();
        let mut part = self.batch.take(&places);
        for (row, &from) in part.rows.iter_mut().zip(&places) {
            let end = (0..row.len()).rfind(|&index| here(from, index)).map_or(0, |last| last + 1);
            row.ids.truncate(end);
            row.steps.truncate(end);
            row.logprobs.truncate(end);
            row.loss_mask = (0..end).map(|index| here(from, index)).collect();
            let factor = self.factors.get(&row.trajectory).copied().unwrap_or(1.0);
            for (index, advantage) in row.advantages.iter_mut().enumerate() {
                *advantage *= if index < end && row.loss_mask[index] { factor } else { 0.0 };
            }
        }
        part
    }

    /// Measures the effect of the update on `part`: the ratio of new and old probability of its
    /// steps, as the geometric mean over their tokens (arXiv:2602.06554: the ratios of turns that
    /// were updated before are factors of the other turns' advantages).
    pub(crate) fn updated(&mut self, part: &UpdateBatch, update: &Update<'_>) -> Result<()> {
        match &self.waiting {
            Waiting::Steps(steps) if !steps.is_empty() => {}
            _ => return Ok(()),
        }
        let now = score(update.model, &part.rows, update.temperature, update.learner.tokens_at_once())?;
        let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for (number, row) in part.rows.iter().enumerate() {
            let before = if row.logp_old.is_empty() { &row.logprobs } else { &row.logp_old };
            let (sum, count) = sums.entry(row.trajectory).or_default();
            for index in (0..row.len()).filter(|&index| row.loss_mask[index]) {
                *sum += f64::from(now[number][index] - before[index]);
                *count += 1.0;
            }
        }
        let (low, high) = (1.0 - self.clip, 1.0 + self.clip);
        for (trajectory, (sum, count)) in sums {
            let ratio = (sum / f64::max(count, 1.0)).clamp(-10.0, 10.0).exp().clamp(low, high);
            let factor = self.factors.entry(trajectory).or_insert(1.0);
            *factor = (*factor * ratio).clamp(low, high);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;
    use crate::rl::pack::Row;

    #[test]
    fn steps_are_mini_batches_from_the_last_to_the_first() {
        let row = |trajectory: usize, steps: &[u32], mask: &[bool]| Row {
            ids: (0..steps.len() as u32).collect(),
            loss_mask: mask.to_vec(),
            logprobs: vec![-1.0; steps.len()],
            steps: steps.to_vec(),
            trajectory,
            ..Row::default()
        };
        let (yes, no) = (true, false);
        // A merged row of two steps, and a trajectory of one step.
        let mut rows = vec![row(0, &[0, 0, 1, 1, 1], &[no, yes, no, yes, yes]), row(1, &[0, 0], &[no, yes])];
        rows[0].advantages = vec![0.0, 2.0, 0.0, 3.0, 3.0];
        rows[1].advantages = vec![0.0, -1.0];
        let batch = UpdateBatch { rows, ..UpdateBatch::default() };
        let learner = Learner { mini_batch_by: MiniBatchBy::Step, ..Learner::default() };
        let mut parts = MiniBatches::of(&batch, &learner, Over::Step);
        let last = parts.take().into_iter().next();
        let last = last.as_ref();
        assert_eq!(last.map(|part| part.rows.len()), Some(1));
        assert_eq!(last.map(|part| part.rows[0].loss_mask.clone()), Some(vec![no, no, no, yes, yes]));
        // The first steps come last, without the later tokens, and with the factors of the later
        // steps.
        parts.factors.insert(0, 1.2);
        let first = parts.take();
        let first = first.as_ref();
        assert_eq!(first.map(|part| part.rows[0].ids.clone()), Some(vec![0, 1]));
        assert_eq!(first.map(|part| part.rows[0].loss_mask.clone()), Some(vec![no, yes]));
        assert_eq!(first.map(|part| part.rows[0].advantages[1]), Some(2.4));
        assert_eq!(first.map(|part| part.rows[1].advantages[1]), Some(-1.0));
        assert!(parts.take().is_none());
        // By trajectory, all steps are in one mini-batch.
        let mut whole = MiniBatches::of(&batch, &Learner::default(), Over::Step);
        assert!(whole.take().is_some_and(|part| part.rows.len() == 2) && whole.take().is_none());
    }
}
