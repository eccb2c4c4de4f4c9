//! The models that the CPU kernels support (docs/lab/cpu-kernels.md), and their network.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tch::{Device, Kind, Tensor};

use super::config::{Activation, Joint, LayerKind, Norms, Rope};
use super::layers::{Block, Parameters};
use super::mixers::{Attention, Mixer};
use super::{Config, Model};
use crate::native;
use r1_base::error::Result;

/// Whether the CPU kernels support the layers of the config, this device and this type.
fn serves(config: &Config, device: Device, kind: Kind) -> bool {
    let alike = (0..config.num_hidden_layers).all(|index| config.layer(index) == LayerKind::default());
    native::has_cpu_kernels()
        && alike
        && config.activation == Activation::Silu
        && config.norms == Norms::Before
        && !config.zero_centred_norms
        && !config.output_gate
        && config.ropes.iter().all(|rope| rope.partial >= 1.0)
        && !config.joint_norms
        && config.joint == Joint::default()
        && !config.interleaved_ropes
        && (config.residual_scale - 1.0).abs() < f64::EPSILON
        && (config.logits_scale - 1.0).abs() < f64::EPSILON
        && !config.sinks
        && config.attention_scale.is_none()
        && config.vision.is_none()
        && (config.embedding_scale - 1.0).abs() < f64::EPSILON
        && !config.ropes.iter().any(Rope::is_dynamic)
        && device == Device::Cpu
        && matches!(kind, Kind::Float | Kind::BFloat16)
}

/// Whether the CPU kernels hold a packed copy of the weights: in f32 only.
pub(super) fn packs(config: &Config, device: Device, kind: Kind) -> bool {
    kind == Kind::Float && serves(config, device, kind) && !config.biases.output && !config.biases.mlp
}

/// The CPU kernels' network, if they support the model.
pub(super) fn native_model(
    config: &Config,
    parameters: &Parameters,
    frequencies: &[Tensor],
    device: Device,
    kind: Kind,
) -> Result<Option<native::Network>> {
    let ([rope], [frequencies], true) = (&config.ropes[..], frequencies, serves(config, device, kind)) else {
        return Ok(None);
    };
    let Some(tensors) = parameters.native() else { return Ok(None) };
    let shape = native::NetworkShape {
        vocab: config.vocab_size as i64,
        hidden: config.hidden_size as i64,
        inner: config.intermediate_size as i64,
        layers: config.num_hidden_layers as i64,
        heads: config.num_attention_heads as i64,
        kv_heads: config.num_key_value_heads as i64,
        head_dim: config.head_dim as i64,
        eps: config.rms_norm_eps,
        magnitude: rope.magnitude(),
    };
    native::Network::new(&shape, frequencies, &tensors).map(Some)
}

impl Parameters {
    /// Tensors in the order that the native code expects, with `None` for missing parts; `None` if
    /// the native code does not support this model.
    pub(super) fn native(&self) -> Option<Vec<Option<Tensor>>> {
        let mut all = vec![Some(&self.embed)];
        for layer in &self.layers {
            let (Block::Dense(mlp), Mixer::Attention(attention)) = (&layer.block, &layer.mixer) else { return None };
            let Attention { q, kv: Some([k, v]), o, head_norms, .. } = attention else { return None };
            let up = mlp.up.as_ref()?;
            let linears = [q, k, v, o, &mlp.gate, up, &mlp.down];
            let (Some(input_norm), Some(before_block)) = (&layer.input_norm, &layer.before_block) else { return None };
            if linears.iter().any(|linear| linear.lora.is_some()) {
                return None;
            }
            let unbiased = [o, &mlp.gate, up, &mlp.down].iter().all(|linear| linear.bias.is_none());
            if !unbiased || layer.after_attention.is_some() || layer.after_block.is_some() {
                return None;
            }
            let heads = head_norms.as_ref();
            all.push(Some(input_norm));
            for linear in [q, k, v] {
                all.extend([Some(&linear.weight), linear.bias.as_ref()]);
            }
            all.extend([heads.map(|norms| &norms.q), heads.map(|norms| &norms.k)]);
            all.extend([o, &mlp.gate, up, &mlp.down].map(|linear| Some(&linear.weight)));
            all.push(Some(before_block));
        }
        all.push(Some(&self.norm));
        if !self.tied {
            all.push(Some(&self.lm_head));
        }
        Some(all.into_iter().map(|tensor| tensor.map(Tensor::shallow_clone)).collect())
    }
}

/// See [`Model::without_kernels`].
#[derive(Debug)]
pub struct WithoutKernels(Arc<AtomicBool>);

impl Drop for WithoutKernels {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Model {
    /// The CPU kernels for training and scoring, which support f32 only.
    pub(super) fn native_f32(&self) -> Option<&native::Network> {
        self.native.as_ref().filter(|_| self.kind == Kind::Float && !self.without_kernels.load(Ordering::Relaxed))
    }

    /// Training and scoring use libtorch's operations until the result is dropped. The CPU kernels
    /// read all weights at once.
    pub fn without_kernels(&self) -> WithoutKernels {
        self.without_kernels.store(true, Ordering::Relaxed);
        WithoutKernels(Arc::clone(&self.without_kernels))
    }
}
