//! SAPO: a soft gate instead of a clip (arXiv:2511.20347).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::{OPEN, RatioSums};
use crate::error::Result;
use crate::rl::options::at_least;
use crate::rl::segments::ones_where;

/// Options of SAPO: the temperature of the gate by the sign of the advantage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sapo {
    pub tau_pos: f64,
    pub tau_neg: f64,
}

impl LossFormula for Sapo {
    fn check(&self, loss: &str) -> Result<()> {
        at_least(loss, "tau_pos", self.tau_pos, f64::MIN_POSITIVE)?;
        at_least(loss, "tau_neg", self.tau_neg, f64::MIN_POSITIVE)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        sapo(tokens, self.tau_pos, self.tau_neg)
    }
}

/// SAPO (arXiv:2511.20347): a soft gate instead of a clip, `-A sigmoid(tau (rho - 1)) 4 / tau`, tau
/// by the sign of A. Aggregate by seq-mean-token-mean.
fn sapo(tokens: &Tokens<'_>, tau_pos: f64, tau_neg: f64) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.log_ratio()?;
    let ratio = log_ratio.f_exp()?;
    let wins = ones_where(&tokens.advantages.f_gt(0.0)?, &ratio)?;
    let tau = wins.f_mul_scalar(tau_pos - tau_neg)?.f_add_scalar(tau_neg)?;
    let gate = ratio.f_sub_scalar(1.0)?.f_mul(&tau)?.f_sigmoid()?.f_mul_scalar(4.0)?.f_div(&tau)?;
    let stats = RatioSums::of(&log_ratio, &ratio, tokens.advantages, OPEN)?;
    Ok((gate.f_mul(tokens.advantages)?.f_neg()?, stats))
}
