//! Estimators that compare the trajectories of one group: GRPO, Dr. GRPO, RLOO.

use std::collections::BTreeMap;

use crate::config::Normalize;

/// Added to a group's standard deviation, as in verl (TRL adds 1e-4, OpenRLHF 1e-9).
const EPSILON: f64 = 1e-6;

/// Group-relative advantages (GRPO, arXiv:2402.03300): `(S - mean) / (std + 1e-6)` with the unbiased standard
/// deviation over the **trajectories** of a group, or `S - mean` with [`Normalize::None`] (Dr. GRPO,
/// arXiv:2503.20783).
///
/// `returns` and `groups` have one entry per trajectory. A group of one has mean 0 and deviation 1. Equal returns give
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

/// Applies `estimate` to the returns of each group and puts the results back in their places.
fn per_group(returns: &[f64], groups: &[u64], estimate: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    debug_assert_eq!(returns.len(), groups.len(), "one group number per return");
    let mut members: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        members.entry(group).or_default().push(i);
    }
    let mut advantages = vec![0.0; returns.len()];
    for places in members.values() {
        let own: Vec<f64> = places.iter().map(|&i| returns[i]).collect();
        for (&i, advantage) in places.iter().zip(estimate(&own)) {
            advantages[i] = advantage;
        }
    }
    advantages
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

    proptest! {
        #[test]
        fn equal_returns_give_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            for normalize in [Normalize::Std, Normalize::None] {
                prop_assert!(grpo(&returns, &groups, normalize).iter().all(|a| *a == 0.0));
            }
            prop_assert!(rloo(&returns, &groups).iter().all(|a| *a == 0.0));
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
