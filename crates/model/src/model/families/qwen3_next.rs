//! Qwen3-Next (huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct): three of four layers are Gated
//! DeltaNets (arXiv:2412.06464), every fourth has gated attention (arXiv:2505.06708) with rotary
//! embeddings of a quarter of each head; experts of all tokens beside the chosen ones.

use serde_json::json;

use super::{
    Architecture, Biases, Config, Defaults, Fields, LayerKind, Result, softmax_experts, special_layers, uniform,
};
use crate::model::config::{DeltaShape, SharedExpert};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = hybrid(architecture, fields, None, true)?;
    fields.set_default(&["norm_topk_prob"], json!(true));
    let shared = shared_expert(fields)?;
    softmax_experts(fields, &mut config, [512, 10, 512], shared)?;
    Ok(config)
}

/// The expert of all tokens.
pub(super) fn shared_expert(fields: &mut Fields) -> Result<Option<SharedExpert>> {
    let intermediate_size = fields.size("shared_expert_intermediate_size", Some(512))?;
    Ok(Some(SharedExpert { intermediate_size, gated: true }))
}

/// The layers that Qwen3-Next and Qwen3.5 share. `joint`: their projections of linear attention are
/// two matrices.
pub(super) fn hybrid(
    architecture: Architecture,
    fields: &mut Fields,
    intermediate_size: Option<usize>,
    joint: bool,
) -> Result<Config> {
    let defaults = Defaults { head_dim: Some(256), partial: Some(0.25), intermediate_size, ..Defaults::default() };
    let mut config = uniform(architecture, fields, &defaults)?;
    (config.zero_centred_norms, config.head_norms, config.output_gate) = (true, true, true);
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    fields.only("attn_output_gate", true)?;
    fields.only("use_sliding_window", false)?;
    fields.only("mamba_ssm_dtype", "float32")?;
    // Without effect: no layer has a window, and multi-token prediction is not loaded.
    for name in ["sliding_window", "max_window_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"] {
        fields.take(name);
    }
    config.delta = Some(DeltaShape {
        key_heads: fields.size("linear_num_key_heads", Some(16))?,
        value_heads: fields.size("linear_num_value_heads", Some(32))?,
        key_dim: fields.size("linear_key_head_dim", Some(128))?,
        value_dim: fields.size("linear_value_head_dim", Some(128))?,
        taps: fields.size("linear_conv_kernel_dim", Some(4))?,
        joint,
    });
    config.layers = layers(fields, config.num_hidden_layers)?;
    Ok(config)
}

/// Layers by `layer_types`, or else full attention in every `full_attention_interval`-th.
fn layers(fields: &mut Fields, count: usize) -> Result<Vec<LayerKind>> {
    let interval = fields.optional_size("full_attention_interval")?;
    let every = interval.unwrap_or(4);
    if every == 0 {
        return Err(Fields::wrong("full_attention_interval", &json!(0), "it must be 1 or more"));
    }
    let in_turn = |index: usize| !(index + 1).is_multiple_of(every);
    let linear = special_layers(fields, count, ["linear_attention", "linear_attention and full_attention"], in_turn)?;
    if let (Some(every), Some(index)) = (interval, (0..count).find(|&index| linear[index] != in_turn(index))) {
        let why = format!("but `layer_types` has another kind for layer {index}");
        return Err(Fields::wrong("full_attention_interval", &json!(every), &why));
    }
    Ok(linear.into_iter().map(|linear| LayerKind { linear, ..LayerKind::default() }).collect())
}
