//! Policy losses over sampled tokens, and the critic's loss.
//!
//! A formula takes log-probabilities gathered at the N sampled tokens and gives a loss for each and
//! statistics of the ratios; rho is `exp(logp - logp_old)`, A the advantage.
//! [`super::aggregate`] aggregates the losses to one number. Tokens that were not sampled are not
//! part of the input, so their gradient is exactly zero. Works in f32 and f64. Most losses are Lua
//! files (`lua/algorithms`), which `lua.rs` reads. `named.rs` lists all by name,
//! [`super::objective`] computes one.

mod formula;
mod lua;
mod named;
mod ppo;
mod ratios;
mod terms;
mod value;

pub use formula::Formula;
pub use lua::LuaLoss;
pub use named::{Loss, all, find, names};
pub use ppo::ppo_clip;
pub use ratios::{Clip, RatioStats, RatioSums};
pub(super) use ratios::{LOG_RATIO_LIMIT, OPEN};
pub(super) use terms::TERMS;
pub use terms::{Terms, Unit};
pub use value::{explained_variance, value_loss};
