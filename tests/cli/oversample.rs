//! More rollouts than a step needs (`rollout.oversample`): the first complete groups are trained,
//! the others are dropped or carried over, each task once.
#![cfg(target_os = "linux")]
#![allow(clippy::float_cmp)] // whole numbers

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::killed::killed_and_resumed;
use super::recipe::recipe;
use super::run_files::{stored, training_steps};
use super::{directory, fail, r1, shown, succeed};

/// Two groups of two trajectories in each step, with two replies each. A trajectory of a row that
/// `waits` has goes on after its first reply when the row there was begun; row 99 never is.
fn waiting(waits: &str, oversample: &str) -> String {
    let env = r#"r1.env {
    format = "retool",
    max_steps = 2,
    reset = function(task)
      begun[task.row] = (begun[task.row] or 0) + 1
      return { messages = { r1.user(task.prompt) }, wait = waits[task.row], number = begun[task.row] }
    end,
    step = function(state, action)
      local wait = if only_first and state.number > 1 then nil else state.wait
      while wait and not begun[wait] do r1.sleep(0.01) end
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user("Go on"))
      return { reward = #action.text % 2 }
    end,
  }"#;
    let data = r#"{
    train = r1.data.generate { count = 100, row = function(index) return { prompt = "Say " .. index, row = index - 1 } end },
    shuffle = false,
  }"#;
    let fields = recipe(&[
        ("env", env),
        ("data", data),
        ("rollout", &format!("{{ workers = 1, oversample = {oversample} }}")),
        // With a gradient in every step.
        ("trainer", "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3, entropy = 0.01 }"),
        ("limits", "{ wait = 600 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
        ("seed", "4"),
    ]);
    format!("local begun, waits, only_first = {{}}, {waits}, false\n{fields}")
}

/// Row 1 waits for step 3, row 5 for step 5, row 10 for step 6.
fn carried() -> String {
    waiting("{ [1] = 5, [5] = 9, [10] = 11 }", "{ groups = 1, unfinished = 'carry' }")
}

/// The rows of each step.
fn rows(dir: &Path, run: &str, steps: u64) -> Vec<Vec<u64>> {
    let of = |step| stored(dir, run, step).iter().map(|one| one.task_index).collect::<BTreeSet<_>>();
    (1..=steps).map(|step| of(step).into_iter().collect()).collect()
}

fn assert_accounted(dir: &Path, run: &str) -> String {
    succeed(dir, &["traj", "verify", run]);
    let output = r1(dir, &["traj", "account", run]).output().unwrap();
    let text = shown(dir, &output);
    assert!(output.status.success(), "{text}");
    text
}

const CARRIED: [[u64; 2]; 4] = [[0, 2], [3, 4], [1, 6], [7, 8]];

#[test]
fn unfinished_groups_go_on_in_later_steps() {
    let dir = directory(&[("a.lua", &carried())], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "a"]);
    assert_eq!(rows(dir.path(), "a", 4), CARRIED);
    let third = stored(dir.path(), "a", 3);
    let ids: Vec<&str> = third.iter().map(|one| one.id.as_str()).collect();
    // The first number is that of the carried group.
    assert_eq!(ids, ["3-0-0", "3-0-1", "3-2-0", "3-2-1"]);
    for one in &third {
        let versions: Vec<u64> = one.steps.iter().map(|step| step.policy_versions[0]).collect();
        assert_eq!(versions, if one.group == 0 { [0, 2] } else { [2, 2] }, "{}", one.id);
    }
    let steps = training_steps(&dir.path().join("runs/a"));
    let of = |name: &str| steps.iter().map(|line| line[name].as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("rollout/carried_groups"), [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(of("rollout/unfinished_groups"), [1.0; 4]);
    assert_eq!(of("rollout/staleness_max"), [0.0, 0.0, 2.0, 0.0]);
    let text = assert_accounted(dir.path(), "a");
    assert!(text.contains("1 group goes on in the next step"), "{text}");

    // A longer run begins the group of the last step again.
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/a", "trainer.steps=5"]);
    assert_eq!(rows(dir.path(), "a", 5)[4], [5, 9]);
    assert_accounted(dir.path(), "a");
    let text = fail(
        dir.path(),
        &[
            "run",
            "a.lua",
            "--resume",
            "runs/a",
            "--yes",
            "trainer.steps=6",
            "rollout.oversample.groups=0",
            "rollout.async.staleness=1",
        ],
    );
    assert!(text.contains("the checkpoint has 1 unfinished group"), "{text}");
    // Without the setting, carried groups are the first of the next step.
    fs::write(dir.path().join("a.lua"), carried().replace("{ groups = 1, unfinished = 'carry' }", "{}")).unwrap();
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/a", "--yes", "trainer.steps=6"]);
    assert_eq!(rows(dir.path(), "a", 6)[5], [10, 11]);
    assert_accounted(dir.path(), "a");
}

#[test]
fn a_killed_run_resumes_with_each_group_once() {
    let points = [
        ("write *a/metrics.jsonl", 2),
        ("fsync *a/trajectories/.step-000003*", 1),
        ("fsync *a/checkpoints/.step-000002-*/model.safetensors", 1),
    ];
    for (pattern, count) in points {
        let dir = killed_and_resumed(&carried(), pattern, count);
        assert_eq!(rows(dir.path(), "a", 4), CARRIED, "{pattern}");
        assert_accounted(dir.path(), "a");
    }
}

#[test]
fn unfinished_groups_are_dropped() {
    let never = "{ [1] = 99, [5] = 99, [8] = 99, [11] = 99 }";
    let dir = directory(&[("a.lua", &waiting(never, "{ groups = 1 }"))], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "a"]);
    assert_eq!(rows(dir.path(), "a", 4), [[0, 2], [3, 4], [6, 7], [9, 10]]);
    let text = assert_accounted(dir.path(), "a");
    assert!(text.contains("12 tasks"), "{text}");
    assert!(stored(dir.path(), "a", 4).iter().flat_map(|one| &one.steps).all(|step| step.policy_versions.is_empty()));
}

#[test]
fn a_group_takes_the_samples_that_end_first() {
    let script = waiting("{ [0] = 99, [1] = 99, [2] = 99, [3] = 99 }", "{ samples = 1 }");
    let dir = directory(&[("a.lua", &script.replacen("false", "true", 1))], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "a", "trainer.steps=2"]);
    assert_eq!(rows(dir.path(), "a", 2), [[0, 1], [2, 3]]);
    let samples: Vec<u32> = stored(dir.path(), "a", 1).iter().map(|one| one.sample).collect();
    assert_eq!(samples, [1, 2, 1, 2]);
    assert_accounted(dir.path(), "a");
}

/// Which groups are complete first depends on the time, so that only the account is compared.
#[test]
fn refills_and_processes_have_open_groups_too() {
    let dir = directory(&[("a.lua", &waiting("{}", "{ groups = 2, unfinished = 'carry' }"))], true);
    let refills = ["trainer.filter.uniform=true", "trainer.filter.refills=3"];
    for (run, more) in [("refills", &refills[..]), ("processes", &["--nproc", "2", "--threads", "1"])] {
        succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", run], more].concat());
        assert_accounted(dir.path(), run);
        let groups: Vec<usize> = rows(dir.path(), run, 4).iter().map(Vec::len).collect();
        assert!(groups.iter().all(|count| *count >= 2), "{groups:?}");
    }
}

#[test]
fn settings_that_contradict_it_are_refused() {
    let dir = directory(&[("a.lua", &waiting("{}", "{ groups = 1 }"))], true);
    for (settings, expected) in [
        (&["rollout.async.staleness=1"][..], "rollout.async begins whole steps"),
        (&["data.curriculum.low=0.1"], "leaves groups without a result"),
        (&["rollout.oversample.samples=1", "trainer.branch.roots=1"], "branches continue from other trajectories"),
        (&["rollout.oversample.samples=1", "trainer.algorithm=remax"], "need a greedy trajectory"),
    ] {
        let text = fail(dir.path(), &[&["run", "a.lua"], settings].concat());
        assert!(text.contains(expected), "{text}");
    }
    fs::write(dir.path().join("loop.lua"), "local t = r1.training('a.lua')\nt:rollout()\n").unwrap();
    let text = fail(dir.path(), &["lua", "loop.lua"]);
    assert!(text.contains("rollout.oversample.groups is for `r1 run`"), "{text}");
}
