//! Routing replay in a run: recorded, stored, used by the learner, resumed.

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::recipe::{TWO_STEPS, line_of, recipe};
use super::run_files::{run_dir, stored, training_steps, weights};
use super::{directory, fail, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let trainer = r#"r1.grpo { steps = 2, group_size = 4, groups_per_step = 2, lr = 1e-2, epochs = 2, routing_replay = "rollout" }"#;
    recipe(&[
        ("env", TWO_STEPS),
        ("policy", r#"{ model = "experts" }"#),
        ("trainer", trainer),
        ("seed", "2"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ])
});

/// A directory with the recipe, the usual model, and a mixture-of-experts model with its tokenizer
/// in `experts`.
fn mixture() -> tempfile::TempDir {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let (from, to) = (dir.path().join("model"), dir.path().join("experts"));
    let config: Value = serde_json::from_str(&fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    let config = json!({
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": config["vocab_size"],
        "hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128, "num_experts": 4,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "tie_word_embeddings": true, "initializer_range": 0.2,
        "eos_token_id": config["eos_token_id"],
    });
    let config = r1::model::Config::from_json(&config).unwrap();
    let model = r1::model::Model::init(config, tch::Device::Cpu, tch::Kind::Float, 5).unwrap();
    model.save(&to).unwrap();
    for entry in fs::read_dir(&from).unwrap() {
        let name = entry.unwrap().file_name();
        if !to.join(&name).exists() && !name.to_string_lossy().ends_with("safetensors") {
            fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
    dir
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn expert_routing_of_rollouts_is_stored_and_used_in_training() {
    let dir = mixture();
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "whole"]);
    let whole = stored(dir.path(), "whole", 2);
    assert_eq!(whole.len(), 8);
    for one in &whole {
        let mut covered = 0;
        for step in &one.steps {
            let computed = step.prompt_ids.len() + step.response_ids.len() - 1;
            assert_eq!((step.routing.width, step.routing.start as usize), (4, covered), "two of four in two layers");
            covered = step.routing.start as usize + step.routing.tokens();
            assert_eq!(covered, computed);
        }
    }
    // Sampler and learner use the same experts: the first update computes the same probabilities.
    for step in training_steps(&run_dir(dir.path(), "whole")) {
        assert!(step["mismatch/max_abs"].as_f64().unwrap() < 1e-4, "{step}");
    }
    // Without recording nothing is stored.
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "off", "trainer.routing_replay=off"]);
    let plain = stored(dir.path(), "off", 1);
    assert!(plain.iter().flat_map(|one| &one.steps).all(|step| step.routing.is_empty()));

    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "parts", "trainer.steps=1"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/parts", "trainer.steps=2"]);
    let weights = |run: &str| weights(&run_dir(dir.path(), run), 2);
    assert!(weights("whole") == weights("parts"));
    assert!(weights("whole") != weights("off"), "the second epoch computes with the experts of the first");
    succeed(dir.path(), &["replay", "runs/whole"]);
}

#[test]
fn a_dense_model_has_no_expert_routing() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let error = fail(dir.path(), &["run", "a.lua", "-q", "policy.model=model"]);
    assert!(
        error.contains("trainer.routing_replay is \"rollout\"") && error.contains("no mixture of experts"),
        "{error}"
    );
    assert!(error.contains(&format!("a.lua:{}", line_of(&RECIPE, "routing_replay"))), "{error}");
    let error = fail(dir.path(), &["run", "a.lua", "-q", "trainer.routing_replay=learner"]);
    assert!(error.contains("it is one of `off`, `rollout`"), "{error}");
}
