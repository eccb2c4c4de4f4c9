//! Tests of `config.json` files of every family.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use super::*;

fn base(class: &str, kind: &str) -> Value {
    json!({
        "architectures": [class], "model_type": kind, "hidden_act": "silu",
        "vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "rope_scaling": null,
        "tie_word_embeddings": true, "eos_token_id": 2, "bos_token_id": null, "transformers_version": "4.51.0",
    })
}

fn qwen2() -> Value {
    let mut config = base("Qwen2ForCausalLM", "qwen2");
    config["use_sliding_window"] = json!(false);
    config
}

fn with(mut config: Value, fields: Value) -> Value {
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    config
}

fn without(mut config: Value, names: &[&str]) -> Value {
    for name in names {
        config.as_object_mut().unwrap().remove(*name);
    }
    config
}

fn read(config: Value) -> Config {
    Config { source: Map::new(), ..Config::from_json(&config).unwrap() }
}

fn refusal(config: Value) -> String {
    Config::from_json(&config).unwrap_err().message
}

fn windows(config: &Config) -> Vec<Option<usize>> {
    (0..config.num_hidden_layers).map(|index| config.layer(index).window).collect()
}

#[test]
fn classic_and_new_rope_config_are_equivalent() {
    let new = without(qwen2(), &["rope_theta", "rope_scaling"]);
    let new = with(
        new,
        json!({
            "architectures": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "layer_types": ["full_attention", "full_attention", "full_attention"],
        }),
    );
    let classic = read(qwen2());
    assert_eq!(read(new.clone()), classic);
    assert_eq!((classic.head_dim, classic.ropes[0].theta), (16, 1e6));
    let written = Config::from_json(&new).unwrap().to_json();
    assert_eq!((&written["rope_theta"], &written["rope_scaling"]), (&json!(1e6), &Value::Null));
    assert!(written.get("rope_parameters").is_none());
    assert_eq!(read(written), classic);

    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let classic = with(qwen2(), json!({"rope_scaling": yarn, "rope_theta": 5e5}));
    let new =
        without(with(qwen2(), json!({"rope_parameters": with(yarn, json!({"rope_theta": 5e5}))})), &["rope_theta"]);
    assert_eq!(read(new.clone()), read(classic.clone()));
    assert_eq!(read(Config::from_json(&new).unwrap().to_json()), read(classic));
}

#[test]
fn model_config_round_trips() {
    let config = Config::from_json(&qwen2()).unwrap();
    let written = config.to_json();
    assert_eq!(written["eos_token_id"], 2);
    assert_eq!(read(written), read(qwen2()));
    Config::default().check().unwrap();
    assert_eq!(read(Config::default().to_json()), Config::default());
    let larger = Config { vocab_size: 333, ..config };
    assert_eq!(larger.to_json()["vocab_size"], 333);
}

#[test]
fn unsupported_config_fields_are_refused_by_name() {
    for (name, value) in [
        ("architectures", json!(["GPT2LMHeadModel"])),
        ("architectures", json!(["Qwen2ForCausalLM", "LlamaForCausalLM"])),
        ("architectures", json!(["LlamaForCausalLM"])),
        ("model_type", json!("qwen3")),
        ("model_type", json!("qwen2_5_vl")),
        ("hidden_act", json!("gelu")),
        ("use_sliding_window", json!("yes")),
        ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("layer_types", json!(["full_attention", "chunked_attention", "full_attention"])),
        ("layer_types", json!(["full_attention"])),
        ("attention_dropout", json!(0.1)),
        ("attention_bias", json!(false)),
        ("quantization_config", json!({"bits": 4})),
        ("partial_rotary_factor", json!(0.5)),
        ("a_field_of_next_year", json!(true)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(15)),
        ("hidden_size", json!(-1)),
        ("vocab_size", json!(0)),
        ("num_hidden_layers", json!(1u64 << 60)),
        ("rms_norm_eps", json!("small")),
    ] {
        let message = refusal(with(qwen2(), json!({name: value})));
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
    assert!(refusal(without(qwen2(), &["hidden_size"])).contains("`hidden_size` is missing"));
    assert!(refusal(without(qwen2(), &["architectures", "model_type"])).contains("neither"));
    let error = Config::from_json(&with(qwen2(), json!({"model_type": "gpt2"}))).unwrap_err();
    assert!(error.hint.is_some_and(|hint| hint.contains("Gemma3ForCausalLM")));
}

#[test]
fn rope_fields_are_checked_by_type() {
    for (scaling, field, why) in [
        (json!({"type": "proportional", "factor": 2.0}), "rope_scaling.rope_type", "default, linear"),
        (json!({"type": "longrope", "factor": 2.0}), "rope_scaling.short_factor", ""),
        (json!({"type": "longrope", "short_factor": [1, 2], "long_factor": [1]}), "rope_scaling.long_factor", "2"),
        (
            json!({"type": "longrope", "short_factor": [0.0], "long_factor": [1]}),
            "rope_scaling.short_factor",
            "above 0",
        ),
        (json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}), "short_factor", "rotated"),
        (json!({"type": "mrope", "mrope_section": [1, 2]}), "rope_scaling.rope_type", "default, linear"),
        (json!({"type": "linear"}), "rope_scaling.factor", "missing"),
        (json!({"type": "linear", "factor": 0.5}), "rope_scaling.factor", "1 or more"),
        (json!({"type": "default", "factor": 2.0}), "rope_scaling.factor", "not a field of rope type"),
        (json!({"type": "dynamic", "factor": 2.0, "beta_fast": 3}), "rope_scaling.beta_fast", "not a field"),
        (json!({"rope_type": "llama3", "factor": 8.0}), "rope_scaling.low_freq_factor", "missing"),
        (json!({"rope_type": "yarn", "type": "linear", "factor": 8.0}), "rope_scaling.type", "another value"),
        (json!({"rope_type": "yarn", "factor": 8.0, "truncate": 1}), "rope_scaling.truncate", "true or false"),
        (json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "partial_rotary_factor", "1.0"),
        (json!("yarn"), "rope_scaling", "an object"),
    ] {
        let message = refusal(with(qwen2(), json!({"rope_scaling": scaling})));
        assert!(message.contains(field) && message.contains(why), "{message}");
    }
    let twice = json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}});
    assert!(refusal(with(qwen2(), twice)).contains("`rope_parameters`"));
    let yarn = |fields: Value| {
        let scaling = with(json!({"rope_type": "yarn", "factor": 4.0}), fields);
        read(with(qwen2(), json!({"rope_scaling": scaling}))).ropes[0].clone()
    };
    assert!((yarn(json!({})).magnitude() - 1.138_629_4).abs() < 1e-6);
    assert!((yarn(json!({"mscale": 0.5, "mscale_all_dim": 1.0})).magnitude() - 0.939_124).abs() < 1e-6);
    assert!((yarn(json!({"attention_factor": 0.8})).magnitude() - 0.8).abs() < 1e-12);
}

#[test]
fn sliding_windows_follow_each_family() {
    let window = json!({"use_sliding_window": true, "sliding_window": 128, "max_window_layers": 1});
    assert_eq!(windows(&read(with(qwen2(), window.clone()))), [None, Some(128), Some(128)]);
    assert_eq!(windows(&read(with(qwen2(), with(window.clone(), json!({"use_sliding_window": false}))))), [None; 3]);
    assert!(read(with(qwen2(), with(window.clone(), json!({"max_window_layers": 3})))).layers.is_empty());
    let types = json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]});
    assert_eq!(windows(&read(with(with(qwen2(), window.clone()), types))), [Some(128), None, None]);
    let moe = with(base("Qwen3MoeForCausalLM", "qwen3_moe"), window);
    assert_eq!(windows(&read(moe)), [Some(128); 3]);

    let mistral = base("MistralForCausalLM", "mistral");
    assert_eq!(windows(&read(mistral.clone())), [Some(4096); 3]);
    assert_eq!(windows(&read(with(mistral.clone(), json!({"sliding_window": null})))), [None; 3]);
    assert_eq!(windows(&read(with(mistral, json!({"sliding_window": 7})))), [Some(7); 3]);
}

#[test]
fn biases_and_norms_follow_each_family() {
    let qwen3 = read(base("Qwen3ForCausalLM", "qwen3"));
    assert_eq!((qwen3.head_dim, qwen3.head_norms, qwen3.biases), (128, true, Biases::default()));
    let llama = with(base("LlamaForCausalLM", "llama"), json!({"attention_bias": true, "mlp_bias": true}));
    assert_eq!(read(llama).biases, Biases { qkv: true, output: true, mlp: true });
    let tied = without(base("LlamaForCausalLM", "llama"), &["tie_word_embeddings"]);
    assert!(!read(tied).tie_word_embeddings);
}

#[test]
fn sparse_moe_layers_follow_decoder_sparse_step() {
    let moe = with(
        base("Qwen3MoeForCausalLM", "qwen3_moe"),
        json!({
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2,
            "mlp_only_layers": [3], "num_hidden_layers": 6, "norm_topk_prob": true,
        }),
    );
    let config = read(moe.clone());
    let sparse: Vec<bool> = config.layers.iter().map(|layer| layer.sparse).collect();
    assert_eq!(sparse, [false, true, false, false, false, true]);
    assert!(refusal(with(moe.clone(), json!({"num_experts_per_tok": 9}))).contains("`num_experts_per_tok`"));
    assert!(refusal(with(moe.clone(), json!({"decoder_sparse_step": 0}))).contains("`decoder_sparse_step`"));
    assert!(refusal(with(moe, json!({"num_local_experts": 4}))).contains("`num_local_experts`"));
}

#[test]
fn gemma_alternates_windows_and_ropes() {
    let fields = json!({
        "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 6, "sliding_window": 512,
        "sliding_window_pattern": 3, "query_pre_attn_scalar": 64, "rope_local_base_freq": 5000,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "final_logit_softcapping": null,
    });
    let gemma = with(without(base("Gemma3ForCausalLM", "gemma3_text"), &["hidden_act"]), fields);
    let config = read(gemma.clone());
    let slides = Some(512);
    assert_eq!(windows(&config), [slides, slides, None, slides, slides, None]);
    assert_eq!(config.layers.iter().map(|layer| layer.rope).collect::<Vec<_>>(), [1, 1, 0, 1, 1, 0].map(Some));
    assert_eq!((config.attention_scale, config.embedding_scale), (Some(0.125), 8.0));
    assert_eq!((config.head_dim, config.norms, config.activation), (256, Norms::Around, Activation::GeluTanh));
    let new = with(
        without(gemma.clone(), &["rope_theta", "rope_scaling", "rope_local_base_freq"]),
        json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        }}),
    );
    assert_eq!(read(new.clone()).ropes, config.ropes);
    assert_eq!(read(Config::from_json(&new).unwrap().to_json()), read(new));
    assert_eq!(read(Config::from_json(&gemma).unwrap().to_json()), config);
    for (name, value) in [
        ("final_logit_softcapping", json!(30.0)),
        ("attn_logit_softcapping", json!(50.0)),
        ("hidden_activation", json!("gelu")),
        ("use_bidirectional_attention", json!(true)),
        ("sliding_window_pattern", json!(0)),
        ("vision_config", json!({})),
    ] {
        let message = refusal(with(gemma.clone(), json!({name: value})));
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
}

#[test]
fn smollm3_layers_without_rope() {
    let config = read(with(base("SmolLM3ForCausalLM", "smollm3"), json!({"num_hidden_layers": 5})));
    let ropes: Vec<Option<usize>> = config.layers.iter().map(|layer| layer.rope).collect();
    assert_eq!(ropes, [Some(0), Some(0), Some(0), None, Some(0)]);
    let changes = json!({
        "no_rope_layers": [0, 1, 1], "use_sliding_window": true, "sliding_window": 9,
    });
    let config = read(with(base("SmolLM3ForCausalLM", "smollm3"), changes));
    assert_eq!(windows(&config), [Some(9), None, None]);
    assert!(
        refusal(with(base("SmolLM3ForCausalLM", "smollm3"), json!({"no_rope_layers": [0, 2, 1]}))).contains("no_rope")
    );
}

#[test]
fn a_rope_base_beyond_f32_is_refused() {
    let message = Config::from_json(&with(qwen2(), json!({"rope_theta": 1e308}))).unwrap_err().message;
    assert!(message.contains("`rope_theta` is 1"), "{message}");
}

/// As in transformers 5.17: `_sliding_window_pattern` is ignored if there are `layer_types`, and
/// RoPE scaling with the old key `type` is overridden by the defaults of Gemma 3. In other families
/// `type` is `rope_type`.
#[test]
fn old_keys_of_gemma_are_read_as_transformers_reads_them() {
    let fields = json!({
        "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 6, "sliding_window": 512,
        "query_pre_attn_scalar": 64,
    });
    let gemma = with(without(base("Gemma3ForCausalLM", "gemma3_text"), &["hidden_act"]), fields);
    let full = |config: &Config| -> Vec<usize> { (0..6).filter(|&layer| windows(config)[layer].is_none()).collect() };
    assert_eq!(full(&read(with(gemma.clone(), json!({"_sliding_window_pattern": 3})))), [5]);
    assert_eq!(full(&read(with(gemma.clone(), json!({"sliding_window_pattern": 3})))), [2, 5]);
    let scaled = |key: &str| json!({"rope_scaling": {key: "linear", "factor": 8.0}});
    let scaling = |config: &Config| config.ropes[0].scaling.clone();
    assert_eq!(scaling(&read(with(gemma.clone(), scaled("type")))), Scaling::None);
    assert_eq!(scaling(&read(with(gemma.clone(), scaled("rope_type")))), Scaling::Linear { factor: 8.0 });
    let nested = json!({"rope_parameters": {"full_attention": {"type": "linear", "factor": 8.0}}});
    assert_eq!(scaling(&read(with(without(gemma, &["rope_theta"]), nested))), Scaling::Linear { factor: 8.0 });
    assert_eq!(scaling(&read(with(qwen2(), scaled("type")))), Scaling::Linear { factor: 8.0 });
}

#[test]
fn dynamic_ropes_take_longer_sequences() {
    let dynamic = read(with(
        qwen2(),
        json!({"max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}),
    ));
    assert_eq!(dynamic.longest_context(), 160);
    assert!(dynamic.turns_by_length(65) && !dynamic.turns_by_length(64));
    let plain = read(with(qwen2(), json!({"max_position_embeddings": 64})));
    assert!(plain.longest_context() == 64 && !plain.turns_by_length(65));
    let linear = json!({"max_position_embeddings": 64, "rope_scaling": {"rope_type": "linear", "factor": 2.0}});
    assert_eq!(read(with(qwen2(), linear)).longest_context(), 64);
}
