//! Projections of one input as rows of one matrix: query, key and value of a layer, gate and up of
//! a feed-forward block.
//!
//! On a GPU one product replaces two or three, forward and backward. The parameters keep their
//! names: each is a view of the matrix and a leaf of autograd, so files, optimisers and adapters do
//! not depend on the storage. Their gradients are views of one matrix, too.

use tch::{Device, Tensor};

use super::layers::Linear;
use super::plain::Arithmetic;
use crate::native;
use r1_base::error::Result;

/// Whether the projections of models on this device are stored as one matrix. The CPU keeps single
/// matrices: its kernels and its golden numbers depend on them.
pub(super) fn stacks(device: Device) -> bool {
    device.is_cuda() || gpu_paths()
}

/// Whether models on the CPU run the code paths of a GPU (`R1_GPU_PATHS=1`): no CPU kernels, and
/// plain operations in place of flash attention.
pub(super) fn gpu_paths() -> bool {
    if native::meta::is_on() {
        return true;
    }
    std::env::var("R1_GPU_PATHS").is_ok_and(|value| value == "1")
}

/// The matrix `[sum of outputs, in]` and the biases `[sum of outputs]` of some projections.
#[derive(Debug)]
pub(super) struct Stack {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Stack {
    /// Over a matrix and biases that are not tracked by autograd.
    pub(super) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// A stack with a copy of the matrix; the biases are shared.
    pub(super) fn copy(&self) -> Result<Self> {
        Ok(Self { weight: self.weight.f_detach_copy()?, bias: self.bias.as_ref().map(Tensor::shallow_clone) })
    }

    /// A stack of the same matrix.
    pub(super) fn share(&self) -> Self {
        Self { weight: self.weight.shallow_clone(), bias: self.bias.as_ref().map(Tensor::shallow_clone) }
    }

    /// The projection of `outputs` rows from `first` on, as leaves that require gradients.
    pub(super) fn part(&self, first: usize, outputs: usize) -> Result<Linear> {
        let _guard = tch::no_grad_guard();
        let leaf = |all: &Tensor| -> Result<Tensor> {
            Ok(all.f_narrow(0, first as i64, outputs as i64)?.f_detach()?.f_set_requires_grad(true)?)
        };
        let bias = self.bias.as_ref().map(leaf).transpose()?;
        Ok(Linear { weight: leaf(&self.weight)?, bias, lora: None })
    }

    /// The outputs of all projections, which are `parts`, for x `[T, in]`: one `[T, out]` each,
    /// with their adapters unless `adapter_disabled`.
    pub(super) fn apply(&self, x: &Tensor, parts: &[&Linear], adapter_disabled: bool) -> Result<Vec<Tensor>> {
        let sizes: Vec<i64> = parts.iter().map(|part| part.weight.size()[0]).collect();
        let each = self.apply_in(x, parts, &sizes)?;
        let adapted =
            |(part, output): (&&Linear, Tensor)| part.adapted(output, x, adapter_disabled, Arithmetic::Libtorch);
        parts.iter().zip(each).map(adapted).collect()
    }

    /// As [`apply`](Self::apply) without adapters, with outputs of the given sizes, which add up to
    /// the sizes of the projections.
    pub(super) fn apply_in(&self, x: &Tensor, parts: &[&Linear], sizes: &[i64]) -> Result<Vec<Tensor>> {
        let leaves: Vec<&Tensor> =
            parts.iter().map(|part| &part.weight).chain(parts.iter().filter_map(|part| part.bias.as_ref())).collect();
        native::stacked_linear(x, &self.weight, self.bias.as_ref(), &leaves, sizes)
    }

    /// The outputs of all projections, one `[T, out]` each, without biases, adapters and gradients.
    pub(super) fn without_biases(&self, x: &Tensor, parts: &[&Linear]) -> Result<Vec<Tensor>> {
        let sizes: Vec<i64> = parts.iter().map(|part| part.weight.size()[0]).collect();
        Ok(x.f_linear(&self.weight, None::<&Tensor>)?.f_split_with_sizes(&sizes, 1)?)
    }
}
