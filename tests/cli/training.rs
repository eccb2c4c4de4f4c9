//! Complete runs on a tiny model: output, files, stopping and resuming.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::LazyLock;

use serde_json::Value;

use super::recipe::{HELD_OUT, line_of, recipe};
use super::run_files::{json_lines, metrics, read_json, training_steps};
use super::running::Running;
use super::{cli_snapshot, directory, printed, r1, shown, succeed};

/// Rewards even lengths, so that rewards differ within a group.
static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let reward = "function(state, outcome) return { outcome = #outcome.text % 2, length = { value = #outcome.text, weight = 0 } } end";
    recipe(&[
        ("reward", reward),
        ("data", HELD_OUT),
        ("trainer", "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3 }"),
        ("checkpoint", "{ every = 2, keep = 0 }"),
    ])
});

fn run(dir: &Path, args: &[&str]) -> Output {
    r1(dir, args).output().unwrap()
}

/// The training steps in `metrics.jsonl`.
fn logged_steps(run: &Path) -> Vec<u64> {
    training_steps(run).iter().map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
fn an_unknown_target_of_an_adapter_is_refused_at_its_line() {
    let policy = "policy = {\n  model = \"model\",\n  lora = { targets = { \"q_prj\" } },\n}";
    let recipe = RECIPE.replace("policy = { model = \"model\" }", policy);
    let line = line_of(&recipe, "q_prj");
    let dir = directory(&[("a.lua", &recipe)], true);
    let text = printed(dir.path(), &["check", "a.lua"]);
    assert!(text.contains("no model has a projection `q_prj`"), "{text}");
    let text = printed(dir.path(), &["run", "a.lua"]);
    assert!(text.starts_with("exit: 3"), "{text}");
    assert!(text.contains("`policy.lora.targets`: no model has a projection `q_prj`"), "{text}");
    assert!(text.contains(&format!("--> a.lua:{line}")) && text.contains("did you mean `q_proj`"), "{text}");
}

#[test]
fn a_lora_adapter_is_trained_resumed_used_and_merged() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let adapter = ["policy.lora.rank=2", "policy.lora.targets=[\"q_proj\",\"down_proj\"]"];
    let trained = |steps: &str, more: &[&str]| {
        let steps = format!("trainer.steps={steps}");
        succeed(dir.path(), &[&["run", "a.lua", "-q", &steps], &adapter[..], more].concat())
    };
    trained("2", &[]);
    let checkpoint = dir.path().join("runs/a/checkpoints/step-000002");
    assert!(checkpoint.join("adapter_model.safetensors").is_file() && !checkpoint.join("model.safetensors").exists());
    let config = read_json(checkpoint.join("adapter_config.json"));
    assert_eq!((&config["r"], &config["peft_type"]), (&Value::from(2), &Value::from("LORA")));
    assert_eq!(config["base_model_name_or_path"], dir.path().join("model").canonicalize().unwrap().to_str().unwrap());

    trained("4", &["--resume", "runs/a", "--out", "adapter"]);
    assert_eq!(logged_steps(&dir.path().join("runs/a")), [1, 2, 3, 4]);
    trained("4", &["--name", "whole", "--out", "merged", "checkpoint.merge=true"]);
    assert!(dir.path().join("adapter/adapter_config.json").is_file());
    assert!(dir.path().join("merged/model.safetensors").is_file());
    let answer = |model: &str| {
        let args = [
            "infer",
            "--model",
            model,
            "-p",
            "Say 4",
            "--json",
            "--max-new-tokens",
            "8",
            "--temperature",
            "0",
            "--plain",
        ];
        json_lines(&succeed(dir.path(), &args))[0]["text"].clone()
    };
    // The resumed run equals the uninterrupted one, and merging changes nothing.
    assert_eq!(answer("adapter"), answer("merged"));
    assert_eq!(answer("runs/a"), answer("adapter"));

    let other = run(dir.path(), &["run", "a.lua", "--resume", "runs/a", "policy.lora.rank=3", adapter[1]]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("policy.lora.rank is 3, but the policy's adapter has 2"));
    let merge = run(dir.path(), &["run", "a.lua", "checkpoint.merge=true"]);
    assert!(String::from_utf8_lossy(&merge.stderr).contains("the policy has no adapter"));
}

#[test]
fn a_run_writes_all_its_files() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let stdout = succeed(dir.path(), &["run", "a.lua", "--json", "--seed", "3"]);
    let events = json_lines(&stdout);
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!(named("step"), 4, "{stdout}");
    assert_eq!(named("summary"), 1);
    let run = dir.path().join("runs/a");
    for file in [
        "recipe.lua",
        "config.json",
        "trajectories/step-000001.parquet",
        "trajectories/step-000004.parquet",
        "checkpoints/step-000002/model.safetensors",
        "checkpoints/step-000004/trainer_state/state.json",
        "checkpoints/step-000004/tokenizer.json",
        "checkpoints/latest",
        "metrics.jsonl",
    ] {
        assert!(run.join(file).is_file(), "{file}");
    }
    assert_eq!(fs::read_to_string(run.join("recipe.lua")).unwrap(), *RECIPE);
    let config = read_json(run.join("config.json"));
    assert_eq!(config["seed"], 3);
    assert_eq!(logged_steps(&run), [1, 2, 3, 4]);
    // Every logged metric is documented.
    for line in metrics(&run) {
        for name in line.as_object().unwrap().keys().filter(|name| !["step", "time"].contains(&name.as_str())) {
            assert!(r1::telemetry::names::meaning(name).is_some(), "docs/reference/metrics.md does not explain {name}");
        }
    }
    // A group samples one task.
    let trajectories = r1::store::read_trajectories(&run.join("trajectories/step-000004.parquet")).unwrap();
    assert_eq!(trajectories.len(), 4);
    assert!(trajectories.iter().all(|t| trajectories.iter().all(|u| t.group != u.group || t.task == u.task)));
    // Nothing is overwritten.
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.steps=1"]);
    assert!(dir.path().join("runs/a-2/checkpoints/step-000001").is_dir());
    // The trained model can be used in a chat.
    let reply = succeed(dir.path(), &["infer", "-m", "runs/a", "-s", "a.lua", "-p", "Say 3", "--json"]);
    assert_eq!(json_lines(&reply).last().unwrap()["event"], "reply");
    let latest = ["infer", "-m", "runs/a/checkpoints/latest", "-p", "Say 3", "--max-new-tokens", "3"];
    let plain = succeed(dir.path(), &[&latest[..], &["--plain", "--temperature", "1"]].concat());
    assert!(plain.ends_with('\n'));
}

#[test]
fn quiet_prints_nothing() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    cli_snapshot!(in dir, ["run", "a.lua", "--quiet", "trainer.steps=1"], @"
    exit: 0
    ");
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "whole"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "parts"]);
    let parts = dir.path().join("runs/parts");
    // As if it had been killed in the third step while writing.
    fs::remove_dir_all(parts.join("checkpoints/step-000004")).unwrap();
    fs::write(parts.join("trajectories/.step-000003.parquet-x.part"), "half").unwrap();
    fs::create_dir(parts.join("checkpoints/.step-000004-x.part")).unwrap();
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "parts", "--resume"]);
    assert_eq!(logged_steps(&parts), [1, 2, 3, 4]);
    assert!(!parts.join("trajectories/.step-000003.parquet-x.part").exists());
    let weights =
        |run: &str| fs::read(dir.path().join("runs").join(run).join("checkpoints/step-000004/model.safetensors"));
    assert!(weights("whole").unwrap() == weights("parts").unwrap(), "the weights differ");
    let sampled = |run: &str| {
        let path = dir.path().join("runs").join(run).join("trajectories/step-000003.parquet");
        r1::store::read_trajectories(&path).unwrap()
    };
    let ids = |run: &str| sampled(run).iter().map(|t| t.steps[0].response_ids.clone()).collect::<Vec<_>>();
    assert_eq!(ids("whole"), ids("parts"));
}

#[test]
#[cfg(unix)]
fn ctrl_c_stops_after_a_step_and_prints_the_resume_command() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let run = Running::start(dir.path(), &["run", "a.lua", "trainer.steps=100000"]);
    run.until_lines(&dir.path().join("runs/a/metrics.jsonl"), 3);
    run.send(libc::SIGINT);
    let output = run.end();
    assert_eq!(output.status.code(), Some(130), "{}", shown(dir.path(), &output));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.contains("r1 run a.lua --resume runs/a"), "{stdout}");
    assert!(dir.path().join("runs/a/checkpoints/latest").is_file());
}

/// A file system of a quarter mebibyte, in its own namespace.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_loses_no_written_files() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let script = "mount -t tmpfs -o size=256k none runs && { \"$0\" \"$@\"; code=$?; cp -r runs kept; exit $code; }";
    fs::create_dir(dir.path().join("runs")).unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_r1")]);
    let output = command
        .args(["run", "a.lua", "-q", "trainer.steps=100000", "checkpoint.every=1"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    if !dir.path().join("kept").exists() {
        eprintln!("skipped: no namespaces here ({})", String::from_utf8_lossy(&output.stderr).trim());
        return;
    }
    assert_eq!(output.status.code(), Some(8), "{}", shown(dir.path(), &output));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("no space left on device") && stderr.contains("--resume"), "{stderr}");
    // Every visible file is complete.
    let kept = dir.path().join("kept/a");
    let files = fs::read_dir(kept.join("trajectories")).unwrap().map(|entry| entry.unwrap().path());
    let whole: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "parquet")).collect();
    assert!(!whole.is_empty());
    for path in whole {
        assert_eq!(r1::store::read_trajectories(&path).unwrap().len(), 4);
    }
    let (step, checkpoint) = r1::store::latest_checkpoint(&kept).unwrap().unwrap();
    assert_eq!(r1::store::RunProgress::load(&checkpoint).unwrap().step, step);
    let last = fs::read(checkpoint.join("model.safetensors")).unwrap();
    assert!(last.len() > 1000);
}

/// A sandbox without namespaces is weaker, so r1 warns about it.
#[test]
#[cfg(target_os = "linux")]
fn python_without_namespaces_is_a_warning() {
    let tools = RECIPE.replace(
        "env = r1.env { format = \"retool\" },",
        "env = r1.env { tools = { r1.tools.python {} }, format = \"retool\", max_steps = 1,
           step = function() r1.call_tools { { name = \"python\", arguments = { code = \"1\" } } } return { done = true } end },",
    );
    let dir = directory(&[("a.lua", &tools)], true);
    // In a user namespace in which no others can be created.
    let script =
        "for kind in mnt user pid net ipc uts; do echo 0 > /proc/sys/user/max_${kind}_namespaces || exit 99; done
        exec \"$0\" \"$@\"";
    let run = |command: &mut std::process::Command| {
        let output = command.args(["run", "a.lua", "-q", "trainer.steps=1"]).current_dir(dir.path()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let mut bare = std::process::Command::new("unshare");
    let reported = run(bare.args(["-r", "sh", "-c", script, env!("CARGO_BIN_EXE_r1")]));
    if !reported.contains("the system allows no namespaces") {
        let probe = std::process::Command::new("unshare").args(["-r", "sh", "-c", script, "true"]).status();
        let python = std::process::Command::new("python3").arg("--version").output();
        assert!(python.is_err() || !probe.is_ok_and(|status| status.success()), "{reported}");
        eprintln!("skipped: no user namespaces or no python3 here");
        return;
    }
    assert_eq!(reported.matches("the system allows no namespaces").count(), 1, "{reported}");
}

/// The rollout of the first step has fewer decode steps than are profiled.
#[test]
fn a_short_first_step_is_profiled() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let args =
        ["run", "a.lua", "-q", "--profile", "trainer.steps=1", "sampling.max_new_tokens=14", "eval.before=false"];
    succeed(dir.path(), &args);
    let profile = dir.path().join("runs/a/profile");
    let table = fs::read_to_string(profile.join("operations.md")).unwrap();
    assert!(
        table.contains("decode steps (decode.json)\n\n| host: operation") && !table.contains("Not profiled"),
        "{table}"
    );
    assert!(profile.join("decode.json").is_file() && profile.join("update.json").is_file());
    // The time line has the parts of the step on the tracks that they belong to.
    let trace = read_json(profile.join("step.json"));
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let tracks = named("thread_name");
    let track = |event: &Value| {
        let track = tracks.iter().find(|track| track["tid"] == event["tid"]).unwrap();
        track["args"]["name"].as_str().unwrap().to_owned()
    };
    for name in ["rollout", "log-probabilities and values", "advantages", "optimiser step", "write trajectories"] {
        assert_eq!(named(name).iter().map(|event| track(event)).collect::<Vec<_>>(), ["training"], "{name}");
    }
    assert!(!named("model").is_empty() && named("model").iter().all(|event| track(event) == "engine"));
    for name in ["reset", "context", "sample", "step", "reward"] {
        let tracks: std::collections::BTreeSet<String> = named(name).iter().map(|event| track(event)).collect();
        assert_eq!(tracks.into_iter().collect::<Vec<_>>(), ["1-0-0", "1-0-1", "1-1-0", "1-1-1"], "{name}");
    }
    assert!(named("sample").iter().all(|event| event["args"]["sampled_tokens"].as_u64().unwrap() > 0));
}
