//! GMPO: the geometric mean of the token ratios of a sequence (arXiv:2507.20673).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::RatioSums;
use crate::error::Result;
use crate::rl::options::at_least_zero;
use crate::rl::segments::Segments;

/// Options of GMPO: the clip range of a log ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GeoMean {
    pub clip_low: f64,
    pub clip_high: f64,
}

impl LossFormula for GeoMean {
    fn check(&self, loss: &str) -> Result<()> {
        at_least_zero(loss, "clip_low", self.clip_low)?;
        at_least_zero(loss, "clip_high", self.clip_high)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        geo_mean(tokens, self.clip_low, self.clip_high)
    }

    fn compares_sequences(&self) -> bool {
        true
    }

    fn one_advantage_per_sequence(&self) -> bool {
        true
    }

    /// The geometric mean of the weights over the sequence, which shares one loss.
    fn weights(&self, weights: &Tensor, segments: &Segments) -> Result<Tensor> {
        segments.spread(&segments.mean(&weights.f_add_scalar(1e-10)?.f_log()?)?.f_exp()?)
    }
}

/// GMPO (arXiv:2507.20673, eq. 4): `-A` times the geometric mean of the token ratios, each clipped
/// in log space to `[-low, high]` in the direction of its advantage. The whole sequence's loss is
/// repeated at each of its tokens, so aggregate by seq-mean-token-mean. A is the mean over the
/// sequence.
fn geo_mean(tokens: &Tokens<'_>, low: f64, high: f64) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.logp.f_sub(tokens.logp_old)?;
    let sign = tokens.advantages.f_sign()?;
    let clamped = log_ratio.f_clamp(-low, high)?;
    let kept = sign.f_mul(&log_ratio)?.f_minimum(&sign.f_mul(&clamped)?)?.f_mul(&sign)?;
    let segments = tokens.segments();
    let ratio = segments.mean(&kept)?.f_exp()?;
    let loss = segments.mean(tokens.advantages)?.f_neg()?.f_mul(&ratio)?;
    let outside = log_ratio.f_detach()?.f_ne_tensor(&clamped.f_detach()?)?;
    let clipped = |side: Tensor| -> Result<Tensor> { Ok(outside.f_logical_and(&side)?) };
    let stats = RatioSums::with(
        &log_ratio,
        &log_ratio.f_exp()?,
        &clipped(tokens.advantages.f_lt(0.0)?)?,
        &clipped(tokens.advantages.f_gt(0.0)?)?,
        None,
    )?;
    Ok((segments.spread(&loss)?, stats))
}
