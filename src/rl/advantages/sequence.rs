//! Estimators over a sequence of decisions: GAE and REINFORCE++.
//!
//! A decision is a step, or a sampled token; what lies between two sampled tokens is not one, so a sequence of tokens holds
//! the sampled ones only, across step boundaries. Discounts act per decision.

use serde::{Deserialize, Serialize};

/// Added to what whitening divides by.
const WHITEN_EPSILON: f64 = 1e-8;

/// How advantages are made to have mean 0 and deviation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whiten {
    /// `(A - mean) / (std + 1e-8)` with the unbiased deviation: the step-level estimators of Agent-R1.
    Std,
    /// `(A - mean) / sqrt(var + 1e-8)`, the mean and the variance divided by `n + 1e-8` and the variance then multiplied by
    /// `n / (n - 1)`: the masked whitening of verl, to the last digit.
    Variance,
    /// Not at all.
    None,
}

/// Generalised advantage estimation (arXiv:1506.02438): `delta_t = r_t + gamma V_{t+1} - V_t`,
/// `A_t = delta_t + gamma lambda A_{t+1}`.
///
/// `rewards` and `values` have one entry per decision of one trajectory; `next_value` is V after the last: 0 when the
/// environment ended the task, the critic's value of the next observation when a limit cut it. The critic's targets are
/// `A_t + V_t`.
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

/// `G_t = r_t + gamma G_{t+1}` along one trajectory.
pub fn discounted_returns(rewards: &[f64], gamma: f64) -> Vec<f64> {
    let mut returns = rewards.to_vec();
    for t in (0..returns.len().saturating_sub(1)).rev() {
        returns[t] += gamma * returns[t + 1];
    }
    returns
}

/// REINFORCE++ (arXiv:2501.03262): the discounted returns of sampled tokens, whitened over the batch.
///
/// `rewards` has a list per trajectory with an entry per sampled token.
pub fn reinforce_pp(rewards: &[Vec<f64>], gamma: f64, whiten: Whiten) -> Vec<Vec<f64>> {
    let returns: Vec<Vec<f64>> = rewards.iter().map(|rewards| discounted_returns(rewards, gamma)).collect();
    whiten_all(&returns, whiten)
}

/// GAE on two levels (RAGEN, arXiv:2504.20073). Turns are decisions first: `delta_i = r_i + gamma_turn V_{i+1} - V_i` with V
/// at the last token of a turn, and `A_i` with `gamma_turn` and `lambda`. Then [`gae`] over the tokens of each turn alone,
/// whose only reward is `A_i + V_i` at its last token.
///
/// `rewards` has the reward of each turn of one trajectory, `values` those of its sampled tokens (a turn has at least one),
/// `next_value` V after the last turn. The critic's targets are `A + V` at every token.
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

/// Whitens all decisions of a batch, see [`Whiten`]. One decision alone gives `A - mean`, which is 0.
pub fn whiten(values: &[f64], how: Whiten) -> Vec<f64> {
    whiten_weighted(values, &vec![1.0; values.len()], how)
}

/// [`whiten`] over lists, as one batch.
pub fn whiten_all(values: &[Vec<f64>], how: Whiten) -> Vec<Vec<f64>> {
    let mut whitened = whiten(&values.concat(), how).into_iter();
    values.iter().map(|own| whitened.by_ref().take(own.len()).collect()).collect()
}

/// [`whiten`] where entry i stands for `weights[i]` equal decisions.
pub(super) fn whiten_weighted(values: &[f64], weights: &[f64], how: Whiten) -> Vec<f64> {
    let sum = |value: &dyn Fn(f64) -> f64| -> f64 { values.iter().zip(weights).map(|(v, w)| w * value(*v)).sum() };
    let n: f64 = weights.iter().sum();
    let epsilon = match how {
        Whiten::None => return values.to_vec(),
        Whiten::Variance if n > 1.0 => WHITEN_EPSILON,
        Whiten::Std | Whiten::Variance => 0.0,
    };
    let mean = if n > 0.0 { sum(&|v| v) / (n + epsilon) } else { 0.0 };
    let squares = sum(&|v| (v - mean).powi(2));
    let scale = match how {
        _ if n <= 1.0 => 1.0,
        Whiten::Variance => (squares / (n + epsilon) * (n / (n - 1.0)) + WHITEN_EPSILON).sqrt(),
        Whiten::Std | Whiten::None => (squares / (n - 1.0)).sqrt() + WHITEN_EPSILON,
    };
    values.iter().map(|v| (v - mean) / scale).collect()
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
    fn two_levels_hand_the_turn_to_its_tokens() {
        // One turn of one token is plain GAE at the turn's discount; a longer turn passes its advantage back.
        assert_eq!(gae_bilevel(&[1.0], &[vec![0.25]], 2.0, 0.5, 0.9, 0.9), [[1.75]]);
        let got = gae_bilevel(&[1.0], &[vec![0.5, 0.25]], 0.0, 0.5, 1.0, 1.0);
        assert_eq!(got, [[0.5, 0.75]]); // the last token: 1 - 0.25; the first: 0.25 - 0.5 + 0.75
    }

    #[test]
    fn returns_are_discounted_from_the_end() {
        assert_eq!(discounted_returns(&[1.0, 0.0, 4.0], 0.5), [2.0, 2.0, 4.0]);
        assert!(discounted_returns(&[], 0.5).is_empty());
    }

    #[test]
    fn whitening_has_mean_zero_and_deviation_one() {
        for how in [Whiten::Std, Whiten::Variance] {
            assert_eq!(whiten(&[3.0], how), [0.0]);
            assert!(whiten(&[], how).is_empty());
            let got = whiten(&[1.0, 2.0, 3.0], how);
            assert!(got[1].abs() < 1e-8 && (got[2] - 1.0).abs() < 2e-8 && (got[0] + got[2]).abs() < 2e-8);
        }
        assert_eq!(whiten(&[1.0, 4.0], Whiten::None), [1.0, 4.0]);
    }

    #[test]
    fn reinforce_pp_whitens_over_the_whole_batch() {
        let got = reinforce_pp(&[vec![0.0, 1.0], vec![], vec![4.0]], 0.5, Whiten::Std);
        let want = whiten(&[0.5, 1.0, 4.0], Whiten::Std);
        assert_eq!(got, [want[..2].to_vec(), vec![], want[2..].to_vec()]);
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
        fn with_lambda_one_it_is_the_return_minus_the_value(
            rewards in prop::collection::vec(-1.0..1.0_f64, 1..12), gamma in 0.0..1.0_f64, value in -1.0..1.0_f64,
        ) {
            let values = vec![value; rewards.len()];
            let advantages = gae(&rewards, &values, 0.0, gamma, 1.0);
            for (advantage, total) in advantages.iter().zip(discounted_returns(&rewards, gamma)) {
                prop_assert!((advantage - (total - value)).abs() < 1e-12);
            }
        }
    }
}
