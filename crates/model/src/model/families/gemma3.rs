//! Gemma 3 text models (arXiv:2503.19786): RMSNorms around each block and on every head of queries
//! and keys, weights of norms stored minus 1, scaled embeddings, GeGLU. Most layers have a sliding
//! window and a separate rotary embedding; every sixth layer has full attention.

use serde_json::json;

use super::{Architecture, Biases, Config, Defaults, Fields, Result, common, layered_ropes, windows};
use crate::model::config::{Activation, Norms};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    for name in ["hidden_activation", "hidden_act"] {
        fields.only(name, "gelu_pytorch_tanh")?;
    }
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(value) = fields.take(name) {
            return Err(Fields::wrong(name, &value, "soft caps are not supported"));
        }
    }
    fields.only("use_bidirectional_attention", false)?;
    let defaults =
        Defaults { theta: 1_000_000.0, max_position: 131_072, head_dim: Some(256), tied: true, ..Defaults::default() };
    let mut config = common(architecture, fields, &defaults, |fields, theta, max| {
        let local = fields.number("rope_local_base_freq")?.unwrap_or(10_000.0);
        layered_ropes(fields, [theta, local], max)
    })?;
    config.norms = Norms::Around;
    config.zero_centred_norms = true;
    config.head_norms = true;
    config.activation = Activation::GeluTanh;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    config.embedding_scale = (config.hidden_size as f64).sqrt();
    config.attention_scale = Some(fields.number("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5));
    let window = fields.size("sliding_window", Some(4096))?;
    // transformers writes `_sliding_window_pattern` next to `layer_types` and does not read it.
    let pattern = fields.optional_size("sliding_window_pattern")?.unwrap_or(6);
    if pattern == 0 {
        return Err(Fields::wrong("sliding_window_pattern", &json!(0), "it must be 1 or more"));
    }
    windows(fields, &mut config, Some(window), |layer| !(layer + 1).is_multiple_of(pattern))?;
    for layer in config.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        layer.rope = Some(1);
    }
    Ok(config)
}
