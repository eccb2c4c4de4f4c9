//! Special model files: adapters without their base, dynamic rotary embeddings.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::recipe::{THIRDS, recipe};
use super::run_files::read_json;
use super::{directory, fail, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    recipe(&[
        ("reward", THIRDS),
        ("data", r#"{ train = { { prompt = "Say 3" }, { prompt = "Say 4" } } }"#),
        ("trainer", "r1.grpo { steps = 1, group_size = 2, groups_per_step = 1, lr = 1e-2 }"),
    ])
});

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = read_json(path);
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn an_adapter_accepts_another_copy_of_its_base() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let train = |more: &[&str]| succeed(dir.path(), &[&["run", "a.lua", "-q"], more].concat());
    train(&["policy.lora.rank=2", "--out", "adapter"]);
    let answer = |more: &[&str]| {
        succeed(
            dir.path(),
            &[&["infer", "-m", "adapter", "-p", "Say 3", "--temperature", "0", "--max-new-tokens", "6", "-q"], more]
                .concat(),
        )
    };
    let before = answer(&[]);
    fs::rename(dir.path().join("model"), dir.path().join("moved")).unwrap();
    let error = fail(dir.path(), &["infer", "-m", "adapter", "-p", "Say 3"]);
    assert!(error.contains("the base model of the adapter in adapter is missing: there is no model"), "{error}");
    assert!(
        error.contains("--base DIR (r1 infer), policy.base=DIR or r1.model(…, { base = DIR }) names another copy"),
        "{error}"
    );
    assert_eq!(answer(&["--base", "moved"]), before);
    // The same in programs.
    let program = |options: &str| {
        format!(
            "local model = r1.model('adapter'{options})\n\
             local options = {{ temperature = 0, max_new_tokens = 6 }}\n\
             return model:generate({{ r1.user('Say 3') }}, options).text"
        )
    };
    assert_eq!(succeed(dir.path(), &["lua", "-e", &program(", { base = 'moved' }")]).trim_end(), before.trim_end());
    let error = fail(dir.path(), &["lua", "-e", &program("")]);
    assert!(error.contains("r1.model(…, { base = DIR }) names another copy"), "{error}");

    // A run on it stores the base that it was trained with.
    train(&["policy.model=adapter", "policy.base=moved", "--name", "b"]);
    let config = read_json(dir.path().join("runs/b/checkpoints/step-000001/adapter_config.json"));
    assert!(config["base_model_name_or_path"].as_str().unwrap().ends_with("/moved"), "{config}");
    succeed(dir.path(), &["infer", "-m", "runs/b", "-p", "Say 3", "--max-new-tokens", "2"]);
    let error = fail(dir.path(), &["infer", "-m", "moved", "--base", "moved", "-p", "Say 3"]);
    assert!(error.contains("a base model is given (moved), but the model is not an adapter"), "{error}");
}

/// 128 positions, times 2.
#[test]
fn dynamic_rotary_embeddings_apply_to_complete_sequences() {
    let row = json!({ "prompt": "Say", "completion": "q w ".repeat(33) });
    let supervised = r#"
return r1.recipe {
  env = r1.env { format = "retool" }, policy = { model = "model" }, data = { train = "rows.jsonl" },
  trainer = r1.sft { steps = 1, batch_size = 1 },
}"#;
    let dir = directory(&[("a.lua", &RECIPE), ("s.lua", supervised), ("rows.jsonl", &format!("{row}\n"))], true);
    let config = dir.path().join("model/config.json");
    let long = "return #r1.model('model'):logprobs(r1.table_of(200))";
    let long =
        long.replace("r1.table_of(200)", "(function() local t = {} for i = 1, 200 do t[i] = i end return t end)()");
    let error = fail(dir.path(), &["lua", "-e", &long]);
    assert!(error.contains("200 ids are more than the model's context of 128"), "{error}");
    let error = fail(dir.path(), &["sft", "s.lua", "policy.max_context=200", "trainer.overlong=error"]);
    assert!(error.contains("128"), "{error}");

    edit(&config, |config| config["rope_scaling"] = json!({ "rope_type": "dynamic", "factor": 2.0 }));
    assert_eq!(succeed(dir.path(), &["lua", "-e", &long]).trim(), "199");
    succeed(dir.path(), &["sft", "s.lua", "-q", "policy.max_context=200", "trainer.overlong=error"]);
    // Sampling with a cache would not match the update.
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    let error = fail(dir.path(), &["run", "a.lua", "policy.max_context=200"]);
    assert!(
        error.contains("the model has dynamic rotary embeddings with max_position_embeddings = 128")
            && error.contains("set policy.max_context=128 or less"),
        "{error}"
    );
}
