//! Pass@k in the form of GRPO (arXiv:2503.19595).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Need};
use super::result::Advantages;
use super::statistics::{Deviation, EPSILON, mean_std, per_group};
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::options::at_least_zero;

/// Options of pass@k in the form of GRPO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GrpoPassk {
    pub normalize: Deviation,
    pub epsilon: f64,
}

impl Default for GrpoPassk {
    fn default() -> Self {
        Self { normalize: Deviation::Std, epsilon: EPSILON }
    }
}

impl AdvantageEstimator for GrpoPassk {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn check(&self, name: &str) -> Result<()> {
        at_least_zero(name, "epsilon", self.epsilon)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let advantages = grpo_passk(&given.returns(), &given.groups(), self.normalize, self.epsilon);
        found.put_trajectories(given, &advantages);
        Ok(())
    }
}

/// Pass@k in the form of GRPO (arXiv:2503.19595): only the best of a group has an advantage, its
/// lead over the second, divided by `std + epsilon` unless `deviation` is [`Deviation::None`]. A
/// tie at the top and a group of one give 0.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passk_rewards_the_lead_of_the_best() {
        let none = Deviation::None;
        assert_eq!(grpo_passk(&[1.0, 4.0, 3.0, 9.0], &[0, 0, 0, 1], none, 0.0), [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(grpo_passk(&[4.0, 4.0, 3.0], &[0; 3], none, 0.0), [0.0; 3]);
        let got = grpo_passk(&[0.0, 2.0], &[0, 0], Deviation::Std, 0.0);
        assert!((got[1] - 2.0_f64.sqrt()).abs() < 1e-15);
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            prop_assert!(grpo_passk(&returns, &groups, Deviation::Std, 1e-6).iter().all(|a| *a == 0.0));
        }
    }
}
