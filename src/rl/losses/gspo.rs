//! GSPO: the PPO clip on the ratio of a whole sequence (arXiv:2507.18071). LUSPO
//! (arXiv:2602.05261) is GSPO with every sequence weighted by its length.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::{Clip, RatioSums};
use crate::error::Result;
use crate::rl::options::clip_range;

/// Options of GSPO: the clip range of the sequence ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Gspo {
    pub clip_low: f64,
    pub clip_high: f64,
}

impl LossFormula for Gspo {
    fn check(&self, loss: &str) -> Result<()> {
        clip_range(loss, self.clip_low, self.clip_high)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        gspo(tokens, self.clip_low, self.clip_high)
    }

    fn compares_sequences(&self) -> bool {
        true
    }

    fn one_advantage_per_sequence(&self) -> bool {
        true
    }
}

/// GSPO (arXiv:2507.18071, eq. 5 and the token form of eq. 14): the PPO clip on the sequence ratio
/// `s = exp(mean of logp - logp_old)`, straight-through to tokens: `sg(s) pi / sg(pi)`. Aggregate
/// by seq-mean-token-mean.
pub fn gspo(tokens: &Tokens<'_>, low: f64, high: f64) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.logp.f_sub(tokens.logp_old)?;
    let segments = tokens.segments();
    let of_sequence = segments.spread(&segments.mean(&log_ratio.f_detach()?)?)?;
    let through = tokens.logp.f_sub(&tokens.logp.f_detach()?)?;
    let ratio = through.f_add(&of_sequence)?.f_clamp_max(10.0)?.f_exp()?;
    let push = tokens.advantages.f_neg()?;
    let loss = push.f_mul(&ratio)?.f_maximum(&push.f_mul(&ratio.f_clamp(1.0 - low, 1.0 + high)?)?)?;
    let stats = RatioSums::of(&log_ratio, &ratio, tokens.advantages, Clip { low, high, dual: None })?;
    Ok((loss, stats))
}
