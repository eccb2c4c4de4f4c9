//! Granite 3 and 4 dense models: Llama's layers with multipliers of embeddings, attention scores,
//! the outputs of blocks, and logits (muP, arXiv:2203.03466).

use serde_json::json;

use super::{Architecture, Biases, Config, Defaults, Fields, Result, uniform};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults { max_position: 2048, ..Defaults::default() })?;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: fields.flag("mlp_bias", false)? };
    config.embedding_scale = fields.number("embedding_multiplier")?.unwrap_or(1.0);
    config.residual_scale = fields.number("residual_multiplier")?.unwrap_or(1.0);
    config.attention_scale = Some(fields.number("attention_multiplier")?.unwrap_or(1.0));
    let divisor = fields.number("logits_scaling")?.unwrap_or(1.0);
    if divisor <= 0.0 {
        return Err(Fields::wrong("logits_scaling", &json!(divisor), "it must be above 0"));
    }
    config.logits_scale = 1.0 / divisor;
    Ok(config)
}
