//! Clip-Cov: no gradient for some tokens of high covariance (arXiv:2505.22617).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::covariance::clip_cov_selection;
use super::formula::{Extra, LossFormula, Tokens};
use super::ppo::ppo_clip;
use super::ratios::{Clip, RatioSums};
use crate::error::Result;
use crate::rl::options::{clip_range, from_zero_to_one};
use crate::rl::segments::ones_where;

/// Options of Clip-Cov.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClipCov {
    pub clip_low: f64,
    pub clip_high: f64,
    /// Share of tokens without gradient.
    pub share: f64,
    pub cov_low: f64,
    pub cov_high: f64,
    pub seed: u64,
}

impl ClipCov {
    fn clip(&self) -> Clip {
        Clip { low: self.clip_low, high: self.clip_high, dual: None }
    }
}

impl LossFormula for ClipCov {
    fn check(&self, loss: &str) -> Result<()> {
        clip_range(loss, self.clip_low, self.clip_high)?;
        from_zero_to_one(loss, "share", self.share)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, extra: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        clip_cov(tokens, self.clip(), extra.selected("clip_cov")?)
    }

    fn needs_whole_batch(&self) -> bool {
        true
    }

    fn select(&self, tokens: &Tokens<'_>) -> Result<Option<Tensor>> {
        let bounds = (self.cov_low, self.cov_high);
        clip_cov_selection(tokens, self.clip(), self.share, bounds, self.seed).map(Some)
    }
}

/// Clip-Cov: the PPO clip without the gradient of the `selected` tokens.
fn clip_cov(tokens: &Tokens<'_>, clip: Clip, selected: &Tensor) -> Result<(Tensor, RatioSums)> {
    let (loss, stats) = ppo_clip(tokens.logp, tokens.logp_old, tokens.advantages, clip)?;
    let kept = ones_where(&selected.f_logical_not()?, &loss)?;
    Ok((loss.f_mul(&kept)?, stats))
}
