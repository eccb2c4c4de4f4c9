//! ReMax: the return minus that of a greedy rollout of the same task (arXiv:2310.10505).

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, Level, Need};
use super::reinforce_pp::discounted_returns;
use super::result::Advantages;
use super::trajectories::ComparedTrajectories;
use crate::error::Result;
use crate::rl::rows::Path;

/// ReMax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Remax {
    /// A token's advantage uses the rewards from the token on, instead of all rewards (verl).
    pub reward_to_go: bool,
}

impl AdvantageEstimator for Remax {
    fn needs(&self) -> &'static [Need] {
        &[Need::Greedy]
    }

    fn level(&self) -> Level {
        if self.reward_to_go { Level::Token } else { Level::Trajectory }
    }

    fn estimate(&self, given: &ComparedTrajectories<'_>, found: &mut Advantages) -> Result<()> {
        // A group whose greedy baseline failed has no advantages.
        let mut compared = Vec::with_capacity(given.paths.len());
        let mut baselines = Vec::with_capacity(given.paths.len());
        for path in &given.paths {
            let mut own = given.batch.paths.iter().filter(|other| other.greedy && other.group == path.group);
            match (own.next(), own.next()) {
                (Some(baseline), None) if baseline.failed => {}
                (Some(baseline), None) => {
                    compared.push(*path);
                    baselines.push(baseline.total);
                }
                (None, _) => return Err(given.missing(path, "its group has no greedy baseline")),
                _ => return Err(given.missing(path, "its group has more than one greedy baseline")),
            }
        }
        let returns: Vec<f64> = compared.iter().map(|path| path.total).collect();
        if self.reward_to_go {
            let to_go = |(path, baseline): (&&Path, &f64)| {
                discounted_returns(&given.batch.token_rewards(path), 1.0).into_iter().map(|r| r - baseline).collect()
            };
            let tokens: Vec<Vec<f64>> = compared.iter().zip(&baselines).map(to_go).collect();
            found.put_tokens(&given.only(compared), &tokens);
        } else {
            found.put_trajectories(&given.only(compared), &remax(&returns, &baselines));
        }
        Ok(())
    }
}

/// ReMax (arXiv:2310.10505): the return minus that of one greedy rollout of the same task,
/// `greedy[i]` for trajectory i.
pub fn remax(returns: &[f64], greedy: &[f64]) -> Vec<f64> {
    returns.iter().zip(greedy).map(|(own, greedy)| own - greedy).collect()
}
