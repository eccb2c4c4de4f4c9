//! GPG: group policy gradient (arXiv:2504.02546).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::grpo::group_normalized;
use super::result::Advantages;
use super::statistics::Deviation;
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::within;

/// GPG.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Gpg {
    pub f_norm: f64,
}

impl Default for Gpg {
    fn default() -> Self {
        Self { f_norm: 1.0 }
    }
}

impl AdvantageEstimator for Gpg {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn check(&self, name: &str) -> Result<()> {
        within(name, "f_norm", self.f_norm, f64::MIN_POSITIVE, f64::INFINITY)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        found.put_trajectories(given, &gpg(&given.returns(), &given.groups(), self.f_norm));
        Ok(())
    }
}

/// GPG (arXiv:2504.02546): `alpha (S - mean) / f_norm` with alpha = trajectories / trajectories
/// whose return is not 0, over the whole batch. A group of one has mean 0.
pub fn gpg(returns: &[f64], groups: &[u64], f_norm: f64) -> Vec<f64> {
    let not_zero = returns.iter().filter(|s| **s != 0.0).count().max(1);
    let alpha = returns.len() as f64 / not_zero as f64;
    let centred = group_normalized(returns, groups, Deviation::None, 0.0);
    centred.into_iter().map(|a| alpha * a / f_norm).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gpg_scales_by_the_share_of_nonzero_returns() {
        assert_eq!(gpg(&[1.0, 0.0, 0.0, 0.0], &[0, 0, 1, 1], 2.0), [1.0, -1.0, 0.0, 0.0]);
        assert_eq!(gpg(&[0.0, 0.0], &[0, 0], 1.0), [0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            prop_assert!(gpg(&returns, &groups, 1.0).iter().all(|a| *a == 0.0));
        }
    }
}
