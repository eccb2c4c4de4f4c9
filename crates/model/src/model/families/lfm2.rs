//! LFM2 (arXiv:2511.23404): most layers are gated short convolutions, the others attention with
//! RMSNorms of query and key heads.

use serde_json::{Map, Value, json};

use super::{Architecture, Config, Defaults, Fields, LayerKind, Result, special_layers, uniform};

/// Fields about the first weights.
const WITHOUT_EFFECT: [&str; 4] =
    ["block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"];

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    for name in WITHOUT_EFFECT {
        fields.take(name);
    }
    fields.set_default(&["num_key_value_heads"], json!(8));
    let eps = fields.number("norm_eps")?.unwrap_or(1e-5);
    for name in ["rms_norm_eps", "block_norm_eps"] {
        fields.only(name, eps)?;
    }
    let tied = fields.flag("tie_word_embeddings", true)?;
    let tied = fields.flag("tie_embedding", tied)?;
    let inner = inner_size(fields)?;
    let defaults = Defaults {
        theta: 1e6,
        max_position: 128_000,
        intermediate_size: Some(inner),
        tied,
        rms_norm_eps: eps,
        ..Defaults::default()
    };
    let mut config = uniform(architecture, fields, &defaults)?;
    fields.only("theta", config.ropes[0].theta)?;
    for name in ["block_dim", "conv_dim", "conv_dim_out"] {
        fields.only(name, config.hidden_size)?;
    }
    fields.only("num_heads", config.num_attention_heads)?;
    fields.only("conv_bias", false)?;
    fields.only("block_use_swiglu", true)?;
    fields.only("use_pos_enc", true)?;
    config.head_norms = true;
    config.short_conv = Some(fields.size("conv_L_cache", Some(3))?);
    config.layers = layers(fields, config.num_hidden_layers)?;
    Ok(config)
}

/// Inner size of the feed-forward block. The file has the size for a block without a gate; a block
/// with a gate has two thirds of it.
fn inner_size(fields: &mut Fields) -> Result<usize> {
    let size = fields.size("intermediate_size", Some(12_288))?;
    let size = fields.size("block_ff_dim", Some(size))?;
    let (multiple, factor) = (fields.size("block_multiple_of", Some(256))?, fields.number("block_ffn_dim_multiplier")?);
    if multiple == 0 {
        return Err(Fields::wrong("block_multiple_of", &json!(0), "it must be 1 or more"));
    }
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(size);
    }
    let adjusted = (2.0 * size as f64 / 3.0) as usize;
    Ok(((factor.unwrap_or(1.0) * adjusted as f64) as usize).next_multiple_of(multiple))
}

/// Layers by `layer_types`, or else by `full_attn_idxs`; all have attention without them.
fn layers(fields: &mut Fields, count: usize) -> Result<Vec<LayerKind>> {
    let listed = fields.take("full_attn_idxs");
    let attends =
        |index: usize| listed.as_ref().is_none_or(|all| all.as_array().is_some_and(|all| all.contains(&json!(index))));
    if let Some(other) = listed.as_ref().filter(|value| !value.is_array()) {
        return Err(Fields::wrong("full_attn_idxs", other, "it must be a list of layers"));
    }
    let linear = special_layers(fields, count, ["conv", "conv and full_attention"], |index| !attends(index))?;
    Ok(linear.into_iter().map(|linear| LayerKind { linear, ..LayerKind::default() }).collect())
}

/// Writes the inner size, which is already adjusted.
pub(super) fn write(object: &mut Map<String, Value>) {
    object.retain(|name, _| name != "block_ff_dim" && name != "tie_embedding");
    object.insert("block_auto_adjust_ff_dim".to_owned(), json!(false));
}
