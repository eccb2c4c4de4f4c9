//! gpt-oss (arXiv:2508.10925): mixtures of experts with biases and clamped SwiGLU, attention sinks,
//! a sliding window in every second layer, YaRN. Released weights of experts are in MXFP4.

use serde_json::json;

use super::{Activation, Architecture, Biases, Config, Defaults, Fields, LayerKind, Result, uniform, windows};
use crate::model::config::{ExpertStorage, Experts, Router};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let defaults = Defaults {
        theta: 150_000.0,
        max_position: 131_072,
        head_dim: Some(64),
        rms_norm_eps: 1e-5,
        ..Defaults::default()
    };
    if let Some(value) = fields.take("quantization_config")
        && value["quant_method"] != "mxfp4"
    {
        return Err(Fields::wrong("quantization_config", &value, "only MXFP4 is read"));
    }
    let yarn = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    fields.set_default(&["rope_parameters", "rope_scaling"], yarn);
    let mut config = uniform(architecture, fields, &defaults)?;
    let biased = fields.flag("attention_bias", true)?;
    config.biases = Biases { qkv: biased, output: biased, mlp: false };
    config.sinks = true;
    config.activation = Activation::ClampedSwiglu {
        alpha: fields.number("swiglu_alpha")?.unwrap_or(1.702),
        limit: fields.number("swiglu_limit")?.unwrap_or(7.0),
    };
    let window = fields.size("sliding_window", Some(128))?;
    windows(fields, &mut config, Some(window), |layer| layer.is_multiple_of(2))?;
    config.layers.resize(config.num_hidden_layers, LayerKind::default());
    config.layers.iter_mut().for_each(|layer| layer.sparse = true);
    let count = fields.same_size(&["num_local_experts", "num_experts"], 128)?;
    let chosen = fields.same_size(&["num_experts_per_tok", "experts_per_token"], 4)?;
    // The context before YaRN, which `rope_scaling` has too.
    fields.take("initial_context_length");
    config.experts = Some(Experts {
        count,
        chosen,
        intermediate_size: config.intermediate_size,
        normalised: true,
        router: Router::Softmax,
        shared: None,
        biased: true,
        storage: ExpertStorage::Transposed,
    });
    Ok(config)
}
