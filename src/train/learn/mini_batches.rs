//! The mini-batches of an epoch: whole trajectories, or the steps with one index, last index first.

use std::collections::{BTreeMap, BTreeSet};

use super::score::score;
use super::update::Update;
use crate::config::{Learner, MiniBatchBy, Over};
use crate::error::Result;
use crate::rl::pack::Row;

/// The mini-batches of an epoch over `rows`, in order; the rows of a unit `together` stay in one
/// mini-batch.
pub(crate) fn mini_batches_of<'a>(
    rows: &'a [Row],
    learner: &Learner,
    together: Over,
) -> Box<dyn ExactSizeIterator<Item = Vec<Row>> + 'a> {
    match learner.mini_batch_by {
        MiniBatchBy::Trajectory if learner.mini_batches == 1 => Box::new(std::iter::once(rows.to_vec())),
        MiniBatchBy::Trajectory => {
            let unit = |row: &Row| if together == Over::Group { row.group } else { row.trajectory };
            let count = learner.mini_batches;
            let part = |part: usize| rows.iter().filter(|row| unit(row) % count == part).cloned().collect();
            let parts: Vec<Vec<Row>> = (0..count).map(part).filter(|part: &Vec<Row>| !part.is_empty()).collect();
            Box::new(parts.into_iter())
        }
        MiniBatchBy::Step => {
            let sampled = rows.iter().flat_map(|row| row.steps.iter().zip(&row.loss_mask));
            let steps: BTreeSet<u32> = sampled.filter(|(_, sampled)| **sampled).map(|(step, _)| *step).collect();
            // One at a time: the parts of a long trajectory repeat its rows.
            let steps: Vec<u32> = steps.into_iter().rev().collect();
            Box::new(steps.into_iter().map(move |step| of_step(rows, step)))
        }
    }
}

/// The rows with sampled tokens in a step, up to its end; other tokens of them are not trained.
fn of_step(rows: &[Row], step: u32) -> Vec<Row> {
    let part = |row: &Row| {
        let here = |index: usize| row.loss_mask[index] && row.steps[index] == step;
        let end = (0..row.len()).rfind(|&index| here(index))? + 1;
        let mut part = row.clone();
        part.ids.truncate(end);
        part.steps.truncate(end);
        part.logprobs.truncate(end);
        part.loss_mask = (0..end).map(here).collect();
        for (index, advantage) in part.advantages.iter_mut().enumerate() {
            *advantage *= if here(index) { 1.0 } else { 0.0 };
        }
        Some(part)
    };
    rows.iter().filter_map(part).collect()
}

/// The change of the probability of a trajectory's later steps by their updates; the advantages of
/// its earlier steps are multiplied by it (arXiv:2602.06554).
pub(crate) struct StepRatios {
    /// The factors stay within `1 ± clip`.
    clip: f64,
    /// By trajectory.
    factors: BTreeMap<usize, f64>,
}

impl StepRatios {
    /// Before the first update of an epoch; `None` for mini-batches of whole trajectories.
    pub(crate) fn new(learner: &Learner) -> Option<Self> {
        let by_step = learner.mini_batch_by == MiniBatchBy::Step;
        by_step.then(|| Self { clip: learner.step_ratio_clip, factors: BTreeMap::new() })
    }

    /// Multiplies the advantages of a mini-batch.
    pub(crate) fn scale(&self, part: &mut [Row]) {
        for row in part {
            let factor = self.factors.get(&row.trajectory).copied().unwrap_or(1.0);
            row.advantages.iter_mut().for_each(|advantage| *advantage *= factor);
        }
    }

    /// Measures the effect of the update on `part`: the ratio of new and old probability of its
    /// steps, as the geometric mean over their tokens.
    pub(crate) fn measure(&mut self, part: &[Row], update: &Update<'_>) -> Result<()> {
        let now = score(update.model, part, update.temperature, update.learner.tokens_at_once(), update.shards)?;
        let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for (number, row) in part.iter().enumerate() {
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
        let learner = Learner { mini_batch_by: MiniBatchBy::Step, ..Learner::default() };
        let mut parts: Vec<Vec<Row>> = mini_batches_of(&rows, &learner, Over::Step).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(parts[0][0].loss_mask, [no, no, no, yes, yes]);
        // The first steps come last, without the later tokens, and with the factors of the later
        // steps.
        let ratios = StepRatios { clip: 0.2, factors: BTreeMap::from([(0, 1.2)]) };
        let first = &mut parts[1];
        ratios.scale(first);
        assert_eq!((first[0].ids.as_slice(), first[0].loss_mask.as_slice()), (&[0, 1][..], &[no, yes][..]));
        assert_eq!((first[0].advantages[1], first[1].advantages[1]), (2.4, -1.0));
        // By trajectory, all steps are in one mini-batch.
        let whole: Vec<Vec<Row>> = mini_batches_of(&rows, &Learner::default(), Over::Step).collect();
        assert_eq!(whole, [rows]);
        assert!(StepRatios::new(&Learner::default()).is_none());
    }

    #[test]
    fn a_trajectory_stays_in_one_mini_batch() {
        let row = |trajectory| Row {
            ids: vec![1],
            loss_mask: vec![true],
            logprobs: vec![0.0],
            steps: vec![0],
            trajectory,
            ..Row::default()
        };
        let mut rows: Vec<Row> = [0, 0, 1, 2, 2, 5].map(row).into();
        (0..).zip(&mut rows).for_each(|(number, row)| row.advantages = vec![f64::from(number)]);
        let split = |rows: &[Row], mini_batches: usize, together: Over| -> Vec<Vec<Row>> {
            mini_batches_of(rows, &Learner { mini_batches, ..Learner::default() }, together).collect()
        };
        let trajectories = |parts: Vec<Vec<Row>>| -> Vec<Vec<usize>> {
            parts.iter().map(|part| part.iter().map(|row| row.trajectory).collect()).collect()
        };
        let numbers = |parts| trajectories(split(&rows, parts, Over::Step));
        assert_eq!(numbers(2), [vec![0, 0, 2, 2], vec![1, 5]]);
        assert_eq!(numbers(1), [vec![0, 0, 1, 2, 2, 5]]);
        assert_eq!(numbers(8), [vec![0, 0], vec![1], vec![2, 2], vec![5]]);
        let second: Vec<f64> = split(&rows, 2, Over::Step)[1].iter().map(|row| row.advantages[0]).collect();
        assert_eq!(second, [2.0, 5.0]);
        let grouped: Vec<Row> =
            rows.iter().map(|row| Row { group: usize::from(row.trajectory > 2), ..row.clone() }).collect();
        assert_eq!(trajectories(split(&grouped, 2, Over::Group)), [vec![0, 0, 1, 2, 2], vec![5]]);
    }
}
