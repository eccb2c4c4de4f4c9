//! REINFORCE++ (arXiv:2501.03262), and its form with a group baseline.

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Level, Need};
use super::grpo::group_normalized;
use super::result::Advantages;
use super::statistics::Deviation;
use super::trajectories::ComparedTrajectories;
use super::whiten::{Whiten, whiten_all, whiten_weighted};
use crate::error::Result;
use crate::rl::options::from_zero_to_one;

/// REINFORCE++ over token rewards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ReinforcePp {
    pub gamma: f64,
    pub whiten: Whiten,
}

impl Default for ReinforcePp {
    fn default() -> Self {
        Self { gamma: 1.0, whiten: Whiten::Variance }
    }
}

impl AdvantageEstimator for ReinforcePp {
    fn needs(&self) -> &'static [Need] {
        &[]
    }

    fn level(&self) -> Level {
        Level::Token
    }

    fn check(&self, name: &str) -> Result<()> {
        from_zero_to_one(name, "gamma", self.gamma)
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let rewards: Vec<Vec<f64>> = given.paths.iter().map(|path| given.batch.token_rewards(path)).collect();
        found.put_tokens(given, &reinforce_pp(&rewards, self.gamma, self.whiten));
        Ok(())
    }
}

/// REINFORCE++ with a group baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ReinforcePpBaseline {
    pub whiten: Whiten,
}

impl Default for ReinforcePpBaseline {
    fn default() -> Self {
        Self { whiten: Whiten::Variance }
    }
}

impl AdvantageEstimator for ReinforcePpBaseline {
    fn needs(&self) -> &'static [Need] {
        &[Need::Groups]
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        let (returns, groups, tokens) = (given.returns(), given.groups(), given.tokens());
        found.put_trajectories(given, &reinforce_pp_baseline(&returns, &groups, &tokens, self.whiten));
        Ok(())
    }
}

/// `G_t = r_t + gamma G_{t+1}` along one trajectory.
pub fn discounted_returns(rewards: &[f64], gamma: f64) -> Vec<f64> {
    let mut returns = rewards.to_vec();
    for t in (0..returns.len().saturating_sub(1)).rev() {
        returns[t] += gamma * returns[t + 1];
    }
    returns
}

/// REINFORCE++ (arXiv:2501.03262): the discounted returns of sampled tokens, whitened over the
/// batch.
///
/// `rewards` has a list per trajectory with an entry per sampled token.
pub fn reinforce_pp(rewards: &[Vec<f64>], gamma: f64, whiten: Whiten) -> Vec<Vec<f64>> {
    let returns: Vec<Vec<f64>> = rewards.iter().map(|rewards| discounted_returns(rewards, gamma)).collect();
    whiten_all(&returns, whiten)
}

/// REINFORCE++ with a group baseline (arXiv:2501.03262): `S - mean` of the group, whitened over the
/// sampled tokens of the batch, so that the weight of a trajectory in the statistics is its number
/// of `tokens`. A group of one has mean 0.
pub fn reinforce_pp_baseline(returns: &[f64], groups: &[u64], tokens: &[usize], whiten: Whiten) -> Vec<f64> {
    let centred = group_normalized(returns, groups, Deviation::None, 0.0);
    let weights: Vec<f64> = tokens.iter().map(|&tokens| tokens as f64).collect();
    whiten_weighted(&centred, &weights, whiten)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;
    use crate::rl::advantages::whiten;

    #[test]
    fn returns_are_discounted_from_the_end() {
        assert_eq!(discounted_returns(&[1.0, 0.0, 4.0], 0.5), [2.0, 2.0, 4.0]);
        assert!(discounted_returns(&[], 0.5).is_empty());
    }

    #[test]
    fn reinforce_pp_whitens_over_the_whole_batch() {
        let got = reinforce_pp(&[vec![0.0, 1.0], vec![], vec![4.0]], 0.5, Whiten::Std);
        let want = whiten(&[0.5, 1.0, 4.0], Whiten::Std);
        assert_eq!(got, [want[..2].to_vec(), vec![], want[2..].to_vec()]);
    }

    #[test]
    fn reinforce_pp_baseline_is_whitened_over_tokens() {
        let (returns, groups, tokens) = ([3.0, 1.0, 0.5, 2.0], [0, 0, 1, 1], [1, 2, 4, 3]);
        let centred = [1.0, -1.0, -0.75, 0.75];
        let each_token: Vec<f64> = centred.iter().zip(tokens).flat_map(|(&a, n)| vec![a; n]).collect();
        for how in [Whiten::Std, Whiten::Variance, Whiten::None] {
            let want = whiten(&each_token, how);
            let got = reinforce_pp_baseline(&returns, &groups, &tokens, how);
            for (i, place) in [0, 1, 3, 7].into_iter().enumerate() {
                assert!((got[i] - want[place]).abs() < 1e-14, "{how:?} {i}");
            }
        }
    }

    proptest! {
        #[test]
        fn equal_returns_have_advantages_of_exactly_zero(value in -1e3..1e3_f64, n in 2..40_usize) {
            let (returns, groups) = (vec![value; n], vec![1; n]);
            let tokens: Vec<usize> = (0..n).map(|i| 3 * i + 1).collect();
            for whiten in [Whiten::Std, Whiten::Variance, Whiten::None] {
                let all = reinforce_pp_baseline(&returns, &groups, &tokens, whiten);
                prop_assert!(all.iter().all(|a| *a == 0.0));
            }
        }
    }
}
