//! OPO: the variance-minimal baseline (arXiv:2505.23585).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::result::Advantages;
use super::statistics::places_of;
use super::trajectories::ComparedTrajectories;
use crate::error::Result;

/// OPO has no options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opo {}

impl AdvantageEstimator for Opo {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        found.put_trajectories(given, &opo(&given.returns(), &given.groups(), &given.tokens()));
        Ok(())
    }
}

/// Returns minus the variance-minimal baseline (OPO, arXiv:2505.23585): the mean over the group
/// weighted by length, the `tokens` a trajectory has. A group of one gives `S`.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn opo_weighs_the_baseline_by_length() {
        assert_eq!(opo(&[1.0, 0.0, 7.0], &[0, 0, 1], &[30, 10, 5]), [0.25, -0.75, 7.0]);
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            let tokens: Vec<usize> = (0..n).map(|i| 3 * i + 1).collect();
            prop_assert!(opo(&returns, &groups, &tokens).iter().all(|a| *a == 0.0));
        }
    }
}
