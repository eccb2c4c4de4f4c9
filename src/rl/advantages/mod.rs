//! Advantage estimators: pure functions from rewards (and values) to advantages, in f64, without
//! tensors.
//!
//! GRPO and the GAE estimators are here, a file each with its options, its formula, and its reading
//! of the rows. The others are functions of Lua files (`lua/algorithms`), which `lua.rs` calls.
//! [`Estimator`] selects one by name, for training loops and scripts. The formulas here take whole
//! trajectories with one return each ([`group_normalized`]), or sequences of decisions, which are
//! steps or sampled tokens ([`gae()`], [`gae_bilevel`]). `returns` and `groups` have one entry per
//! trajectory: the sum of its rewards, and the number of its group.

mod gae;
mod grpo;
mod lua;
mod named;
mod result;
mod statistics;
mod whiten;

pub use crate::algorithms::{AlgorithmNeed, Level};
pub use gae::{gae, gae_bilevel};
pub use grpo::group_normalized;
pub use lua::AdvantageFunction;
pub use named::Estimator;
pub use result::Advantages;
pub use statistics::Deviation;
pub(super) use statistics::{mean_std, per_group};
pub use whiten::{Whiten, whiten, whiten_all};
