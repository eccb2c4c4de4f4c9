//! Scripts that are edited during a run of a real, tiny model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::recipe::{Fields, line_of, recipe};
use super::run_files::read_json;
use super::running::Running;
use super::{directory, r1, shown, succeed};

/// Steps without end; a part of the reward has the name of the version.
fn version(name: &str) -> String {
    let reward = "function(state, outcome) return { outcome = #outcome.text % 2, VERSION = { value = lib.value, weight = 0 } } end";
    with_lib(&[("reward", &reward.replace("VERSION", name))])
}

fn with_lib(fields: &Fields<'_>) -> String {
    let endless = "r1.grpo { steps = 100000, group_size = 2, groups_per_step = 2, lr = 1e-3 }";
    let all = [&[("trainer", endless), ("checkpoint", "{ every = 0 }")], fields].concat();
    format!("local lib = require(\"lib\")\n{}", recipe(&all))
}

/// Saves as most editors do: writes another file and renames it.
fn rename_write(path: &Path, text: &str) {
    let new = path.with_extension("swp");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// A run until it is stopped.
struct Run {
    running: Running,
    dir: tempfile::TempDir,
}

impl Run {
    fn start(args: &[&str]) -> Self {
        Self::of(&version("one"), args)
    }

    fn of(recipe: &str, args: &[&str]) -> Self {
        let dir = directory(&[("a.lua", recipe), ("lib.lua", "return { value = 1 }")], true);
        let running = Running::start(dir.path(), &[&["run", "a.lua"], args].concat());
        Self { running, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The metrics so far; the last line may be incomplete.
    fn metrics(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("runs/a/metrics.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a step with these metrics.
    fn step_where(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.running.until(what, || self.metrics().last().is_some_and(&holds));
        self.metrics().into_iter().rfind(holds).unwrap()
    }

    /// Waits for a step with this metric.
    fn step_with(&self, metric: &str) -> Value {
        self.step_where(metric, |step| step.get(metric).is_some())
    }

    fn until_steps(&self, count: usize) {
        self.running.until("more steps", || self.metrics().len() > count);
    }

    /// Stops it as Ctrl-C does; returns its directory and what it reported.
    fn stop(self) -> (tempfile::TempDir, String) {
        self.running.send(libc::SIGINT);
        let output = self.running.end();
        assert_eq!(output.status.code(), Some(130), "{}", shown(self.dir.path(), &output));
        (self.dir, String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn a_reload_changes_rewards_modules_and_settings() {
    let run = Run::start(&[]);
    let first = run.step_with("reward/one");
    assert_eq!((&first["script/generation"], &first["policy/lr"]), (&Value::from(0.0), &Value::from(1e-3)));

    rename_write(&run.path("a.lua"), &version("two"));
    // A step may have groups of both versions: waits for the first with only the new one.
    let is_second = |step: &Value| step.get("reward/two").is_some() && step.get("reward/one").is_none();
    let second = run.step_where("the new reward", is_second);
    assert_eq!((&second["script/generation"], &second["reward/two"]), (&Value::from(1.0), &Value::from(1.0)));

    std::fs::write(run.path("lib.lua"), "return { value = 7 }").unwrap();
    run.step_where("the module", |step| step["reward/two"] == 7.0);

    let text = version("three").replace("lr = 1e-3", "lr = 5e-4").replace("group_size = 2", "group_size = 4");
    std::fs::write(run.path("a.lua"), text.replace("max_new_tokens = 6", "max_new_tokens = 2")).unwrap();
    run.step_where("the learning rate", |step| step["policy/lr"] == 5e-4);
    let third = run.step_with("reward/three");
    assert!(third["rollout/response_tokens_max"].as_f64().unwrap() <= 2.0);

    let metrics = run.metrics();
    let (dir, reported) = run.stop();
    assert!(reported.contains("reloaded a.lua ("), "{reported}");
    assert!(reported.contains("\n    trainer.lr 0.001 -> 0.0005 from the next step on"), "{reported}");
    assert!(
        reported.contains("wait for a restart, and keep their values:\n    trainer.group_size 2 -> 4\n"),
        "{reported}"
    );
    // Each reload is marked in one step.
    let marked: f64 = metrics.iter().filter_map(|step| step["script/reloads"].as_f64()).sum();
    assert_eq!(marked as usize, 3);
    // Steps name the version that produced them, and the run stores every version. No group mixes
    // two.
    let store = dir.path().join("runs/a");
    let mut versions = std::collections::BTreeSet::new();
    for number in 1..=metrics.len() {
        let path = store.join(format!("trajectories/step-{number:06}.parquet"));
        let Ok(step) = r1::store::read_trajectories(&path) else { break };
        assert_eq!(step.len(), 4);
        for pair in step.chunks(2) {
            assert_eq!((pair[0].group, &pair[0].script_hash), (pair[1].group, &pair[1].script_hash));
            versions.insert(pair[0].script_hash.clone());
        }
    }
    assert_eq!(versions.len(), 4);
    for version in versions {
        assert!(store.join("scripts").join(&version[..12]).join("lib.lua").is_file(), "{version} is not kept");
    }
    let config = read_json(store.join("config.json"));
    assert_eq!(
        (&config["settings"]["trainer"]["lr"], &config["settings"]["trainer"]["group_size"]),
        (&5e-4.into(), &2.into())
    );
}

const FLOW: &str = r#"r1.env { format = "retool", max_steps = 3, flow = function(task, policy)
    policy.state.length = 0
    for turn = 1, 3 do
      local action = policy:generate({ r1.user(task.prompt .. turn) })
      policy.state.length = policy.state.length + #action.text
    end
    return { reward = policy.state.length % 2, parts = { VERSION = lib.value } }
  end }"#;

/// A flow is replaced like an environment: trajectories in flight end with their version, and a
/// version whose flow fails is refused.
#[test]
fn flows_change_in_flight() {
    let version = |name: &str| with_lib(&[("env", &FLOW.replace("VERSION", name)), ("reward", "nil")]);
    let run = Run::of(&version("one"), &[]);
    let first = run.step_with("reward/one");
    assert_eq!(first["reward/one"], 1.0);
    rename_write(&run.path("a.lua"), &version("broken").replace("for turn = 1, 3 do", "for turn = 1, nil do"));
    run.running.until_reported(&format!("a.lua:{}", line_of(&version("one"), "for turn")));
    rename_write(&run.path("a.lua"), &version("two"));
    run.step_where("the new flow", |step| step.get("reward/two").is_some() && step.get("reward/one").is_none());
    rename_write(&run.path("lib.lua"), "return { value = 2 }");
    run.step_where("the new module", |step| step["reward/two"] == 2.0);
    for step in run.metrics() {
        // In both versions each reward has one of the two parts.
        let parts = ["reward/one", "reward/two"].iter().filter(|part| step.get(**part).is_some()).count();
        assert!(parts > 0 && step.get("reward/broken").is_none(), "{step}");
        assert!(step["rollout/failed_share"].as_f64().is_none_or(|share| share == 0.0), "{step}");
    }
    let (dir, _) = run.stop();
    succeed(dir.path(), &["replay", "runs/a"]);
}

#[test]
fn a_broken_script_is_not_reloaded_until_it_is_fixed() {
    let run = Run::start(&[]);
    run.step_with("reward/one");
    let broken = version("two").replace("#outcome.text % 2", "#outcome.txet % 2");
    rename_write(&run.path("a.lua"), &broken);
    run.running.until_reported("not reloaded");
    run.until_steps(run.metrics().len() + 2);
    assert!(run.metrics().iter().all(|step| step["script/generation"] == 0.0 && step.get("reward/two").is_none()));
    // Reported once, however often it is written.
    rename_write(&run.path("a.lua"), &broken);
    std::thread::sleep(Duration::from_millis(500));
    rename_write(&run.path("a.lua"), &version("two"));
    run.step_with("reward/two");
    let (_, reported) = run.stop();
    assert_eq!(reported.matches("not reloaded").count(), 1, "{reported}");
    let at = reported
        .find("warning: a.lua has changed and is not reloaded; the run continues with the old version\n")
        .unwrap();
    let lines: Vec<&str> = reported[at..].lines().skip(1).take(4).collect();
    assert_eq!(lines[..2], ["  env_error: attempt to get length of a nil value", "  --> a.lua:4"], "{reported}");
    assert!(lines[2].starts_with("     4 |   reward = function"), "{reported}");
    assert!(lines[3].contains("tried on the first row"), "{reported}");
}

#[test]
fn no_reload_disables_reloading() {
    let run = Run::start(&["--no-reload"]);
    run.step_with("reward/one");
    rename_write(&run.path("a.lua"), &version("two"));
    let steps = run.metrics().len();
    std::thread::sleep(Duration::from_millis(600));
    run.until_steps(steps + 5);
    assert!(run.metrics().iter().all(|step| step.get("reward/two").is_none()));
    assert!(!run.stop().1.contains("reload"));
}

/// A rewrite with the same content, a refused version, and one that is reverted before it is used
/// leave no trace.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn an_identical_reload_does_not_change_the_weights() {
    let files = [("a.lua", version("one")), ("lib.lua", "return { value = 1 }".to_owned())];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let args = ["run", "a.lua", "-q", "trainer.steps=60"];
    let finished = |rewrites: bool| {
        let dir = directory(&files, true);
        let mut child = r1(dir.path(), &args).spawn().unwrap();
        let mut rewritten = 0;
        let metrics = dir.path().join("runs/a/metrics.jsonl");
        while child.try_wait().unwrap().is_none() {
            // Not before the first step: a partly written file can't be the first version.
            if rewrites && metrics.exists() {
                rename_write(&dir.path().join("a.lua"), &version("one"));
                rename_write(&dir.path().join("lib.lua"), "return { value = 1 }");
                rewritten += 1;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!rewrites || rewritten > 0);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", shown(dir.path(), &output));
        let run = dir.path().join("runs/a");
        let weights = std::fs::read(run.join("checkpoints/step-000060/model.safetensors")).unwrap();
        let text = std::fs::read_to_string(metrics).unwrap();
        let metrics: Vec<Value> = text
            .lines()
            .map(|line| {
                let mut step: Value = serde_json::from_str(line).unwrap();
                // Clock and collector metrics always differ.
                step.as_object_mut().unwrap().retain(|name, _| {
                    let clock = ["time", "throughput/", "memory/"].iter().any(|start| name.starts_with(start));
                    // Concurrent requests in the engine share their common prefix.
                    !clock && name != "script/memory" && name != "rollout/cached_share"
                });
                step
            })
            .collect();
        (weights, metrics)
    };
    let (calm, restless) = (finished(false), finished(true));
    for (one, other) in calm.1.iter().zip(&restless.1) {
        for (name, value) in one.as_object().unwrap() {
            assert_eq!(value, &other[name], "{name} of step {}", one["step"]);
        }
    }
    assert_eq!(calm.1.len(), restless.1.len());
    assert!(calm.0 == restless.0, "the weights differ");
}
