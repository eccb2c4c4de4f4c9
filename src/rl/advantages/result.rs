//! The result of an estimator: advantages of the tokens of a batch, and the critic's targets.

use std::collections::BTreeMap;

use super::statistics::mean;
use crate::algorithms::MemberAdvantages;
use crate::error::{Error, Kind, Result};
use crate::rl::rows::{Batch, Path, StepRow};

/// Advantages of a batch, shaped like its rows: one number per token, 0 at tokens that were not
/// sampled and in excluded rows. `pack::put_advantages` writes them into the rows of tokens;
/// records and metrics read them.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    pub advantages: Vec<Vec<f64>>,
    /// The critic's training targets, where `targets` is true; 0 elsewhere.
    pub returns: Vec<Vec<f64>>,
    /// The tokens on which the critic is trained; none for estimators without a critic.
    pub targets: Vec<Vec<bool>>,
    /// Rows that are trained on: all except failures and greedy baselines.
    pub counted: Vec<bool>,
    /// The reason why no row is trained on: a number is NaN or infinite, and `trainer.on_nan` is
    /// "skip".
    pub skipped: Option<Error>,
}

impl Advantages {
    /// Refuses advantages and critic's targets that are NaN or infinite, for example because sums
    /// of rewards overflow `f64`. `rows` are the rows that the advantages were estimated from.
    ///
    /// # Errors
    /// [`Kind::Numeric`] names the trajectory (by number) and the step.
    pub fn finite(&self, rows: &[StepRow]) -> Result<()> {
        for (what, lists) in [("an advantage", &self.advantages), ("a return", &self.returns)] {
            for (row, list) in rows.iter().zip(lists) {
                if let Some(bad) = list.iter().find(|number| !number.is_finite()) {
                    return Err(Error::new(Kind::Numeric, format!("{what} is {bad}"))
                        .in_step(row.trajectory, row.step)
                        .hint("check the size of the rewards"));
                }
            }
        }
        Ok(())
    }

    /// The result for rows that are all excluded.
    pub fn none(rows: &[StepRow]) -> Self {
        let zeros: Vec<Vec<f64>> = rows.iter().map(|row| vec![0.0; row.mask.len()]).collect();
        let targets = rows.iter().map(|row| vec![false; row.mask.len()]).collect();
        Self { advantages: zeros.clone(), returns: zeros, targets, counted: vec![false; rows.len()], skipped: None }
    }

    pub(super) fn empty(batch: &Batch<'_>) -> Self {
        let mut result = Self::none(batch.rows);
        for path in batch.counted() {
            for &i in &path.rows {
                result.counted[i] = true;
            }
        }
        result
    }

    /// A step that several trajectories share is one decision: its advantage, and the critic's
    /// target there, are the mean over the compared trajectories among them. Without shared steps
    /// nothing changes.
    pub fn share(&mut self, rows: &[StepRow]) {
        let mut copies: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.shared.is_some()) {
            copies.entry(row.decision()).or_default();
        }
        if copies.is_empty() {
            return;
        }
        for (i, row) in rows.iter().enumerate().filter(|(i, _)| self.counted[*i]) {
            if let Some(copy_rows) = copies.get_mut(&row.decision()) {
                copy_rows.push(i);
            }
        }
        for places in copies.values().filter(|places| places.len() > 1) {
            for list in [&mut self.advantages, &mut self.returns] {
                let tokens = places.iter().map(|&i| list[i].len()).min().unwrap_or(0);
                let of = |k: usize| mean(&places.iter().map(|&i| list[i][k]).collect::<Vec<_>>());
                let shared: Vec<f64> = (0..tokens).map(of).collect();
                for &i in places {
                    list[i].clone_from(&shared);
                }
            }
        }
    }

    pub(super) fn put_row(&mut self, rows: &[StepRow], row: usize, advantage: f64) {
        for (value, sampled) in self.advantages[row].iter_mut().zip(&rows[row].mask) {
            *value = if *sampled { advantage } else { 0.0 };
        }
    }

    /// One advantage for all tokens of a trajectory.
    pub(super) fn put_trajectory(&mut self, rows: &[StepRow], path: &Path, advantage: f64) {
        for &i in &path.rows {
            self.put_row(rows, i, advantage);
        }
    }

    /// The advantage of each sampled token of a trajectory.
    pub(super) fn put_tokens(&mut self, rows: &[StepRow], path: &Path, advantages: &[f64]) {
        for ((i, k), advantage) in places(rows, path).zip(advantages) {
            self.advantages[i][k] = *advantage;
        }
    }

    /// The critic's targets of a trajectory: by token; by step, at its first sampled token; or one
    /// for all steps.
    pub(super) fn put_targets(&mut self, rows: &[StepRow], path: &Path, targets: &MemberAdvantages) {
        if let MemberAdvantages::Tokens(targets) = targets {
            return self.put_returns(rows, path, targets);
        }
        for (step, &row) in path.rows.iter().enumerate() {
            let first = rows[row].mask.iter().position(|sampled| *sampled);
            let target = targets.as_slice().get(step).or(targets.as_slice().first());
            if let (Some(first), Some(target)) = (first, target) {
                self.returns[row][first] = *target;
                self.targets[row][first] = true;
            }
        }
    }

    /// The critic's target at each sampled token of a trajectory.
    pub(super) fn put_returns(&mut self, rows: &[StepRow], path: &Path, returns: &[f64]) {
        for ((i, k), target) in places(rows, path).zip(returns) {
            self.returns[i][k] = *target;
            self.targets[i][k] = true;
        }
    }
}

/// Row and position of every sampled token of a trajectory.
fn places<'a>(rows: &'a [StepRow], path: &'a Path) -> impl Iterator<Item = (usize, usize)> + 'a {
    path.rows.iter().flat_map(|&i| rows[i].mask.iter().enumerate().filter(|(_, m)| **m).map(move |(k, _)| (i, k)))
}
