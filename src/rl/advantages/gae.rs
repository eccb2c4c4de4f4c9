//! Generalised advantage estimation (arXiv:1506.02438): over steps, over sampled tokens, and on
//! both levels.
//!
//! A decision is a step or a sampled token. Tokens that were not sampled are not decisions. A
//! sequence of tokens has only sampled ones, across steps. Discounts act per decision.

use serde::{Deserialize, Serialize};

use super::result::Advantages;
use super::whiten::{Whiten, whiten_all};
use crate::error::Result;
use crate::rl::options::from_zero_to_one;
use crate::rl::rows::{Batch, Path, StepRow};

/// Options of GAE over steps, and over sampled tokens across the steps of a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Gae {
    pub gamma: f64,
    pub lambda: f64,
    /// After a truncated trajectory V is the critic's value of the next observation (`next_value`),
    /// not 0.
    pub bootstrap: bool,
    pub whiten: Whiten,
}

impl Gae {
    pub(super) fn check(&self, name: &str) -> Result<()> {
        from_zero_to_one(name, "gamma", self.gamma)?;
        from_zero_to_one(name, "lambda", self.lambda)
    }

    /// Step-level GAE: a step is one decision (Agent-R1's default).
    pub(super) fn by_step(&self, batch: &Batch<'_>, paths: &[&Path], result: &mut Advantages) -> Result<()> {
        let (mut all, mut places) = (Vec::new(), Vec::new());
        for path in paths {
            // A step without sampled tokens and values is not a decision; its reward is added to
            // the step before it, or else to the first.
            let (mut decisions, mut rewards, mut values) = (Vec::new(), Vec::<f64>::new(), Vec::new());
            let mut pending = 0.0;
            for (&i, row) in path.rows.iter().zip(batch.steps(path)) {
                match (row.state_value(), rewards.last_mut()) {
                    (Some(value), _) => {
                        decisions.push(i);
                        rewards.push(row.reward() + std::mem::take(&mut pending));
                        values.push(value);
                    }
                    (None, _) if row.sampled() > 0 => return Err(batch.missing(path, "a step has no `values`")),
                    (None, Some(last)) => *last += row.reward(),
                    (None, None) => pending += row.reward(),
                }
            }
            let after = value_after(batch, path, self.bootstrap)?;
            let advantages = gae(&rewards, &values, after, self.gamma, self.lambda);
            for ((&i, advantage), value) in decisions.iter().zip(&advantages).zip(&values) {
                // One target per step, for the state before it: at its first sampled token.
                if let Some(first) = batch.rows[i].mask.iter().position(|sampled| *sampled) {
                    result.returns[i][first] = advantage + value;
                    result.targets[i][first] = true;
                }
            }
            all.push(advantages);
            places.push(decisions);
        }
        for (decisions, advantages) in places.iter().zip(whiten_all(&all, self.whiten)) {
            for (&i, advantage) in decisions.iter().zip(advantages) {
                result.put_row(batch.rows, i, advantage);
            }
        }
        Ok(())
    }

    /// GAE over sampled tokens, across the steps of a trajectory.
    pub(super) fn by_token(&self, batch: &Batch<'_>, paths: &[&Path], result: &mut Advantages) -> Result<()> {
        put_by_token(batch, paths, self.whiten, result, |path| {
            let values = token_values(batch, path)?.concat();
            let after = value_after(batch, path, self.bootstrap)?;
            Ok((gae(&batch.token_rewards(path), &values, after, self.gamma, self.lambda), values))
        })
    }
}

/// GAE over steps, then over the tokens of each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GaeBilevel {
    /// Discount from step to step.
    pub gamma_turn: f64,
    /// Discount from token to token.
    pub gamma: f64,
    pub lambda: f64,
    pub bootstrap: bool,
    pub whiten: Whiten,
}

impl GaeBilevel {
    pub(super) fn check(&self, name: &str) -> Result<()> {
        from_zero_to_one(name, "gamma_turn", self.gamma_turn)?;
        from_zero_to_one(name, "gamma", self.gamma)?;
        from_zero_to_one(name, "lambda", self.lambda)
    }

    pub(super) fn estimate(&self, batch: &Batch<'_>, paths: &[&Path], result: &mut Advantages) -> Result<()> {
        let Self { gamma_turn, gamma, lambda, bootstrap, whiten } = *self;
        put_by_token(batch, paths, whiten, result, |path| {
            // A step without sampled tokens is not a turn; its reward is added to the turn before
            // it, or else to the first.
            let (mut rewards, mut values): (Vec<f64>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
            let mut pending = 0.0;
            for (row, row_values) in batch.steps(path).zip(token_values(batch, path)?) {
                match rewards.last_mut() {
                    Some(last) if row_values.is_empty() => *last += row.reward(),
                    None if row_values.is_empty() => pending += row.reward(),
                    _ => {
                        rewards.push(row.reward() + std::mem::take(&mut pending));
                        values.push(row_values);
                    }
                }
            }
            let after = value_after(batch, path, bootstrap)?;
            Ok((gae_bilevel(&rewards, &values, after, gamma_turn, gamma, lambda).concat(), values.concat()))
        })
    }
}

/// Writes the advantages of sampled tokens, whitened, and the critic's targets `A + V`. `estimate`
/// has A and V of each sampled token of a trajectory.
fn put_by_token(
    batch: &Batch<'_>,
    paths: &[&Path],
    whiten: Whiten,
    result: &mut Advantages,
    estimate: impl Fn(&Path) -> Result<(Vec<f64>, Vec<f64>)>,
) -> Result<()> {
    let mut all = Vec::with_capacity(paths.len());
    for path in paths {
        let (advantages, values) = estimate(path)?;
        let returns: Vec<f64> = advantages.iter().zip(values).map(|(advantage, value)| advantage + value).collect();
        result.put_returns(batch.rows, path, &returns);
        all.push(advantages);
    }
    for (path, advantages) in paths.iter().zip(whiten_all(&all, whiten)) {
        result.put_tokens(batch.rows, path, &advantages);
    }
    Ok(())
}

/// Generalised advantage estimation (arXiv:1506.02438): `delta_t = r_t + gamma V_{t+1} - V_t`,
/// `A_t = delta_t + gamma lambda A_{t+1}`.
///
/// `rewards` and `values` have one entry per decision of one trajectory; `next_value` is V after
/// the last: 0 when the environment ended the task, the critic's value of the next observation when
/// a limit truncated it. The critic's targets are `A_t + V_t`.
pub fn gae(rewards: &[f64], values: &[f64], next_value: f64, gamma: f64, lambda: f64) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    let (mut next_value, mut next_advantage) = (next_value, 0.0);
    for t in (0..rewards.len()).rev() {
        let delta = rewards[t] + gamma * next_value - values[t];
        next_advantage = delta + gamma * lambda * next_advantage;
        next_value = values[t];
        advantages[t] = next_advantage;
    }
    advantages
}

/// GAE on two levels (RAGEN, arXiv:2504.20073). Turns are decisions first: `delta_i = r_i +
/// gamma_turn V_{i+1} - V_i` with V at the last token of a turn, and `A_i` with `gamma_turn` and
/// `lambda`. Then [`gae`] runs over the tokens of each turn separately, with the only reward `A_i +
/// V_i` at its last token.
///
/// `rewards` has the reward of each turn of one trajectory, `values` the values of its sampled
/// tokens (a turn has at least one), `next_value` V after the last turn. The critic's targets are
/// `A + V` at every token.
pub fn gae_bilevel(
    rewards: &[f64],
    values: &[Vec<f64>],
    next_value: f64,
    gamma_turn: f64,
    gamma: f64,
    lambda: f64,
) -> Vec<Vec<f64>> {
    let ends: Vec<f64> = values.iter().map(|turn| turn.last().copied().unwrap_or(0.0)).collect();
    let turns = gae(rewards, &ends, next_value, gamma_turn, lambda);
    let inside = |((turn, advantage), end): ((&Vec<f64>, f64), f64)| {
        let mut rewards = vec![0.0; turn.len()];
        if let Some(last) = rewards.last_mut() {
            *last = advantage + end;
        }
        gae(&rewards, turn, 0.0, gamma, lambda)
    };
    values.iter().zip(turns).zip(ends).map(inside).collect()
}

/// V after the last step: 0 when the task ended, the critic's value of the next observation if a
/// limit truncated it.
fn value_after(batch: &Batch<'_>, path: &Path, bootstrap: bool) -> Result<f64> {
    match batch.steps(path).next_back() {
        Some(last) if last.truncated && bootstrap => {
            last.next_value.filter(|value| value.is_finite()).ok_or_else(|| {
                batch
                    .missing(path, "a truncated trajectory has no `next_value`")
                    .hint("give the critic's value of the next observation, or set `bootstrap = false`")
            })
        }
        _ => Ok(0.0),
    }
}

/// The values of a trajectory's sampled tokens, by step.
fn token_values(batch: &Batch<'_>, path: &Path) -> Result<Vec<Vec<f64>>> {
    let values_of = |row: &StepRow| {
        let values = row.token_values();
        if values.len() == row.sampled() {
            Ok(values)
        } else {
            Err(batch.missing(path, "a step has no `values`, one for every token"))
        }
    };
    batch.steps(path).map(values_of).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;
    #[test]
    fn a_truncated_trajectory_bootstraps() {
        // One step: A = r + gamma V' - V.
        assert_eq!(gae(&[1.0], &[0.25], 0.0, 0.5, 0.9), [0.75]);
        assert_eq!(gae(&[1.0], &[0.25], 2.0, 0.5, 0.9), [1.75]);
    }

    #[test]
    fn bilevel_gae_gives_the_turn_advantage_to_its_tokens() {
        // One turn of one token is plain GAE at the turn's discount; a longer turn passes its
        // advantage back.
        assert_eq!(gae_bilevel(&[1.0], &[vec![0.25]], 2.0, 0.5, 0.9, 0.9), [[1.75]]);
        let got = gae_bilevel(&[1.0], &[vec![0.5, 0.25]], 0.0, 0.5, 1.0, 1.0);
        assert_eq!(got, [[0.5, 0.75]]); // the last token: 1 - 0.25; the first: 0.25 - 0.5 + 0.75
    }

    proptest! {
        #[test]
        fn gae_is_the_sum_of_discounted_deltas(
            decisions in prop::collection::vec((-1.0..1.0_f64, -1.0..1.0_f64), 1..12),
            last in -1.0..1.0_f64, gamma in 0.0..1.0_f64, lambda in 0.0..1.0_f64,
        ) {
            let (rewards, values): (Vec<f64>, Vec<f64>) = decisions.into_iter().unzip();
            let value = |t: usize| values.get(t).copied().unwrap_or(last);
            for (t, got) in gae(&rewards, &values, last, gamma, lambda).into_iter().enumerate() {
                let want: f64 = (t..rewards.len())
                    .map(|s| (gamma * lambda).powi((s - t) as i32) * (rewards[s] + gamma * value(s + 1) - values[s]))
                    .sum();
                prop_assert!((got - want).abs() < 1e-12);
            }
        }

        #[test]
        fn gae_with_lambda_one_is_the_return_minus_the_value(
            rewards in prop::collection::vec(-1.0..1.0_f64, 1..12), gamma in 0.0..1.0_f64, value in -1.0..1.0_f64,
        ) {
            let values = vec![value; rewards.len()];
            let advantages = gae(&rewards, &values, 0.0, gamma, 1.0);
            let mut total = 0.0;
            for (advantage, reward) in advantages.iter().zip(&rewards).rev() {
                total = reward + gamma * total;
                prop_assert!((advantage - (total - value)).abs() < 1e-12);
            }
        }
    }
}
