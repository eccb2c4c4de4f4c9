//! KL-Cov: a penalty on the tokens of the highest covariance (arXiv:2505.22617).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::covariance::kl_cov_selection;
use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::{OPEN, RatioSums};
use crate::error::Result;
use crate::rl::options::{at_least_zero, from_zero_to_one};
use crate::rl::segments::ones_where;

/// Options of KL-Cov.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KlCov {
    /// Share of penalised tokens.
    pub share: f64,
    pub cov_coef: f64,
}

impl LossFormula for KlCov {
    fn check(&self, loss: &str) -> Result<()> {
        from_zero_to_one(loss, "share", self.share)?;
        at_least_zero(loss, "cov_coef", self.cov_coef)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, extra: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        kl_cov(tokens, self.cov_coef, extra.selected("kl_cov")?)
    }

    fn needs_whole_batch(&self) -> bool {
        true
    }

    fn select(&self, tokens: &Tokens<'_>) -> Result<Option<Tensor>> {
        kl_cov_selection(tokens, self.share).map(Some)
    }

    fn trains_without_advantage(&self) -> bool {
        true
    }
}

/// KL-Cov: `-A rho`, plus `coef |logp - logp_old|` on the `selected` tokens.
fn kl_cov(tokens: &Tokens<'_>, coef: f64, selected: &Tensor) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.log_ratio()?;
    let ratio = log_ratio.f_exp()?;
    let penalty = log_ratio.f_abs()?.f_mul_scalar(coef)?.f_mul(&ones_where(selected, &ratio)?)?;
    let stats = RatioSums::of(&log_ratio, &ratio, tokens.advantages, OPEN)?;
    Ok((tokens.advantages.f_neg()?.f_mul(&ratio)?.f_add(&penalty)?, stats))
}
