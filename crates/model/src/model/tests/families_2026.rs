//! `config.json` files of the families of 2025 and 2026.

use serde_json::{Map, Value, json};

use super::families::cases;
use crate::model::layers::Parameters;
use crate::model::{Activation, Config, Norms, Scaling};

/// The first golden config of a family, with other fields.
fn config(family: &str, fields: &Value) -> Value {
    let case = cases("golden_2026").into_iter().find(|case| case.name == format!("{family} 1")).unwrap();
    let mut config = case.record["config"].clone();
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    config
}

fn read(config: &Value) -> Config {
    Config { source: Map::new(), ..Config::from_json(config).unwrap() }
}

/// Every pair of a field and its value is refused by the name of the field.
fn refuses(family: &str, fields: &[(&str, Value)]) {
    for (name, value) in fields {
        let message = Config::from_json(&config(family, &json!({*name: value}))).unwrap_err().message;
        assert!(message.contains(name), "{family}: {name}: {message}");
    }
}

#[test]
fn gpt_oss_configs_are_read() {
    // openai/gpt-oss-20b.
    let layers: Vec<&str> = ["sliding_attention", "full_attention"].into_iter().cycle().take(24).collect();
    let released = json!({
        "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "eos_token_id": 200_002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
        "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": layers,
        "max_position_embeddings": 131_072, "model_type": "gpt_oss", "num_attention_heads": 64,
        "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
        "output_router_logits": false, "pad_token_id": 199_999, "rms_norm_eps": 1e-5, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": false,
        },
        "quantization_config": {"modules_to_not_convert": ["model.embed_tokens"], "quant_method": "mxfp4"},
        "rope_theta": 150_000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201_088,
    });
    let config = read(&released);
    assert_eq!((config.layer(0).window, config.layer(1).window, config.experts.unwrap().chosen), (Some(128), None, 4));
    assert_eq!(config.activation, Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 });
    assert!(config.sinks && config.layer(23).sparse);
    assert_eq!(Parameters::numbers(&config) / 100_000_000, 209);
    // A missing rotary embedding is YaRN, and stays another one when it is written.
    let mut short = released.clone();
    let fields = short.as_object_mut().unwrap();
    fields.retain(|name, _| name != "rope_scaling" && name != "layer_types");
    assert_eq!(read(&short), config);
    for kind in ["default", "yarn"] {
        let rope = json!({"rope_type": kind, "factor": (kind == "yarn").then_some(4.0), "rope_theta": 100.0});
        let other = self::config("gpt_oss", &json!({"rope_parameters": rope}));
        let written = Config::from_json(&other).unwrap().to_json();
        assert_eq!((read(&written), read(&other).ropes[0].scaling == Scaling::None), (read(&other), kind == "default"));
    }
    let contradictory = [
        ("experts_per_token", json!(7)),
        ("num_experts", json!(7)),
        ("quantization_config", json!({"quant_method": "awq"})),
        ("layer_types", json!(["linear_attention", "full_attention", "full_attention"])),
        ("swiglu_limit", json!(0)),
        ("swiglu_alpha", json!("large")),
        ("hidden_act", json!("gelu")),
        ("num_experts_per_tok", json!(100)),
        ("sliding_window", json!(0)),
        ("a_field_of_next_year", json!(1)),
    ];
    refuses("gpt_oss", &contradictory);
}

#[test]
fn olmo_configs_are_read() {
    let config = read(&config("olmo2", &json!({})));
    assert_eq!((config.norms, config.head_norms, config.joint_norms), (Norms::After, true, true));
    refuses("olmo2", &[("clip_qkv", json!(8.0)), ("sliding_window", json!(8)), ("rms_norm_eps", json!(0))]);

    // allenai/Olmo-3-1025-7B: YaRN in the full layers only.
    let released = json!({
        "architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu",
        "eos_token_id": 100_257, "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11_008,
        "max_position_embeddings": 65_536, "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "pad_token_id": 100_277, "rms_norm_eps": 1e-6, "rope_theta": 500_000,
        "rope_scaling": {
            "attention_factor": 1.207_944_155_728_454_5, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn",
        },
        "sliding_window": 4096, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 100_278,
    });
    let config = read(&released);
    let kinds: Vec<_> = (0..8).map(|index| (config.layer(index).window, config.layer(index).rope)).collect();
    let (sliding, full) = ((Some(4096), Some(1)), (None, Some(0)));
    assert_eq!(kinds, [[sliding, sliding, sliding, full]; 2].concat());
    assert!(matches!(config.ropes[0].scaling, Scaling::Yarn { .. }) && config.ropes[1].scaling == Scaling::None);
    assert_eq!(Parameters::numbers(&config) / 100_000_000, 72);
    refuses("olmo3", &[("rope_scaling", json!({"rope_type": "linear", "factor": 2.0})), ("layer_types", json!([]))]);
}
