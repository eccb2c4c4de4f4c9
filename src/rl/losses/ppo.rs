//! The clipped surrogate of PPO (arXiv:1707.06347), with DAPO's clip-higher (arXiv:2503.14476) and
//! the dual clip (arXiv:1912.09729).

use tch::Tensor;

use super::ratios::{Clip, LOG_RATIO_LIMIT, RatioSums};
use crate::error::Result;

/// The clipped surrogate of PPO (arXiv:1707.06347), `max(-A rho, -A clip(rho, 1 - low, 1 + high))`
/// with the token ratio `rho = exp(logp - logp_old)`, and statistics of the ratios.
///
/// - `logp` `[N]`: log-probabilities of the sampled tokens under the current weights; the gradient
///   flows into it
/// - `logp_old` `[N]`: under the behaviour policy
/// - `advantages` `[N]`
///
/// Returns the loss per token `[N]`. A tie of both branches (at rho = 1, every first update) has
/// the gradient of either.
pub fn ppo_clip(logp: &Tensor, logp_old: &Tensor, advantages: &Tensor, clip: Clip) -> Result<(Tensor, RatioSums)> {
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
    let stats = RatioSums::of(&log_ratio, &ratio, advantages, clip)?;
    Ok((loss, stats))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use proptest::prelude::*;
    use tch::Kind;

    use super::*;
    use crate::rl::losses::RatioStats;

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
        (Vec::try_from(loss.detach()).unwrap(), gradient, stats.read().unwrap())
    }

    #[test]
    fn every_branch_of_the_ppo_clip_equals_its_closed_form() {
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
    fn the_first_ppo_update_has_the_policy_gradient() {
        // At ratio 1 both branches tie; the gradient must be REINFORCE's, -A, not half of it.
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
