//! `r1 traj account`: every task of a run is trained once or accounted for, and groups that the
//! filter drops are stored.
#![cfg(target_os = "linux")]
#![allow(clippy::float_cmp)] // sums of whole numbers

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use r1::mdp::Trajectory;
use r1::store::read_step_tasks;
use serde_json::{Value, json};

use super::killed::{killed_at, library};
use super::recipe::recipe;
use super::run_files::{json_lines, stored, training_steps};
use super::{cli_snapshot, directory, fail, printed, r1, shown, succeed};

const REFILLED: &str = "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3,
    filter = { uniform = true, refills = 2 } }";

fn refilled(more: &[(&str, &str)]) -> tempfile::TempDir {
    let fields = [("trainer", REFILLED), ("checkpoint", "{ every = 1, keep = 0 }"), ("seed", "4")];
    directory(&[("a.lua", &recipe(&[&fields[..], more].concat()))], true)
}

fn account(dir: &Path, run: &str) -> Value {
    json_lines(&succeed(dir, &["traj", "account", run, "--json"])).remove(0)
}

/// The problems of an account, whose command must fail.
fn problems(dir: &Path, run: &str) -> Vec<Value> {
    let output = r1(dir, &["traj", "account", run, "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(8), "{}", shown(dir, &output));
    let account = json_lines(std::str::from_utf8(&output.stdout).unwrap()).remove(0);
    account["problems"].as_array().unwrap().clone()
}

fn file(dir: &Path, run: &str, step: u64) -> PathBuf {
    dir.join(format!("runs/{run}/trajectories/step-{step:06}.parquet"))
}

/// A run of refilled groups that was killed while it wrote the files of steps 2 and 3.
fn killed_run() -> tempfile::TempDir {
    let dir = refilled(&[]);
    library(dir.path());
    let mut last = "--name";
    for step in [2, 3] {
        let call = format!("fsync *k/trajectories/.step-{step:06}*");
        let output = killed_at(dir.path(), &["run", "a.lua", "-q", last, "k"], &call, 1).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{}", shown(dir.path(), &output));
        last = "--resume";
    }
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "k"]);
    dir
}

#[test]
fn dropped_groups_are_stored_and_every_task_is_accounted_for() {
    let dir = killed_run();
    let at = dir.path();
    let account = account(at, "k");
    let metrics = training_steps(&at.join("runs/k"));
    let sum = |name: &str| metrics.iter().map(|step| step[name].as_f64().unwrap()).sum::<f64>();
    let tasks = |name: &str| account["tasks"][name].as_f64().unwrap();
    assert!(tasks("dropped") > 0.0, "{account}");
    assert_eq!(tasks("trained") + tasks("dropped"), sum("rollout/groups"));
    for (name, metric) in [("trained", "trained"), ("dropped", "dropped"), ("failed", "failed")] {
        assert_eq!(tasks(name), sum(&format!("rollout/{metric}_groups")), "{name}");
    }
    assert_eq!(account["position"].as_f64(), Some(sum("rollout/groups")));
    assert_eq!(metrics[3]["data/epoch"].as_f64(), Some(sum("rollout/groups") / 8.0));
    assert_eq!((&account["rows"], &account["problems"]), (&json!(8), &json!([])));

    // What the filter drops is in no update and in no metric of the step.
    let mut dropped = 0;
    for (step, metrics) in (1..).zip(&metrics) {
        let all = stored(at, "k", step);
        let groups: BTreeSet<u64> = all.iter().map(|one| one.group).collect();
        assert!(groups.into_iter().eq(0..all.len() as u64 / 2));
        let (left, used): (Vec<Trajectory>, Vec<Trajectory>) = all.into_iter().partition(|one| one.dropped);
        let mean = used.iter().map(Trajectory::total_reward).sum::<f64>() / used.len() as f64;
        assert!((mean - metrics["reward/mean"].as_f64().unwrap()).abs() < 1e-12);
        assert!(used.iter().all(Trajectory::is_trained) && !left.iter().any(Trajectory::is_trained));
        assert_eq!(left.len() as f64, 2.0 * metrics["rollout/dropped_groups"].as_f64().unwrap());
        dropped += left.len();
    }
    let matching = succeed(at, &["traj", "where", "k", "dropped and not trained"]);
    assert!(matching.contains(&format!("{dropped} of ")) && matching.contains("dropped\n"), "{matching}");
    let some = json_lines(&succeed(at, &["traj", "where", "k", "dropped", "-n", "1", "--json"])).remove(0);
    let shown = succeed(at, &["traj", "show", "k", some["id"].as_str().unwrap()]);
    assert!(shown.contains(", dropped by the filter, reward"), "{shown}");
    let stats = succeed(at, &["traj", "stats", "k"]);
    assert!(stats.contains(&format!("{dropped} of them in groups that trainer.filter dropped")), "{stats}");
    succeed(at, &["traj", "verify", "k"]);
    let program = "for _, one in ipairs(r1.store.trajectories('runs/k')) do
      if one.dropped then print(one.id) end
    end";
    fs::write(at.join("p.lua"), program).unwrap();
    assert_eq!(succeed(at, &["lua", "p.lua"]).lines().count(), dropped);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_repetition_leaves_out_dropped_groups_and_keeps_them() {
    let dir = refilled(&[]);
    let at = dir.path();
    succeed(at, &["run", "a.lua", "-q"]);
    for more in [&[][..], &["--sample"]] {
        let arguments = [&["rerun", "a", "--from", "1", "--name", "again"], more].concat();
        let repeated = succeed(at, &arguments);
        assert!(repeated.ends_with("3 steps repeated: every number is equal.\n"), "{repeated}");
        let [first, again] = ["a", "again"].map(|run| account(at, run));
        assert_eq!((&again["position"], &again["problems"]), (&first["position"], &json!([])));
        for step in 2..=4 {
            assert_eq!(read_step_tasks(&file(at, "again", step)), read_step_tasks(&file(at, "a", step)));
            let dropped = |run: &str| stored(at, run, step).iter().filter(|one| one.dropped).count();
            assert_eq!(dropped("again"), dropped("a"));
        }
        fs::remove_dir_all(at.join("runs/again")).unwrap();
    }
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "the numbers are those of the CPU kernels")]
fn lost_and_repeated_files_are_named() {
    let dir = refilled(&[]);
    let at = dir.path();
    succeed(at, &["run", "a.lua", "-q", "--name", "k"]);
    cli_snapshot!(in &dir, ["traj", "account", "k"], @r"
    exit: 0
    --- stdout
    k, steps 1 to 4: 16 tasks of 8 rows, 2.00 epochs

                    tasks  trajectories
      trained           8            16
      dropped           8            16
      failed            0             0
      in no update      0             0

      epoch  rows  not drawn  once
      1         8          0     8
      2         8          0     8

    every task was trained once or is accounted for
    ");
    let begins = |step: u64| read_step_tasks(&file(at, "k", step)).unwrap().unwrap().position;
    let drawn = begins(3) - begins(2);
    let second = fs::read(file(at, "k", 2)).unwrap();

    fs::remove_file(file(at, "k", 2)).unwrap();
    let missing = json!({ "problem": "missing_steps", "first": 2, "last": 2, "tasks": drawn });
    assert_eq!(problems(at, "k"), [missing]);
    let text = printed(at, &["traj", "account", "k"]);
    let line = format!("step 2: no file; {drawn} tasks were drawn there\n1 discrepancy");
    assert!(text.starts_with("exit: 8") && text.contains(&line), "{text}");

    // The rows of a step are there twice.
    fs::copy(file(at, "k", 1), file(at, "k", 2)).unwrap();
    let twice = problems(at, "k");
    assert_eq!(
        (&twice[0]["problem"], &twice[0]["step"], &twice[0]["position"]),
        (&json!("position"), &json!(2), &json!(0))
    );
    assert!(twice.iter().any(|it| it["problem"] == "repeated_row" && it["step"] == 2), "{twice:?}");

    fs::write(file(at, "k", 2), &second[..second.len() / 2]).unwrap();
    assert_eq!(problems(at, "k")[0]["problem"], "damaged");
    fs::write(file(at, "k", 2), second).unwrap();
    account(at, "k");

    // The newest checkpoint knows of the last step.
    fs::remove_file(file(at, "k", 4)).unwrap();
    let last = problems(at, "k");
    assert_eq!((last.len(), &last[0]["problem"], &last[0]["step"]), (1, &json!("checkpoint"), &json!(4)));
    fs::remove_file(file(at, "k", 1)).unwrap();
    assert_eq!(problems(at, "k")[0]["problem"], "missing_steps");
    assert!(fail(at, &["traj", "account", "kk"]).contains("did you mean `k`?"));
}

#[test]
fn rows_that_are_not_drawn_in_epochs_and_files_of_earlier_versions_are_accounted_for() {
    let dir = refilled(&[]);
    let at = dir.path();
    let orders = |run: &str| -> Vec<String> {
        let account = account(at, run);
        let epochs = account["epochs"].as_array().unwrap();
        epochs.iter().map(|epoch| epoch["order"].as_str().unwrap().to_owned()).collect()
    };
    let curriculum = ["data.curriculum.low=0.2", "data.curriculum.high=0.8", "trainer.steps=3"];
    succeed(at, &[&["run", "a.lua", "-q", "--name", "c"][..], &curriculum].concat());
    assert_eq!(orders("c")[0], "curriculum");
    let program = "local t = r1.training('a.lua', { name = 'p' })
      t:update(t:rollout()) t:next_step()
      t:rollout { rows = { 3, 3, 5 } } t:next_step()
      t:next_step()
      t:update(t:rollout()) t:next_step()";
    fs::write(at.join("p.lua"), program).unwrap();
    succeed(at, &["lua", "p.lua"]);
    assert!(!file(at, "p", 3).is_file());
    assert!(orders("p").contains(&"chosen".to_owned()) && orders("p").contains(&"epochs".to_owned()));
    assert_eq!(account(at, "p")["tasks"]["unused"], 3);

    fs::create_dir_all(at.join("runs/old/trajectories")).unwrap();
    for part in ["config.json", "recipe.lua"] {
        fs::copy(at.join("runs/c").join(part), at.join("runs/old").join(part)).unwrap();
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trajectories-format-1.parquet");
    fs::copy(fixture, file(at, "old", 1)).unwrap();
    cli_snapshot!(in &dir, ["traj", "account", "old"], @r"
    exit: 0
    --- stdout
    old, step 1: 2 tasks

                    tasks  trajectories
      trained           2             4
      dropped           0             0
      failed            0             0
      in no update      0             0

    1 file is of an earlier version of r1, up to step 1: positions in the data are not stored,
    nor dropped groups (0 or more)

    every stored task was trained once or is accounted for
    ");
}
