//! Layers in plain libtorch operations: every device and type, differentiable; the reference for
//! tests of the native code.

use tch::{Kind, Tensor};

use super::config::Activation;
use crate::native;
use r1_base::error::Result;

/// Implementation of products and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// libtorch, differentiable. The summation order of its matrix products depends on the number
    /// of rows, so that the last bits of a row depend on the batch size.
    Libtorch,
    /// CPU kernels, in f32 without gradient. A row's result does not depend on other rows
    /// (bitwise).
    Rowwise,
}

impl Arithmetic {
    /// x `[T, in]` times the weight `[out, in]` transposed, plus the bias: `[T, out]`.
    pub(super) fn linear(self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self {
            Self::Libtorch => Ok(x.f_linear(weight, bias)?),
            Self::Rowwise => native::linear_rows(x, weight, bias),
        }
    }

    /// A function of single numbers. The last bits of libtorch's exponentials depend on the place
    /// of a number in its tensor, so that row by row they are computed in f64.
    pub(super) fn pointwise(self, x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self {
            Self::Libtorch => f(x),
            Self::Rowwise => Ok(f(&x.f_to_kind(Kind::Double)?)?.f_to_kind(x.kind())?),
        }
    }

    /// The sigmoid of x.
    pub(super) fn sigmoid(self, x: &Tensor) -> Result<Tensor> {
        self.pointwise(x, |x| Ok(x.f_sigmoid()?))
    }

    /// The activation of `gate` times `up`, both `[T, n]`.
    pub(super) fn gated(self, activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        let activated = match (self, activation) {
            (_, Activation::ClampedSwiglu { alpha, limit }) => {
                let (gate, up) = (gate.f_clamp_max(limit)?, up.f_clamp(-limit, limit)?.f_add_scalar(1.0)?);
                if self == Self::Rowwise {
                    // silu(alpha · gate) = alpha · gate · sigmoid(alpha · gate)
                    let up = up.f_div_scalar(alpha)?;
                    return native::gated_rows(&gate.f_mul_scalar(alpha)?, &up, false);
                }
                return Ok(gate.f_mul(&gate.f_mul_scalar(alpha)?.f_sigmoid()?)?.f_mul(&up)?);
            }
            (Self::Rowwise, activation) => {
                let (gate, up) = (gate.f_contiguous()?, up.f_contiguous()?);
                return native::gated_rows(&gate, &up, activation == Activation::GeluTanh);
            }
            (Self::Libtorch, Activation::Silu) => gate.f_silu()?,
            (Self::Libtorch, Activation::GeluTanh) => gate.f_gelu("tanh")?,
        };
        Ok(activated.f_mul(up)?)
    }
}

/// RMSNorm (arXiv:1910.07467) over the last dimension, computed in at least f32, as in
/// transformers. With `offset`, the stored weight is the weight minus 1 and is applied before
/// rounding.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64, offset: bool) -> Result<Tensor> {
    let kind = x.kind();
    let wide_kind = if kind == Kind::Double { kind } else { Kind::Float };
    let wide = x.f_to_kind(wide_kind)?;
    let mean = wide.f_square()?.f_mean_dim(&[-1][..], true, None)?;
    let scale = mean.f_add_scalar(eps)?.f_rsqrt()?;
    let scaled = wide.f_mul(&scale)?;
    if offset {
        let weight = weight.f_to_kind(wide_kind)?.f_add_scalar(1.0)?;
        return Ok(scaled.f_mul(&weight)?.f_to_kind(kind)?);
    }
    Ok(scaled.f_to_kind(kind)?.f_mul(weight)?)
}

/// Cosines and sines `[T, D]`, in `kind`, of angles `[T, D / 2]`; both times `magnitude`. The first
/// half of the sines is negated, as [`rotate`] needs it.
pub(super) fn angles(half: &Tensor, magnitude: f64, kind: Kind) -> Result<(Tensor, Tensor)> {
    let finish = |x: Tensor| -> Result<Tensor> { Ok(x.f_mul_scalar(magnitude)?.f_to_kind(kind)?) };
    let (cos, sin) = (half.f_cos()?, half.f_sin()?);
    Ok((finish(Tensor::f_cat(&[&cos, &cos], -1)?)?, finish(Tensor::f_cat(&[&sin.f_neg()?, &sin], -1)?)?))
}

/// Rotates x `[T, H, D]` by angles with the cosines and sines of [`angles`] (the half-split form of
/// the checkpoints).
pub(super) fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    if let Some(all) = rotate_part(x, cos, |part| rotate(part, cos, sin))? {
        return Ok(all);
    }
    let halves = x.f_chunk(2, -1)?;
    let [low, high] = halves.as_slice() else { return Ok(x.shallow_clone()) };
    let swapped = Tensor::f_cat(&[high, low], -1)?;
    Ok((x.f_mul(&cos.f_unsqueeze(1)?)?).f_add(&swapped.f_mul(&sin.f_unsqueeze(1)?)?)?)
}

/// [`rotate`] in one operation less; the last bit can differ.
pub(super) fn rotate_fused(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    if let Some(all) = rotate_part(x, cos, |part| rotate_fused(part, cos, sin))? {
        return Ok(all);
    }
    let halves = x.f_chunk(2, -1)?;
    let [low, high] = halves.as_slice() else { return Ok(x.shallow_clone()) };
    let swapped = Tensor::f_cat(&[high, low], -1)?;
    Ok(x.f_mul(&cos.f_unsqueeze(1)?)?.f_addcmul(&swapped, &sin.f_unsqueeze(1)?)?)
}

/// x with its first numbers rotated, if there are fewer angles than numbers in a head.
fn rotate_part(x: &Tensor, cos: &Tensor, rotate: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Option<Tensor>> {
    let (angles, size) = (cos.size()[1], x.size()[2]);
    if angles >= size {
        return Ok(None);
    }
    let rest = x.f_narrow(-1, angles, size - angles)?;
    Ok(Some(Tensor::f_cat(&[rotate(&x.f_narrow(-1, 0, angles)?)?, rest], -1)?))
}

/// x `[T, H, D]` with the second, fourth, … of its rotated numbers after the first, third, …
pub(super) fn halves_apart(x: &Tensor, cos: &Tensor) -> Result<Tensor> {
    let (size, rotated) = (x.size(), cos.size()[1]);
    let pairs = x.f_narrow(-1, 0, rotated)?.f_reshape([size[0], size[1], rotated / 2, 2])?;
    let apart = pairs.f_transpose(2, 3)?.f_flatten(2, 3)?;
    Ok(Tensor::f_cat(&[apart, x.f_narrow(-1, rotated, size[2] - rotated)?], -1)?)
}

/// Scale, window and sinks of attention scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scores<'a> {
    /// Maximum number of keys per query, including its own.
    pub window: Option<usize>,
    /// `D^-0.5` if `None`.
    pub scale: Option<f64>,
    /// `[H]`: a score of each head without a key and a value, after scaling.
    pub sinks: Option<&'a Tensor>,
}

/// Attention of q `[B, H, L, D]` over k and v `[B, H, C, D]`; `visible` is a mask that fits `[B, H,
/// L, C]`.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, visible: Option<&Tensor>, scores: Scores<'_>) -> Result<Tensor> {
    let Some(sinks) = scores.sinks else {
        return Ok(Tensor::f_scaled_dot_product_attention(q, k, v, visible, 0.0, false, scores.scale, false)?);
    };
    let scale = scores.scale.unwrap_or_else(|| (q.size()[3] as f64).powf(-0.5));
    let mut products = q.f_matmul(&k.f_transpose(2, 3)?)?.f_mul_scalar(scale)?;
    if let Some(visible) = visible {
        products = products.f_masked_fill(&visible.f_logical_not()?, f64::NEG_INFINITY)?;
    }
    let size = products.size();
    let sinks = sinks.f_view([1, -1, 1, 1])?.f_expand([size[0], size[1], size[2], 1], false)?;
    let wide = if q.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    let weights = Tensor::f_cat(&[&products, &sinks], -1)?.f_softmax(-1, wide)?.f_narrow(-1, 0, size[3])?;
    Ok(weights.f_to_kind(v.kind())?.f_matmul(v)?)
}

/// Mask of the keys 0, 1, … `context` that queries at positions `last` (any shape) attend to: shape
/// of `last`, then `[context]`.
pub(super) fn visible(last: &Tensor, context: i64, window: Option<usize>) -> Result<Tensor> {
    let keys = Tensor::f_arange(context, (Kind::Int64, last.device()))?;
    let last = last.f_unsqueeze(-1)?;
    let visible = keys.f_le_tensor(&last)?;
    let Some(window) = window else { return Ok(visible) };
    Ok(visible.f_logical_and(&keys.f_gt_tensor(&last.f_sub_scalar(window as i64)?)?)?)
}

/// Causal attention within each row. q `[T, H, D]`, k and v `[T, Hkv, D]`, packed rows of
/// `lengths`; returns `[T, H, D]`.
///
/// Rows of similar length are padded to the longest of them inside attention only; the padding
/// comes after the row, so the causal mask hides it.
pub(super) fn attend_rows(q: &Tensor, k: &Tensor, v: &Tensor, lengths: &[i64], scores: Scores<'_>) -> Result<Tensor> {
    let (device, shape) = (q.device(), q.size());
    let mut starts = Vec::with_capacity(lengths.len());
    let mut total = 0;
    for length in lengths {
        starts.push(total);
        total += length;
    }
    let mut order: Vec<usize> = (0..lengths.len()).filter(|&row| lengths[row] > 0).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(lengths[row]));
    // Index of each token of the packed batch in the concatenated padded outputs.
    let mut index = vec![0; total as usize];
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
                    index[(starts[row] + token) as usize] = offset;
                }
                offset += 1;
            }
        }
        let gather = native::upload(&Tensor::f_from_slice(&gather)?, device)?;
        let pad = |x: &Tensor| -> Result<Tensor> {
            let x = x.f_index_select(0, &gather)?;
            Ok(x.f_view([count as i64, longest, x.size()[1], x.size()[2]])?.f_transpose(1, 2)?)
        };
        let (k, v) = (repeat(&pad(k)?, shape[1])?, repeat(&pad(v)?, shape[1])?);
        // A window of at least the length is the causal mask.
        let narrow = scores.window.is_some_and(|window| (window as i64) < longest);
        let out = if narrow || scores.sinks.is_some() {
            let mask = visible(&Tensor::f_arange(longest, (Kind::Int64, device))?, longest, scores.window)?;
            attend(&pad(q)?, &k, &v, Some(&mask), scores)?
        } else {
            let no_mask = None::<&Tensor>;
            Tensor::f_scaled_dot_product_attention(&pad(q)?, &k, &v, no_mask, 0.0, true, scores.scale, false)?
        };
        outputs.push(out.f_transpose(1, 2)?.f_reshape([-1, shape[1], shape[2]])?);
    }
    if outputs.is_empty() {
        return Ok(q.f_zeros_like()?);
    }
    let index = native::upload(&Tensor::f_from_slice(&index)?, device)?;
    Ok(Tensor::f_cat(&outputs, 0)?.f_index_select(0, &index)?)
}

/// Attention of q `[B, H, L, D]` over cached k and v `[B, Hkv, C, D]`; `visible` [B, 1, L, C] is
/// the mask.
pub(super) fn attend_cache(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    visible: Option<&Tensor>,
    scores: Scores<'_>,
) -> Result<Tensor> {
    let heads = q.size()[1];
    attend(q, &repeat(k, heads)?, &repeat(v, heads)?, visible, scores)
}

/// Repeats key or value heads for each query head: `[B, Hkv, L, D]` to `[B, H, L, D]`.
fn repeat(x: &Tensor, heads: i64) -> Result<Tensor> {
    let present = x.size()[1];
    if present == heads { Ok(x.shallow_clone()) } else { Ok(x.f_repeat_interleave_self_int(heads / present, 1, None)?) }
}
