//! The models that the CPU kernels support (docs/lab/cpu-kernels.md), and their network.

use tch::{Device, Kind, Tensor};

use super::Config;
use super::config::{Activation, Joint, LayerKind, Norms, Rope};
use super::layers::Parameters;
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
