//! Estimators that compare the trajectories of one group: GRPO, Dr. GRPO, RLOO, OPO, REINFORCE++ with a baseline.
//!
//! `returns`, `groups` and `tokens` have one entry per trajectory: the sum of its step rewards, its group's number, and how
//! many tokens the policy sampled in it.

use std::collections::BTreeMap;

use super::sequence::WHITEN_EPSILON;
use crate::config::Normalize;

/// Added to a group's standard deviation, as in verl (TRL adds 1e-4, OpenRLHF 1e-9).
const EPSILON: f64 = 1e-6;

/// Group-relative advantages (GRPO, arXiv:2402.03300): `(S - mean) / (std + 1e-6)` with the unbiased standard
/// deviation over the **trajectories** of a group, or `S - mean` with [`Normalize::None`] (Dr. GRPO,
/// arXiv:2503.20783).
///
/// A group of one has mean 0 and deviation 1. Equal returns give
/// exactly 0, and the order of trajectories changes no bit.
pub fn grpo(returns: &[f64], groups: &[u64], normalize: Normalize) -> Vec<f64> {
    per_group(returns, groups, |members| {
        let (mean, std) = if members.len() > 1 { mean_std(members) } else { (0.0, 1.0) };
        let scale = match normalize {
            Normalize::Std => std + EPSILON,
            Normalize::None => 1.0,
        };
        members.iter().map(|s| (s - mean) / scale).collect()
    })
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
pub fn reinforce_pp_baseline(returns: &[f64], groups: &[u64], tokens: &[usize]) -> Vec<f64> {
    let centred = grpo(returns, groups, Normalize::None);
    let weighted = |value: &dyn Fn(f64) -> f64| -> f64 {
        centred.iter().zip(tokens).map(|(&centred, &tokens)| value(centred) * tokens as f64).sum()
    };
    let count = tokens.iter().sum::<usize>() as f64;
    let mean = weighted(&|a| a) / count.max(1.0);
    let variance = weighted(&|a| (a - mean).powi(2)) / (count - 1.0).max(1.0);
    centred.iter().map(|a| (a - mean) / (variance.sqrt() + WHITEN_EPSILON)).collect()
}

/// Applies `estimate` to the returns of each group and puts the results back in their places.
fn per_group(returns: &[f64], groups: &[u64], estimate: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
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
fn places_of(groups: &[u64]) -> BTreeMap<u64, Vec<usize>> {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        places.entry(group).or_default().push(i);
    }
    places
}

/// Mean and unbiased standard deviation of two or more values. Summed in sorted order as differences from the
/// smallest, so that order never matters and equal values have a mean that is exactly their value.
fn mean_std(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let base = sorted[0];
    let mean = base + sorted.iter().map(|v| v - base).sum::<f64>() / n;
    let variance = sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
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
        let want = crate::rl::advantages::whiten(&each_token);
        let got = reinforce_pp_baseline(&returns, &groups, &tokens);
        for (i, place) in [0, 1, 3, 7].into_iter().enumerate() {
            assert!((got[i] - want[place]).abs() < 1e-14, "{i}");
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
            prop_assert!(reinforce_pp_baseline(&returns, &groups, &tokens).iter().all(|a| *a == 0.0));
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
