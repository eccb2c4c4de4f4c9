//! DPPO: a trust region in probabilities instead of ratios (arXiv:2602.04879).

use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad_guard};

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::RatioSums;
use crate::error::Result;
use crate::rl::options::{at_least, at_least_zero};
use crate::rl::segments::ones_where;

/// Options of DPPO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Dppo {
    pub clip_low: f64,
    pub clip_high: f64,
    /// Maximum ratio as the weight of a token.
    pub truncate: f64,
}

impl Dppo {
    fn check(&self, loss: &str) -> Result<()> {
        at_least_zero(loss, "clip_low", self.clip_low)?;
        at_least_zero(loss, "clip_high", self.clip_high)?;
        at_least(loss, "truncate", self.truncate, f64::MIN_POSITIVE)
    }
}

/// DPPO with the total variation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DppoTv(pub Dppo);

/// DPPO with the KL divergence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DppoKl(pub Dppo);

impl LossFormula for DppoTv {
    fn check(&self, loss: &str) -> Result<()> {
        self.0.check(loss)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        dppo(tokens, Divergence::Tv, self.0)
    }
}

impl LossFormula for DppoKl {
    fn check(&self, loss: &str) -> Result<()> {
        self.0.check(loss)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        dppo(tokens, Divergence::Kl, self.0)
    }
}

/// The divergence of the behaviour and the current policy at a sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divergence {
    /// `p - p_old`: total variation between "this token" and "another".
    Tv,
    /// The KL divergence of the same two Bernoulli distributions.
    Kl,
}

/// DPPO (arXiv:2602.04879): `-A sg(min(rho, truncate)) logp` on tokens inside the trust region, 0
/// on tokens that A pushes further out of it: those whose probability has risen by a divergence
/// over `high` (A > 0), or fallen by one over `low`.
fn dppo(tokens: &Tokens<'_>, divergence: Divergence, options: Dppo) -> Result<(Tensor, RatioSums)> {
    let Dppo { clip_low: low, clip_high: high, truncate } = options;
    let log_ratio = tokens.log_ratio()?;
    let (outside_low, outside_high) = {
        let _guard = no_grad_guard();
        let (p, p_old) = (tokens.logp.f_exp()?, tokens.logp_old.f_exp()?);
        let (fallen, risen) = match divergence {
            Divergence::Tv => {
                let moved = p.f_sub(&p_old)?;
                (moved.f_lt(-low)?, moved.f_gt(high)?)
            }
            Divergence::Kl => {
                let rest = |p: &Tensor| -> Result<Tensor> { Ok(p.f_neg()?.f_add_scalar(1.0)?) };
                let here = p_old.f_mul(&tokens.logp_old.f_sub(tokens.logp)?)?;
                let others = rest(&p_old)?.f_add_scalar(1e-8)?.f_div(&rest(&p)?.f_add_scalar(1e-8)?)?.f_log()?;
                let kl = here.f_add(&rest(&p_old)?.f_mul(&others)?)?;
                (
                    kl.f_gt(low)?.f_logical_and(&p.f_lt_tensor(&p_old)?)?,
                    kl.f_gt(high)?.f_logical_and(&p.f_gt_tensor(&p_old)?)?,
                )
            }
        };
        let wins = tokens.advantages.f_gt(0.0)?;
        (fallen.f_logical_and(&wins.f_logical_not()?)?, risen.f_logical_and(&wins)?)
    };
    let ratio = log_ratio.f_detach()?.f_exp()?;
    let inside = ones_where(&outside_low.f_logical_or(&outside_high)?.f_logical_not()?, &ratio)?;
    let weight = ratio.f_clamp_max(truncate)?.f_mul(&inside)?.f_mul(tokens.advantages)?.f_neg()?;
    let stats = RatioSums::with(&log_ratio, &ratio, &outside_low, &outside_high, None)?;
    Ok((weight.f_mul(tokens.logp)?, stats))
}
