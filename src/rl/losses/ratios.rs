//! The clip range of a ratio, and statistics of the ratios of a batch.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor, no_grad_guard};

use crate::error::Result;
use crate::rl::options::{at_least, at_least_zero, from_zero_to_one};

/// `logp - logp_old` is clamped to this, so that no ratio overflows.
pub(in crate::rl) const LOG_RATIO_LIMIT: f64 = 20.0;

/// The clip range of the PPO ratio: the options of the PPO loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    /// The ratio is clipped to `[1 - low, 1 + high]`; `high > low` is DAPO's clip-higher.
    #[serde(rename = "clip_low")]
    pub low: f64,
    #[serde(rename = "clip_high")]
    pub high: f64,
    /// Bounds the loss of tokens with a negative advantage by `-A c` (arXiv:1912.09729). `None` is
    /// the plain PPO loss; verl's default is 3.
    #[serde(rename = "dual_clip")]
    pub dual: Option<f64>,
}

impl Clip {
    /// Refuses options outside of their range; `loss` is the name of the loss.
    pub(super) fn check(&self, loss: &str) -> Result<()> {
        from_zero_to_one(loss, "clip_low", self.low)?;
        at_least_zero(loss, "clip_high", self.high)?;
        at_least(loss, "dual_clip", self.dual.unwrap_or(f64::MAX), 1.0)
    }
}

/// For ratios without a clip.
pub(in crate::rl) const OPEN: Clip = Clip { low: f64::INFINITY, high: f64::INFINITY, dual: None };

/// Statistics of the ratios of a batch: sums over sampled tokens, so that micro-batches add up.
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

/// Sums of [`RatioStats`] on the device, so that a micro-batch does not wait for it.
#[derive(Debug)]
pub struct RatioSums {
    tokens: usize,
    /// [`RatioSums::NUMBERS`] f64; `None` without tokens.
    numbers: Option<Tensor>,
    /// `[N]` bool: the clipped tokens.
    clipped: Option<Tensor>,
}

impl RatioSums {
    /// Number of sums.
    pub const NUMBERS: usize = 7;

    /// Tokens with a negative advantage count as clipped under `1 - low`, those with a positive one
    /// over `1 + high`.
    pub(in crate::rl) fn of(log_ratio: &Tensor, ratio: &Tensor, advantages: &Tensor, clip: Clip) -> Result<Self> {
        let _guard = no_grad_guard();
        let (loses, wins) = (advantages.f_lt(0.0)?, advantages.f_gt(0.0)?);
        let low = ratio.f_lt(1.0 - clip.low)?.f_logical_and(&loses)?;
        let high = ratio.f_gt(1.0 + clip.high)?.f_logical_and(&wins)?;
        let dual = match clip.dual {
            Some(bound) => Some(ratio.f_gt(bound)?.f_logical_and(&loses)?),
            None => None,
        };
        Self::with(log_ratio, ratio, &low, &high, dual.as_ref())
    }

    /// With the clipped tokens given, `[N]` bool.
    pub(in crate::rl) fn with(
        log_ratio: &Tensor,
        ratio: &Tensor,
        low: &Tensor,
        high: &Tensor,
        dual: Option<&Tensor>,
    ) -> Result<Self> {
        let _guard = no_grad_guard();
        let tokens = ratio.numel();
        if tokens == 0 {
            return Ok(Self { tokens, numbers: None, clipped: None });
        }
        let (log_ratio, ratio) = (log_ratio.f_detach()?, ratio.f_detach()?);
        let k3 = log_ratio.f_exp()?.f_sub_scalar(1.0)?.f_sub(&log_ratio)?;
        let mut clipped = low.f_logical_or(high)?;
        if let Some(dual) = dual {
            clipped = clipped.f_logical_or(dual)?;
        }
        let dual = match dual {
            Some(dual) => dual.f_sum(Kind::Double)?,
            None => Tensor::f_zeros([], (Kind::Double, ratio.device()))?,
        };
        let numbers = Tensor::f_stack(
            &[
                low.f_sum(Kind::Double)?,
                high.f_sum(Kind::Double)?,
                dual,
                log_ratio.f_neg()?.f_sum(Kind::Double)?,
                k3.f_sum(Kind::Double)?,
                ratio.f_min()?.f_to_kind(Kind::Double)?,
                ratio.f_max()?.f_to_kind(Kind::Double)?,
            ],
            0,
        )?;
        Ok(Self { tokens, numbers: Some(numbers), clipped: Some(clipped) })
    }

    /// `[N]` bool: whether each token is clipped; `None` without tokens.
    pub fn clipped(&self) -> Option<&Tensor> {
        self.clipped.as_ref()
    }

    /// The sums, `[NUMBERS]` f64 on the device, with the number of tokens for
    /// [`RatioStats::from_sums`].
    pub fn on_device(&self) -> (usize, Option<&Tensor>) {
        (self.tokens, self.numbers.as_ref())
    }

    /// Waits for the device.
    pub fn read(&self) -> Result<RatioStats> {
        let Some(numbers) = &self.numbers else { return Ok(RatioStats::default()) };
        Ok(RatioStats::from_sums(self.tokens, &Vec::<f64>::try_from(numbers)?))
    }
}

impl RatioStats {
    /// From the sums of a micro-batch, in the order of [`RatioSums`].
    pub fn from_sums(tokens: usize, sums: &[f64]) -> Self {
        let &[clipped_low, clipped_high, clipped_dual, k1, k3, ratio_min, ratio_max] = sums else {
            return Self::default();
        };
        Self { tokens, clipped_low, clipped_high, clipped_dual, k1, k3, ratio_min, ratio_max }
    }

    /// Adds another micro-batch.
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

    /// KL(old || new) by `logp_old - logp`: unbiased, noisy, may be negative (k1 of
    /// <http://joschu.net/blog/kl-approx.html>).
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
