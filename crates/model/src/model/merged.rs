//! Weights for sampling with the adapter merged into them: W + scale · B A in the model's type.
//!
//! A decode step with an adapter has more products; a merged one has only the model's.
//! Training keeps the adapter apart, in f32. The merged projections are copies, which
//! [`Model::refresh_merged`] renews in place after an update, so that recorded steps stay valid;
//! the model's own weights never change. Everything without an adapter is shared.
//!
//! In bf16 and f16 the sum is rounded up or down in proportion to its distance (stochastic
//! rounding), with fixed numbers. The weights are on the grid of the type already, so that rounding
//! to the nearest number would drop every change of less than half a step: all changes of a young
//! adapter.

use tch::{Kind, Tensor};

use super::Model;
use super::layers::{Linear, ParameterNode};
use super::lora::Lora;
use r1_base::error::Result;

impl Model {
    /// Samples from weights with the adapter merged in, or computes the adapter beside the weights
    /// (the default). No effect without an adapter. Caches made before stay valid.
    ///
    /// [`refresh_merged`](Self::refresh_merged) must follow, and each change of the adapter, too.
    pub fn set_merged_sampling(&mut self, on: bool) -> Result<()> {
        self.merged = on && self.lora().is_some();
        self.parameters.set_merged(self.merged)
    }

    /// Whether sampling uses merged weights.
    pub fn samples_merged(&self) -> bool {
        self.merged
    }

    /// Memory of the merged weights of projections with an adapter, bytes.
    pub fn merged_bytes(&self) -> u64 {
        let all = self.merged_weights().into_iter().map(|(_, _, to)| to.numel() * to.kind().elt_size_in_bytes());
        all.sum::<usize>() as u64
    }

    /// Renews the merged weights from the adapter.
    pub fn refresh_merged(&self) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for (weight, lora, to) in self.merged_weights() {
            to.shallow_clone().f_copy_(&rounded(&lora.merged_with(weight)?, to.kind())?)?;
        }
        Ok(())
    }

    /// Weights with an adapter, and their copies that it is merged into.
    fn merged_weights(&self) -> Vec<(&Tensor, &Lora, &Tensor)> {
        let mut all = Vec::new();
        self.parameters.walk(&mut |_, part| {
            if let ParameterNode::Linear(Linear { weight, lora: Some(lora), merged: Some(merged), .. }) = part {
                all.push((weight, lora, merged));
            }
        });
        all
    }
}

/// `x` in `kind`; bf16 by stochastic rounding, other types to the nearest number.
fn rounded(x: &Tensor, kind: Kind) -> Result<Tensor> {
    if kind != Kind::BFloat16 {
        return Ok(x.f_to_kind(kind)?);
    }
    // bf16 has the upper 16 bits of f32. Adding 16 random bits rounds the magnitude up in
    // proportion to the lower ones.
    let index = Tensor::f_arange(x.numel() as i64, (Kind::Int64, x.device()))?;
    // A multiplicative hash of the place, whose upper bits are uniform.
    let noise = index.f_add_scalar(1)?.f_mul_scalar(2_654_435_761_i64)?.f_bitwise_and(0xffff_ffff_i64)?;
    let noise = noise.f_bitwise_right_shift_tensor_scalar(16)?.f_to_kind(Kind::Int)?.f_view_as(x)?;
    let bits = x.f_contiguous()?.f_view_dtype(Kind::Int)?.f_add(&noise)?.f_bitwise_and(-65536_i64)?;
    // Exact: the lower bits are zero.
    Ok(bits.f_view_dtype(Kind::Float)?.f_to_kind(kind)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tch::Device;

    use super::*;

    #[test]
    fn rounding_to_bf16_keeps_small_changes_on_average() {
        let (count, step) = (1 << 16, 2.0_f64.powi(-8));
        for (base, change) in [(0.75, 0.013), (-0.75, 0.2), (0.75, 0.0), (1.5, -0.4)] {
            // The distance of two numbers of bf16 near the base.
            let grid = if base > 1.0 { 2.0 * step } else { step };
            let x = Tensor::full([256, 256], base + change * grid, (Kind::Float, Device::Cpu));
            let rounded = rounded(&x, Kind::BFloat16).unwrap().to_kind(Kind::Double);
            let near = rounded.subtract_scalar(base).abs().max().double_value(&[]);
            assert!(near <= grid + 1e-9, "{base} {change}: {near}");
            let mean = rounded.mean(Kind::Double).double_value(&[]);
            let off = (mean - base) / grid - change;
            assert!(off.abs() < 0.01, "{base} {change}: {off} of {count} numbers");
            // To the nearest, the change would be lost.
            let nearest = x.to_kind(Kind::BFloat16).to_kind(Kind::Double).mean(Kind::Double).double_value(&[]);
            assert!((nearest - base).abs() < 1e-12, "{base} {change}: {nearest}");
        }
    }
}
