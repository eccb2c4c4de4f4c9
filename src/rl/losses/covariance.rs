//! The covariance of advantages and log-probabilities at every token, and the selection of tokens
//! by it (arXiv:2505.22617).

use tch::{Kind, Tensor, no_grad_guard};

use super::formula::Tokens;
use super::ratios::Clip;
use crate::error::Result;
use crate::native::upload;

/// `(A - mean A)(logp - mean logp)` at every token: its contribution to the decrease of the entropy
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
    upload(&Tensor::f_from_slice(&mask)?, like.device())
}

/// The tokens whose gradient Clip-Cov removes (arXiv:2505.22617, section 4.2), `[N]` bool: `max(1,
/// share N)` of those that the PPO clip does not clip and whose covariance is between the bounds,
/// drawn by `seed`. A statistic of the **whole** mini-batch: select before the split into
/// micro-batches.
pub(super) fn clip_cov_selection(
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

/// The tokens that KL-Cov penalises, `[N]` bool: the `max(1, share N)` with the largest covariance
/// in the **whole** mini-batch.
pub(super) fn kl_cov_selection(tokens: &Tokens<'_>, share: f64) -> Result<Tensor> {
    let covariances = covariance(tokens.advantages, tokens.logp)?;
    let mut order: Vec<usize> = (0..covariances.len()).collect();
    order.sort_by(|&a, &b| covariances[b].total_cmp(&covariances[a]).then(a.cmp(&b)));
    order.truncate(((share * covariances.len() as f64) as usize).max(1));
    as_mask(&order, tokens.logp)
}

/// The finaliser of SplitMix64: a pseudo-random order that is the same on every machine.
fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
