//! OLMo 2 (arXiv:2501.00656) and OLMo 3 (arXiv:2512.13961): RMSNorms after attention and after the
//! feed-forward block instead of before them, and over all queries and all keys of a token. In
//! OLMo 3, three of four layers have a sliding window and a rotary embedding without scaling.

use super::{Architecture, Biases, Config, Defaults, Fields, Norms, Result, common, layered_ropes, uniform, windows};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let layered = architecture == Architecture::Olmo3;
    let theta = if layered { 500_000.0 } else { 10_000.0 };
    let defaults = Defaults { theta, max_position: 2048, rms_norm_eps: 1e-5, ..Defaults::default() };
    let mut config = if layered {
        fields.only("hidden_act", "silu")?;
        // transformers gives `rope_theta` to the full layers only.
        let ropes = |fields: &mut Fields, theta, max| layered_ropes(fields, [theta, theta], max);
        common(architecture, fields, &defaults, ropes)?
    } else {
        uniform(architecture, fields, &defaults)?
    };
    config.norms = Norms::After;
    (config.head_norms, config.joint_norms) = (true, true);
    let biased = fields.flag("attention_bias", false)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    if layered {
        let window = fields.size("sliding_window", Some(4096))?;
        windows(fields, &mut config, Some(window), |layer| !(layer + 1).is_multiple_of(4))?;
        for layer in config.layers.iter_mut().filter(|layer| layer.window.is_some()) {
            layer.rope = Some(1);
        }
    }
    Ok(config)
}
