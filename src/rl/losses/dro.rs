//! DRO: a policy gradient with a squared penalty (arXiv:2405.19107).

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::{OPEN, RatioSums};
use crate::error::Result;
use crate::rl::options::at_least;

/// Options of DRO.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Dro {
    /// Weight of half the squared log ratio.
    pub beta: f64,
}

impl LossFormula for Dro {
    fn check(&self, loss: &str) -> Result<()> {
        at_least(loss, "beta", self.beta, f64::MIN_POSITIVE)
    }

    fn token_loss(&self, tokens: &Tokens<'_>, _: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        dro(tokens, self.beta)
    }

    fn trains_without_advantage(&self) -> bool {
        true
    }
}

/// DRO (direct reward optimisation, arXiv:2405.19107) in verl's form: `-(A logp - beta / 2 (logp -
/// logp_old)^2)`. The square keeps the policy near the behaviour policy, also at tokens with
/// advantage 0.
fn dro(tokens: &Tokens<'_>, beta: f64) -> Result<(Tensor, RatioSums)> {
    let log_ratio = tokens.logp.f_sub(tokens.logp_old)?;
    let penalty = log_ratio.f_square()?.f_mul_scalar(0.5 * beta)?;
    let clamped = tokens.log_ratio()?;
    let stats = RatioSums::of(&clamped, &clamped.f_exp()?, tokens.advantages, OPEN)?;
    Ok((penalty.f_sub(&tokens.advantages.f_mul(tokens.logp)?)?, stats))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{at, close};
    use super::*;

    #[test]
    fn dro_is_a_policy_gradient_with_a_square() {
        let (loss, gradient) = at([0.5, 0.0, -0.25], [2.0, -1.0, 0.0], |tokens| dro(tokens, 0.8));
        close(&loss, [-(2.0 * -0.5) + 0.4 * 0.25, -2.0, 0.4 * 0.0625]);
        close(&gradient, [-2.0 + 0.8 * 0.5, 1.0, 0.8 * -0.25]);
    }
}
