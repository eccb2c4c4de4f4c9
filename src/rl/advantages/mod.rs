//! Advantage estimators: pure functions from rewards (and values) to advantages, in f64, without tensors.
//!
//! An estimator sees either whole trajectories of one return each ([`grpo`], [`rloo`], [`opo`],
//! [`reinforce_pp_baseline`]) or sequences of decisions, which are steps or sampled tokens ([`gae`], [`reinforce_pp`]).
//! Spreading the result over sampled tokens is the packer's work ([`super::pack::MicroBatch::new`]).

mod group;
mod sequence;

pub use group::{grpo, opo, reinforce_pp_baseline, rloo};
pub use sequence::{discounted_returns, gae, reinforce_pp, whiten};

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
