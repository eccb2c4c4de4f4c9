//! Estimators that compare the trajectories of one group: GRPO, Dr. GRPO, RLOO, OPO, REINFORCE++ with a baseline, ReMax,
//! GPG, MaxRL, pass@k, RAPO.
//!
//! `returns`, `groups` and `tokens` have one entry per trajectory: the sum of its step rewards, its group's number, and how
//! many tokens the policy sampled in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sequence::{Whiten, whiten_weighted};
use crate::config::Normalize;

/// Added to a group's standard deviation, as in verl (TRL adds 1e-4, OpenRLHF 1e-9).
pub(super) const EPSILON: f64 = 1e-6;

/// What the distance from a group's mean is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deviation {
    /// The standard deviation with n - 1, as in verl, TRL and OpenRLHF.
    Std,
    /// The standard deviation with n, as in rLLM and AReno.
    Population,
    /// Nothing (Dr. GRPO, arXiv:2503.20783).
    None,
}

/// Group-relative advantages (GRPO, arXiv:2402.03300): `(S - mean) / (std + epsilon)` over the **trajectories** of a group,
/// or `S - mean` with [`Deviation::None`].
///
/// A group of one has mean 0 and deviation 1. Equal returns give exactly 0, and the order of trajectories changes no bit.
pub fn group_normalized(returns: &[f64], groups: &[u64], deviation: Deviation, epsilon: f64) -> Vec<f64> {
    per_group(returns, groups, |members| {
        let (mean, scale) = centre(members, deviation, epsilon);
        members.iter().map(|s| (s - mean) / scale).collect()
    })
}

/// What [`group_normalized`] subtracts from the returns of a group and divides them by.
pub(super) fn centre(members: &[f64], deviation: Deviation, epsilon: f64) -> (f64, f64) {
    let n = members.len() as f64;
    let (mean, std) = if members.len() > 1 { mean_std(members) } else { (0.0, 1.0) };
    let scale = match deviation {
        Deviation::Std => std + epsilon,
        Deviation::Population if members.len() > 1 => std * ((n - 1.0) / n).sqrt() + epsilon,
        Deviation::Population => 1.0 + epsilon,
        Deviation::None => 1.0,
    };
    (mean, scale)
}

/// [`group_normalized`] as a recipe sets it, with verl's epsilon of 1e-6.
pub fn grpo(returns: &[f64], groups: &[u64], normalize: Normalize) -> Vec<f64> {
    let deviation = match normalize {
        Normalize::Std => Deviation::Std,
        Normalize::None => Deviation::None,
    };
    group_normalized(returns, groups, deviation, EPSILON)
}

/// Leave-one-out advantages (RLOO, arXiv:2402.14740): `n / (n - 1) (S - mean)`, which is the return minus the mean of
/// the others; a group of one gives `S`.
pub fn rloo(returns: &[f64], groups: &[u64]) -> Vec<f64> {
    per_group(returns, groups, |members| {
        let n = members.len() as f64;
        if members.len() == 1 {
            return members.to_vec();
        }
        let (mean, _) = mean_std(members);
        members.iter().map(|s| n / (n - 1.0) * (s - mean)).collect()
    })
}

/// Returns minus the variance-minimal baseline (OPO, arXiv:2505.23585): the mean over the group weighted by length, the
/// `tokens` a trajectory has. A group of one gives `S`.
pub fn opo(returns: &[f64], groups: &[u64], tokens: &[usize]) -> Vec<f64> {
    let mut advantages = vec![0.0; returns.len()];
    for places in places_of(groups).values() {
        let smallest = places.iter().map(|&i| returns[i]).fold(f64::INFINITY, f64::min);
        let length: f64 = places.iter().map(|&i| tokens[i] as f64).sum();
        let above: f64 = places.iter().map(|&i| tokens[i] as f64 * (returns[i] - smallest)).sum();
        // As differences from the smallest, so that equal returns give exactly 0.
        let baseline = if places.len() == 1 { 0.0 } else { smallest + above / length.max(1.0) };
        for &i in places {
            advantages[i] = returns[i] - baseline;
        }
    }
    advantages
}

/// REINFORCE++ with a group baseline (arXiv:2501.03262): `S - mean` of the group, whitened over the sampled tokens of the
/// batch, so that a trajectory weighs as many times in the statistics as it has `tokens`. A group of one has mean 0.
pub fn reinforce_pp_baseline(returns: &[f64], groups: &[u64], tokens: &[usize], whiten: Whiten) -> Vec<f64> {
    let centred = group_normalized(returns, groups, Deviation::None, 0.0);
    let weights: Vec<f64> = tokens.iter().map(|&tokens| tokens as f64).collect();
    whiten_weighted(&centred, &weights, whiten)
}

/// ReMax (arXiv:2310.10505): the return minus that of one greedy rollout of the same task, `greedy[i]` for trajectory i.
pub fn remax(returns: &[f64], greedy: &[f64]) -> Vec<f64> {
    returns.iter().zip(greedy).map(|(own, greedy)| own - greedy).collect()
}

/// GPG (arXiv:2504.02546): `alpha (S - mean) / f_norm` with alpha = trajectories / trajectories whose return is not 0, over
/// the whole batch. A group of one has mean 0.
pub fn gpg(returns: &[f64], groups: &[u64], f_norm: f64) -> Vec<f64> {
    let not_zero = returns.iter().filter(|s| **s != 0.0).count().max(1);
    let alpha = returns.len() as f64 / not_zero as f64;
    let centred = group_normalized(returns, groups, Deviation::None, 0.0);
    centred.into_iter().map(|a| alpha * a / f_norm).collect()
}

/// MaxRL (arXiv:2602.02710): `(S - mean) / (mean + epsilon)`, the gradient of log of the success rate for returns of 0 and
/// 1. A group of one gives `S`; a group without success gives 0. Returns must not be negative.
pub fn max_rl(returns: &[f64], groups: &[u64], epsilon: f64) -> Vec<f64> {
    per_group(returns, groups, |members| {
        if members.len() == 1 {
            return members.to_vec();
        }
        let (mean, _) = mean_std(members);
        members.iter().map(|s| (s - mean) / (mean + epsilon)).collect()
    })
}

/// Pass@k in the form of GRPO (arXiv:2503.19595): only the best of a group has an advantage, its lead over the second,
/// divided by `std + epsilon` unless `deviation` is [`Deviation::None`]. A tie at the top and a group of one give 0.
pub fn grpo_passk(returns: &[f64], groups: &[u64], deviation: Deviation, epsilon: f64) -> Vec<f64> {
    per_group(returns, groups, |members| {
        let mut advantages = vec![0.0; members.len()];
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by(|&a, &b| members[b].total_cmp(&members[a]));
        if let [best, second, ..] = order[..] {
            let (_, std) = mean_std(members);
            let n = members.len() as f64;
            let scale = match deviation {
                Deviation::Std => std + epsilon,
                Deviation::Population => std * ((n - 1.0) / n).sqrt() + epsilon,
                Deviation::None => 1.0,
            };
            advantages[best] = (members[best] - members[second]) / scale;
        }
        advantages
    })
}

/// Which pairs RAPO strengthens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranking {
    /// A trajectory with a larger return is a winner, any other a loser.
    pub threshold: f64,
    /// A pair is strengthened when the winner's mean log-probability leads the loser's by less than this.
    pub margin: f64,
    /// By this much.
    pub bonus: f64,
}

/// Rank-aware GRPO (RAPO of TableMind, arXiv:2509.06278): `advantages` times a factor. A pair of a winner and a loser of
/// one group has the factor `1 + bonus` when the policy does not yet prefer the winner by `margin`, else 1; a winner's
/// factor is the mean over the losers and a loser's the mean over the winners. Needs whole groups.
///
/// `logp` is the mean log-probability of a trajectory's sampled tokens.
pub fn rapo(advantages: &[f64], returns: &[f64], groups: &[u64], logp: &[f64], ranking: Ranking) -> Vec<f64> {
    let mut weighted = advantages.to_vec();
    for places in places_of(groups).values() {
        let (winners, losers): (Vec<usize>, Vec<usize>) = places.iter().partition(|&&i| returns[i] > ranking.threshold);
        if winners.is_empty() || losers.is_empty() {
            continue;
        }
        let pair = |w: usize, l: usize| if logp[w] - logp[l] < ranking.margin { 1.0 + ranking.bonus } else { 1.0 };
        for &w in &winners {
            weighted[w] *= losers.iter().map(|&l| pair(w, l)).sum::<f64>() / losers.len() as f64;
        }
        for &l in &losers {
            weighted[l] *= winners.iter().map(|&w| pair(w, l)).sum::<f64>() / winners.len() as f64;
        }
    }
    weighted
}

/// Applies `estimate` to the returns of each group and puts the results back in their places.
pub(in crate::rl) fn per_group(returns: &[f64], groups: &[u64], estimate: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut advantages = vec![0.0; returns.len()];
    for places in places_of(groups).values() {
        let own: Vec<f64> = places.iter().map(|&i| returns[i]).collect();
        for (&i, advantage) in places.iter().zip(estimate(&own)) {
            advantages[i] = advantage;
        }
    }
    advantages
}

/// Where the trajectories of each group are.
pub(super) fn places_of(groups: &[u64]) -> BTreeMap<u64, Vec<usize>> {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        places.entry(group).or_default().push(i);
    }
    places
}

/// Mean and unbiased standard deviation of two or more values. Summed in sorted order as differences from the
/// smallest, so that order never matters and equal values have a mean that is exactly their value.
pub(in crate::rl) fn mean_std(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let base = sorted[0];
    let mean = base + sorted.iter().map(|v| v - base).sum::<f64>() / n;
    let variance = sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, variance.sqrt())
}

/// The mean alone, to the same bits.
pub(super) fn mean(values: &[f64]) -> f64 {
    mean_std(values).0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn grpo_is_the_closed_form() {
        let advantages = grpo(&[1.0, 0.0, 0.0, 1.0, 5.0], &[7, 7, 3, 7, 3], Normalize::Std);
        let std = (1.0_f64 / 3.0).sqrt() + 1e-6; // of 1, 0, 1
        let other = 12.5_f64.sqrt() + 1e-6; // of 0, 5
        let expected = [1.0 / 3.0 / std, -2.0 / 3.0 / std, -2.5 / other, 1.0 / 3.0 / std, 2.5 / other];
        for (got, want) in advantages.iter().zip(expected) {
            assert!((got - want).abs() < 1e-14, "{got} {want}");
        }
        assert_eq!(grpo(&[1.0, 0.0], &[0, 0], Normalize::None), [0.5, -0.5]);
    }

    #[test]
    fn a_group_of_one_keeps_its_return() {
        assert_eq!(grpo(&[3.0], &[0], Normalize::None), [3.0]);
        assert_eq!(grpo(&[3.0], &[0], Normalize::Std), [3.0 / (1.0 + 1e-6)]);
        assert_eq!(rloo(&[3.0], &[0]), [3.0]);
    }

    #[test]
    fn rloo_subtracts_the_mean_of_the_others() {
        let returns = [1.0, 2.0, 6.0];
        for (i, got) in rloo(&returns, &[0; 3]).into_iter().enumerate() {
            let others = (returns.iter().sum::<f64>() - returns[i]) / 2.0;
            assert!((got - (returns[i] - others)).abs() < 1e-14);
        }
    }

    #[test]
    fn opo_weighs_the_baseline_by_length() {
        assert_eq!(opo(&[1.0, 0.0, 7.0], &[0, 0, 1], &[30, 10, 5]), [0.25, -0.75, 7.0]);
    }

    #[test]
    fn reinforce_pp_baseline_is_whitened_over_tokens() {
        let (returns, groups, tokens) = ([3.0, 1.0, 0.5, 2.0], [0, 0, 1, 1], [1, 2, 4, 3]);
        let centred = [1.0, -1.0, -0.75, 0.75];
        let each_token: Vec<f64> = centred.iter().zip(tokens).flat_map(|(&a, n)| vec![a; n]).collect();
        for whiten in [Whiten::Std, Whiten::Variance, Whiten::None] {
            let want = crate::rl::advantages::whiten(&each_token, whiten);
            let got = reinforce_pp_baseline(&returns, &groups, &tokens, whiten);
            for (i, place) in [0, 1, 3, 7].into_iter().enumerate() {
                assert!((got[i] - want[place]).abs() < 1e-14, "{whiten:?} {i}");
            }
        }
    }

    #[test]
    fn the_population_deviation_is_smaller() {
        let got = group_normalized(&[1.0, 0.0], &[0, 0], Deviation::Population, 0.0);
        assert!((got[0] - 1.0).abs() < 1e-15 && (got[1] + 1.0).abs() < 1e-15);
        assert_eq!(group_normalized(&[3.0], &[0], Deviation::Population, 0.0), [3.0]);
    }

    #[test]
    fn gpg_makes_up_for_returns_of_zero() {
        assert_eq!(gpg(&[1.0, 0.0, 0.0, 0.0], &[0, 0, 1, 1], 2.0), [1.0, -1.0, 0.0, 0.0]);
        assert_eq!(gpg(&[0.0, 0.0], &[0, 0], 1.0), [0.0, 0.0]);
    }

    #[test]
    fn max_rl_weighs_by_the_success_rate() {
        assert_eq!(max_rl(&[1.0, 0.0, 0.0, 0.0, 7.0], &[0, 0, 0, 0, 1], 0.0), [3.0, -1.0, -1.0, -1.0, 7.0]);
        assert_eq!(max_rl(&[0.0, 0.0], &[0, 0], 1e-6), [0.0, 0.0]);
    }

    #[test]
    fn passk_rewards_the_lead_of_the_best() {
        let none = Deviation::None;
        assert_eq!(grpo_passk(&[1.0, 4.0, 3.0, 9.0], &[0, 0, 0, 1], none, 0.0), [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(grpo_passk(&[4.0, 4.0, 3.0], &[0; 3], none, 0.0), [0.0; 3]);
        let got = grpo_passk(&[0.0, 2.0], &[0, 0], Deviation::Std, 0.0);
        assert!((got[1] - 2.0_f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn rapo_strengthens_pairs_that_are_ranked_wrongly() {
        let ranking = Ranking { threshold: 1.0, margin: 0.5, bonus: 0.1 };
        // Winners 0 and 1, losers 2 and 3; only winner 0 leads only loser 3 by the margin. The other group has no loser.
        let logp = [-1.0, -2.0, -1.2, -3.0, -9.0];
        let got = rapo(&[1.0, 1.0, -1.0, -1.0, 1.0], &[2.0, 2.0, 0.0, 1.0, 3.0], &[0, 0, 0, 0, 5], &logp, ranking);
        let want = [1.05, 1.05, -1.1, -1.0, 1.0];
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-15, "{got} {want}");
        }
    }

    proptest! {
        #[test]
        fn equal_returns_give_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            for normalize in [Normalize::Std, Normalize::None] {
                prop_assert!(grpo(&returns, &groups, normalize).iter().all(|a| *a == 0.0));
            }
            prop_assert!(rloo(&returns, &groups).iter().all(|a| *a == 0.0));
            let tokens: Vec<usize> = (0..n).map(|i| 3 * i + 1).collect();
            prop_assert!(opo(&returns, &groups, &tokens).iter().all(|a| *a == 0.0));
            for whiten in [Whiten::Std, Whiten::Variance, Whiten::None] {
                let all = reinforce_pp_baseline(&returns, &groups, &tokens, whiten);
                prop_assert!(all.iter().all(|a| *a == 0.0));
            }
            prop_assert!(gpg(&returns, &groups, 1.0).iter().all(|a| *a == 0.0));
            prop_assert!(max_rl(&returns, &groups, 1e-6).iter().all(|a| *a == 0.0));
            prop_assert!(grpo_passk(&returns, &groups, Deviation::Std, 1e-6).iter().all(|a| *a == 0.0));
        }

        #[test]
        fn order_changes_no_bit(
            pairs in prop::collection::vec((-10.0..10.0_f64, 0..4_u64), 1..30).prop_flat_map(|v| (Just(v.clone()), Just(v).prop_shuffle())),
        ) {
            let split = |pairs: &[(f64, u64)]| -> (Vec<f64>, Vec<u64>) { pairs.iter().copied().unzip() };
            let ((returns, groups), (shuffled, shuffled_groups)) = (split(&pairs.0), split(&pairs.1));
            let sorted = |returns: &[f64], groups: &[u64], advantages: Vec<f64>| {
                let mut all: Vec<(u64, u64, u64)> = returns.iter().zip(groups).zip(advantages)
                    .map(|((s, g), a)| (*g, s.to_bits(), a.to_bits())).collect();
                all.sort_unstable();
                all
            };
            prop_assert_eq!(
                sorted(&returns, &groups, grpo(&returns, &groups, Normalize::Std)),
                sorted(&shuffled, &shuffled_groups, grpo(&shuffled, &shuffled_groups, Normalize::Std))
            );
        }
    }
}
