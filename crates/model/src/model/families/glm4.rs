//! GLM-4 dense models of 2025 (GLM-4-0414; arXiv:2406.12793): RMSNorms around each block, half of
//! each head rotated in pairs of neighbours, gate and up as one projection.

use super::{Architecture, Biases, Config, Defaults, Fields, Joint, Norms, Result, uniform};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let defaults = Defaults {
        max_position: 131_072,
        head_dim: Some(128),
        partial: Some(0.5),
        rms_norm_eps: 1.5625e-7,
        ..Defaults::default()
    };
    let mut config = uniform(architecture, fields, &defaults)?;
    config.norms = Norms::Around;
    config.biases = Biases { qkv: fields.flag("attention_bias", true)?, ..Biases::default() };
    config.joint = Joint { qkv: false, gate_up: true };
    config.interleaved_ropes = true;
    Ok(config)
}
