//! Advantage estimators: pure functions from rewards (and values) to advantages, in f64, without tensors.
//!
//! The formulas see either whole trajectories of one return each ([`grpo`], [`rloo`], [`opo`], …) or sequences of decisions,
//! which are steps or sampled tokens ([`gae`], [`gae_bilevel`], [`reinforce_pp`]), or steps with what they saw
//! ([`anchor_advantages`]), or trees ([`tree_advantages`]). [`Estimator`] chooses one by name and runs it over rows: the same for a training loop and a
//! script.

mod anchors;
mod estimator;
mod group;
mod over_rows;
mod parts;
mod sequence;
mod settings;
mod token_baseline;
mod tree;

pub use anchors::{Anchor, AnchoredStep, anchor_advantages, similarity};
pub use estimator::{Estimator, Level, Need};
pub use group::{
    Deviation, Ranking, gpg, group_normalized, grpo, grpo_passk, max_rl, opo, rapo, reinforce_pp_baseline, remax, rloo,
};
pub(super) use group::{mean_std, per_group};
pub use over_rows::Advantages;
pub use sequence::{Whiten, discounted_returns, gae, gae_bilevel, reinforce_pp, whiten, whiten_all};
pub use settings::{
    Gae, GaeBilevel, GaeToken, Gdpo, Gigpo, GigpoMode, Gpg, Grpo, MaxRl, Plain, Rapo, ReinforcePp, ReinforcePpBaseline,
    Remax, TokenBaseline, Tree,
};
pub use tree::{Leaf, tree_advantages};

use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;

/// Runs a group-relative estimator over the trajectories that count: failures are left out of the statistics and get
/// `None`, so that a broken tool never looks like a bad policy.
///
/// `estimate` takes returns (sums of step rewards) and group numbers, like [`grpo`].
///
/// # Errors
/// [`Kind::Numeric`] names the trajectory whose return is NaN or infinite.
pub fn excluding_failures(
    trajectories: &[Trajectory],
    estimate: impl FnOnce(&[f64], &[u64]) -> Vec<f64>,
) -> Result<Vec<Option<f64>>> {
    let counted: Vec<usize> = (0..trajectories.len()).filter(|&i| !trajectories[i].status.is_failure()).collect();
    let mut returns = Vec::with_capacity(counted.len());
    for &i in &counted {
        let total = trajectories[i].total_reward();
        if !total.is_finite() {
            return Err(Error::new(Kind::Numeric, format!("the rewards of a trajectory add up to {total}"))
                .at(format!("trajectory {}", trajectories[i].id))
                .hint("check `step` and `reward` for divisions by zero"));
        }
        returns.push(total);
    }
    let groups: Vec<u64> = counted.iter().map(|&i| trajectories[i].group).collect();
    let mut advantages = vec![None; trajectories.len()];
    for (&i, advantage) in counted.iter().zip(estimate(&returns, &groups)) {
        advantages[i] = Some(advantage);
    }
    Ok(advantages)
}
