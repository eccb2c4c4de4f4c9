//! Advantage estimators: pure functions from rewards (and values) to advantages, in f64, without
//! tensors.
//!
//! Each estimator has a file with its options, its formula, and its reading of the rows.
//! [`Estimator`] selects one by name, for training loops and scripts. The formulas take whole
//! trajectories with one return each ([`group_normalized`], [`rloo()`], [`opo()`], …), sequences of
//! decisions, which are steps or sampled tokens ([`gae()`], [`gae_bilevel`], [`reinforce_pp()`]),
//! steps with their observations ([`anchor_advantages`]), or trees ([`tree_advantages`]).
//! `returns`, `groups` and `tokens` have one entry per trajectory: the sum of its rewards, the
//! number of its group, and its number of sampled tokens.

mod estimator;
mod gae;
mod gdpo;
mod gigpo;
mod gpg;
mod grpo;
mod grpo_passk;
mod max_rl;
mod named;
mod opo;
mod rapo;
mod reinforce_pp;
mod remax;
mod result;
mod rloo;
mod similarity;
mod statistics;
mod token_baseline;
mod trajectories;
mod tree;
mod whiten;

pub use estimator::{Level, Need};
pub use gae::{gae, gae_bilevel};
pub use gigpo::{Anchor, AnchoredStep, anchor_advantages};
pub use gpg::gpg;
pub use grpo::group_normalized;
pub use grpo_passk::grpo_passk;
pub use max_rl::max_rl;
pub use named::Estimator;
pub use opo::opo;
pub use rapo::{Ranking, rapo};
pub use reinforce_pp::{discounted_returns, reinforce_pp, reinforce_pp_baseline};
pub use remax::remax;
pub use result::Advantages;
pub use rloo::rloo;
pub use similarity::similarity;
pub use statistics::Deviation;
pub(super) use statistics::{mean_std, per_group};
pub use tree::{Leaf, tree_advantages};
pub use whiten::{Whiten, whiten, whiten_all};
