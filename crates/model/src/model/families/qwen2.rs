//! Qwen2 and Qwen2.5 text models (arXiv:2407.10671, arXiv:2412.15115): grouped-query attention with
//! biases on q, k and v, rotary embeddings, RMSNorm before each block, SwiGLU. Upper layers can
//! have a sliding window.

use super::{Architecture, Biases, Config, Defaults, Fields, Result, optional_window, uniform, windows};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults::default())?;
    config.biases = Biases { qkv: true, ..Biases::default() };
    for name in ["attention_bias", "qkv_bias"] {
        fields.only(name, true)?;
    }
    fields.only("mlp_bias", false)?;
    let window = optional_window(fields, Some(4096))?;
    let first = fields.size("max_window_layers", Some(28))?;
    windows(fields, &mut config, window, |layer| layer >= first)?;
    Ok(config)
}
