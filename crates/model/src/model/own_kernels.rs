//! Which of r1's CUDA kernels a model uses: in bf16 and f32 on CUDA, those that `R1_CUDA_KERNELS`
//! selects, that compile, and that agree with libtorch's operations on a small example of the
//! model's shape.

use tch::{Device, Kind};

use super::Config;
use super::config::Activation;
use super::kernel_checks::{Shapes, check};
use crate::native;
use r1_base::error::Result;

/// The kernels in use; the others are libtorch's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // one for each kernel
pub(super) struct Kernels {
    /// Residual add and RMSNorm.
    pub norm: bool,
    /// Biases, RMSNorms of heads, rotary embedding, and the write to the cache.
    pub rope: bool,
    /// Activation times up.
    pub gated: bool,
    /// Softmax of sampled ids.
    pub logprobs: bool,
    /// Attention of decode steps.
    pub attention: bool,
}

impl Kernels {
    /// The kernels for a model, and why some of those that are selected are not used.
    ///
    /// # Errors
    /// `Kind::Usage`: `R1_CUDA_KERNELS` names an unknown kernel.
    pub(super) fn find(config: &Config, device: Device, kind: Kind) -> Result<(Self, Option<String>)> {
        if !device.is_cuda() || !matches!(kind, Kind::BFloat16 | Kind::Float) {
            return Ok((Self::default(), None));
        }
        let mut wanted = native::wanted_kernels()?;
        wanted.retain(|name| has_parts(name, config));
        if wanted.is_empty() {
            return Ok((Self::default(), None));
        }
        if let Some(why) = native::kernels_missing(device) {
            return Ok((Self::default(), Some(why)));
        }
        Ok(Self::agreeing(&wanted, &Shapes::of(config), device, kind))
    }

    /// The kernels that agree with libtorch's operations, and what is wrong with the first one that
    /// does not.
    pub(super) fn agreeing(wanted: &[&str], shapes: &Shapes, device: Device, kind: Kind) -> (Self, Option<String>) {
        let (mut kernels, mut failure) = (Self::default(), None);
        for name in wanted {
            let wrong = match check(name, shapes, device, kind) {
                // No kernel for these sizes.
                Ok(cases) if cases.is_empty() => continue,
                Ok(cases) => cases
                    .into_iter()
                    .find(|case| !case.agrees())
                    .map(|case| format!("`{name}` differs from libtorch by {:.1e} ({})", case.difference, case.case)),
                Err(error) => Some(format!("`{name}`: {}", error.message)),
            };
            if let Some(wrong) = wrong {
                failure.get_or_insert(wrong);
            } else {
                kernels.set(name);
            }
        }
        (kernels, failure)
    }

    fn set(&mut self, name: &str) {
        match name {
            "norm" => self.norm = true,
            "rope" => self.rope = true,
            "gated" => self.gated = true,
            "logprobs" => self.logprobs = true,
            "attention" => self.attention = true,
            _ => {}
        }
    }

    /// All of them.
    #[cfg(test)]
    pub(super) fn all() -> Self {
        Self { norm: true, rope: true, gated: true, logprobs: true, attention: true }
    }
}

/// Whether the kernel computes the parts of the model that it would replace.
fn has_parts(name: &str, config: &Config) -> bool {
    match name {
        "rope" => {
            let whole_heads = config.ropes.iter().all(|rope| rope.partial >= 1.0);
            whole_heads && !(config.output_gate || config.joint_norms || config.interleaved_ropes || config.joint.qkv)
        }
        "gated" => !matches!(config.activation, Activation::ClampedSwiglu { .. }),
        "attention" => !config.sinks,
        _ => true,
    }
}
