//! `config.json` files of the families of 2025 and 2026.

use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use super::families::cases;
use crate::model::layers::Parameters;
use crate::model::{
    Activation, Architecture, Config, Footprint, Joint, LoraConfig, Model, Norms, Router, Scaling, SharedExpert,
    weights,
};

/// The first golden config of a family, with other fields.
fn config_of(family: &str, fields: &Value) -> Value {
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
        let message = Config::from_json(&config_of(family, &json!({*name: value}))).unwrap_err().message;
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
        let other = config_of("gpt_oss", &json!({"rope_parameters": rope}));
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
    let config = read(&config_of("olmo2", &json!({})));
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

#[test]
fn mixtures_of_experts_are_read() {
    // zai-org/GLM-4.5-Air, whose 47th layer predicts the token after the next.
    let released = json!({
        "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "pad_token_id": 151_329, "eos_token_id": [151_329, 151_336, 151_338], "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 10_944,
        "max_position_embeddings": 131_072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
        "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
        "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-5,
        "rope_scaling": null, "rope_theta": 1_000_000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": false, "vocab_size": 151_552,
    });
    let config = read(&released);
    let experts = config.experts.unwrap();
    assert_eq!(experts.router, Router::Sigmoid { groups: 1, top_groups: 1, scaling: 1.0 });
    assert_eq!(experts.shared, Some(SharedExpert { intermediate_size: 1408, gated: false }));
    assert!(!config.layer(0).sparse && config.layer(1).sparse && !config.head_norms && config.ropes[0].partial < 1.0);
    assert_eq!(Parameters::numbers(&config) / 1_000_000_000, 106);
    let written = Config::from_json(&released).unwrap().to_json();
    assert_eq!((read(&written), &written["num_nextn_predict_layers"]), (config, &json!(0)));
    let wrong = [
        ("n_group", json!(3)),
        ("n_group", json!(8)),
        ("topk_group", json!(5)),
        ("topk_group", json!(0)),
        ("num_local_experts", json!(9)),
        ("routed_scaling_factor", json!("2.5")),
        ("partial_rotary_factor", json!(0.0)),
    ];
    refuses("glm4_moe", &wrong);

    // Qwen/Qwen1.5-MoE-A2.7B.
    let fields = json!({
        "num_experts": null, "num_experts_per_tok": null, "moe_intermediate_size": null, "norm_topk_prob": null,
        "shared_expert_intermediate_size": null, "qkv_bias": null,
    });
    let config = read(&config_of("qwen2_moe", &fields));
    let experts = config.experts.unwrap();
    assert_eq!((experts.count, experts.chosen, experts.router), (60, 4, Router::Softmax));
    assert_eq!(experts.shared, Some(SharedExpert { intermediate_size: 5632, gated: true }));
    assert!(config.biases.qkv && !experts.normalised);
    refuses("qwen2_moe", &[("shared_expert_intermediate_size", json!(0)), ("mlp_only_layers", json!(1))]);
}

#[test]
fn multipliers_and_windows_are_read() {
    let fields = json!({
        "embedding_multiplier": 12, "logits_scaling": 8, "residual_multiplier": 0.22, "attention_multiplier": 0.007_812_5,
    });
    let config = read(&config_of("granite", &fields));
    assert_eq!((config.embedding_scale, config.residual_scale), (12.0, 0.22));
    assert_eq!((config.logits_scale, config.attention_scale), (0.125, Some(0.007_812_5)));
    for (name, value) in [("logits_scaling", 0.0), ("residual_multiplier", -1.0), ("embedding_multiplier", 1e300)] {
        refuses("granite", &[(name, json!(value))]);
    }
    let config = read(&config_of("ministral", &json!({"layer_types": null, "sliding_window": 7})));
    assert!((0..config.num_hidden_layers).all(|index| config.layer(index).window == Some(7)));
    refuses("ministral", &[("layer_types", json!(["full_attention"])), ("attention_bias", json!(true))]);
}

#[test]
fn layers_that_predict_several_tokens_are_not_read() {
    let case = cases("golden_2026").into_iter().find(|case| case.name == "glm4_moe 1").unwrap();
    let (model, dir) = (case.model(), tempfile::tempdir().unwrap());
    model.save(dir.path()).unwrap();
    let mut tensors = model.parameters();
    let layer = format!("model.layers.{}.eh_proj.weight", model.config.num_hidden_layers);
    tensors.push((layer.clone(), Tensor::zeros([2, 2], (Kind::Float, Device::Cpu))));
    weights::write_file(&dir.path().join("model.safetensors"), &tensors).unwrap();
    let error = Model::load(dir.path(), Device::Cpu, Kind::Float).unwrap_err();
    assert!(error.message.contains(&layer), "{error}");
    let path = dir.path().join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    config["num_nextn_predict_layers"] = json!(1);
    std::fs::write(&path, config.to_string()).unwrap();
    let read = Model::load(dir.path(), Device::Cpu, Kind::BFloat16).unwrap();
    // The choice of experts is by numbers in f32.
    let correction = |(name, tensor): &(String, Tensor)| name.ends_with("correction_bias").then(|| tensor.kind());
    assert_eq!(read.parameters().iter().find_map(correction), Some(Kind::Float));
}

#[test]
fn joint_projections_are_read_and_adapted() {
    // microsoft/phi-4.
    let released = json!({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 100_257, "embd_pdrop": 0.0, "eos_token_id": 100_265, "hidden_act": "silu", "hidden_size": 5120,
        "initializer_range": 0.02, "intermediate_size": 17_920, "max_position_embeddings": 16_384,
        "model_type": "phi3", "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
        "original_max_position_embeddings": 16_384, "pad_token_id": 100_349, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
        "rope_scaling": null, "rope_theta": 250_000, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.47.0", "use_cache": true, "vocab_size": 100_352,
    });
    let config = read(&released);
    assert_eq!((config.joint, config.ropes[0].partial), (Joint { qkv: true, gate_up: true }, 1.0));
    assert_eq!(Parameters::numbers(&config) / 100_000_000, 146);
    // microsoft/Phi-4-mini-instruct, with other factors.
    let factors = |last: f64| (0..48).map(|pair| 1.0 + last * f64::from(pair) / 47.0).collect::<Vec<f64>>();
    let released = json!({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "embd_pdrop": 0.0,
        "bos_token_id": 199_999, "eos_token_id": 199_999, "full_attn_mod": 1, "hidden_act": "silu",
        "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1,
        "lm_head_bias": false, "max_position_embeddings": 131_072, "mlp_bias": false, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": 199_999,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-5, "rope_scaling": {
            "long_factor": factors(63.0), "short_factor": factors(0.0), "type": "longrope",
        },
        "rope_theta": 10_000.0, "sliding_window": 262_144, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 200_064,
    });
    let config = read(&released);
    assert_eq!((config.default_context(), config.longest_context()), (4096, 4096));
    assert!((config.ropes[0].magnitude() - 1.190_238).abs() < 1e-5, "{:?}", config.ropes);
    assert_eq!(Parameters::numbers(&config) / 100_000_000, 38);
    let written = Config::from_json(&released).unwrap().to_json();
    assert_eq!((read(&written), &written["rope_scaling"]), (config, &released["rope_scaling"]));
    // The first name of LongRoPE, and the form of transformers 5, are written in the same way.
    let mut other = released.clone();
    other["rope_scaling"]["type"] = json!("su");
    assert_eq!(Config::from_json(&other).unwrap().to_json()["rope_scaling"], released["rope_scaling"]);
    let mut parameters = released["rope_scaling"].clone();
    parameters.as_object_mut().unwrap().remove("type");
    for (name, value) in [("rope_type", json!("longrope")), ("rope_theta", json!(10_000.0)), ("factor", json!(null))] {
        parameters[name] = value;
    }
    other.as_object_mut().unwrap().retain(|name, _| !["rope_scaling", "rope_theta"].contains(&name.as_str()));
    other["rope_parameters"] = parameters;
    let written = Config::from_json(&other).unwrap().to_json();
    assert_eq!((&written["rope_scaling"], &written["rope_parameters"]), (&released["rope_scaling"], &json!(null)));
    assert_eq!(written["original_max_position_embeddings"], 4096);
    // transformers reads the original context of this class outside of the rotary parameters.
    other["rope_parameters"]["original_max_position_embeddings"] = json!(8192);
    assert!(Config::from_json(&other).unwrap_err().message.contains("original_max_position_embeddings"));
    let wrong = [
        ("rope_scaling", json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})),
        ("rope_parameters", json!({"rope_type": "yarn", "factor": 2.0})),
        ("attention_bias", json!(true)),
        ("resid_pdrop", json!(0.1)),
    ];
    refuses("phi3", &wrong);
    let config = read(&config_of("glm4", &json!({"attention_bias": null, "rms_norm_eps": null})));
    assert!(config.interleaved_ropes && config.biases.qkv && config.norms == Norms::Around);

    // The usual targets are those of the joint projections.
    let case = cases("golden_2026").into_iter().find(|case| case.name == "phi3 1").unwrap();
    let mut model = case.model();
    let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    model.add_adapter(LoraConfig::new(2, 4.0, &targets), 1).unwrap();
    assert_eq!(model.lora().unwrap().target_modules, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]);
}

#[test]
fn lfm2_configs_are_read() {
    // LiquidAI/LFM2-1.2B.
    let released = json!({
        "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": true, "block_dim": 2048,
        "block_ff_dim": 12_288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256,
        "block_norm_eps": 1e-5, "block_out_init_scale": 1.0, "block_use_swiglu": true, "block_use_xavier_init": true,
        "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 2048, "conv_dim_out": 2048,
        "conv_use_xavier_init": true, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
        "initializer_range": 0.02, "max_position_embeddings": 128_000, "model_type": "lfm2", "norm_eps": 1e-5,
        "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pad_token_id": 0, "rope_theta": 1_000_000.0, "torch_dtype": "bfloat16", "use_cache": true,
        "transformers_version": "4.54.0.dev0", "use_pos_enc": true, "vocab_size": 65_536,
    });
    let config = read(&released);
    assert_eq!((config.intermediate_size, config.attention_layers(), config.short_conv), (8192, 6, Some(3)));
    assert!(config.tie_word_embeddings && config.head_norms && config.layer(0).linear && !config.layer(2).linear);
    assert_eq!(Parameters::numbers(&config) / 10_000_000, 117);
    let written = Config::from_json(&released).unwrap().to_json();
    assert_eq!((read(&written), written.get("block_ff_dim")), (config, None));
    for (name, value) in [
        ("conv_bias", json!(true)),
        ("conv_dim", json!(7)),
        ("block_norm_eps", json!(1e-3)),
        ("theta", json!(1e4)),
        ("block_multiple_of", json!(0)),
        ("full_attn_idxs", json!(2)),
        ("layer_types", json!(["linear_attention"])),
        ("conv_L_cache", json!(0)),
        ("a_field_of_next_year", json!(1)),
    ] {
        let mut wrong = released.clone();
        wrong[name] = value;
        let message = Config::from_json(&wrong).unwrap_err().message;
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    // The usual targets have their names in this family.
    let case = cases("golden_delta").into_iter().find(|case| case.name == "lfm2 0").unwrap();
    let mut model = case.model();
    let targets = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    model.add_adapter(LoraConfig::new(2, 4.0, &targets), 1).unwrap();
    assert_eq!(
        model.lora().unwrap().target_modules,
        ["q_proj", "self_attn.out_proj", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"]
    );
}

#[test]
fn messages_about_unsupported_families_say_what_is_missing() {
    for (class, part) in [("DeepseekV3ForCausalLM", "(MLA)"), ("MambaForCausalLM", "state-space")] {
        let message = Config::from_json(&config_of("olmo2", &json!({"architectures": [class]}))).unwrap_err().message;
        assert!(message.contains(class) && message.contains(part), "{message}");
    }
    let error = Config::from_json(&config_of("olmo2", &json!({"model_type": "gemma3n_text"}))).unwrap_err();
    assert!(error.message.contains("embeddings of each layer"), "{error}");
    assert!(error.hint.is_some_and(|hint| hint.contains("GptOssForCausalLM")));
}

#[test]
fn plans_count_the_weights_and_adapters_of_new_families() {
    let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let adapter = LoraConfig::new(3, 4.0, &targets);
    for case in cases("golden_2026").into_iter().filter(|case| case.name.ends_with(" 1")) {
        let mut model = case.model();
        let size = |tensors: Vec<(String, Tensor)>, wanted: &dyn Fn(&Tensor) -> bool| -> usize {
            tensors.iter().filter(|(_, tensor)| wanted(tensor)).map(|(_, tensor)| tensor.numel()).sum()
        };
        let matrices = size(model.parameters(), &|tensor| tensor.dim() == 2);
        let config = model.config.clone();
        let (device, kind) = (Device::Cpu, Kind::Float);
        let plan = Footprint {
            config: &config,
            device,
            kind,
            adapter: Some(&adapter),
            checkpointing: false,
            threads: 1,
            processes: 1,
            zero_stage: 0,
        };
        assert_eq!(plan.numbers(), matrices as u64, "{}", case.name);
        assert!(plan.learning(100) > 0 && plan.sampling(100, 2) > 0 && plan.packed() == 0);
        // Layers with experts and layers without them are counted alike.
        if config.experts.is_none() || config.architecture == Architecture::GptOss {
            model.add_adapter(adapter.clone(), 1).unwrap();
            assert_eq!(plan.adapted(), size(model.parameters(), &Tensor::requires_grad) as u64, "{}", case.name);
        }
    }
}

#[test]
fn windows_and_original_contexts_that_contradict_each_other_are_refused() {
    let mistral = cases("golden").into_iter().find(|case| case.name == "mistral default").unwrap();
    for mut config in [config_of("phi3", &json!({"sliding_window": 8})), mistral.record["config"].clone()] {
        let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
        config["layer_types"] = json!(vec!["sliding_attention"; layers]);
        Config::from_json(&config).unwrap();
        config["layer_types"] = json!(vec!["full_attention"; layers]);
        let message = Config::from_json(&config).unwrap_err().message;
        assert!(message.contains("layer_types"), "{message}");
    }
    let rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let both = json!({"rope_parameters": rope, "original_max_position_embeddings": 32});
    let message = Config::from_json(&config_of("gpt_oss", &both)).unwrap_err().message;
    assert!(message.contains("`original_max_position_embeddings` is 32"), "{message}");
}
