//! MaxRL: advantages divided by the success rate (arXiv:2602.02710).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::result::Advantages;
use super::statistics::{EPSILON, mean_std, per_group};
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::at_least_zero;

/// MaxRL.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MaxRl {
    pub epsilon: f64,
}

impl Default for MaxRl {
    fn default() -> Self {
        Self { epsilon: EPSILON }
    }
}

impl AdvantageEstimator for MaxRl {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn check(&self, name: &str) -> Result<()> {
        at_least_zero(name, "epsilon", self.epsilon)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        if let Some(path) = given.paths.iter().find(|path| path.total < 0.0) {
            return Err(given.missing(path, "`max_rl` divides by the mean reward, and needs rewards of at least 0"));
        }
        found.put_trajectories(given, &max_rl(&given.returns(), &given.groups(), self.epsilon));
        Ok(())
    }
}

/// MaxRL (arXiv:2602.02710): `(S - mean) / (mean + epsilon)`, the gradient of log of the success
/// rate for returns of 0 and
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

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn max_rl_weighs_by_the_success_rate() {
        assert_eq!(max_rl(&[1.0, 0.0, 0.0, 0.0, 7.0], &[0, 0, 0, 0, 1], 0.0), [3.0, -1.0, -1.0, -1.0, 7.0]);
        assert_eq!(max_rl(&[0.0, 0.0], &[0, 0], 1e-6), [0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            prop_assert!(max_rl(&returns, &groups, 1e-6).iter().all(|a| *a == 0.0));
        }
    }
}
