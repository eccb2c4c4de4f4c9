//! Policy losses over sampled tokens.
//!
//! A loss takes log-probabilities gathered at the N sampled tokens and gives a loss for each; [`super::aggregate`] makes one
//! number of them. Tokens that were not sampled never get here, so their gradient is exactly zero. Works in f32 and f64.

use tch::{Kind, Tensor, no_grad_guard};

use crate::error::Result;

/// `logp - logp_old` is kept within this, so that no ratio overflows.
const LOG_RATIO_LIMIT: f64 = 20.0;

/// How the PPO ratio is clipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The ratio is clipped to `[1 - low, 1 + high]`; `high > low` is DAPO's clip-higher.
    pub low: f64,
    pub high: f64,
    /// Bounds the loss of tokens with a negative advantage by `-A c` (arXiv:1912.09729). `None` is the plain PPO loss;
    /// verl's default is 3.
    pub dual: Option<f64>,
}

/// What the ratios of a batch looked like: sums over sampled tokens, so that micro-batches add up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioStats {
    pub tokens: usize,
    clipped_low: f64,
    clipped_high: f64,
    clipped_dual: f64,
    k1: f64,
    k3: f64,
    /// Smallest and largest ratio; 1 without tokens.
    pub ratio_min: f64,
    pub ratio_max: f64,
}

impl Default for RatioStats {
    fn default() -> Self {
        Self {
            tokens: 0,
            clipped_low: 0.0,
            clipped_high: 0.0,
            clipped_dual: 0.0,
            k1: 0.0,
            k3: 0.0,
            ratio_min: 1.0,
            ratio_max: 1.0,
        }
    }
}

impl RatioStats {
    /// One transfer from the device.
    fn of(log_ratio: &Tensor, ratio: &Tensor, advantages: &Tensor, clip: Clip) -> Result<Self> {
        let _guard = no_grad_guard();
        let tokens = ratio.numel();
        if tokens == 0 {
            return Ok(Self::default());
        }
        let (log_ratio, ratio) = (log_ratio.f_detach()?, ratio.f_detach()?);
        let (loses, wins) = (advantages.f_lt(0.0)?, advantages.f_gt(0.0)?);
        let count = |where_: Tensor| where_.f_sum(Kind::Double);
        let k3 = ratio.f_sub_scalar(1.0)?.f_sub(&log_ratio)?;
        let dual = match clip.dual {
            Some(bound) => count(ratio.f_gt(bound)?.f_logical_and(&loses)?)?,
            None => Tensor::f_zeros([], (Kind::Double, ratio.device()))?,
        };
        let numbers = Tensor::f_stack(
            &[
                count(ratio.f_lt(1.0 - clip.low)?.f_logical_and(&loses)?)?,
                count(ratio.f_gt(1.0 + clip.high)?.f_logical_and(&wins)?)?,
                dual,
                log_ratio.f_neg()?.f_sum(Kind::Double)?,
                k3.f_sum(Kind::Double)?,
                ratio.f_min()?.f_to_kind(Kind::Double)?,
                ratio.f_max()?.f_to_kind(Kind::Double)?,
            ],
            0,
        )?;
        let mut values = [0.0_f64; 7];
        numbers.f_to_device(tch::Device::Cpu)?.f_copy_data(&mut values, 7)?;
        let [clipped_low, clipped_high, clipped_dual, k1, k3, ratio_min, ratio_max] = values;
        Ok(Self { tokens, clipped_low, clipped_high, clipped_dual, k1, k3, ratio_min, ratio_max })
    }

    /// Joins another micro-batch.
    pub fn add(&mut self, other: &Self) {
        if other.tokens == 0 {
            return;
        }
        if self.tokens == 0 {
            *self = *other;
            return;
        }
        self.tokens += other.tokens;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.clipped_dual += other.clipped_dual;
        self.k1 += other.k1;
        self.k3 += other.k3;
        self.ratio_min = self.ratio_min.min(other.ratio_min);
        self.ratio_max = self.ratio_max.max(other.ratio_max);
    }

    /// Share of tokens with a negative advantage and a ratio under `1 - low`: no gradient.
    pub fn clipfrac_low(&self) -> f64 {
        self.mean(self.clipped_low)
    }

    /// Share of tokens with a positive advantage and a ratio over `1 + high`: no gradient.
    pub fn clipfrac_high(&self) -> f64 {
        self.mean(self.clipped_high)
    }

    /// Share of tokens whose loss the dual clip bounds: no gradient.
    pub fn clipfrac_dual(&self) -> f64 {
        self.mean(self.clipped_dual)
    }

    /// KL(old || new) by `logp_old - logp`: unbiased, noisy, may be negative (k1 of <http://joschu.net/blog/kl-approx.html>).
    pub fn approx_kl_k1(&self) -> f64 {
        self.mean(self.k1)
    }

    /// The same by `(ratio - 1) - log ratio`: unbiased, less noisy, never negative (k3).
    pub fn approx_kl_k3(&self) -> f64 {
        self.mean(self.k3)
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.tokens.max(1) as f64
    }
}

/// The clipped surrogate of PPO (arXiv:1707.06347), `max(-A rho, -A clip(rho, 1 - low, 1 + high))` with the token ratio
/// `rho = exp(logp - logp_old)`, and what the ratios looked like.
///
/// - `logp` `[N]`: log-probabilities of the sampled tokens under the current weights; the gradient flows into it
/// - `logp_old` `[N]`: under the behaviour policy
/// - `advantages` `[N]`
///
/// Returns the loss per token `[N]`. A tie of both branches (at rho = 1, every first update) has the gradient of either.
pub fn ppo_clip(logp: &Tensor, logp_old: &Tensor, advantages: &Tensor, clip: Clip) -> Result<(Tensor, RatioStats)> {
    let log_ratio = logp.f_sub(logp_old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
    let ratio = log_ratio.f_exp()?;
    let push = advantages.f_neg()?;
    let free = push.f_mul(&ratio)?;
    let clipped = push.f_mul(&ratio.f_clamp(1.0 - clip.low, 1.0 + clip.high)?)?;
    let mut loss = free.f_maximum(&clipped)?;
    if let Some(bound) = clip.dual {
        let bounded = loss.f_minimum(&push.f_mul_scalar(bound)?)?;
        loss = bounded.f_where_self(&advantages.f_lt(0.0)?, &loss)?;
    }
    let stats = RatioStats::of(&log_ratio, &ratio, advantages, clip)?;
    Ok((loss, stats))
}
