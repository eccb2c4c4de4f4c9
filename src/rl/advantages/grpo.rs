//! GRPO: group-relative policy optimisation (arXiv:2402.03300), and Dr. GRPO (arXiv:2503.20783)
//! with `normalize = "none"`.
//!
//! ```text
//! A_i = (R_i - mean(R)) / (std(R) + epsilon)      R: the returns of the trajectories of a group
//!                                                 std: with n - 1, as in verl and TRL
//! ```

use serde::{Deserialize, Serialize};

use super::result::Advantages;
use super::statistics::{Deviation, centre, per_group};
use crate::error::Result;
use crate::rl::options::at_least_zero;
use crate::rl::rows::{Batch, Path};

/// GRPO, and Dr. GRPO with `normalize = "none"`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Grpo {
    pub normalize: Deviation,
    pub epsilon: f64,
}

impl Grpo {
    pub(super) fn check(&self, name: &str) -> Result<()> {
        at_least_zero(name, "epsilon", self.epsilon)
    }

    pub(super) fn estimate(&self, batch: &Batch<'_>, paths: &[&Path], result: &mut Advantages) {
        let (returns, groups): (Vec<f64>, Vec<u64>) = paths.iter().map(|path| (path.total, path.group)).unzip();
        let advantages = group_normalized(&returns, &groups, self.normalize, self.epsilon);
        for (path, advantage) in paths.iter().zip(advantages) {
            result.put_trajectory(batch.rows, path, advantage);
        }
    }
}

/// Group-relative advantages (GRPO, arXiv:2402.03300): `(S - mean) / (std + epsilon)` over the
/// **trajectories** of a group, or `S - mean` with [`Deviation::None`].
///
/// A group of one has mean 0 and deviation 1. Equal returns give exactly 0, and the order of
/// trajectories changes no bit.
pub fn group_normalized(returns: &[f64], groups: &[u64], deviation: Deviation, epsilon: f64) -> Vec<f64> {
    per_group(returns, groups, |members| {
        let (mean, scale) = centre(members, deviation, epsilon);
        members.iter().map(|s| (s - mean) / scale).collect()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::super::statistics::EPSILON;
    use super::*;

    #[test]
    fn grpo_advantages_equal_the_closed_form() {
        let advantages = group_normalized(&[1.0, 0.0, 0.0, 1.0, 5.0], &[7, 7, 3, 7, 3], Deviation::Std, EPSILON);
        let std = (1.0_f64 / 3.0).sqrt() + 1e-6; // of 1, 0, 1
        let other = 12.5_f64.sqrt() + 1e-6; // of 0, 5
        let expected = [1.0 / 3.0 / std, -2.0 / 3.0 / std, -2.5 / other, 1.0 / 3.0 / std, 2.5 / other];
        for (got, want) in advantages.iter().zip(expected) {
            assert!((got - want).abs() < 1e-14, "{got} {want}");
        }
        assert_eq!(group_normalized(&[1.0, 0.0], &[0, 0], Deviation::None, EPSILON), [0.5, -0.5]);
    }

    #[test]
    fn a_group_of_one_keeps_its_return() {
        assert_eq!(group_normalized(&[3.0], &[0], Deviation::None, EPSILON), [3.0]);
        assert_eq!(group_normalized(&[3.0], &[0], Deviation::Std, EPSILON), [3.0 / (1.0 + 1e-6)]);
    }

    #[test]
    fn the_population_deviation_is_smaller() {
        let got = group_normalized(&[1.0, 0.0], &[0, 0], Deviation::Population, 0.0);
        assert!((got[0] - 1.0).abs() < 1e-15 && (got[1] + 1.0).abs() < 1e-15);
        assert_eq!(group_normalized(&[3.0], &[0], Deviation::Population, 0.0), [3.0]);
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            for deviation in [Deviation::Std, Deviation::Population, Deviation::None] {
                let advantages = group_normalized(&vec![value; n], &vec![1; n], deviation, EPSILON);
                prop_assert!(advantages.iter().all(|a| *a == 0.0));
            }
        }

        #[test]
        fn the_order_of_trajectories_changes_no_bit(
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
                sorted(&returns, &groups, group_normalized(&returns, &groups, Deviation::Std, EPSILON)),
                sorted(&shuffled, &shuffled_groups, group_normalized(&shuffled, &shuffled_groups, Deviation::Std, EPSILON))
            );
        }
    }
}
