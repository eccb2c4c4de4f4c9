//! SmolLM3 (huggingface.co/blog/smollm3): Llama's layers, some without rotary embeddings (NoPE,
//! arXiv:2501.18795); these can have a sliding window.

use serde_json::{Value, json};

use super::{Architecture, Biases, Config, Defaults, Fields, Result, optional_window, uniform, windows};
use crate::model::config::LayerKind;

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let defaults = Defaults { theta: 2_000_000.0, tied: true, ..Defaults::default() };
    let mut config = uniform(architecture, fields, &defaults)?;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: fields.flag("mlp_bias", false)? };
    let layers = config.num_hidden_layers;
    let every = fields.size("no_rope_layer_interval", Some(4))?;
    let turns: Vec<bool> = match fields.per_layer("no_rope_layers", layers)? {
        Some(entries) => entries.iter().map(has_rotary).collect::<Option<_>>().ok_or_else(|| {
            Fields::wrong("no_rope_layers", &json!(entries), "its entries must be 0 (no rotary embedding) or 1")
        })?,
        None if every == 0 => return Err(Fields::wrong("no_rope_layer_interval", &json!(0), "it must be 1 or more")),
        None => (1..=layers).map(|layer| !layer.is_multiple_of(every)).collect(),
    };
    // Inherited from the parent class in transformers.
    fields.take("max_window_layers");
    let window = optional_window(fields, None)?;
    windows(fields, &mut config, window, |layer| window.is_some() && !turns.get(layer).copied().unwrap_or(true))?;
    if turns.contains(&false) {
        config.layers.resize(turns.len(), LayerKind::default());
        for (layer, turns) in config.layers.iter_mut().zip(turns) {
            layer.rope = turns.then_some(0);
        }
    }
    Ok(config)
}

/// An entry of `no_rope_layers`: 1 where the layer has rotary embeddings, in spite of the name.
fn has_rotary(value: &Value) -> Option<bool> {
    match value.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => value.as_bool(),
    }
}
