//! VESPO: sequences weighted by a gamma form of their ratio (arXiv:2602.10693).

use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad_guard};

use super::formula::{Extra, LossFormula, Tokens};
use super::ratios::{LOG_RATIO_LIMIT, OPEN, RatioSums};
use crate::error::Result;
use crate::rl::options::at_least_zero;

/// Options of VESPO: the weight of a sequence by its ratio w, `phi(w) = e^lambda w^k e^(-lambda
/// w)`, which is 1 at w = 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Vespo {
    /// Exponent for tokens whose advantage is at least 0: the rate at which sequences that have
    /// become unlikely lose weight.
    pub k_pos: f64,
    /// Decay for the same: the rate at which sequences that have become likely lose weight.
    pub lambda_pos: f64,
    /// For tokens with a negative advantage.
    pub k_neg: f64,
    pub lambda_neg: f64,
}

impl LossFormula for Vespo {
    fn check(&self, loss: &str) -> Result<()> {
        let options = [
            ("k_pos", self.k_pos),
            ("lambda_pos", self.lambda_pos),
            ("k_neg", self.k_neg),
            ("lambda_neg", self.lambda_neg),
        ];
        options.into_iter().try_for_each(|(name, value)| at_least_zero(loss, name, value))
    }

    fn token_loss(&self, tokens: &Tokens<'_>, extra: &Extra<'_>) -> Result<(Tensor, RatioSums)> {
        vespo(tokens, extra.weights, *self)
    }

    fn compares_sequences(&self) -> bool {
        true
    }

    /// The off-policy weights are part of the sequence's ratio.
    fn applies_weights(&self) -> bool {
        true
    }
}

/// VESPO (arXiv:2602.10693): `-sg(phi(w)) A logp`, with w the ratio of the whole sequence, the
/// product of its token ratios (and of its off-policy `weights` `[N]`), its logarithm clamped to
/// [ln 1e-8, 20].
fn vespo(tokens: &Tokens<'_>, weights: Option<&Tensor>, options: Vespo) -> Result<(Tensor, RatioSums)> {
    const LEAST: f64 = 1e-8;
    let log_ratio = tokens.log_ratio()?;
    let phi = {
        let _guard = no_grad_guard();
        let segments = tokens.segments();
        let mut log_w = segments.sum(&log_ratio)?;
        if let Some(weights) = weights {
            let log_weights = weights.f_clamp_min(LEAST)?.f_log()?.f_clamp_max(LOG_RATIO_LIMIT)?;
            log_w = log_w.f_add(&segments.sum(&log_weights)?)?;
        }
        let log_w = segments.spread(&log_w.f_clamp(LEAST.ln(), LOG_RATIO_LIMIT)?)?;
        let of = |k: f64, lambda: f64| -> Result<Tensor> {
            let lambda = lambda.max(1e-4);
            Ok(log_w.f_mul_scalar(k)?.f_sub(&log_w.f_exp()?.f_mul_scalar(lambda)?)?.f_add_scalar(lambda)?.f_exp()?)
        };
        let loses = tokens.advantages.f_lt(0.0)?;
        of(options.k_neg, options.lambda_neg)?.f_where_self(&loses, &of(options.k_pos, options.lambda_pos)?)?
    };
    let stats = RatioSums::of(&log_ratio, &log_ratio.f_exp()?, tokens.advantages, OPEN)?;
    Ok((phi.f_mul(tokens.advantages)?.f_neg()?.f_mul(tokens.logp)?, stats))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{at, close};
    use super::*;

    #[test]
    fn vespo_weighs_whole_sequences_by_a_gamma_form() {
        let options = Vespo { k_pos: 2.0, lambda_pos: 3.0, k_neg: 1.0, lambda_neg: 0.5 };
        let phi = |w: f64, k: f64, lambda: f64| lambda.exp() * w.powf(k) * (-lambda * w).exp();
        let (first, second) = (0.75_f64.exp(), (-0.25_f64).exp());
        let (_, gradient) = at([0.5, 0.25, -0.25], [2.0, 2.0, -1.0], |tokens| vespo(tokens, None, options));
        let positive = phi(first, 2.0, 3.0);
        close(&gradient, [-2.0 * positive, -2.0 * positive, phi(second, 1.0, 0.5)]);
        // On policy it is REINFORCE.
        close(&at([0.0; 3], [2.0, 2.0, -1.0], |tokens| vespo(tokens, None, options)).1, [-2.0, -2.0, 1.0]);
        // Off-policy weights are factors of the ratio.
        let weights = Tensor::from_slice(&[1.5, 1.0, 0.5]);
        let (_, gradient) = at([0.0; 3], [2.0, 2.0, -1.0], |tokens| vespo(tokens, Some(&weights), options));
        let positive = phi(1.5, 2.0, 3.0);
        close(&gradient, [-2.0 * positive, -2.0 * positive, phi(0.5, 1.0, 0.5)]);
    }
}
