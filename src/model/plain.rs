//! The layers in plain libtorch operations: every device and type, differentiable, and the reference for the tests of
//! the native code.

use tch::{Kind, Tensor};

use crate::error::Result;

/// RMSNorm (arXiv:1910.07467) over the last dimension, computed in f32 at least, as transformers does.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let kind = x.kind();
    let wide = x.f_to_kind(if kind == Kind::Double { kind } else { Kind::Float })?;
    let mean = wide.f_square()?.f_mean_dim(&[-1][..], true, None)?;
    let scale = mean.f_add_scalar(eps)?.f_rsqrt()?;
    Ok(wide.f_mul(&scale)?.f_to_kind(kind)?.f_mul(weight)?)
}

/// Cosines and sines `[T, D]` of the rotary embedding at `positions` `[T]`, in `kind`.
pub(super) fn rotary(positions: &Tensor, head_dim: i64, theta: f64, kind: Kind) -> Result<(Tensor, Tensor)> {
    let wide = if kind == Kind::Double { kind } else { Kind::Float };
    let options = (wide, positions.device());
    let powers = Tensor::f_arange_start_step(0, head_dim, 2, options)?.f_div_scalar(head_dim as f64)?;
    let frequencies = Tensor::f_scalar_tensor(theta, options)?.f_pow(&powers)?.f_reciprocal()?;
    let half = positions.f_to_kind(wide)?.f_outer(&frequencies)?;
    let angles = Tensor::f_cat(&[&half, &half], -1)?;
    Ok((angles.f_cos()?.f_to_kind(kind)?, angles.f_sin()?.f_to_kind(kind)?))
}

/// Rotates x `[T, H, D]` by the angles whose cosines and sines are `[T, D]` (the half-split form of the checkpoints).
pub(super) fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let halves = x.f_chunk(2, -1)?;
    let [low, high] = halves.as_slice() else { return Ok(x.shallow_clone()) };
    let turned = Tensor::f_cat(&[&high.f_neg()?, low], -1)?;
    Ok((x.f_mul(&cos.f_unsqueeze(1)?)?).f_add(&turned.f_mul(&sin.f_unsqueeze(1)?)?)?)
}

/// Causal attention within each row. q `[T, H, D]`, k and v `[T, Hkv, D]`, rows of `lengths` end to end; gives `[T, H, D]`.
///
/// Rows of similar length are padded to the longest of them inside attention only; the padding comes after the row, so
/// the causal mask hides it.
pub(super) fn attend_rows(q: &Tensor, k: &Tensor, v: &Tensor, lengths: &[i64]) -> Result<Tensor> {
    let (device, shape) = (q.device(), q.size());
    let mut starts = Vec::with_capacity(lengths.len());
    let mut total = 0;
    for length in lengths {
        starts.push(total);
        total += length;
    }
    let mut order: Vec<usize> = (0..lengths.len()).filter(|&row| lengths[row] > 0).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(lengths[row]));
    // Where every token of the packed batch is found in the padded outputs, laid end to end.
    let mut place = vec![0; total as usize];
    let (mut outputs, mut offset) = (Vec::new(), 0);
    let mut rest = order.as_slice();
    while let Some(&first) = rest.first() {
        let longest = lengths[first];
        let count = rest.iter().take_while(|&&row| lengths[row] * 4 >= longest * 3).count();
        let (bucket, after) = rest.split_at(count);
        rest = after;
        let mut gather = Vec::with_capacity(count * longest as usize);
        for &row in bucket {
            for token in 0..longest {
                gather.push(starts[row] + token.min(lengths[row] - 1));
                if token < lengths[row] {
                    place[(starts[row] + token) as usize] = offset;
                }
                offset += 1;
            }
        }
        let gather = Tensor::f_from_slice(&gather)?.f_to_device(device)?;
        let pad = |x: &Tensor| -> Result<Tensor> {
            let x = x.f_index_select(0, &gather)?;
            Ok(x.f_view([count as i64, longest, x.size()[1], x.size()[2]])?.f_transpose(1, 2)?)
        };
        let (k, v) = (repeat(&pad(k)?, shape[1])?, repeat(&pad(v)?, shape[1])?);
        let out = Tensor::f_scaled_dot_product_attention(&pad(q)?, &k, &v, None::<&Tensor>, 0.0, true, None, false)?;
        outputs.push(out.f_transpose(1, 2)?.f_reshape([-1, shape[1], shape[2]])?);
    }
    if outputs.is_empty() {
        return Ok(q.f_zeros_like()?);
    }
    let place = Tensor::f_from_slice(&place)?.f_to_device(device)?;
    Ok(Tensor::f_cat(&outputs, 0)?.f_index_select(0, &place)?)
}

/// Attention of q `[B, H, L, D]` over cached k and v `[B, Hkv, C, D]`; `visible` [B, 1, L, C] is true where a query may look.
pub(super) fn attend_cache(q: &Tensor, k: &Tensor, v: &Tensor, visible: &Tensor) -> Result<Tensor> {
    let heads = q.size()[1];
    let (k, v) = (repeat(k, heads)?, repeat(v, heads)?);
    Ok(Tensor::f_scaled_dot_product_attention(q, &k, &v, Some(visible), 0.0, false, None, false)?)
}

/// Gives every query head its own copy of its key or value head: `[B, Hkv, L, D]` to `[B, H, L, D]`.
fn repeat(x: &Tensor, heads: i64) -> Result<Tensor> {
    let own = x.size()[1];
    if own == heads { Ok(x.shallow_clone()) } else { Ok(x.f_repeat_interleave_self_int(heads / own, 1, None)?) }
}
