//! RLOO: leave-one-out advantages (arXiv:2402.14740).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::result::Advantages;
use super::statistics::{mean_std, per_group};
use super::trajectories::ComparedTrajectories;
use crate::error::Result;

/// RLOO has no options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rloo {}

impl AdvantageEstimator for Rloo {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        found.put_trajectories(given, &rloo(&given.returns(), &given.groups()));
        Ok(())
    }
}

/// Leave-one-out advantages (RLOO, arXiv:2402.14740): `n / (n - 1) (S - mean)`, which is the return
/// minus the mean of the others; a group of one gives `S`.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rloo_subtracts_the_mean_of_the_others() {
        let returns = [1.0, 2.0, 6.0];
        for (i, got) in rloo(&returns, &[0; 3]).into_iter().enumerate() {
            let others = (returns.iter().sum::<f64>() - returns[i]) / 2.0;
            assert!((got - (returns[i] - others)).abs() < 1e-14);
        }
    }

    #[test]
    fn a_group_of_one_keeps_its_return() {
        assert_eq!(rloo(&[3.0], &[0]), [3.0]);
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            prop_assert!(rloo(&returns, &groups).iter().all(|a| *a == 0.0));
        }
    }
}
