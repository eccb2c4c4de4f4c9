//! Resuming: a resumed run equals one that was not interrupted, in settings and bytes.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use super::recipe::{THIRDS, TWO_STEPS, recipe};
use super::run_files::{checkpoint_files, metrics, read_json};
use super::{directory, exits, fail, r1, succeed};

/// Two replies per trajectory, so that there are steps to branch from; rewards differ within a
/// group.
static RECIPE: LazyLock<String> =
    LazyLock::new(|| recipe(&[("env", TWO_STEPS), ("reward", THIRDS), ("checkpoint", "{ every = 1 }")]));

const SUPERVISED: &str = r#"
return r1.recipe {
  env = r1.env { format = "retool" },
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 9, row = function(index)
    return { messages = { r1.user("Say " .. index), r1.assistant("I say " .. index) }, format = index > 5 and "hermes" or nil }
  end } },
  trainer = r1.sft { steps = 2, batch_size = 2, lr = 1e-3, final_lr = 1, warmup = 0 },
  checkpoint = { every = 1 },
}
"#;

fn config(run: &Path) -> Value {
    read_json(run.join("config.json"))
}

/// A run of six steps, and one that is stopped after two and after four, where the checkpoint that
/// it resumed from is removed: their last checkpoints have the same bytes.
fn resumes_to_the_same_bytes(verb: &str, recipe: &str, settings: &[&str], expected: &[&str]) {
    let dir = directory(&[("a.lua", recipe)], true);
    let train = |name: &str, more: &[&str]| {
        succeed(dir.path(), &[&[verb, "a.lua", "-q", "--name", name, "--seed", "7"], settings, more].concat());
    };
    train("whole", &["trainer.steps=6", "checkpoint.keep=1"]);
    train("parts", &["trainer.steps=2", "checkpoint.keep=1"]);
    // The original model is not needed for the files of a checkpoint either.
    for steps in ["trainer.steps=4", "trainer.steps=6"] {
        succeed(dir.path(), &[verb, "a.lua", "-q", "--resume", "runs/parts", steps]);
    }
    let last = |run: &str| checkpoint_files(dir.path(), run, 6);
    let (whole, parts) = (last("whole"), last("parts"));
    assert_eq!(whole.keys().collect::<Vec<_>>(), parts.keys().collect::<Vec<_>>(), "{verb} {settings:?}");
    for (name, bytes) in &whole {
        assert!(*bytes == parts[name], "{verb} {settings:?}: {name} differs");
    }
    let wanted =
        ["tokenizer.json", "tokenizer_config.json", "trainer_state/optimizer.safetensors", "trainer_state/state.json"];
    for name in wanted.iter().chain(expected) {
        assert!(whole.contains_key(*name), "{verb} {settings:?}: no {name} in {:?}", whole.keys());
    }
    // vLLM and SGLang load every such file at the top level.
    let weights: Vec<&String> =
        whole.keys().filter(|name| name.ends_with(".safetensors") && !name.contains('/')).collect();
    assert!(weights == ["model.safetensors"] || weights == ["adapter_model.safetensors"], "{weights:?}");
    let resumed = config(&dir.path().join("runs/parts"));
    assert_eq!(resumed["seed"], 7);
    assert_eq!(resumed["history"].as_array().unwrap().len(), 2, "{resumed}");
    // It can be resumed once more, and chatted with.
    succeed(dir.path(), &[verb, "a.lua", "-q", "--resume", "runs/parts"]);
    succeed(dir.path(), &["infer", "--model", "runs/parts", "-p", "Say 3", "--max-new-tokens", "2"]);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_resumed_grpo_run_has_the_same_checkpoints() {
    resumes_to_the_same_bytes(
        "run",
        &RECIPE,
        &["trainer.ema=0.5"],
        &["model.safetensors", "trainer_state/ema.safetensors"],
    );
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_resumed_ppo_run_has_the_same_checkpoints() {
    let settings = ["trainer.algorithm=ppo", "trainer.critic.lr=1e-3", "trainer.kl.coef=0.1", "trainer.kl.target=0.01"];
    let critic = ["model.safetensors", "value_head.safetensors", "optimizer.safetensors"];
    let critic = critic.map(|name| format!("trainer_state/critic/{name}"));
    resumes_to_the_same_bytes("run", &RECIPE, &settings, &critic.each_ref().map(String::as_str));
}

#[test]
fn a_resumed_adapter_has_the_same_checkpoints() {
    // One trajectory at a time: with an adapter, the last bits of log-probabilities depend on the
    // batch.
    let settings = ["policy.lora.rank=2", "rollout.concurrency=1", "trainer.kl.coef=0.1"];
    resumes_to_the_same_bytes("run", &RECIPE, &settings, &["adapter_model.safetensors", "adapter_config.json"]);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_resumed_run_with_a_curriculum_has_the_same_checkpoints() {
    let settings = ["data.curriculum.low=0.2", "data.curriculum.high=0.9", "data.curriculum.outside=0.3"];
    resumes_to_the_same_bytes("run", &RECIPE, &settings, &["trainer_state/curriculum.json"]);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_resumed_run_with_branches_has_the_same_checkpoints() {
    let settings = ["trainer.group_size=4", "trainer.branch.roots=1", "trainer.estimator=tree"];
    resumes_to_the_same_bytes("run", &RECIPE, &settings, &[]);
}

#[test]
fn a_resumed_supervised_run_has_the_same_checkpoints() {
    resumes_to_the_same_bytes("sft", SUPERVISED, &[], &["model.safetensors"]);
}

#[test]
fn a_resumed_run_counts_the_steps_that_it_makes() {
    let dir = directory(&[("a.lua", SUPERVISED)], true);
    succeed(dir.path(), &["sft", "a.lua", "-q"]);
    let output = r1(dir.path(), &["sft", "a.lua", "--resume", "trainer.steps=5"]).output().unwrap();
    let (printed, reported) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(reported.contains("training 3 of 5 steps of 2 conversations"), "{reported}");
    assert!(printed.contains("\n3 steps, "), "{printed}");
}

/// Algorithm, learning rate, seed and number of steps of the command line are kept; new overrides
/// are applied to them.
#[test]
fn a_resumed_run_keeps_its_settings_and_reports_differences() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let first = ["run", "a.lua", "-q", "trainer.algorithm=ppo", "trainer.lr=2e-3", "trainer.steps=2", "--seed", "5"];
    succeed(dir.path(), &first);
    let reported = exits(dir.path(), 0, &["run", "a.lua", "--resume", "trainer.steps=3"]);
    assert!(reported.contains("resuming runs/a from step 2 (runs/a/checkpoints/step-000002)"), "{reported}");
    let differs = "settings that differ from the run's last configuration:\n    trainer.steps 2 -> 3 (the run ends";
    assert!(reported.contains(differs), "{reported}");
    let run = dir.path().join("runs/a");
    assert!(run.join("checkpoints/step-000003/trainer_state/critic/value_head.safetensors").is_file());
    let config = config(&run);
    assert_eq!((&config["seed"], &config["algorithm"]), (&Value::from(5), &Value::from("ppo")));
    assert_eq!(config["settings"]["trainer"]["lr"], 2e-3);
    assert_eq!(
        config["overrides"],
        serde_json::json!(["trainer.algorithm=ppo", "trainer.lr=2e-3", "seed=5", "trainer.steps=3"])
    );
    let steps =
        |one: &Value| (one["from_step"].as_u64().unwrap(), one["settings"]["trainer"]["steps"].as_u64().unwrap());
    assert_eq!((steps(&config), steps(&config["history"][0])), ((2, 3), (0, 2)));

    // The run has its own seed.
    let error = fail(dir.path(), &["run", "a.lua", "--resume", "runs/a", "seed=6"]);
    assert!(error.contains("the run's seed is 5, and a run keeps its seed"), "{error}");
    // A run by its name; a changed script; a finished run.
    fs::write(dir.path().join("a.lua"), RECIPE.replace("max_new_tokens = 6", "max_new_tokens = 5")).unwrap();
    let output = r1(dir.path(), &["run", "a.lua", "--resume", "a", "--yes"]).output().unwrap();
    let reported = String::from_utf8(output.stderr).unwrap();
    assert!(
        reported.contains("the script has changed (") && reported.contains("sampling.max_new_tokens 6 -> 5"),
        "{reported}"
    );
    assert!(reported.contains("nothing is left to train: the run has done 3 of 3 steps"), "{reported}");
    // As JSON events.
    let events = succeed(dir.path(), &["run", "a.lua", "--json", "--resume", "a", "trainer.lr=3e-3"]);
    let event =
        events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|e| e["event"] == "resume");
    assert_eq!(event.unwrap()["changed"], serde_json::json!({ "trainer.lr": [2e-3, 3e-3] }));
}

/// A run is not continued with the recipe of another run by mistake. A renamed script continues its
/// own, and the earlier versions stay usable.
#[test]
fn a_run_is_not_resumed_with_another_recipe() {
    let other = RECIPE.replace("% 3 == 0", "% 5 == 0");
    let dir = directory(&[("a.lua", &RECIPE), ("b.lua", &other)], true);
    let at = dir.path();
    succeed(at, &["run", "a.lua", "-q", "trainer.steps=1"]);
    let before = fs::read(at.join("runs/a/config.json")).unwrap();
    let refused = fail(at, &["run", "b.lua", "--resume", "runs/a", "trainer.steps=2"]);
    assert!(
        refused.contains("runs/a is a run of a.lua (`a`), and this is another recipe, `b`")
            && refused.contains("name=a continues the run with it"),
        "{refused}"
    );
    assert_eq!(fs::read(at.join("runs/a/config.json")).unwrap(), before);
    fs::rename(at.join("a.lua"), at.join("c.lua")).unwrap();
    succeed(at, &["run", "c.lua", "-q", "--resume", "runs/a", "trainer.steps=2"]);
    let printed = succeed(at, &["run", "b.lua", "--resume", "runs/a", "trainer.steps=3", "name=c", "--yes"]);
    assert!(printed.contains("\n1 step in "), "{printed}");
    for id in ["1", "2", "3"] {
        succeed(at, &["replay", "runs/a", id, "-q"]);
    }
    succeed(at, &["replay", "runs/a/checkpoints/step-000003", "1", "-q"]);
}

#[test]
fn a_resume_without_a_critic_checkpoint_is_refused() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    let error = fail(dir.path(), &["run", "a.lua", "--resume", "runs/a", "trainer.algorithm=ppo", "trainer.steps=3"]);
    assert!(error.contains("the checkpoint has no critic"), "{error}");
    let error = fail(dir.path(), &["sft", "a.lua", "--resume", "runs/a"]);
    assert!(error.contains("this recipe's trainer is not r1.sft"), "{error}");
}

/// The algorithm's own name, and not the name of its training loop.
#[test]
fn the_configuration_names_the_algorithm() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.algorithm=gspo", "trainer.steps=1"]);
    let config = config(&dir.path().join("runs/a"));
    assert_eq!((&config["algorithm"], &config["settings"]["trainer"]["algorithm"]), (&"gspo".into(), &"gspo".into()));
}

/// In checkpoints of the first versions, optimiser and counters were next to the model.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_in_the_first_layout_is_resumed() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let settings = ["trainer.algorithm=ppo", "trainer.ema=0.5"];
    let train = |name: &str, more: &[&str]| {
        succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", name], &settings[..], more].concat());
    };
    train("whole", &["trainer.steps=4"]);
    train("parts", &[]);
    let pruned = dir.path().join("runs/parts/checkpoints/step-000002");
    let state = pruned.join("trainer_state");
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, pruned.join(path.file_name().unwrap())).unwrap();
    }
    fs::remove_dir(&state).unwrap();
    // They had no history and no name of the algorithm either.
    let path = dir.path().join("runs/parts/config.json");
    let mut old = read_json(&path);
    for name in ["from_step", "algorithm", "origins"] {
        old.as_object_mut().unwrap().remove(name);
    }
    fs::write(&path, old.to_string()).unwrap();
    train("parts", &["--resume", "trainer.steps=4"]);
    let last = |run: &str| checkpoint_files(dir.path(), run, 4);
    assert!(last("whole") == last("parts"));
}

/// The reference policy is the model that the run started from, even if its run has continued
/// since.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_starts_from_another_run() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "first", "checkpoint.keep=0"]);
    let on = ["run", "a.lua", "-q", "policy.model=runs/first", "trainer.kl.coef=0.1", "trainer.epochs=2"];
    let on = |name: &str, more: &[&str]| {
        succeed(dir.path(), &[&on[..], &["--name", name], more].concat());
    };
    on("whole", &["trainer.steps=4"]);
    on("parts", &["trainer.steps=2"]);
    let origin = &config(&dir.path().join("runs/parts"))["origins"]["model"];
    assert_eq!(origin["name"], "runs/first");
    assert!(origin["path"].as_str().unwrap().ends_with("runs/first/checkpoints/step-000002"), "{origin}");
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/first", "trainer.steps=3"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/parts", "trainer.steps=4"]);
    let last = |run: &str| checkpoint_files(dir.path(), run, 4);
    assert!(last("whole") == last("parts"));
}

/// A model stored in bf16 is trained in f32 on the CPU, and exported in bf16.
#[test]
fn an_export_has_the_dtype_of_the_initial_model() {
    let dtype = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        format!("{:?}", tensors.tensors()[0].1.dtype())
    };
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let run = |more: &[&str]| succeed(dir.path(), &[&["run", "a.lua", "-q", "trainer.steps=1"], more].concat());
    run(&["--name", "first", "--out", "small", "checkpoint.export=bf16"]);
    assert_eq!(dtype(&dir.path().join("small/model.safetensors")), "BF16");
    run(&["--name", "second", "--out", "same", "policy.model=small", "policy.dtype=f32"]);
    assert_eq!(dtype(&dir.path().join("same/model.safetensors")), "BF16");
    assert_eq!(dtype(&dir.path().join("runs/second/checkpoints/step-000001/model.safetensors")), "F32");
    run(&["--name", "third", "--out", "wide", "policy.model=small", "checkpoint.export=f32"]);
    assert_eq!(dtype(&dir.path().join("wide/model.safetensors")), "F32");
}

/// A base model without a chat template is trained with ChatML: its checkpoints must use ChatML
/// too.
#[test]
fn a_checkpoint_has_the_chat_template_used_in_training() {
    let dir = directory(&[("a.lua", &RECIPE), ("b.lua", SUPERVISED)], true);
    let path = dir.path().join("model/tokenizer_config.json");
    let mut config = read_json(&path);
    assert!(config.as_object_mut().unwrap().remove("chat_template").is_some());
    fs::write(&path, config.to_string()).unwrap();
    for (verb, script) in [("run", "a"), ("sft", "b")] {
        succeed(dir.path(), &[verb, &format!("{script}.lua"), "-q", "trainer.steps=1"]);
        let checkpoint = dir.path().join(format!("runs/{script}/checkpoints/step-000001"));
        let template = fs::read_to_string(checkpoint.join("chat_template.jinja")).unwrap();
        assert!(template.contains("<|im_start|>"), "{template}");
        // The other files are the model's.
        assert_eq!(fs::read(checkpoint.join("tokenizer_config.json")).unwrap(), fs::read(&path).unwrap());
    }
}

/// A damaged checkpoint can be neither resumed nor chatted with, if there is no other one.
#[test]
fn a_damaged_checkpoint_is_refused() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "checkpoint.keep=1"]);
    let checkpoint = dir.path().join("runs/a/checkpoints/step-000002");
    for name in
        ["model.safetensors", "tokenizer.json", "trainer_state/optimizer.safetensors", "trainer_state/state.json"]
    {
        let path = checkpoint.join(name);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = fail(dir.path(), &["run", "a.lua", "--resume", "runs/a", "trainer.steps=3"]);
        assert!(error.contains("has changed since the checkpoint was written") && error.contains(name), "{error}");
        if !name.contains('/') {
            let error = fail(dir.path(), &["infer", "--model", "runs/a", "-p", "Say 3"]);
            assert!(error.contains("has changed since the checkpoint was written"), "{error}");
        }
        fs::write(&path, &whole).unwrap();
    }
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/a", "trainer.steps=3"]);
    // A run without its checkpoints does not begin again over its own steps.
    fs::remove_dir_all(dir.path().join("runs/a/checkpoints")).unwrap();
    let error = fail(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/a"]);
    assert!(error.contains("the run has done 3 steps, with a checkpoint every 1, and there is none"), "{error}");
    assert!(dir.path().join("runs/a/trajectories/step-000003.parquet").is_file());
}

/// The closing page fits a screen, and each step has one line in the metrics, with its evaluation.
#[test]
fn the_closing_page_fits_a_screen_and_each_step_has_one_metrics_line() {
    let eval = "data = { eval = r1.data.generate { count = 2, row = function(index) return { prompt = \"Say \" .. index } end }, ";
    let dir = directory(&[("a.lua", &RECIPE.replace("data = { ", eval))], true);
    let page =
        |reported: &str| reported.lines().skip_while(|line| *line != "Done").map(str::to_owned).collect::<Vec<_>>();
    let reported = succeed(dir.path(), &["run", "a.lua", "trainer.steps=3", "eval.every=1"]);
    let closing = page(&reported);
    assert!((8..=24).contains(&closing.len()), "{} lines: {closing:#?}", closing.len());
    assert!(
        closing.iter().any(|line| line == "examples    runs/a/examples.txt") && !reported.contains("Trajectories"),
        "{reported}"
    );
    let examples = fs::read_to_string(dir.path().join("runs/a/examples.txt")).unwrap();
    assert!(examples.contains("Trajectories before training (step 0)\ntask 0, reward"), "{examples}");
    assert!(examples.contains("Trajectories after training (step 3)"), "{examples}");
    let lines = metrics(&dir.path().join("runs/a"));
    let of = |name: &str| -> Vec<u64> {
        let with = lines.iter().filter(|line| line.get(name).is_some());
        with.map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(of("eval/accuracy"), [0, 1, 2, 3]);
    assert_eq!(of("policy/loss"), [1, 2, 3]);
    assert_eq!(lines.len(), 4);
    let reported = succeed(dir.path(), &["run", "a.lua", "--verbose", "trainer.steps=1"]);
    assert!(reported.contains("Trajectories before training") && reported.contains("1 step in "), "{reported}");
}

/// A script that was edited while no process ran, and settings that it decides.
#[test]
fn a_resume_with_changes_needs_a_confirmation() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let dir = dir.path();
    succeed(dir, &["run", "a.lua", "-q", "trainer.steps=2"]);
    fs::write(dir.join("a.lua"), RECIPE.replace("every = 1", "every = 1, keep = 5")).unwrap();
    // The lock has the number of the last process.
    let files = || {
        let mut files = super::run_files::files(&dir.join("runs/a"));
        files.remove(".lock");
        files
    };
    let before = files();
    let error = fail(dir, &["run", "a.lua", "--resume", "a", "trainer.steps=3"]);
    for part in [
        "the script has changed since the run used it, and so have checkpoint.keep",
        "--yes continues the run with the current version",
        "checkpoint.keep 2 -> 5 (applies to the next checkpoint)",
        "trainer.steps 2 -> 3 (the run ends earlier or later",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(files() == before, "the run has changed");
    succeed(dir, &["run", "a.lua", "-q", "--resume", "a", "trainer.steps=3", "--yes"]);
    // The script is the one that the run used now, and typed settings need no confirmation.
    succeed(dir, &["run", "a.lua", "-q", "--resume", "a", "trainer.steps=4", "trainer.lr=1e-4"]);
    assert_eq!(config(&dir.join("runs/a"))["settings"]["checkpoint"]["keep"], 5);
}
