//! Off-policy corrections, for rollouts whose sampler and learner differ in weights or arithmetic.
//!
//! The log ratio is always `logp_old - logp_rollout`: the learner's log-probability at the start of
//! the update minus the sampler's, at every sampled token. Weights multiply token losses and have
//! no gradient. They are known before the first update, so they are computed once for the whole
//! mini-batch: a sequence is a trajectory or a step, as the caller numbers it.

use tch::{Kind, Tensor, no_grad_guard};

use super::segments::{Segments, count, ones_where};
pub use crate::config::{Estimate, Importance, Measure, Rejection, Scope};
use crate::error::{Error, Kind as ErrorKind, Result};

/// Log ratios are clamped to this before exp.
const LIMIT: f64 = 20.0;

impl Importance {
    /// Refuses invalid bounds.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for bounds that are not positive or in the wrong order.
    pub fn check(&self) -> Result<()> {
        let floor = self.floor.unwrap_or(f64::MIN_POSITIVE);
        if self.cap > 0.0 && floor > 0.0 && floor <= self.cap {
            return Ok(());
        }
        let message = format!("importance weights need 0 < floor <= cap, not {:?} and {}", self.floor, self.cap);
        Err(Error::new(ErrorKind::Usage, message))
    }

    /// Weights `[N]` from the log ratios `[N]` and the sequence `[N]` i64 of each token. As in
    /// verl's rollout correction.
    ///
    /// # Errors
    /// Errors of [`Importance::check`].
    pub fn weights(&self, log_ratio: &Tensor, sequence: &Tensor) -> Result<Tensor> {
        let _guard = no_grad_guard();
        self.check()?;
        let segments = Segments::counted(sequence)?;
        let log_ratio = log_ratio.f_detach()?;
        let log_weight = match self.scope {
            Scope::Token => log_ratio,
            Scope::Sequence => segments.spread(&segments.sum(&log_ratio)?)?,
        };
        let raw = log_weight.f_clamp(-LIMIT, LIMIT)?.f_exp()?;
        let weights = match self.floor {
            None => raw.f_clamp_max(self.cap)?,
            Some(floor) => {
                let inside = raw.f_ge(floor)?.f_logical_and(&raw.f_le(self.cap)?)?;
                raw.f_mul(&ones_where(&inside, &raw)?)?
            }
        };
        if !self.normalize || weights.numel() == 0 {
            return Ok(weights);
        }
        let mean = match self.scope {
            Scope::Token => weights.f_mean(weights.kind())?,
            Scope::Sequence => {
                let lengths = segments.sum(&weights.f_ones_like()?)?;
                segments.mean(&weights)?.f_sum(weights.kind())?.f_div(&count(&lengths.f_gt(0.0)?)?)?
            }
        };
        let mean = f64::try_from(mean)?;
        Ok(if mean > 1e-8 { weights.f_div_scalar(mean)? } else { weights })
    }
}

impl Rejection {
    /// Refuses invalid bounds.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for bounds that are not positive or in the wrong order, and a lower
    /// bound for other than k1.
    pub fn check(&self) -> Result<()> {
        let lower = self.lower();
        let fits =
            if self.estimate == Estimate::K1 { lower > 0.0 && lower <= self.upper } else { self.lower.is_none() };
        if self.upper > 0.0 && fits {
            return Ok(());
        }
        let message = "rejection needs a positive `upper`, and for k1 alone 0 < lower <= upper";
        Err(Error::new(ErrorKind::Usage, message))
    }

    fn lower(&self) -> f64 {
        self.lower.unwrap_or(1.0 / self.upper)
    }

    /// 1 on tokens that are kept, 0 on the others, `[N]`. Rejected tokens stay in the denominators
    /// of the loss, so that the weight of the kept tokens does not depend on the number of rejected
    /// ones.
    ///
    /// # Errors
    /// Errors of [`Rejection::check`].
    pub fn mask(&self, log_ratio: &Tensor, sequence: &Tensor) -> Result<Tensor> {
        let _guard = no_grad_guard();
        self.check()?;
        let (lower, k1) = (self.lower(), self.estimate == Estimate::K1);
        let d = log_ratio.f_detach()?.f_clamp(-LIMIT, LIMIT)?;
        let token = match self.estimate {
            Estimate::K1 => d.f_neg()?,
            Estimate::K2 => d.f_square()?.f_mul_scalar(0.5)?,
            Estimate::K3 => d.f_exp()?.f_sub_scalar(1.0)?.f_sub(&d)?,
        };
        let segments = Segments::counted(sequence)?;
        let inside = |measured: &Tensor| -> Result<Tensor> {
            Ok(if k1 {
                measured.f_ge(lower.ln())?.f_logical_and(&measured.f_le(self.upper.ln())?)?
            } else {
                measured.f_le(self.upper)?
            })
        };
        let kept = match self.measure {
            Measure::Token => inside(&token)?,
            Measure::Sum => segments.spread(&inside(&segments.sum(&token)?)?)?,
            Measure::Mean => segments.spread(&inside(&segments.mean(&token)?)?)?,
            Measure::Max => {
                // All tokens are inside if the one with the largest mismatch is.
                let outside = inside(&token)?.f_logical_not()?.f_to_kind(Kind::Double)?;
                segments.spread(&segments.sum(&outside)?.f_eq(0.0)?)?
            }
        };
        ones_where(&kept, log_ratio)
    }
}

/// The mismatch of rollout and learner, over the sampled tokens of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mismatch {
    /// KL(rollout || learner) by k1 and by k3.
    pub k1: f64,
    pub k3: f64,
    /// Largest |log ratio|.
    pub largest: f64,
    /// The chi-squared divergence of tokens, mean rho^2 - 1.
    pub chi2: f64,
}

impl Mismatch {
    /// The measures of the log ratios `[N]`; zeros for an empty batch.
    pub fn of(log_ratio: &Tensor) -> Result<Self> {
        let _guard = no_grad_guard();
        if log_ratio.numel() == 0 {
            return Ok(Self::default());
        }
        let d = log_ratio.f_detach()?.f_to_kind(Kind::Double)?;
        let rho = d.f_clamp(-LIMIT, LIMIT)?.f_exp()?;
        let numbers = Tensor::f_stack(
            &[
                d.f_neg()?.f_mean(Kind::Double)?,
                d.f_exp()?.f_sub_scalar(1.0)?.f_sub(&d)?.f_mean(Kind::Double)?,
                d.f_abs()?.f_max()?,
                rho.f_square()?.f_mean(Kind::Double)?.f_sub_scalar(1.0)?,
            ],
            0,
        )?;
        let mut values = [0.0_f64; 4];
        numbers.f_to_device(tch::Device::Cpu)?.f_copy_data(&mut values, 4)?;
        let [k1, k3, largest, chi2] = values;
        Ok(Self { k1, k3, largest, chi2 })
    }
}
