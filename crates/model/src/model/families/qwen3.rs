//! Qwen3 dense models (arXiv:2505.09388): as Qwen2, with RMSNorm on every query and key head
//! instead of biases, and an independent head size.

use super::{Architecture, Biases, Config, Defaults, Fields, Result, optional_window, uniform, windows};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults { head_dim: Some(128), ..Defaults::default() })?;
    config.head_norms = true;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    let window = optional_window(fields, Some(4096))?;
    let first = fields.size("max_window_layers", Some(28))?;
    windows(fields, &mut config, window, |layer| layer >= first)?;
    Ok(config)
}
