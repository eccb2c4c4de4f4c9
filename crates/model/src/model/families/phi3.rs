//! Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905): Llama's layers with queries, keys and
//! values as one projection, and gate and up, too. Part of each head can be rotated. With LongRoPE
//! (arXiv:2402.13753), sequences have at most the original context.

use serde_json::{Map, Value, json};

use super::{Architecture, Config, Defaults, Fields, Joint, Result, same_window, uniform};
use crate::model::config::Scaling;

const ORIGINAL: &str = "original_max_position_embeddings";

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(mut scaling) = fields.take(name) else { continue };
        // The name of LongRoPE in the first files.
        if scaling["type"] == "su" {
            scaling["type"] = json!("longrope");
        }
        let kind = scaling["rope_type"].as_str().or(scaling["type"].as_str()).unwrap_or("default");
        if !["default", "longrope"].contains(&kind) {
            return Err(Fields::wrong(name, &scaling, "default and longrope are supported"));
        }
        if kind == "longrope" {
            fields.set_default(&[ORIGINAL], json!(4096));
        }
        fields.set_default(&[name], scaling);
    }
    let defaults = Defaults { max_position: 4096, partial: Some(1.0), rms_norm_eps: 1e-5, ..Defaults::default() };
    for name in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        fields.only(name, false)?;
    }
    for name in ["full_attn_mod", "interpolate_factor"] {
        fields.only(name, 1)?;
    }
    let mut config = uniform(architecture, fields, &defaults)?;
    config.joint = Joint { qkv: true, gate_up: true };
    let window = fields.optional_size("sliding_window")?;
    same_window(fields, &mut config, window)?;
    Ok(config)
}

/// Writes LongRoPE as every version of transformers reads it.
pub(super) fn write(config: &Config, object: &mut Map<String, Value>) {
    let Some(Scaling::LongRope { original, .. }) = config.ropes.first().map(|rope| &rope.scaling) else { return };
    object.insert(ORIGINAL.to_owned(), json!(original));
    if let Some(Value::Object(scaling)) = object.get_mut("rope_scaling") {
        let kept = ["short_factor", "long_factor", "factor", "attention_factor"];
        scaling.retain(|name, value| kept.contains(&name.as_str()) && !value.is_null());
        scaling.insert("type".to_owned(), json!("longrope"));
    }
}
