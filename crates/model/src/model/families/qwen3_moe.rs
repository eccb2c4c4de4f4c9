//! Qwen3 mixtures of experts (arXiv:2505.09388): the attention of Qwen3; the feed-forward block of
//! a sparse layer is the weighted sum of the experts that a router selects for each token.

use super::{
    Architecture, Biases, Config, Defaults, Fields, Result, optional_window, softmax_experts, uniform, windows,
};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults::default())?;
    config.head_norms = true;
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    let window = optional_window(fields, Some(4096))?;
    // Unlike in the dense models, every layer has the window; `max_window_layers` is ignored.
    fields.take("max_window_layers");
    windows(fields, &mut config, window, |_| true)?;

    softmax_experts(fields, &mut config, [128, 8, 768], None)?;
    Ok(config)
}
