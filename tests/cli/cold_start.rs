//! Supervised training and reinforcement learning in one recipe.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use super::recipe::recipe;
use super::run_files::{files, metrics};
use super::running::Running;
use super::{directory, fail, r1, succeed};

pub(super) const COLD_START: &str = r#"r1.recipe {
    data = { train = "train.jsonl", eval = { { prompt = "Say 9", completion = "I say 9" } } },
    trainer = r1.sft { steps = 3, batch_size = 2, lr = 1e-3, warmup = 0 },
    eval = { every = 1 },
    checkpoint = { every = 1, keep = 0 },
  }"#;

static RECIPE: LazyLock<String> = LazyLock::new(|| starting_with(COLD_START));

/// A recipe with this cold start.
fn starting_with(cold_start: &str) -> String {
    recipe(&[
        ("env", "r1.env { format = 'hermes' }"),
        ("trainer", "r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3, kl = { coef = 0.1 } }"),
        ("cold_start", cold_start),
        ("checkpoint", "{ every = 1, keep = 0 }"),
        ("seed", "4"),
    ])
}

pub(super) const ROWS: &str = r#"{"prompt": "Say 3", "completion": "I say 3"}
{"prompt": "Say 4", "completion": "I say 4"}
{"prompt": "Say 5", "completion": "I say 5"}
"#;

/// The files of all checkpoints and of the best model of a run, with their bytes.
fn kept(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut kept = files(run);
    kept.retain(|name, _| name.contains("checkpoints/") || name.contains("best/"));
    kept
}

#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn same(a: &Path, b: &Path) {
    let (a, b) = (kept(a), kept(b));
    assert!(a.len() > 10 && a.keys().eq(b.keys()), "{:?} {:?}", a.keys(), b.keys());
    for (name, bytes) in &a {
        assert!(*bytes == b[name], "{name}");
    }
}

/// Runs until a file exists, then kills the process.
fn killed_at(dir: &Path, args: &[&str], file: &Path) {
    killed(r1(dir, args), dir, file);
}

pub(super) fn killed(command: impl Into<Command>, dir: &Path, file: &Path) {
    Running::of(command, dir).until(&format!("the file {}", file.display()), || file.exists());
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_cold_start_recipe_runs_sft_and_then_rl() {
    let dir = directory(&[("a.lua", &RECIPE), ("train.jsonl", ROWS)], true);
    let text = succeed(dir.path(), &["run", "a.lua", "--name", "whole"]);
    assert!(text.contains("Cold start") && text.contains("held-out loss"), "{text}");
    // The table of reinforcement learning has its own columns and heading.
    let (_, later) = text.split_once("\nDone\n").unwrap();
    let heading = later.lines().find(|line| line.trim_start().starts_with("step "));
    assert!(heading.is_some_and(|line| line.contains("reward") && !line.contains("loss")), "{later}");
    let whole = dir.path().join("runs/whole");
    assert_eq!(metrics(&whole.join("sft")).iter().filter(|line| line.get("sft/loss").is_some()).count(), 3);
    assert!(whole.join("sft/best/model.safetensors").is_file());
    // The first step starts from the best model of the cold start, which is also the reference
    // policy.
    let steps: Vec<Value> = metrics(&whole).into_iter().filter(|line| line.get("policy/version").is_some()).collect();
    assert_eq!(steps.len(), 2);
    assert!(steps[0]["kl/mean"].as_f64().unwrap().abs() < 1e-6);

    // `r1 sft` runs only the cold start and gives the same bytes; settings have the same names.
    succeed(dir.path(), &["sft", "a.lua", "-q", "--name", "alone"]);
    let weights = |path: &Path| fs::read(path.join("model.safetensors")).unwrap();
    let last = "checkpoints/step-000003";
    assert!(weights(&whole.join("sft").join(last)) == weights(&dir.path().join("runs/alone").join(last)));
    succeed(dir.path(), &["sft", "a.lua", "-q", "--name", "short", "cold_start.trainer.steps=1"]);
    assert!(!dir.path().join("runs/short").join(last).exists());
    // The same as a separate recipe.
    let recipe = "return r1.recipe {\n env = r1.env { format = 'hermes' }, policy = { model = 'model' }, seed = 4,\n data = { train = 'train.jsonl', eval = { { prompt = 'Say 9', completion = 'I say 9' } } },\n trainer = r1.sft { steps = 3, batch_size = 2, lr = 1e-3, warmup = 0 },\n eval = { every = 1 }, checkpoint = { every = 1, keep = 0 } }";
    fs::write(dir.path().join("own.lua"), recipe).unwrap();
    fs::write(dir.path().join("two.lua"), starting_with("require('own')")).unwrap();
    succeed(dir.path(), &["run", "two.lua", "-q", "--name", "two"]);
    same(&whole, &dir.path().join("runs/two"));
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_killed_cold_start_run_resumes_in_its_phase() {
    let dir = directory(&[("a.lua", &RECIPE), ("train.jsonl", ROWS)], true);
    let runs = dir.path().join("runs");
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "whole"]);
    for (name, file) in [
        ("in-sft", "sft/checkpoints/step-000001/trainer_state/manifest.json"),
        ("in-rl", "checkpoints/step-000001/trainer_state/manifest.json"),
    ] {
        killed_at(dir.path(), &["run", "a.lua", "-q", "--name", name], &runs.join(name).join(file));
        let began = name == "in-rl";
        let before = fs::read_dir(runs.join(name).join("sft/checkpoints")).unwrap().count();
        let of_best = || fs::metadata(runs.join(name).join("sft/best/model.safetensors")).unwrap().modified().unwrap();
        let best = began.then(of_best);
        succeed(dir.path(), &["run", "a.lua", "-q", "--resume", name]);
        same(&runs.join("whole"), &runs.join(name));
        if began {
            // Supervised training is not repeated.
            assert_eq!(before, 4, "three checkpoints and `latest`");
            assert_eq!(best, Some(of_best()));
        }
    }
    // Without a step of reinforcement learning and with a longer cold start, it continues there.
    succeed(dir.path(), &["sft", "a.lua", "-q", "--name", "parts", "cold_start.trainer.steps=3", "seed=4"]);
    succeed(dir.path(), &["sft", "a.lua", "-q", "--resume", "parts"]);
}

#[test]
fn a_new_model_is_created_and_trained_in_one_recipe() {
    let init = r"policy = { init = {
      hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
      num_key_value_heads = 1, max_position_embeddings = 128, vocab_size = 272, tokenizer_rows = 3,
    } },";
    let recipe = RECIPE.replace(r#"policy = { model = "model" },"#, init);
    let dir = directory(&[("a.lua", &recipe), ("train.jsonl", ROWS)], false);
    succeed(dir.path(), &["check", "a.lua"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "a", "trainer.steps=1"]);
    assert!(dir.path().join("runs/a/sft/init/model.safetensors").is_file());
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "a", "trainer.steps=2"]);
    // An adapter on the model of the cold start.
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "b", "policy.lora.rank=2"]);
    assert!(dir.path().join("runs/b/checkpoints/step-000002/adapter_model.safetensors").is_file());
    assert!(dir.path().join("runs/b/sft/checkpoints/step-000003/model.safetensors").is_file());
}

#[test]
fn both_phases_are_checked_before_a_cold_start() {
    let dir = directory(&[("a.lua", &RECIPE), ("train.jsonl", ROWS)], true);
    let text = succeed(dir.path(), &["check", "a.lua"]);
    assert!(text.contains("cold start: 3 of 3 conversations") && text.contains("estimator grpo"), "{text}");
    let json = succeed(dir.path(), &["check", "a.lua", "--json"]);
    let last: Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    assert_eq!(last["cold_start"]["conversations"], 3);
    for (setting, message) in [
        ("cold_start.trainer.warmup=9", "cold_start: trainer.warmup is 9 and trainer.steps 3"),
        ("cold_start.trainer.lr=-1", "cold_start: trainer.lr is -1"),
        ("cold_start.trainer.step=9", "unknown setting `cold_start.trainer.step`"),
        ("cold_start.trainer.steps=x", "`cold_start.trainer.steps` must be a whole number"),
        ("policy.cold_start=a.lua", "unknown setting `policy.cold_start`"),
        ("trainer.warmup=9", "trainer.warmup is 9 and trainer.steps 2"),
    ] {
        for command in ["run", "check"] {
            let error = fail(dir.path(), &[command, "a.lua", "-q", setting]);
            assert!(error.contains(message) && error.contains(setting), "{command} {setting}: {error}");
        }
        assert!(!dir.path().join("runs").exists(), "{setting}");
    }
    for (cold_start, message) in [
        ("'own.lua'", "`cold_start` must be a recipe with r1.sft, got"),
        ("r1.sft {}", "got the trainer alone"),
        ("{ trainer = r1.sft {} }", "`cold_start` has no training data"),
        ("{ reward = print, trainer = r1.grpo {}, data = { train = 'train.jsonl' } }", "its trainer is not r1.sft"),
        ("{ trainer = r1.sft {}, dat = 3 }", "unknown field `dat`"),
    ] {
        fs::write(dir.path().join("b.lua"), starting_with(cold_start)).unwrap();
        let error = fail(dir.path(), &["run", "b.lua", "-q"]);
        assert!(error.contains(message) && error.contains("b.lua:"), "{cold_start}: {error}");
    }
    let sft = RECIPE.replace(
        "trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3, kl = { coef = 0.1 } }",
        "trainer = r1.sft {}",
    );
    fs::write(dir.path().join("b.lua"), sft).unwrap();
    let error = fail(dir.path(), &["sft", "b.lua", "-q"]);
    assert!(error.contains("`cold_start` comes before reinforcement learning"), "{error}");
    // Hints name the settings as a user writes them.
    for command in ["run", "sft"] {
        let error = fail(dir.path(), &[command, "a.lua", "-q", "cold_start.trainer.max_length=3"]);
        assert!(error.contains("cold_start.trainer.overlong=skip leaves such rows out"), "{command}: {error}");
    }
    // A row that is not a conversation is found by the check.
    fs::write(dir.path().join("train.jsonl"), "{\"messages\": [{\"role\": \"bot\", \"content\": \"x\"}]}\n").unwrap();
    let printed = r1(dir.path(), &["check", "a.lua"]).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("cold_start: ") && printed.contains("train.jsonl:1"), "{printed}");
}

/// The memory of both parts, and of the one that takes more.
#[test]
fn a_plan_has_both_parts() {
    let dir = directory(&[("a.lua", &RECIPE), ("train.jsonl", ROWS)], true);
    let plan = |more: &[&str]| -> Value {
        let output = r1(dir.path(), &[&["run", "a.lua", "--plan", "--json"], more].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let peak = |plan: &Value| plan["peak_bytes"].as_u64().unwrap();
    let both = plan(&[]);
    let sum =
        |shares: &Value| shares.as_array().unwrap().iter().map(|share| share["bytes"].as_u64().unwrap()).sum::<u64>();
    let cold = &both["cold_start"];
    assert_eq!(peak(cold), sum(&cold["held"]) + sum(&cold["learning"]));
    let after = sum(&both["held"]) + sum(&both["sampling"]).max(sum(&both["learning"]));
    assert_eq!(peak(&both), after.max(peak(cold)));
    let larger = plan(&["cold_start.trainer.tokens_per_batch=4000000"]);
    assert!(peak(&larger["cold_start"]) > peak(&both) && peak(&larger) == peak(&larger["cold_start"]), "{larger}");
    let text = succeed(dir.path(), &["run", "a.lua", "--plan"]);
    for part in ["cold start: AdamW", "at most, in the cold start", "after the cold start"] {
        assert!(text.contains(part), "{text}");
    }
    let alone = r1(dir.path(), &["sft", "a.lua", "--plan", "--json"]).output().unwrap();
    let alone: Value = serde_json::from_slice(&alone.stdout).unwrap();
    assert_eq!(
        (alone["cold_start"].clone(), alone["learning"].clone()),
        (Value::Null, both["cold_start"]["learning"].clone())
    );
    assert!(
        fail(dir.path(), &["run", "a.lua", "--plan", "cold_start.trainer.lr=-1"])
            .contains("cold_start: trainer.lr is -1")
    );
}
