//! Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905): Llama's layers with queries, keys and
//! values as one projection, and gate and up, too. Part of each head can be rotated. With LongRoPE
//! (arXiv:2402.13753), sequences have at most the original context.

use super::{Architecture, Config, Defaults, Fields, Joint, Result, same_window, uniform};

pub(super) fn read(fields: &mut Fields) -> Result<Config> {
    let scaling = ["rope_scaling", "rope_parameters"].map(|name| (name, fields.get(name)));
    let original = fields.get("original_max_position_embeddings");
    let defaults = Defaults { max_position: 4096, partial: Some(1.0), rms_norm_eps: 1e-5, ..Defaults::default() };
    for name in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        fields.only(name, false)?;
    }
    for name in ["full_attn_mod", "interpolate_factor"] {
        fields.only(name, 1)?;
    }
    for (name, value) in scaling.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        let kind = value["rope_type"].as_str().or(value["type"].as_str()).unwrap_or("default");
        if !["default", "longrope", "su"].contains(&kind) {
            return Err(Fields::wrong(name, &value, "default and longrope are supported"));
        }
        if kind != "default" && value["original_max_position_embeddings"].is_null() && original.is_none() {
            return Err(Fields::missing("original_max_position_embeddings"));
        }
    }
    let mut config = uniform(Architecture::Phi3, fields, &defaults)?;
    config.joint = Joint { qkv: true, gate_up: true };
    let window = fields.optional_size("sliding_window")?;
    same_window(fields, &mut config, window)?;
    Ok(config)
}
