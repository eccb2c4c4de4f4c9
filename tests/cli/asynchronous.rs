//! Rollouts of later steps during updates (`rollout.async`): the version of the weights of every
//! token, each task once, and what a stop or a kill leaves.
#![cfg(target_os = "linux")]
#![allow(clippy::float_cmp)] // whole numbers

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::killed::killed_and_resumed;
use super::recipe::recipe;
use super::run_contents::{assert_same, left};
use super::run_files::{stored, training_steps};
use super::running::Running;
use super::{directory, fail, r1, shown, succeed};

/// Four groups with two replies for each trajectory. The tool between them is slow in the groups
/// of every second step.
fn slow(settings: &str) -> String {
    let env = r#"r1.env {
    format = "retool",
    max_steps = 2,
    reset = function(task) return { messages = { r1.user(task.prompt) }, slow = task.slow } end,
    step = function(state, action)
      print("after " .. #action.text)
      r1.sleep(state.slow)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user("Go on"))
      return { reward = #action.text % 2 }
    end,
  }"#;
    let data = r#"{
    train = r1.data.generate { count = 8, row = function(index)
      return { prompt = "Say " .. index, slow = (index - 1) // 2 % 2 == 1 and 1.5 or 0 }
    end },
    shuffle = false,
  }"#;
    recipe(&[
        ("env", env),
        ("data", data),
        ("rollout", &format!("{{ async = {settings} }}")),
        // With a gradient in every step.
        ("trainer", "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3, entropy = 0.01 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
        ("seed", "4"),
    ])
}

/// The versions of the weights of all tokens, by step, trajectory and token.
fn versions(dir: &Path, run: &str, steps: u64) -> Vec<Vec<Vec<u64>>> {
    let of_step = |step| {
        let all = stored(dir, run, step);
        assert_eq!(all.len(), 4, "step {step}");
        all.iter()
            .map(|one| {
                let tokens: Vec<u64> = one.steps.iter().flat_map(|step| step.policy_versions.clone()).collect();
                assert_eq!(tokens.len(), one.steps.iter().map(|step| step.response_ids.len()).sum::<usize>());
                tokens
            })
            .collect()
    };
    (1..=steps).map(of_step).collect()
}

/// Every row of the data in order, and a log line for each reply, in the order of the steps.
fn assert_complete(dir: &Path, run: &str) {
    let rows = |step: u64| stored(dir, run, step).iter().map(|one| one.task_index).collect::<BTreeSet<_>>();
    let rows: Vec<Vec<u64>> = (1..=4).map(|step| rows(step).into_iter().collect()).collect();
    assert_eq!(rows, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    succeed(dir, &["traj", "account", run]);
    let log = super::run_files::json_lines(&fs::read_to_string(dir.join("runs").join(run).join("log.jsonl")).unwrap());
    let steps: Vec<u64> = log.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    for line in &log {
        let id = line["trajectory"].as_str().unwrap();
        assert!(id.starts_with(&format!("{}-", line["step"])), "{line}");
    }
}

fn ages(dir: &Path, run: &str, name: &str) -> Vec<f64> {
    let steps = training_steps(&dir.join("runs").join(run));
    steps.iter().map(|line| line[name].as_f64().unwrap()).collect()
}

/// Without lines whose order depends on the time of replies.
fn quiet(settings: &str) -> String {
    slow(settings).replace("print(", "tostring(")
}

#[test]
fn trajectories_that_finish_have_one_version() {
    let dir = directory(&[("a.lua", &quiet("{ staleness = 1, on_update = 'finish' }"))], true);
    for run in ["a", "b"] {
        succeed(dir.path(), &["run", "a.lua", "-q", "--name", run]);
        assert_complete(dir.path(), run);
    }
    // The first two steps begin at once, each later one after the update before the last.
    for (step, all) in versions(dir.path(), "a", 4).into_iter().enumerate() {
        let expected = step.saturating_sub(1) as u64;
        assert!(all.iter().flatten().all(|version| *version == expected), "{all:?}");
    }
    assert_eq!(ages(dir.path(), "a", "rollout/staleness"), [0.0, 1.0, 1.0, 1.0]);
    // No number depends on the time that the parts of the run take.
    #[cfg(feature = "cpu-kernels")]
    assert_same(&left(&dir.path().join("runs/a")), &dir.path().join("runs/b"), "again");
}

#[test]
fn trajectories_go_on_with_new_weights() {
    let dir = directory(&[("a.lua", &slow("{ staleness = 1 }"))], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "a"]);
    assert_complete(dir.path(), "a");
    let all = versions(dir.path(), "a", 4);
    for (step, all) in (0_u64..).zip(&all) {
        for tokens in all {
            let stale = |version: &u64| *version > step || *version + 1 < step;
            assert!(tokens.is_sorted() && !tokens.iter().any(stale), "step {step}: {tokens:?}");
        }
    }
    // The slow step began before the first update, and went on after it.
    assert!(all[1].iter().all(|tokens| tokens[0] == 0 && tokens[tokens.len() - 1] == 1), "{:?}", all[1]);
    assert_eq!(ages(dir.path(), "a", "rollout/staleness_max"), [0.0, 1.0, 1.0, 1.0]);
}

#[test]
fn dropped_groups_begin_again() {
    let dir = directory(&[("a.lua", &slow("{ staleness = 1, on_update = 'restart' }"))], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "a"]);
    let all = versions(dir.path(), "a", 4);
    // Groups of the slow steps, which no update has found complete.
    for step in [1, 3] {
        assert!(all[step].iter().flatten().all(|version| *version == step as u64), "{all:?}");
    }
    assert_eq!(ages(dir.path(), "a", "rollout/staleness_max")[1], 0.0);
    succeed(dir.path(), &["traj", "account", "a"]);
}

/// Two processes have the same trajectories and weights as one.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn processes_divide_rollouts_of_later_steps() {
    let dir = directory(&[("a.lua", &quiet("{ staleness = 1, on_update = 'finish' }"))], true);
    for count in ["1", "2"] {
        let args = ["run", "a.lua", "-q", "--threads", "1", "--nproc", count, "--name", count];
        succeed(dir.path(), &[&args[..], &["trainer.gradient_shards=2"]].concat());
    }
    assert_same(&left(&dir.path().join("runs/1")), &dir.path().join("runs/2"), "two processes");
    assert_complete(dir.path(), "2");
}

/// One process learns and one samples: the trajectories and weights of one that does both.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_process_samples_for_others() {
    let dir = directory(&[("a.lua", &quiet("{ staleness = 1, on_update = 'finish' }"))], true);
    let args = ["run", "a.lua", "-q", "--threads", "1", "trainer.gradient_shards=2", "--name"];
    succeed(dir.path(), &[&args[..], &["one"]].concat());
    for (processes, samplers) in [("2", "1"), ("3", "1"), ("3", "2")] {
        // Two shards of one learner, or of two.
        let name = format!("{processes}-{samplers}");
        let roles = format!("rollout.async.ranks={samplers}");
        succeed(dir.path(), &[&args[..], &[&name, "--nproc", processes, &roles]].concat());
        assert_same(&left(&dir.path().join("runs/one")), &dir.path().join("runs").join(&name), &name);
        assert_complete(dir.path(), &name);
    }
    let text = fail(dir.path(), &[&args[..], &["x", "--nproc", "2", "rollout.async.ranks=2"]].concat());
    assert!(text.contains("rollout.async.ranks is 2, and there are 2 processes"), "{text}");
}

/// The process that samples goes on during updates, and takes their weights between its decode
/// steps.
#[test]
fn a_process_samples_with_new_weights() {
    let dir = directory(&[("a.lua", &slow("{ staleness = 1, ranks = 1 }"))], true);
    let algorithm = ["trainer.algorithm=ppo", "trainer.group_size=2"];
    succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", "a", "--nproc", "2"], &algorithm[..]].concat());
    assert_complete(dir.path(), "a");
    let all = versions(dir.path(), "a", 4);
    assert!(all[1].iter().all(|tokens| tokens[0] == 0 && tokens[tokens.len() - 1] == 1), "{:?}", all[1]);
    // A resumed run without the roles.
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/a", "trainer.steps=5", "rollout.async.ranks=0"]);
    assert_eq!(training_steps(&dir.path().join("runs/a")).len(), 5);
}

/// What had been sampled for later steps is lost, and sampled again.
#[test]
fn a_killed_run_resumes_with_each_task_once() {
    let points = [
        ("write *a/metrics.jsonl", 2),
        ("fsync *a/trajectories/.step-000002*", 1),
        ("fsync *a/checkpoints/.step-000002-*/model.safetensors", 1),
    ];
    for (pattern, count) in points {
        let dir = killed_and_resumed(&slow("{ staleness = 2 }"), pattern, count);
        assert_complete(dir.path(), "a");
    }
}

/// A stop does not wait for the tools of later steps.
#[test]
fn a_signal_ends_the_run_after_its_step() {
    let dir = directory(&[("a.lua", &slow("{ staleness = 1 }").replace("1.5 or 0", "60 or 0"))], true);
    let running = Running::start(dir.path(), &["run", "a.lua", "--name", "a", "limits.wait=90"]);
    running.until_lines(&dir.path().join("runs/a/metrics.jsonl"), 1);
    let began = std::time::Instant::now();
    running.send(libc::SIGINT);
    running.until_reported("stopping");
    running.send(libc::SIGINT);
    let output = running.end();
    assert!(began.elapsed() < Duration::from_secs(30), "{}", shown(dir.path(), &output));
    assert!(dir.path().join("runs/a/checkpoints/step-000001").is_dir(), "{}", shown(dir.path(), &output));
}

#[test]
fn what_needs_the_results_of_the_step_before_is_refused() {
    let dir = directory(&[("a.lua", &slow("{ staleness = 1 }"))], true);
    let text = fail(dir.path(), &["run", "a.lua", "trainer.filter.uniform=true"]);
    assert!(text.contains("replaces groups by the next tasks"), "{text}");
    let text = fail(dir.path(), &["run", "a.lua", "data.curriculum.low=0.1"]);
    assert!(text.contains("data.curriculum selects tasks"), "{text}");
    let text = fail(dir.path(), &["run", "a.lua", "rollout.async.on_update=wait"]);
    assert!(text.contains("continue") && text.contains("restart"), "{text}");
    fs::write(dir.path().join("loop.lua"), "local t = r1.training('a.lua')\nt:rollout()\n").unwrap();
    let output = r1(dir.path(), &["lua", "loop.lua"]).output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(!output.status.success() && text.contains("rollout.async.staleness is for `r1 run`"), "{text}");
}
