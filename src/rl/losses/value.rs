//! The critic's loss, and the explained variance of its values.

use tch::{Kind, Tensor};

use crate::error::Result;

/// The critic's loss at M positions, `0.5 max((V - R)^2, (clip(V, V_old ± clip) - R)^2)` (as in
/// PPO's reference code, arXiv:2005.12729; without a clip the plain half square), and the number of
/// positions where the clipped term is the maximum, a scalar f64 on the device.
///
/// `values` `[M]` has the gradient, `values_old` `[M]` are the values of the rollout, `returns`
/// `[M]` its targets. Divide its sum by the positions of the whole mini-batch.
pub fn value_loss(
    values: &Tensor,
    values_old: &Tensor,
    returns: &Tensor,
    clip: Option<f64>,
) -> Result<(Tensor, Tensor)> {
    let square = |values: &Tensor| -> Result<Tensor> { Ok(values.f_sub(returns)?.f_square()?) };
    let plain = square(values)?;
    let Some(clip) = clip else {
        let none = Tensor::f_zeros([], (Kind::Double, values.device()))?;
        return Ok((plain.f_mul_scalar(0.5)?, none));
    };
    let near = values.f_minimum(&values_old.f_add_scalar(clip)?)?.f_maximum(&values_old.f_sub_scalar(clip)?)?;
    let clipped = square(&near)?;
    let decides = clipped.f_detach()?.f_gt_tensor(&plain.f_detach()?)?;
    Ok((plain.f_maximum(&clipped)?.f_mul_scalar(0.5)?, decides.f_sum(Kind::Double)?))
}

/// The share of the variance of the returns that the values explain: `1 - Var(R - V) / Var(R)`; NaN
/// when the returns are all equal.
pub fn explained_variance(values: &[f64], returns: &[f64]) -> f64 {
    let variance = |list: &[f64]| {
        let mean = list.iter().sum::<f64>() / list.len() as f64;
        list.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
    };
    let rest: Vec<f64> = returns.iter().zip(values).map(|(r, v)| r - v).collect();
    let all = variance(returns);
    if all == 0.0 { f64::NAN } else { 1.0 - variance(&rest) / all }
}
