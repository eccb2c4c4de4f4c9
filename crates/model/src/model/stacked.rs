//! Projections of one input as rows of one matrix: query, key and value of a layer, gate and up of
//! a feed-forward block.
//!
//! On a GPU one product replaces two or three, forward and backward. The parameters keep their
//! names: each is a view of the matrix and a leaf of autograd, so files, optimisers and adapters do
//! not depend on the storage. Their gradients are views of one matrix, too.

use tch::{Device, Tensor};

use super::layers::{AdapterUse, Linear};
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
    pub weight: Tensor,
    bias: Option<Tensor>,
    /// A copy of the matrix with the adapters of some projections merged in, for sampling.
    pub merged: Option<Tensor>,
}

impl Stack {
    /// Over a matrix and biases that are not tracked by autograd.
    pub(super) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, merged: None }
    }

    /// The projection of `outputs` rows from `first` on, as leaves that require gradients.
    pub(super) fn part(&self, first: usize, outputs: usize) -> Result<Linear> {
        let _guard = tch::no_grad_guard();
        let leaf = |all: &Tensor| -> Result<Tensor> {
            Ok(all.f_narrow(0, first as i64, outputs as i64)?.f_detach()?.f_set_requires_grad(true)?)
        };
        let bias = self.bias.as_ref().map(leaf).transpose()?;
        Ok(Linear::new(leaf(&self.weight)?, bias))
    }

    fn weight(&self, adapter: AdapterUse) -> &Tensor {
        self.merged.as_ref().filter(|_| adapter == AdapterUse::Merged).unwrap_or(&self.weight)
    }

    /// The outputs of all projections, which are `parts`, for x `[T, in]`: one `[T, out]` each.
    pub(super) fn apply(&self, x: &Tensor, parts: &[&Linear], adapter: AdapterUse) -> Result<Vec<Tensor>> {
        let sizes: Vec<i64> = parts.iter().map(|part| part.weight.size()[0]).collect();
        let each = self.apply_in(x, parts, &sizes, adapter)?;
        let adapted = |(part, output): (&&Linear, Tensor)| part.adapted(output, x, adapter, Arithmetic::Libtorch);
        parts.iter().zip(each).map(adapted).collect()
    }

    /// As [`apply`](Self::apply) without adapters beside the weights, with outputs of the given
    /// sizes, which add up to the sizes of the projections.
    pub(super) fn apply_in(
        &self,
        x: &Tensor,
        parts: &[&Linear],
        sizes: &[i64],
        adapter: AdapterUse,
    ) -> Result<Vec<Tensor>> {
        let leaves: Vec<&Tensor> =
            parts.iter().map(|part| &part.weight).chain(parts.iter().filter_map(|part| part.bias.as_ref())).collect();
        native::stacked_linear(x, self.weight(adapter), self.bias.as_ref(), &leaves, sizes)
    }

    /// The outputs of all projections, one `[T, out]` each, without biases, adapters beside the
    /// weights and gradients.
    pub(super) fn without_biases(&self, x: &Tensor, parts: &[&Linear], adapter: AdapterUse) -> Result<Vec<Tensor>> {
        let sizes: Vec<i64> = parts.iter().map(|part| part.weight.size()[0]).collect();
        Ok(x.f_linear(self.weight(adapter), None::<&Tensor>)?.f_split_with_sizes(&sizes, 1)?)
    }
}
