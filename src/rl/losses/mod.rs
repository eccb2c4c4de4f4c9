//! Policy losses over sampled tokens, one file each, and the critic's loss.
//!
//! A formula takes log-probabilities gathered at the N sampled tokens ([`Tokens`]) and gives a loss
//! for each and statistics of the ratios; rho is `exp(logp - logp_old)`, A the advantage.
//! [`super::aggregate`] aggregates the losses to one number. Tokens that were not sampled are not
//! part of the input, so their gradient is exactly zero. Works in f32 and f64. `named.rs` lists the
//! losses by name, [`super::objective`] computes one.

mod cispo;
mod clip_cov;
mod covariance;
mod dppo;
mod dro;
mod formula;
mod geo_mean;
mod gspo;
mod kl_cov;
mod named;
mod ppo;
mod ratios;
mod reinforce;
mod sapo;
mod terms;
#[cfg(test)]
mod testing;
mod value;
mod vespo;

pub(super) use formula::Custom;
pub use formula::{Extra, LossFormula, LossOptions, Tokens};
pub use gspo::gspo;
pub use named::{LOSSES, Loss};
pub use ppo::ppo_clip;
pub(super) use ratios::LOG_RATIO_LIMIT;
pub use ratios::{Clip, RatioStats, RatioSums};
pub use reinforce::reinforce;
pub(super) use terms::TERMS;
pub use terms::{Terms, Unit};
pub use value::{explained_variance, value_loss};
