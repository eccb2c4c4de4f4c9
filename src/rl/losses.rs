//! Policy losses other than PPO's: by sequence, with soft clips, with detached weights, by
//! covariance.
//!
//! Each takes [`Tokens`] and gives a loss per token `[N]` and what the ratios looked like; rho is
//! `exp(logp - logp_old)`, A the advantage. Gradients flow into `logp` alone.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor, no_grad_guard};

use super::loss::{Clip, LOG_RATIO_LIMIT, RatioStats};
use super::segments::{Segments, ones_where};
use crate::error::Result;

/// N sampled tokens.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// `[N]`: under the current weights; the gradient flows into it.
    pub logp: &'a Tensor,
    /// `[N]`: under the behaviour policy.
    pub logp_old: &'a Tensor,
    /// `[N]`.
    pub advantages: &'a Tensor,
    /// `[N]` i64: the sequence of each, by default its step. All tokens of a sequence must be here.
    pub sequence: &'a Tensor,
}

impl Tokens<'_> {
    fn log_ratio(&self) -> Result<Tensor> {
        Ok(self.logp.f_sub(self.logp_old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?)
    }
}

/// For ratios that nothing clips.
const OPEN: Clip = Clip { low: f64::INFINITY, high: f64::INFINITY, dual: None };

/// GSPO (arXiv:2507.18071, eq. 5 and the token form of eq. 14): the PPO clip on the sequence ratio
/// `s = exp(mean of logp - logp_old)`, straight-through to tokens: `sg(s) pi / sg(pi)`. Aggregate
/// by seq-mean-token-mean.
pub fn gspo(tokens: &Tokens<'_>, low: f64, high: f64) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.logp.f_sub(tokens.logp_old)?;
    let segments = Segments::new(tokens.sequence)?;
    let of_sequence = segments.spread(&segments.mean(&log_ratio.f_detach()?)?)?;
    let through = tokens.logp.f_sub(&tokens.logp.f_detach()?)?;
    let ratio = through.f_add(&of_sequence)?.f_clamp_max(10.0)?.f_exp()?;
    let push = tokens.advantages.f_neg()?;
    let loss = push.f_mul(&ratio)?.f_maximum(&push.f_mul(&ratio.f_clamp(1.0 - low, 1.0 + high)?)?)?;
    let stats = RatioStats::of(&log_ratio, &ratio, tokens.advantages, Clip { low, high, dual: None })?;
    Ok((loss, stats))
}

/// GMPO (arXiv:2507.20673, eq. 4): `-A` times the geometric mean of the token ratios, each clipped
/// in log space to `[-low, high]` on the side that its advantage pushes to. The whole sequence's
/// loss is repeated at each of its tokens, so aggregate by seq-mean-token-mean. A is the mean over
/// the sequence.
pub fn geo_mean(tokens: &Tokens<'_>, low: f64, high: f64) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.logp.f_sub(tokens.logp_old)?;
    let sign = tokens.advantages.f_sign()?;
    let clamped = log_ratio.f_clamp(-low, high)?;
    let kept = sign.f_mul(&log_ratio)?.f_minimum(&sign.f_mul(&clamped)?)?.f_mul(&sign)?;
    let segments = Segments::new(tokens.sequence)?;
    let ratio = segments.mean(&kept)?.f_exp()?;
    let loss = segments.mean(tokens.advantages)?.f_neg()?.f_mul(&ratio)?;
    let outside = log_ratio.f_detach()?.f_ne_tensor(&clamped.f_detach()?)?;
    let clipped = |side: Tensor| -> Result<Tensor> { Ok(outside.f_logical_and(&side)?) };
    let stats = RatioStats::with(
        &log_ratio,
        &log_ratio.f_exp()?,
        &clipped(tokens.advantages.f_lt(0.0)?)?,
        &clipped(tokens.advantages.f_gt(0.0)?)?,
        None,
    )?;
    Ok((segments.spread(&loss)?, stats))
}

/// CISPO (arXiv:2506.13585, eq. 4): `-sg(clip(rho, 1 - low, 1 + high)) A logp`: every token keeps a
/// gradient, with a bounded weight. `low = 1` is no lower bound; TRL's `epsilon_high` is `1 +
/// high`.
pub fn cispo(tokens: &Tokens<'_>, low: f64, high: f64) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.log_ratio()?;
    let ratio = log_ratio.f_detach()?.f_exp()?;
    let weight = ratio.f_clamp(1.0 - low, 1.0 + high)?;
    let loss = weight.f_mul(tokens.advantages)?.f_neg()?.f_mul(tokens.logp)?;
    let stats = RatioStats::with(&log_ratio, &ratio, &ratio.f_lt(1.0 - low)?, &ratio.f_gt(1.0 + high)?, None)?;
    Ok((loss, stats))
}

/// SAPO (arXiv:2511.20347): a soft gate instead of a clip, `-A sigmoid(tau (rho - 1)) 4 / tau`, tau
/// by the sign of A. Aggregate by seq-mean-token-mean.
pub fn sapo(tokens: &Tokens<'_>, tau_pos: f64, tau_neg: f64) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.log_ratio()?;
    let ratio = log_ratio.f_exp()?;
    let wins = ones_where(&tokens.advantages.f_gt(0.0)?, &ratio)?;
    let tau = wins.f_mul_scalar(tau_pos - tau_neg)?.f_add_scalar(tau_neg)?;
    let gate = ratio.f_sub_scalar(1.0)?.f_mul(&tau)?.f_sigmoid()?.f_mul_scalar(4.0)?.f_div(&tau)?;
    let stats = RatioStats::of(&log_ratio, &ratio, tokens.advantages, OPEN)?;
    Ok((gate.f_mul(tokens.advantages)?.f_neg()?, stats))
}

/// REINFORCE: `-A logp`. GPG (arXiv:2504.02546) is this loss with its own advantages.
pub fn reinforce(tokens: &Tokens<'_>) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.log_ratio()?;
    let stats = RatioStats::of(&log_ratio, &log_ratio.f_exp()?, tokens.advantages, OPEN)?;
    Ok((tokens.advantages.f_neg()?.f_mul(tokens.logp)?, stats))
}

/// The weight of a sequence in VESPO by its ratio w, `phi(w) = e^lambda w^k e^(-lambda w)`, which
/// is 1 at w = 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VespoOptions {
    /// Exponent for tokens whose advantage is at least 0: how fast sequences that have become
    /// unlikely lose weight.
    pub k_pos: f64,
    /// Decay for the same: how fast sequences that have become likely lose weight.
    pub lambda_pos: f64,
    /// For tokens with a negative advantage.
    pub k_neg: f64,
    pub lambda_neg: f64,
}

/// VESPO (arXiv:2602.10693): `-sg(phi(w)) A logp`, with w the ratio of the whole sequence, the
/// product of its token ratios (and of its off-policy `weights` `[N]`), its logarithm kept in [ln
/// 1e-8, 20].
pub fn vespo(tokens: &Tokens<'_>, weights: Option<&Tensor>, options: VespoOptions) -> Result<(Tensor, RatioStats)> {
    const LEAST: f64 = 1e-8;
    let log_ratio = tokens.log_ratio()?;
    let phi = {
        let _guard = no_grad_guard();
        let segments = Segments::new(tokens.sequence)?;
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
    let stats = RatioStats::of(&log_ratio, &log_ratio.f_exp()?, tokens.advantages, OPEN)?;
    Ok((phi.f_mul(tokens.advantages)?.f_neg()?.f_mul(tokens.logp)?, stats))
}

/// DRO (direct reward optimisation, arXiv:2405.19107) in verl's form: `-(A logp - beta / 2 (logp -
/// logp_old)^2)`. The square holds the policy near the one that sampled, also where the advantage
/// is 0.
pub fn dro(tokens: &Tokens<'_>, beta: f64) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.logp.f_sub(tokens.logp_old)?;
    let penalty = log_ratio.f_square()?.f_mul_scalar(0.5 * beta)?;
    let clamped = tokens.log_ratio()?;
    let stats = RatioStats::of(&clamped, &clamped.f_exp()?, tokens.advantages, OPEN)?;
    Ok((penalty.f_sub(&tokens.advantages.f_mul(tokens.logp)?)?, stats))
}

/// What DPPO measures between the behaviour and the current policy at a sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Divergence {
    /// `p - p_old`: total variation between "this token" and "another".
    Tv,
    /// The KL divergence of the same two Bernoulli distributions.
    Kl,
}

/// DPPO (arXiv:2602.04879): `-A sg(min(rho, truncate)) logp` on tokens inside the trust region, 0
/// on tokens that A pushes further out of it: those whose probability has risen by a divergence
/// over `high` (A > 0), or fallen by one over `low`.
pub fn dppo(
    tokens: &Tokens<'_>,
    divergence: Divergence,
    low: f64,
    high: f64,
    truncate: f64,
) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.log_ratio()?;
    let (outside_low, outside_high) = {
        let _guard = no_grad_guard();
        let (p, p_old) = (tokens.logp.f_exp()?, tokens.logp_old.f_exp()?);
        let (fallen, risen) = match divergence {
            Divergence::Tv => {
                let moved = p.f_sub(&p_old)?;
                (moved.f_lt(-low)?, moved.f_gt(high)?)
            }
            Divergence::Kl => {
                let rest = |p: &Tensor| -> Result<Tensor> { Ok(p.f_neg()?.f_add_scalar(1.0)?) };
                let here = p_old.f_mul(&tokens.logp_old.f_sub(tokens.logp)?)?;
                let others = rest(&p_old)?.f_add_scalar(1e-8)?.f_div(&rest(&p)?.f_add_scalar(1e-8)?)?.f_log()?;
                let kl = here.f_add(&rest(&p_old)?.f_mul(&others)?)?;
                (
                    kl.f_gt(low)?.f_logical_and(&p.f_lt_tensor(&p_old)?)?,
                    kl.f_gt(high)?.f_logical_and(&p.f_gt_tensor(&p_old)?)?,
                )
            }
        };
        let wins = tokens.advantages.f_gt(0.0)?;
        (fallen.f_logical_and(&wins.f_logical_not()?)?, risen.f_logical_and(&wins)?)
    };
    let ratio = log_ratio.f_detach()?.f_exp()?;
    let inside = ones_where(&outside_low.f_logical_or(&outside_high)?.f_logical_not()?, &ratio)?;
    let weight = ratio.f_clamp_max(truncate)?.f_mul(&inside)?.f_mul(tokens.advantages)?.f_neg()?;
    let stats = RatioStats::with(&log_ratio, &ratio, &outside_low, &outside_high, None)?;
    Ok((weight.f_mul(tokens.logp)?, stats))
}

/// `(A - mean A)(logp - mean logp)` at every token: how much it drives the entropy down
/// (arXiv:2505.22617).
fn covariance(advantages: &Tensor, logp: &Tensor) -> Result<Vec<f64>> {
    let _guard = no_grad_guard();
    let centred = |values: &Tensor| -> Result<Tensor> {
        let values = values.f_detach()?.f_to_kind(Kind::Double)?;
        Ok(values.f_sub(&values.f_mean(Kind::Double)?)?)
    };
    Ok(Vec::try_from(centred(advantages)?.f_mul(&centred(logp)?)?.f_to_device(tch::Device::Cpu)?)?)
}

fn as_mask(chosen: &[usize], like: &Tensor) -> Result<Tensor> {
    let mut mask = vec![false; like.numel()];
    for &i in chosen {
        mask[i] = true;
    }
    Ok(Tensor::f_from_slice(&mask)?.f_to_device(like.device())?)
}

/// The tokens that Clip-Cov takes out (arXiv:2505.22617, section 4.2), `[N]` bool: `max(1, share
/// N)` of those that the PPO clip does not clip and whose covariance lies between the bounds, drawn
/// by `seed`. A statistic of the **whole** mini-batch: with micro-batches choose once, and cut.
pub fn clip_cov_selection(
    tokens: &Tokens<'_>,
    clip: Clip,
    share: f64,
    bounds: (f64, f64),
    seed: u64,
) -> Result<Tensor> {
    let covariances = covariance(tokens.advantages, tokens.logp)?;
    let clipped: Vec<bool> = {
        let _guard = no_grad_guard();
        let ratio = tokens.log_ratio()?.f_exp()?;
        let low = ratio.f_lt(1.0 - clip.low)?.f_logical_and(&tokens.advantages.f_lt(0.0)?)?;
        let high = ratio.f_gt(1.0 + clip.high)?.f_logical_and(&tokens.advantages.f_gt(0.0)?)?;
        Vec::try_from(low.f_logical_or(&high)?.f_to_device(tch::Device::Cpu)?)?
    };
    let inside = |i: &usize| covariances[*i] > bounds.0 && covariances[*i] < bounds.1 && !clipped[*i];
    let mut candidates: Vec<usize> = (0..covariances.len()).filter(inside).collect();
    candidates.sort_by_key(|&i| scramble(seed ^ scramble(i as u64)));
    candidates.truncate(((share * covariances.len() as f64) as usize).max(1));
    as_mask(&candidates, tokens.logp)
}

/// The tokens that KL-Cov holds back, `[N]` bool: the `max(1, share N)` with the largest
/// covariance, of the **whole** mini-batch.
pub fn kl_cov_selection(tokens: &Tokens<'_>, share: f64) -> Result<Tensor> {
    let covariances = covariance(tokens.advantages, tokens.logp)?;
    let mut order: Vec<usize> = (0..covariances.len()).collect();
    order.sort_by(|&a, &b| covariances[b].total_cmp(&covariances[a]).then(a.cmp(&b)));
    order.truncate(((share * covariances.len() as f64) as usize).max(1));
    as_mask(&order, tokens.logp)
}

/// Clip-Cov: the PPO clip with the gradient of the `selected` tokens taken out.
pub fn clip_cov(tokens: &Tokens<'_>, clip: Clip, selected: &Tensor) -> Result<(Tensor, RatioStats)> {
    let (loss, stats) = super::loss::ppo_clip(tokens.logp, tokens.logp_old, tokens.advantages, clip)?;
    let kept = ones_where(&selected.f_logical_not()?, &loss)?;
    Ok((loss.f_mul(&kept)?, stats))
}

/// KL-Cov: `-A rho`, and `coef |logp - logp_old|` more on the `selected` tokens.
pub fn kl_cov(tokens: &Tokens<'_>, coef: f64, selected: &Tensor) -> Result<(Tensor, RatioStats)> {
    let log_ratio = tokens.log_ratio()?;
    let ratio = log_ratio.f_exp()?;
    let penalty = log_ratio.f_abs()?.f_mul_scalar(coef)?.f_mul(&ones_where(selected, &ratio)?)?;
    let stats = RatioStats::of(&log_ratio, &ratio, tokens.advantages, OPEN)?;
    Ok((tokens.advantages.f_neg()?.f_mul(&ratio)?.f_add(&penalty)?, stats))
}

/// The finaliser of SplitMix64: an order that looks random and is the same everywhere.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The critic's loss at M positions, `0.5 max((V - R)^2, (clip(V, V_old ± clip) - R)^2)` (as in
/// PPO's reference code, arXiv:2005.12729; without a clip the plain half square), and the share of
/// positions where the clip decides.
///
/// `values` `[M]` has the gradient, `values_old` `[M]` are the values of the rollout, `returns`
/// `[M]` its targets. Divide its sum by the positions of the whole mini-batch.
pub fn value_loss(values: &Tensor, values_old: &Tensor, returns: &Tensor, clip: Option<f64>) -> Result<(Tensor, f64)> {
    let square = |values: &Tensor| -> Result<Tensor> { Ok(values.f_sub(returns)?.f_square()?) };
    let plain = square(values)?;
    let Some(clip) = clip else { return Ok((plain.f_mul_scalar(0.5)?, 0.0)) };
    let near = values.f_minimum(&values_old.f_add_scalar(clip)?)?.f_maximum(&values_old.f_sub_scalar(clip)?)?;
    let clipped = square(&near)?;
    let decides = clipped.f_detach()?.f_gt_tensor(&plain.f_detach()?)?;
    let share = f64::try_from(decides.f_sum(Kind::Double)?)? / decides.numel().max(1) as f64;
    Ok((plain.f_maximum(&clipped)?.f_mul_scalar(0.5)?, share))
}

/// How much of the spread of the returns the values explain: `1 - Var(R - V) / Var(R)`; NaN when
/// the returns are all equal.
pub fn explained_variance(values: &[f64], returns: &[f64]) -> f64 {
    let variance = |list: &[f64]| {
        let mean = list.iter().sum::<f64>() / list.len() as f64;
        list.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
    };
    let rest: Vec<f64> = returns.iter().zip(values).map(|(r, v)| r - v).collect();
    let all = variance(returns);
    if all == 0.0 { f64::NAN } else { 1.0 - variance(&rest) / all }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Losses and gradients of a loss at two sequences of two tokens and one.
    fn at(
        log_ratios: [f64; 3],
        advantages: [f64; 3],
        loss: impl Fn(&Tokens<'_>) -> Result<(Tensor, RatioStats)>,
    ) -> (Vec<f64>, Vec<f64>) {
        let old = Tensor::from_slice(&[-1.0, -2.0, -0.5]);
        let logp = (&old + Tensor::from_slice(&log_ratios)).detach().set_requires_grad(true);
        let (advantages, sequence) = (Tensor::from_slice(&advantages), Tensor::from_slice(&[0_i64, 0, 1]));
        let tokens = Tokens { logp: &logp, logp_old: &old, advantages: &advantages, sequence: &sequence };
        let (loss, _) = loss(&tokens).unwrap();
        loss.sum(Kind::Double).backward();
        (Vec::try_from(loss.detach()).unwrap(), Vec::try_from(logp.grad()).unwrap())
    }

    fn close(found: &[f64], want: [f64; 3]) {
        assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-14), "{found:?} {want:?}");
    }

    #[test]
    fn dro_is_a_policy_gradient_with_a_square() {
        let (loss, gradient) = at([0.5, 0.0, -0.25], [2.0, -1.0, 0.0], |tokens| dro(tokens, 0.8));
        close(&loss, [-(2.0 * -0.5) + 0.4 * 0.25, -2.0, 0.4 * 0.0625]);
        close(&gradient, [-2.0 + 0.8 * 0.5, 1.0, 0.8 * -0.25]);
    }

    #[test]
    fn vespo_weighs_whole_sequences_by_a_gamma_form() {
        let options = VespoOptions { k_pos: 2.0, lambda_pos: 3.0, k_neg: 1.0, lambda_neg: 0.5 };
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
