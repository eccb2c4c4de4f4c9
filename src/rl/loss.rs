//! Policy losses over sampled tokens.
//!
//! A loss takes log-probabilities gathered at the N sampled tokens and gives a loss for each;
//! [`super::aggregate`] makes one number of them. Tokens that were not sampled never get here, so
//! their gradient is exactly zero. Works in f32 and f64.
//!
//! Here is PPO and what every loss reports; [`super::losses`] has the others, [`super::objective`]
//! chooses one by name.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor, no_grad_guard};

use crate::error::Result;

/// `logp - logp_old` is kept within this, so that no ratio overflows.
pub(super) const LOG_RATIO_LIMIT: f64 = 20.0;

/// How the PPO ratio is clipped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    /// The ratio is clipped to `[1 - low, 1 + high]`; `high > low` is DAPO's clip-higher.
    pub low: f64,
    pub high: f64,
    /// Bounds the loss of tokens with a negative advantage by `-A c` (arXiv:1912.09729). `None` is
    /// the plain PPO loss; verl's default is 3.
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
    /// Tokens with a negative advantage count as clipped under `1 - low`, those with a positive one
    /// over `1 + high`.
    pub(super) fn of(log_ratio: &Tensor, ratio: &Tensor, advantages: &Tensor, clip: Clip) -> Result<Self> {
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

    /// With the clipped tokens given, `[N]` bool. One transfer from the device.
    pub(super) fn with(
        log_ratio: &Tensor,
        ratio: &Tensor,
        low: &Tensor,
        high: &Tensor,
        dual: Option<&Tensor>,
    ) -> Result<Self> {
        let _guard = no_grad_guard();
        let tokens = ratio.numel();
        if tokens == 0 {
            return Ok(Self::default());
        }
        let (log_ratio, ratio) = (log_ratio.f_detach()?, ratio.f_detach()?);
        let k3 = log_ratio.f_exp()?.f_sub_scalar(1.0)?.f_sub(&log_ratio)?;
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

/// The clipped surrogate of PPO (arXiv:1707.06347), `max(-A rho, -A clip(rho, 1 - low, 1 + high))`
/// with the token ratio `rho = exp(logp - logp_old)`, and what the ratios looked like.
///
/// - `logp` `[N]`: log-probabilities of the sampled tokens under the current weights; the gradient
///   flows into it
/// - `logp_old` `[N]`: under the behaviour policy
/// - `advantages` `[N]`
///
/// Returns the loss per token `[N]`. A tie of both branches (at rho = 1, every first update) has
/// the gradient of either.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use proptest::prelude::*;

    use super::*;

    const CLIP: Clip = Clip { low: 0.2, high: 0.28, dual: Some(3.0) };

    /// Losses, gradients and statistics at the given `(log ratio, advantage)` pairs.
    fn at(tokens: &[(f64, f64)], clip: Clip) -> (Vec<f64>, Vec<f64>, RatioStats) {
        let (log_ratios, advantages): (Vec<f64>, Vec<f64>) = tokens.iter().copied().unzip();
        let logp = Tensor::from_slice(&log_ratios).set_requires_grad(true);
        let old = Tensor::zeros_like(&logp);
        let (loss, stats) = ppo_clip(&logp, &old, &Tensor::from_slice(&advantages), clip).unwrap();
        if !tokens.is_empty() {
            loss.sum(Kind::Double).backward();
        }
        let gradient = if tokens.is_empty() { Vec::new() } else { Vec::try_from(logp.grad()).unwrap() };
        (Vec::try_from(loss.detach()).unwrap(), gradient, stats)
    }

    #[test]
    fn every_branch_is_its_closed_form() {
        let e = f64::exp;
        let cases = [
            // (log ratio, advantage) -> loss, gradient
            ((0.1, 2.0), (-2.0 * e(0.1), -2.0 * e(0.1))),
            ((0.5, 2.0), (-2.0 * 1.28, 0.0)), // high clip
            ((-0.5, 2.0), (-2.0 * e(-0.5), -2.0 * e(-0.5))),
            ((-0.5, -2.0), (2.0 * 0.8, 0.0)), // low clip
            ((0.5, -2.0), (2.0 * e(0.5), 2.0 * e(0.5))),
            ((1.5, -2.0), (2.0 * 3.0, 0.0)), // dual clip
            ((30.0, 1.0), (-1.28, 0.0)),     // no overflow
            ((0.7, 0.0), (0.0, 0.0)),
        ];
        for (token, (loss, gradient)) in cases {
            let (got_loss, got_gradient, _) = at(&[token], CLIP);
            assert!((got_loss[0] - loss).abs() < 1e-14, "{token:?}: {got_loss:?}");
            assert!((got_gradient[0] - gradient).abs() < 1e-14, "{token:?}: {got_gradient:?}");
        }
    }

    #[test]
    fn the_first_update_has_the_policy_gradient() {
        // At ratio 1 both branches tie; the gradient must be that of REINFORCE, -A, not a half of
        // it.
        let (_, gradient, stats) = at(&[(0.0, 1.5), (0.0, -0.5)], CLIP);
        assert_eq!(gradient, [-1.5, 0.5]);
        assert_eq!((stats.ratio_min, stats.ratio_max, stats.approx_kl_k3()), (1.0, 1.0, 0.0));
    }

    #[test]
    fn statistics_are_those_of_all_micro_batches() {
        // One low clip, two high, one dual, and four that are none (two of them because of the
        // sign).
        let tokens =
            [(-0.5, -1.0), (0.5, 1.0), (0.5, 2.0), (1.5, -1.0), (-0.5, 1.0), (0.5, -1.0), (0.0, 1.0), (0.2, 1.0)];
        let (_, _, whole) = at(&tokens, CLIP);
        assert_eq!([whole.clipfrac_low(), whole.clipfrac_high(), whole.clipfrac_dual()], [0.125, 0.25, 0.125]);
        assert!((whole.approx_kl_k1() + 2.2 / 8.0).abs() < 1e-14);
        let k3: f64 = tokens.iter().map(|(d, _)| d.exp() - 1.0 - d).sum::<f64>() / 8.0;
        assert!((whole.approx_kl_k3() - k3).abs() < 1e-14);
        assert_eq!((whole.ratio_min, whole.ratio_max), (f64::exp(-0.5), f64::exp(1.5)));
        let mut sum = RatioStats::default();
        for part in [&tokens[..0], &tokens[..2], &tokens[2..], &tokens[..0]] {
            sum.add(&at(part, CLIP).2);
        }
        assert_eq!(sum.tokens, 8);
        assert_eq!((sum.ratio_min, sum.ratio_max), (whole.ratio_min, whole.ratio_max));
        assert!((sum.approx_kl_k3() - whole.approx_kl_k3()).abs() < 1e-14);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_gradient_is_that_of_finite_differences(
            log_ratio in -2.0..2.0_f64, advantage in -2.0..2.0_f64, dual in prop::option::of(1.5..4.0_f64),
        ) {
            let clip = Clip { dual, ..CLIP };
            let kinks = [0.8_f64.ln(), 1.28_f64.ln(), dual.unwrap_or(1.0).ln()];
            prop_assume!(kinks.iter().all(|kink| (log_ratio - kink).abs() > 1e-4));
            let h = 1e-6;
            let loss = |log_ratio| at(&[(log_ratio, advantage)], clip).0[0];
            let numeric = (loss(log_ratio + h) - loss(log_ratio - h)) / (2.0 * h);
            let gradient = at(&[(log_ratio, advantage)], clip).1[0];
            prop_assert!((gradient - numeric).abs() < 1e-7, "{gradient} {numeric}");
        }
    }
}
