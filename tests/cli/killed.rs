//! Runs that are killed in every phase. A resumed run has the same files as one that was never
//! killed: weights, trajectories, metrics and logs, without gaps and duplicates.
//!
//! The points are exact: a library (tests/fixtures/kill.cpp) ends the process just before a system
//! call on files.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::cold_start::{COLD_START, ROWS};
use super::recipe::{Fields, HELD_OUT, recipe};
use super::run_contents::{assert_same, left};
use super::run_files::{json_lines, metrics};
use super::{directory, fail, r1, shown, succeed};
use crate::fork_server::{R1, compiled};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let cold_start = COLD_START.replace("steps = 3", "steps = 2").replace("keep = 0", "keep = 1");
    printing(&[("cold_start", &cold_start), ("eval", "{ every = 2 }")])
});

/// A recipe that prints in its functions, so that the process can be killed there.
pub(super) fn printing(fields: &Fields<'_>) -> String {
    let advantage = r#"function(group)
    print("advantages")
    return { group[1].total - group[2].total, group[2].total - group[1].total }
  end"#;
    let trainer = r#"r1.grpo {
    estimator = "custom", steps = 3, group_size = 2, groups_per_step = 2, lr = 1e-3, ema = 0.5,
    kl = { coef = 0.1, target = 0.01 },
  }"#;
    let all = [
        ("env", "r1.env { format = 'hermes' }"),
        (
            "reward",
            r#"function(state, outcome) print("reward " .. state.task.prompt) return { outcome = #outcome.text % 2 } end"#,
        ),
        ("advantage", advantage),
        ("data", HELD_OUT),
        ("rollout", "{ workers = 1 }"),
        ("trainer", trainer),
        ("checkpoint", "{ every = 1, keep = 2 }"),
        ("seed", "4"),
    ];
    format!("print(\"loaded\")\n{}", recipe(&[&all[..], fields].concat()))
}

/// Phase, call at which the process is killed, and the number of that call.
const POINTS: &[(&str, &str, u32)] = &[
    ("start", "mkdir *k/checkpoints", 1),
    ("start", "fsync *k/.config.json*", 1),
    ("cold start", "mkdir *k/sft", 1),
    ("cold start", "mkdir *k/sft/trajectories", 1),
    ("cold start", "mkdir *k/sft/checkpoints", 1),
    ("cold start", "rename *k/sft/scripts/.script*", 1),
    ("cold start", "fsync *k/sft/.config.json*", 1),
    ("cold start", "write *k/sft/metrics.jsonl", 1),
    ("cold start", "write *k/sft/metrics.jsonl", 2),
    ("cold start, best model", "fsync *k/sft/.best*/model.safetensors", 1),
    ("cold start, best model", "rename *k/sft/.best-*.part *k/sft/best", 2),
    ("cold start, checkpoint", "fsync *k/sft/checkpoints/.step-000001-*/model.safetensors", 1),
    ("cold start, checkpoint", "rename *k/sft/checkpoints/.step-000002-*", 1),
    ("cold start, checkpoint", "fsync *k/sft/checkpoints/.latest*", 2),
    ("cold start, checkpoint", "unlink *k/sft/checkpoints/.step-000001-removed.part/*", 2),
    ("after the cold start", "fsync *k/.config.json*", 2),
    ("evaluation", "write 2 *eval-0-1-*", 1),
    ("evaluation", "write *k/metrics.jsonl", 1),
    ("rollout", "write 2 * 2-1-? reward*", 1),
    ("rollout", "write *k/log.jsonl", 3),
    ("update", "write 2 *advantages*", 2),
    ("update", "write *k/metrics.jsonl", 3),
    ("trajectories", "fsync *k/trajectories/.step-000002*", 1),
    ("checkpoint", "fsync *k/checkpoints/.step-000002-*/model.safetensors", 1),
    ("checkpoint", "rename *k/checkpoints/.step-000002-*", 1),
    ("checkpoint", "fsync *k/checkpoints/.latest*", 3),
    ("checkpoint", "unlink *k/checkpoints/.step-000001-removed.part/*", 3),
    ("evaluation", "write 2 *eval-2-1-*", 1),
    ("evaluation", "fsync *k/evaluations/.step-000002*", 1),
    ("end", "fsync *k/evaluations/.step-000003*", 1),
    ("end", "fsync *k/.examples.txt*", 2),
];

/// The library that kills, compiled once.
pub(super) fn library(dir: &Path) -> PathBuf {
    compiled(dir, "kill")
}

/// `r1` that is killed at a call.
pub(super) fn killed_at(dir: &Path, args: &[&str], call: &str, count: u32) -> R1 {
    let mut command = r1(dir, args);
    command.env("LD_PRELOAD", dir.join("kill.so")).env("KILL_AT", call).env("KILL_COUNT", count.to_string());
    command
}

/// A run `a` of the script a.lua that is killed at a call and resumed does the steps 1 to 4 once;
/// the directory, to look at its files.
pub(super) fn killed_and_resumed(script: &str, call: &str, count: u32) -> tempfile::TempDir {
    let dir = directory(&[("a.lua", script)], true);
    library(dir.path());
    let killed = killed_at(dir.path(), &["run", "a.lua", "-q", "--name", "a"], call, count).output().unwrap();
    assert!(!killed.status.success(), "{call}: {}", shown(dir.path(), &killed));
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/a"]);
    let done: Vec<u64> = metrics(&dir.path().join("runs/a")).iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(done, [1, 2, 3, 4], "{call}");
    dir
}

fn assert_killed(dir: &Path, output: &Output, point: &str) {
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{point} is not reached: {}", shown(dir, output));
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_killed_in_any_phase_resumes_to_the_same_files() {
    let dir = directory(&[("a.lua", &RECIPE), ("train.jsonl", ROWS)], true);
    let dir = dir.path();
    library(dir);
    let run = dir.join("runs/k");
    let start = ["run", "a.lua", "--name", "k", "--no-reload"];
    succeed(dir, &start);
    let whole = left(&run);
    assert!(whole.contains_key("sft/best/model.safetensors") && whole.contains_key("trajectories/step-000003.parquet"));
    for (phase, call, count) in POINTS {
        let point = format!("{phase}: {call}, {count}");
        fs::remove_dir_all(dir.join("runs")).unwrap();
        assert_killed(dir, &killed_at(dir, &start, call, *count).output().unwrap(), &point);
        if run.join("config.json").is_file() {
            succeed(dir, &["run", "a.lua", "--resume", "k", "--no-reload"]);
        } else {
            // Nothing is known of its settings.
            let error = fail(dir, &["run", "a.lua", "--resume", "k"]);
            assert!(error.contains("the run was stopped before it began"), "{point}: {error}");
            succeed(dir, &start);
        }
        assert_eq!(fs::read_dir(dir.join("runs")).unwrap().count(), 1, "{point}");
        assert_same(&whole, &run, &point);
    }
    // Twice in the same run, the second time while it resumes.
    fs::remove_dir_all(dir.join("runs")).unwrap();
    let resume = ["run", "a.lua", "--resume", "k", "--no-reload"];
    let points = [("mkdir *k/sft/checkpoints", 1), ("rename *k/sft/.best-*.part *k/sft/best", 2)];
    let later = [("fsync *k/checkpoints/.latest*", 1), ("write 2 *advantages*", 1), ("write 2 *eval-3-1-*", 1)];
    for (at, (call, count)) in points.into_iter().chain(later).enumerate() {
        let arguments: &[&str] = if at == 0 { &start } else { &resume };
        assert_killed(dir, &killed_at(dir, arguments, call, count).output().unwrap(), call);
    }
    succeed(dir, &resume);
    assert_same(&whole, &run, "five times");
}

/// While a changed script is taken, and between the first lines of an update and its end.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_killed_during_a_reload_or_an_update_resumes_to_the_same_files() {
    let recipe = printing(&[]);
    let dir = directory(&[("a.lua", &recipe)], true);
    let dir = dir.path();
    library(dir);
    let run = dir.join("runs/k");
    let changed = format!("{recipe}-- A comment.\n");
    for (call, count, after) in [
        ("rename *k/scripts/.script*", 2, None),
        ("fsync *k/.config.json*", 2, None),
        ("write 2 *advantages*", 3, Some("2")),
        ("write 2 *advantages*", 3, Some("8")),
    ] {
        let _ = fs::remove_dir_all(dir.join("runs"));
        fs::write(dir.join("a.lua"), &recipe).unwrap();
        // Steps follow each other until the process is killed.
        let args = ["run", "a.lua", "--name", "k", "trainer.steps=100000", "eval.before=false", "checkpoint.keep=0"];
        let mut command = killed_at(dir, &args, call, count);
        if let Some(after) = after {
            command.env("KILL_AFTER_MS", after);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        let mut edited = after.is_some();
        while child.try_wait().unwrap().is_none() {
            if !edited && run.join("metrics.jsonl").exists() {
                fs::write(dir.join("a.lua"), &changed).unwrap();
                edited = true;
            }
            assert!(began.elapsed() < Duration::from_mins(2), "{call} is not reached");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL), "{call}");
        let last = r1::store::latest_checkpoint(&run).unwrap().map_or(0, |(step, _)| step);
        let steps = format!("trainer.steps={}", last + 2);
        succeed(dir, &["run", "a.lua", "--resume", "k", "--no-reload", "--yes", &steps]);
        let more = [&steps, "eval.before=false", "checkpoint.keep=0"];
        succeed(dir, &[&["run", "a.lua", "--name", "whole", "--no-reload"][..], &more].concat());
        let whole = dir.join("runs/whole");
        let without_scripts = |run: &Path| {
            let mut actual = left(run);
            actual.retain(|name, _| !name.starts_with("scripts/") && name != "log.jsonl");
            for (name, bytes) in &mut actual {
                if name == "metrics.jsonl" {
                    let text = String::from_utf8(std::mem::take(bytes)).unwrap();
                    let mut lines = json_lines(&text);
                    for line in &mut lines {
                        line.as_object_mut().unwrap().retain(|name, _| !name.starts_with("script/"));
                    }
                    *bytes = serde_json::to_vec(&lines).unwrap();
                } else if name == "tb" {
                    // The planned number of steps decides at which steps sample texts are written.
                    let text = String::from_utf8(std::mem::take(bytes)).unwrap();
                    let is_equal = |line: &&str| !line.starts_with("script/") && !line.starts_with("trajectory/");
                    *bytes = text.lines().filter(is_equal).collect::<Vec<_>>().join("\n").into_bytes();
                }
            }
            actual
        };
        let (expected, actual) = (without_scripts(&whole), without_scripts(&run));
        assert!(expected.keys().eq(actual.keys()), "{call}: {:?} {:?}", expected.keys(), actual.keys());
        for (name, bytes) in &expected {
            assert!(*bytes == actual[name], "{call}: {name}");
        }
    }
}

#[test]
fn a_killed_index_build_is_resumed_by_the_same_command() {
    let rows: Vec<String> = (0..60)
        .map(|n| format!(r#"{{"id": "{n}", "title": "Title {n}", "text": "word{} text {n}"}}"#, n % 7))
        .collect();
    let dir = directory(&[("corpus.jsonl", &rows.join("\n"))], false);
    let dir = dir.path();
    library(dir);
    let build = ["index", "build", "corpus.jsonl", "--out", "index", "--commit-every", "10"];
    let search = ["index", "search", "index", "word3 text", "-k", "20", "--json"];
    succeed(dir, &build);
    let hits = succeed(dir, &search);
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names(dir);
    let calls = dir.join("calls");
    fs::remove_dir_all(dir.join("index")).unwrap();
    let listed = killed_at(dir, &build, "none", 1).env("KILL_CALLS", &calls).output().unwrap();
    assert!(listed.status.success(), "{}", shown(dir, &listed));
    let all = fs::read_to_string(&calls).unwrap();
    fs::remove_file(&calls).unwrap();
    let writes = all.lines().filter(|line| line.starts_with("write ") && line.contains("index.part")).count();
    assert!(writes > 20, "{all}");
    let during = [1, writes / 4, writes / 2, writes * 3 / 4, writes].map(|count| ("write *index.part*", count));
    let end = [("fsync *manifest.json", 1), ("unlink *build.json", 1), ("rename index.part index", 1)];
    for (call, count) in during.into_iter().chain(end) {
        fs::remove_dir_all(dir.join("index")).unwrap();
        let count = u32::try_from(count).unwrap();
        assert_killed(dir, &killed_at(dir, &build, call, count).output().unwrap(), call);
        succeed(dir, &build);
        succeed(dir, &["index", "verify", "index"]);
        assert_eq!(succeed(dir, &search), hits, "{call} {count}");
        assert_eq!(names(dir), before, "{call} {count}");
    }
}
