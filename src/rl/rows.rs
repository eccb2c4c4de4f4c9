//! The input of estimators and losses: the steps of trajectories as plain numbers.
//!
//! A [`StepRow`] is one step with a number per token of its response. A script writes one as a
//! table, a training loop makes one from a stored trajectory. [`Batch`] groups the rows by
//! trajectory and validates them.

use std::collections::BTreeMap;

use crate::algorithms::AlgorithmNeed;
use crate::error::{Error, Kind, Result};
pub use crate::mdp::StepRow;

/// A trajectory of a [`Batch`]. Estimators read it.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a trajectory")]
pub struct Path {
    pub group: u64,
    /// Indices of its steps in the rows, in order.
    pub rows: Vec<usize>,
    /// Sum of all rewards.
    pub total: f64,
    /// Sampled tokens.
    pub tokens: usize,
    /// Whether it is compared with others and trained on: not failed, not a greedy baseline.
    pub counted: bool,
    pub greedy: bool,
    /// Whether it failed and failures are left out.
    pub failed: bool,
    /// Whether it is the only one of its group that did not fail, in a group of several: it has no
    /// other to be compared with.
    pub only_finished: bool,
}

/// Rows sorted into trajectories. Reward shaping, estimators and losses over plain data read it.
#[derive(Debug)]
pub struct Batch<'a> {
    pub rows: &'a [StepRow],
    /// By trajectory number.
    pub paths: Vec<Path>,
}

impl<'a> Batch<'a> {
    /// Sorts rows into trajectories. With `include_failures` a failed trajectory counts like any
    /// other.
    ///
    /// # Errors
    /// [`Kind::Usage`] for lists of the wrong length, a step given twice, one trajectory in two
    /// groups, an ending before the last step, or a shared step without a row;
    /// [`Kind::Numeric`] for NaN or infinity. Both name the trajectory and the step.
    pub fn new(rows: &'a [StepRow], include_failures: bool) -> Result<Self> {
        let mut by_number: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (i, row) in rows.iter().enumerate() {
            row.check()?;
            by_number.entry(row.trajectory).or_default().push(i);
        }
        let mut paths = Vec::with_capacity(by_number.len());
        for places in by_number.values_mut() {
            places.sort_by_key(|&i| rows[i].step);
            let first = &rows[places[0]];
            for pair in places.windows(2) {
                let (row, next) = (&rows[pair[0]], &rows[pair[1]]);
                let problem = if row.step == next.step {
                    "the step occurs twice"
                } else if next.group != first.group {
                    "the trajectory is in two groups"
                } else if row.terminated || row.truncated {
                    "only the last step of a trajectory may be terminated or truncated"
                } else {
                    continue;
                };
                return Err(Error::new(Kind::Usage, problem).in_step(row.trajectory, row.step));
            }
            let any = |flag: fn(&StepRow) -> bool| places.iter().any(|&i| flag(&rows[i]));
            let greedy = any(|row| row.greedy);
            let failed = !include_failures && any(StepRow::failed);
            paths.push(Path {
                group: first.group,
                total: places.iter().map(|&i| rows[i].reward()).sum(),
                tokens: places.iter().map(|&i| rows[i].sampled()).sum(),
                counted: !greedy && !failed,
                greedy,
                failed,
                only_finished: false,
                rows: std::mem::take(places),
            });
        }
        forks(rows, &paths)?;
        mark_only_finished(&mut paths);
        Ok(Self { rows, paths })
    }

    /// The trajectories that are neither failed nor greedy baselines.
    pub fn counted(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(|path| path.counted)
    }

    /// The trajectories that an estimator with these needs compares. One that needs groups leaves
    /// out a trajectory whose group has no other member that did not fail.
    pub(super) fn compared(&self, needs: &[AlgorithmNeed]) -> Vec<&Path> {
        let in_groups = needs.contains(&AlgorithmNeed::Groups);
        self.counted().filter(|path| !(in_groups && path.only_finished)).collect()
    }

    /// The error for a trajectory that lacks an input.
    pub(super) fn missing(&self, path: &Path, what: &str) -> Error {
        let number = path.rows.first().map_or(0, |&i| self.rows[i].trajectory);
        Error::new(Kind::Usage, what).in_trajectories(vec![number], None)
    }

    /// The reward of every sampled token of a trajectory, its steps joined. The reward of a step
    /// without sampled tokens is added to the last sampled token before it, or to the first one of
    /// the trajectory. Empty for a trajectory without sampled tokens.
    pub fn token_rewards(&self, path: &Path) -> Vec<f64> {
        let mut rewards: Vec<f64> = Vec::with_capacity(path.tokens);
        let mut pending = 0.0;
        for row in self.steps(path) {
            if row.sampled() > 0 {
                rewards.extend(row.token_rewards());
                if let Some(first) = rewards.first_mut() {
                    *first += std::mem::take(&mut pending);
                }
            } else if let Some(last) = rewards.last_mut() {
                *last += row.reward();
            } else {
                pending += row.reward();
            }
        }
        rewards
    }

    /// The steps of one trajectory, in order.
    pub fn steps<'b>(&'b self, path: &'b Path) -> impl DoubleEndedIterator<Item = &'a StepRow> + 'b {
        path.rows.iter().map(|&i| &self.rows[i])
    }
}

/// Sets [`Path::only_finished`].
fn mark_only_finished(paths: &mut [Path]) {
    // Compared trajectories and failed trajectories, by group.
    let mut members: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for path in paths.iter().filter(|path| !path.greedy) {
        let (counted, failed) = members.entry(path.group).or_default();
        *counted += usize::from(path.counted);
        *failed += usize::from(path.failed);
    }
    for path in paths.iter_mut().filter(|path| path.counted) {
        path.only_finished = members.get(&path.group).is_some_and(|&(counted, failed)| counted == 1 && failed > 0);
    }
}

/// Refuses invalid forks: shared steps come first, and are steps of another trajectory of the
/// group.
fn forks(rows: &[StepRow], paths: &[Path]) -> Result<()> {
    if rows.iter().all(|row| row.shared.is_none()) {
        return Ok(());
    }
    let is_unshared = |row: &&StepRow| row.shared.is_none();
    let taken: BTreeMap<(u64, u64), &StepRow> =
        rows.iter().filter(is_unshared).map(|row| (row.decision(), row)).collect();
    for path in paths {
        let mut parted = false;
        for row in path.rows.iter().map(|&i| &rows[i]) {
            let problem = match (row.shared, taken.get(&row.decision())) {
                (None, _) => {
                    parted = true;
                    continue;
                }
                (Some(_), _) if parted => "a trajectory shares its first steps only",
                (Some(_), None) => "`shared` names a trajectory that has not taken this step",
                (Some(_), Some(other)) if other.group != row.group => "`shared` names a trajectory of another group",
                (Some(_), Some(other)) if other.mask != row.mask => {
                    "a shared step has other tokens than the step that it shares"
                }
                (Some(_), Some(_)) => continue,
            };
            return Err(Error::new(Kind::Usage, problem).in_step(row.trajectory, row.step));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;
    use crate::mdp::Status;

    #[test]
    fn a_row_is_a_table() {
        let row: StepRow = serde_json::from_str(
            r#"{"group": 1, "trajectory": 2, "mask": [1, 0, true], "rewards": [0, 0, 1], "status": "env_error"}"#,
        )
        .unwrap();
        assert_eq!((row.mask.as_slice(), row.reward(), row.failed()), ([true, false, true].as_slice(), 1.0, true));
        let error = serde_json::from_str::<StepRow>(r#"{"reward": 1}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `reward`"), "{error}");
        let error = serde_json::from_str::<StepRow>(r#"{"mask": [1, 0.5]}"#).unwrap_err();
        assert!(error.to_string().contains("`mask` contains 0.5; it must contain 0 and 1"), "{error}");
    }

    #[test]
    fn rows_are_sorted_and_failures_do_not_count() {
        let mut rows =
            vec![StepRow::new(1, 7, 1, 2, 1.0), StepRow::new(0, 3, 0, 1, 5.0), StepRow::new(1, 7, 0, 3, 0.5)];
        rows[1].status = Some(Status::EnvError);
        let batch = Batch::new(&rows, false).unwrap();
        assert_eq!(batch.paths[1].rows, [2, 0]);
        assert_eq!((batch.paths[1].total, batch.paths[1].tokens, batch.paths[1].group), (1.5, 5, 1));
        assert_eq!(batch.paths.iter().map(|path| path.counted).collect::<Vec<_>>(), [false, true]);
        assert_eq!(Batch::new(&rows, true).unwrap().counted().count(), 2);
    }

    #[test]
    fn rewards_of_steps_without_sampled_tokens_are_added_to_a_neighbour() {
        let silent = |step, reward| StepRow { mask: vec![false], ..StepRow::new(0, 0, step, 1, reward) };
        let rows = [silent(0, 1.0), StepRow::new(0, 0, 1, 2, 2.0), silent(2, 4.0), StepRow::new(0, 0, 3, 1, 8.0)];
        let batch = Batch::new(&rows, false).unwrap();
        assert_eq!(batch.token_rewards(&batch.paths[0]), [1.0, 6.0, 8.0]);
        let alone = [silent(0, 1.0)];
        let batch = Batch::new(&alone, false).unwrap();
        assert!(batch.token_rewards(&batch.paths[0]).is_empty());
    }

    #[test]
    fn inconsistent_rows_are_refused_with_their_step() {
        let refused = |change: fn(&mut Vec<StepRow>)| {
            let mut rows = vec![StepRow::new(0, 4, 0, 2, 1.0), StepRow::new(0, 4, 1, 2, 1.0)];
            change(&mut rows);
            Batch::new(&rows, false).unwrap_err().to_string()
        };
        assert!(refused(|rows| rows[1].step = 0).starts_with("the step occurs twice\n  --> trajectory 4 step 0"));
        assert!(refused(|rows| rows[1].group = 1).contains("two groups"));
        assert!(refused(|rows| rows[0].terminated = true).contains("only the last step"));
        assert!(
            refused(|rows| rows[0].shared = Some(9)).contains("has not taken this step\n  --> trajectory 4 step 0")
        );
        assert!(refused(|rows| rows[1].shared = Some(3)).contains("shares its first steps only"));
        assert!(refused(|rows| rows[1].logp = vec![0.0]).contains("`logp` has 1 entries for 2 tokens"));
        assert!(
            refused(|rows| rows[1].rewards = vec![f64::NAN])
                .contains("`rewards` contains NaN\n  --> trajectory 4 step 1")
        );
    }
}
