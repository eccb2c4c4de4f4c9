//! Qwen1.5-MoE and Qwen2-MoE (arXiv:2407.10671): the attention of Qwen2; experts as in Qwen3-MoE,
//! and an expert of all tokens with a gate.

use super::{
    Architecture, Biases, Config, Defaults, Fields, Result, optional_window, softmax_experts, uniform, windows,
};
use crate::model::config::SharedExpert;

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults::default())?;
    config.biases = Biases { qkv: fields.flag("qkv_bias", true)?, ..Biases::default() };
    let window = optional_window(fields, Some(4096))?;
    let first = fields.size("max_window_layers", Some(28))?;
    windows(fields, &mut config, window, |layer| layer < first && layer.is_multiple_of(2))?;
    let shared = fields.size("shared_expert_intermediate_size", Some(5632))?;
    softmax_experts(fields, &mut config, [60, 4, 1408], Some(SharedExpert { intermediate_size: shared, gated: true }))?;
    Ok(config)
}
