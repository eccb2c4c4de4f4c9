//! Estimates of KL(policy || reference) from log-probabilities of sampled tokens, one per token.
//!
//! See <http://joschu.net/blog/kl-approx.html> for k1, k2 and k3.

use tch::Tensor;

use crate::error::Result;

/// Which estimate; d = `logp` - `logp_ref`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlKind {
    /// d: unbiased, noisy, may be negative.
    K1,
    /// |d|.
    Abs,
    /// d^2 / 2: biased, little noise; its gradient is an unbiased one of the KL on samples of the policy.
    K2,
    /// exp(-d) + d - 1: unbiased, never negative, less noise than k1.
    K3,
}

/// -d is kept within this before exp, as in verl.
const EXPONENT_LIMIT: f64 = 20.0;
/// And k3 itself within this.
const K3_LIMIT: f64 = 10.0;

/// KL per token `[N]`, with the gradient of the formula into `logp`.
///
/// `logp`, `logp_ref` `[N]`: log-probabilities of the sampled tokens under the policy and the reference. k3 bounds its
/// exponent to ±20 and its value to ±10, as verl does; beyond a bound the gradient is 0.
pub fn kl(logp: &Tensor, logp_ref: &Tensor, kind: KlKind) -> Result<Tensor> {
    let d = logp.f_sub(logp_ref)?;
    Ok(match kind {
        KlKind::K1 => d,
        KlKind::Abs => d.f_abs()?,
        KlKind::K2 => d.f_square()?.f_mul_scalar(0.5)?,
        KlKind::K3 => {
            let exponent = d.f_neg()?.f_clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)?;
            exponent.f_exp()?.f_sub(&exponent)?.f_sub_scalar(1.0)?.f_clamp(-K3_LIMIT, K3_LIMIT)?
        }
    })
}

/// The value of `kind` with the gradient of k2: the estimate for reading, an unbiased gradient for learning
/// (straight-through; verl's `k1+`, `k3+`).
pub fn kl_straight_through(logp: &Tensor, logp_ref: &Tensor, kind: KlKind) -> Result<Tensor> {
    let value = kl(logp, logp_ref, kind)?.f_detach()?;
    let gradient = kl(logp, logp_ref, KlKind::K2)?;
    Ok(gradient.f_sub(&gradient.f_detach()?)?.f_add(&value)?)
}
