//! CISPO: the gradient of every token, with a bounded weight (MiniMax-M1, arXiv:2506.13585).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::RatioSums;
use crate::error::Result;
use crate::rl::options::clip_range;

/// Options of CISPO: the range of the weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cispo {
    pub clip_low: f64,
    pub clip_high: f64,
}

impl LossFormula for Cispo {
    fn check(&self, loss: &str) -> Result<()> {
        clip_range(loss, self.clip_low, self.clip_high)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        cispo(tokens, self.clip_low, self.clip_high)
    }
}

/// CISPO (arXiv:2506.13585, eq. 4): `-sg(clip(rho, 1 - low, 1 + high)) A logp`: every token keeps a
/// gradient, with a bounded weight. `low = 1` means no lower bound; TRL's `epsilon_high` is `1 +
/// high`.
fn cispo(tokens: &Tokens<'_>, low: f64, high: f64) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.log_ratio()?;
    let ratio = log_ratio.f_detach()?.f_exp()?;
    let weight = ratio.f_clamp(1.0 - low, 1.0 + high)?;
    let loss = weight.f_mul(tokens.advantages)?.f_neg()?.f_mul(tokens.logp)?;
    let stats = RatioSums::with(&log_ratio, &ratio, &ratio.f_lt(1.0 - low)?, &ratio.f_gt(1.0 + high)?, None)?;
    Ok((loss, stats))
}
