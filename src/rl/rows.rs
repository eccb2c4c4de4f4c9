//! The input of estimators and losses: the steps of trajectories as plain numbers.
//!
//! A [`StepRow`] is one step with a number per token of its response. A script writes one as a
//! table, a training loop makes one from a stored trajectory. [`Batch`] groups the rows by
//! trajectory and validates them.

use std::collections::BTreeMap;

use crate::error::{Error, Kind, Result};
pub use crate::mdp::StepRow;
use crate::mdp::{Status, Trajectory};

impl StepRow {
    /// A step of `tokens` sampled tokens with one reward.
    pub fn new(group: u64, trajectory: u64, step: u64, tokens: usize, reward: f64) -> Self {
        Self { group, trajectory, step, mask: vec![true; tokens], rewards: vec![reward], ..Self::default() }
    }

    /// The steps of a stored trajectory, which is given the number `index`.
    pub fn of(trajectory: &Trajectory, index: usize) -> Vec<Self> {
        let row = |(position, step): (usize, &crate::mdp::Step)| Self {
            logp_old: step.logprobs.iter().map(|&logp| f64::from(logp)).collect(),
            terminated: step.terminated,
            truncated: step.truncated,
            status: Some(trajectory.status),
            ..Self::new(trajectory.group, index as u64, position as u64, step.response_ids.len(), step.reward)
        };
        trajectory.steps.iter().enumerate().map(row).collect()
    }

    /// The identity of the decision: the trajectory that sampled it and its place there.
    pub(super) fn decision(&self) -> (u64, u64) {
        (self.shared.unwrap_or(self.trajectory), self.step)
    }

    /// Sum of the rewards.
    pub fn reward(&self) -> f64 {
        self.rewards.iter().sum()
    }

    /// Number of tokens that the policy sampled.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|sampled| **sampled).count()
    }

    /// The reward of every sampled token. A reward of another token is moved to the sampled token
    /// before it, or else to the first one, so that no reward is lost. A step without sampled
    /// tokens has an empty list; estimators over tokens add its reward to the step before it
    /// ([`Batch::token_rewards`]).
    pub fn token_rewards(&self) -> Vec<f64> {
        on_sampled(&self.rewards, &self.mask)
    }

    /// V before every sampled token; empty without a critic.
    pub fn token_values(&self) -> Vec<f64> {
        sampled(&self.values, &self.mask)
    }

    /// V before the step: at its first sampled token.
    pub fn state_value(&self) -> Option<f64> {
        let first = self.mask.iter().position(|sampled| *sampled).unwrap_or(0);
        self.values.get(first).or(self.values.first()).copied()
    }

    /// Whether its trajectory failed.
    pub fn failed(&self) -> bool {
        self.status.is_some_and(Status::is_failure)
    }

    fn check(&self) -> Result<()> {
        let tokens = self.mask.len();
        let short = |length: usize| length == 0 || length == 1 || length == tokens;
        let lists = [
            ("rewards", &self.rewards, short(self.rewards.len())),
            ("process", &self.process, short(self.process.len())),
            ("values", &self.values, short(self.values.len())),
            ("logp", &self.logp, self.logp.is_empty() || self.logp.len() == tokens),
            ("logp_old", &self.logp_old, self.logp_old.is_empty() || self.logp_old.len() == tokens),
            ("logp_ref", &self.logp_ref, self.logp_ref.is_empty() || self.logp_ref.len() == tokens),
            ("logp_rollout", &self.logp_rollout, self.logp_rollout.is_empty() || self.logp_rollout.len() == tokens),
            ("advantages", &self.advantages, short(self.advantages.len())),
            ("entropy", &self.entropy, self.entropy.is_empty() || self.entropy.len() == tokens),
            (
                "sum_pi_squared",
                &self.sum_pi_squared,
                self.sum_pi_squared.is_empty() || self.sum_pi_squared.len() == tokens,
            ),
        ];
        for (name, list, fits) in lists {
            if !fits {
                let message = format!("`{name}` has {} entries for {tokens} tokens", list.len());
                return Err(Error::new(Kind::Usage, message).in_step(self.trajectory, self.step));
            }
            // At tokens that were not sampled, log-probabilities and values may be any number;
            // rewards are always checked.
            let counts = |i: usize| list.len() != tokens || self.mask[i] || matches!(name, "rewards" | "process");
            if let Some((_, bad)) = list.iter().enumerate().find(|&(i, x)| !x.is_finite() && counts(i)) {
                return Err(Error::new(Kind::Numeric, format!("`{name}` contains {bad}"))
                    .in_step(self.trajectory, self.step)
                    .hint("look for divisions by zero in its computation"));
            }
        }
        if let Some((name, bad)) = self.parts.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Error::new(Kind::Numeric, format!("part `{name}` of the reward is {bad}"))
                .in_step(self.trajectory, self.step));
        }
        if self.terminated && self.truncated {
            return Err(
                Error::new(Kind::Usage, "a step is either terminated or truncated").in_step(self.trajectory, self.step)
            );
        }
        Ok(())
    }
}

/// The entries of `values` at sampled tokens. A single number is a list per token only if there is
/// one token; otherwise nothing is returned.
fn sampled(values: &[f64], mask: &[bool]) -> Vec<f64> {
    if values.len() != mask.len() {
        return Vec::new();
    }
    values.iter().zip(mask).filter(|(_, sampled)| **sampled).map(|(value, _)| *value).collect()
}

/// See [`StepRow::token_rewards`].
pub(super) fn on_sampled(rewards: &[f64], mask: &[bool]) -> Vec<f64> {
    let count = mask.iter().filter(|sampled| **sampled).count();
    let mut moved = vec![0.0; count];
    if count == 0 {
        return moved;
    }
    if rewards.len() == 1 {
        moved[count - 1] = rewards[0];
        return moved;
    }
    let mut seen = 0_usize;
    for (reward, sampled) in rewards.iter().zip(mask) {
        seen += usize::from(*sampled);
        moved[seen.saturating_sub(1)] += reward;
    }
    moved
}

/// A trajectory of a [`Batch`].
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

/// Rows sorted into trajectories.
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

    #[test]
    fn rewards_of_tokens_that_were_not_sampled_move_back() {
        let row = |mask: &[bool], rewards: &[f64]| StepRow {
            mask: mask.to_vec(),
            rewards: rewards.to_vec(),
            ..StepRow::default()
        };
        let (yes, no) = (true, false);
        assert_eq!(row(&[no, yes, no, yes, no], &[1.0, 2.0, 4.0, 8.0, 16.0]).token_rewards(), [7.0, 24.0]);
        assert_eq!(row(&[yes, yes, no], &[5.0]).token_rewards(), [0.0, 5.0]);
        assert!(row(&[no], &[5.0]).token_rewards().is_empty());
        assert_eq!(row(&[yes, yes], &[]).token_rewards(), [0.0, 0.0]);
    }

    #[test]
    fn values_may_be_one_number() {
        let mut row = StepRow { values: vec![0.5], ..StepRow::new(0, 0, 0, 3, 0.0) };
        assert_eq!((row.state_value(), row.token_values().len()), (Some(0.5), 0));
        row.values = vec![9.0, 0.25, 0.75];
        row.mask[0] = false;
        assert_eq!((row.state_value(), row.token_values()), (Some(0.25), vec![0.25, 0.75]));
    }

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
