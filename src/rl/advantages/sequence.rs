//! Estimators over a sequence of decisions: GAE and REINFORCE++.
//!
//! A decision is a step, or a sampled token; what lies between two sampled tokens is not one, so a sequence of tokens holds
//! the sampled ones only, across step boundaries. Discounts act per decision.

/// Added to the deviation that whitening divides by.
pub(super) const WHITEN_EPSILON: f64 = 1e-8;

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
pub fn reinforce_pp(rewards: &[Vec<f64>], gamma: f64) -> Vec<Vec<f64>> {
    let returns: Vec<Vec<f64>> = rewards.iter().map(|rewards| discounted_returns(rewards, gamma)).collect();
    let mut whitened = whiten(&returns.concat()).into_iter();
    returns.iter().map(|own| whitened.by_ref().take(own.len()).collect()).collect()
}

/// `(A - mean) / (std + 1e-8)` with the unbiased standard deviation, over all decisions of a batch. One decision alone
/// gives `A - mean`, which is 0.
pub fn whiten(values: &[f64]) -> Vec<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let scale = if values.len() > 1 {
        (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt() + WHITEN_EPSILON
    } else {
        1.0
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
    fn returns_are_discounted_from_the_end() {
        assert_eq!(discounted_returns(&[1.0, 0.0, 4.0], 0.5), [2.0, 2.0, 4.0]);
        assert!(discounted_returns(&[], 0.5).is_empty());
    }

    #[test]
    fn whitening_has_mean_zero_and_deviation_one() {
        assert_eq!(whiten(&[3.0]), [0.0]);
        assert!(whiten(&[]).is_empty());
        let got = whiten(&[1.0, 2.0, 3.0]);
        assert!(got[1] == 0.0 && (got[2] - 1.0).abs() < 1e-7 && got[0] == -got[2]);
    }

    #[test]
    fn reinforce_pp_whitens_over_the_whole_batch() {
        let got = reinforce_pp(&[vec![0.0, 1.0], vec![], vec![4.0]], 0.5);
        let want = whiten(&[0.5, 1.0, 4.0]);
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
