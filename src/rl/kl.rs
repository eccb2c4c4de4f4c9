//! Estimates of KL(policy || reference) from log-probabilities of sampled tokens, one per token.
//!
//! See <http://joschu.net/blog/kl-approx.html> for k1, k2 and k3.

use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use crate::config::KlKind;
use crate::error::Result;

/// -d is clamped to this before exp, as in verl.
const EXPONENT_LIMIT: f64 = 20.0;
/// k3 itself is clamped to this.
const K3_LIMIT: f64 = 10.0;

/// KL per token `[N]`, with the gradient of the formula into `logp`.
///
/// `logp`, `logp_ref` `[N]`: log-probabilities of the sampled tokens under the policy and the
/// reference. k3 bounds its exponent to ±20 and its value to ±10, as verl does; beyond a bound the
/// gradient is 0.
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

/// The KL of one token from d = `logp` - `logp_ref`: [`kl`] without tensors, for penalties in the
/// reward.
pub fn kl_value(d: f64, kind: KlKind) -> f64 {
    match kind {
        KlKind::K1 => d,
        KlKind::Abs => d.abs(),
        KlKind::K2 => 0.5 * d * d,
        KlKind::K3 => {
            let exponent = (-d).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT);
            (exponent.exp() - exponent - 1.0).clamp(-K3_LIMIT, K3_LIMIT)
        }
    }
}

/// The value of `kind` with the gradient of k2: this estimate is logged, with an unbiased gradient
/// (straight-through; verl's `k1+`, `k3+`).
pub fn kl_straight_through(logp: &Tensor, logp_ref: &Tensor, kind: KlKind) -> Result<Tensor> {
    let value = kl(logp, logp_ref, kind)?.f_detach()?;
    let gradient = kl(logp, logp_ref, KlKind::K2)?;
    Ok(gradient.f_sub(&gradient.f_detach()?)?.f_add(&value)?)
}

/// The coefficient of a KL penalty over a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum KlController {
    Fixed {
        coef: f64,
    },
    /// Follows a target (arXiv:1909.08593, section 2.2).
    Adaptive {
        coef: f64,
        target: f64,
        /// A larger number adapts more slowly; 10000 is usual.
        horizon: f64,
    },
}

impl KlController {
    pub fn coef(&self) -> f64 {
        match *self {
            Self::Fixed { coef } | Self::Adaptive { coef, .. } => coef,
        }
    }

    /// Updates the coefficient with the mean KL of `trajectories` trajectories: `coef *= 1 +
    /// clip(kl / target - 1, -0.2, 0.2) n / horizon`.
    pub fn update(&mut self, kl: f64, trajectories: usize) {
        if let Self::Adaptive { coef, target, horizon } = self {
            let error = (kl / *target - 1.0).clamp(-0.2, 0.2);
            *coef *= 1.0 + error * trajectories as f64 / *horizon;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;

    const KINDS: [KlKind; 4] = [KlKind::K1, KlKind::Abs, KlKind::K2, KlKind::K3];

    /// Value and gradient at the difference `d`.
    fn at(d: f64, estimate: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> (f64, f64) {
        let logp = Tensor::from_slice(&[d]).set_requires_grad(true);
        let value = estimate(&logp, &Tensor::from_slice(&[0.0])).unwrap();
        value.backward();
        (value.double_value(&[0]), logp.grad().double_value(&[0]))
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for kind in KINDS {
            for d in [-1.3, -0.2, 0.4, 1.7] {
                let estimate = |logp: &Tensor, logp_ref: &Tensor| kl(logp, logp_ref, kind);
                let numeric = (at(d + 1e-6, estimate).0 - at(d - 1e-6, estimate).0) / 2e-6;
                assert!((at(d, estimate).1 - numeric).abs() < 1e-8, "{kind:?} {d}");
            }
        }
    }

    #[test]
    fn equal_policies_have_zero_kl() {
        for kind in KINDS {
            assert_eq!(at(0.0, |logp, logp_ref| kl(logp, logp_ref, kind)).0, 0.0, "{kind:?}");
        }
    }

    #[test]
    fn kl_of_plain_numbers_equals_kl_of_tensors() {
        for kind in KINDS {
            for d in [-30.0, -1.3, 0.0, 0.4, 25.0] {
                assert_eq!(kl_value(d, kind), at(d, |logp, logp_ref| kl(logp, logp_ref, kind)).0, "{kind:?} {d}");
            }
        }
    }

    #[test]
    fn the_kl_controller_follows_its_target() {
        let mut fixed = KlController::Fixed { coef: 0.1 };
        fixed.update(5.0, 100);
        assert_eq!(fixed.coef(), 0.1);
        let mut adaptive = KlController::Adaptive { coef: 0.1, target: 2.0, horizon: 1000.0 };
        adaptive.update(2.2, 100); // 10% over
        assert!((adaptive.coef() - 0.101).abs() < 1e-15);
        adaptive.update(0.0, 500); // bounded to -20%
        assert!((adaptive.coef() - 0.101 * 0.9).abs() < 1e-15);
    }

    #[test]
    fn k3_stays_bounded() {
        let (value, gradient) = at(-500.0, |logp, logp_ref| kl(logp, logp_ref, KlKind::K3));
        assert_eq!((value, gradient), (10.0, 0.0));
    }

    #[test]
    fn straight_through_has_the_value_of_one_and_the_gradient_of_k2() {
        for kind in KINDS {
            let (value, gradient) = at(0.4, |logp, logp_ref| kl_straight_through(logp, logp_ref, kind));
            assert_eq!(value, at(0.4, |logp, logp_ref| kl(logp, logp_ref, kind)).0, "{kind:?}");
            assert_eq!(gradient, 0.4, "{kind:?}");
        }
    }
}
