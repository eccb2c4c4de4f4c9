//! The order of training rows: as stored, sorted by a function, and by past success.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::cold_start::killed;
use super::recipe::recipe;
use super::run_files::{checkpoint_files, read_json, stored, training_steps};
use super::{directory, fail, r1, succeed};

/// A recipe whose rows are solved by their level: 1 always, 2 by some replies, 3 never.
fn by_level(more: &str) -> String {
    let reward = "function(state, outcome)
    local level = state.task.level
    return level == 1 and 1 or level == 2 and #outcome.text % 2 or 0
  end";
    let fields = recipe(&[
        ("reward", reward),
        ("data", "{ train = 'rows.jsonl' }"),
        ("sampling", "{ max_new_tokens = 4 }"),
        ("trainer", "r1.grpo { steps = 6, group_size = 4, groups_per_step = 3, lr = 1e-3 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ]);
    format!("{}  {more}\n}}\n", fields.strip_suffix("}\n").unwrap())
}

fn rows() -> String {
    let row = |n| format!("{{\"problem\": \"Say {n}\", \"level\": {}}}\n", n % 3 + 1);
    (0..9).map(row).collect::<Vec<_>>().concat()
}

fn with(more: &str) -> tempfile::TempDir {
    directory(&[("a.lua", &by_level(more)), ("rows.jsonl", &rows())], true)
}

/// The rows of the groups of each step.
fn drawn(dir: &Path, run: &str) -> Vec<Vec<u64>> {
    let rows = |step: u64| {
        let all = stored(dir, run, step);
        let rows: BTreeMap<u64, u64> = all.iter().map(|trajectory| (trajectory.group, trajectory.task_index)).collect();
        rows.into_values().collect()
    };
    (1..=6).map(rows).collect()
}

#[test]
fn rows_are_drawn_as_stored_or_sorted() {
    let dir = with("");
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "stored", "data.shuffle=false"]);
    let stored = drawn(dir.path(), "stored");
    assert_eq!(stored[..4], [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]);
    let dir = with("row_order = function(row) return -row.level end,");
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "sorted", "trainer.steps=6"]);
    let sorted = drawn(dir.path(), "sorted");
    let levels: Vec<Vec<u64>> = sorted.iter().map(|step| step.iter().map(|row| row % 3 + 1).collect()).collect();
    assert_eq!(levels, [[3; 3], [2; 3], [1; 3], [3; 3], [2; 3], [1; 3]]);
    assert_eq!(sorted[..3], sorted[3..]);
}

#[test]
fn a_band_skips_rows_that_are_solved_always_or_never() {
    let dir = with("");
    let band = ["data.curriculum.low=0.1", "data.curriculum.high=0.9", "data.curriculum.outside=0"];
    succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", "band"], &band[..]].concat());
    let steps = drawn(dir.path(), "band");
    // Three steps visit the nine rows for the first time.
    let mut first: Vec<u64> = steps[..3].concat();
    first.sort_unstable();
    assert_eq!(first, (0..9).collect::<Vec<u64>>());
    let counts = counts(dir.path(), "band", 3);
    let outside = |row: u64| {
        let row_counts = &counts[&row.to_string()];
        let rate = row_counts["successes"].as_f64().unwrap() / row_counts["attempts"].as_f64().unwrap();
        !(0.1..=0.9).contains(&rate)
    };
    assert!(outside(0) && outside(2));
    let inside = (0..9).any(|row| !outside(row));
    assert!(!inside || steps[3].iter().all(|row| !outside(*row)), "{steps:?}");
    let step = &training_steps(&dir.path().join("runs/band"))[3];
    assert!((step["data/sampled_share"].as_f64().unwrap() - 1.0).abs() < 1e-12);
    assert!(step["data/skipped_rows"].as_f64().unwrap() > 0.0, "{step}");
}

fn counts(dir: &Path, run: &str, step: u64) -> Value {
    let path = format!("runs/{run}/checkpoints/step-{step:06}/trainer_state/curriculum.json");
    let saved = read_json(dir.join(path));
    saved["counts"].clone()
}

/// A run that is killed and resumed twice draws the rows of one that is not.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_killed_run_with_weights_draws_the_same_rows() {
    let dir = with("row_weight = function(past, row) return past.successes / past.attempts < 0.5 and 0.9 or 0.2 end,");
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "whole", "--seed", "5"]);
    let starts = [(&["--name", "parts", "--seed", "5"][..], 2), (&["--resume", "parts"][..], 4)];
    for (start, step) in starts {
        let file = format!("runs/parts/checkpoints/step-{step:06}/trainer_state/manifest.json");
        killed(r1(dir.path(), &[&["run", "a.lua", "-q"], start].concat()), dir.path(), &dir.path().join(file));
    }
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "parts"]);
    assert_eq!(drawn(dir.path(), "whole"), drawn(dir.path(), "parts"));
    let (whole, parts) = (checkpoint_files(dir.path(), "whole", 6), checkpoint_files(dir.path(), "parts", 6));
    assert!(whole.contains_key("trainer_state/curriculum.json"));
    for (name, bytes) in &whole {
        assert!(*bytes == parts[name], "{name} differs");
    }
}

#[test]
fn wrong_curricula_are_refused() {
    let error = |more: &str, settings: &[&str]| {
        let dir = with(more);
        let error = fail(dir.path(), &[&["run", "a.lua", "-q"], settings].concat());
        error.replace(&format!("{}/", dir.path().display()), "")
    };
    insta::assert_snapshot!(error("row_weight = function() return 2 end,", &["trainer.steps=4"]), @r##"
    warning: step 1: no token was trained: the trajectories of each group earned the same reward; weights and optimiser are unchanged (reported once)
    warning: step 3: nothing could be learned in the first 3 steps:
      the trajectories of each group earned the same reward: raise trainer.group_size or sampling.temperature, or use tasks that the policy solves sometimes
    error: row_weight returned 2; it must return a number from 0 to 1
      --> a.lua:12
      hint: the row is rows.jsonl:2
    "##);
    insta::assert_snapshot!(error("row_order = function(row) return row end,", &[]), @r##"
    error: row_order returned {"problem":"Say 3","level":1}; it must return a finite number or text
      --> a.lua:12
      hint: the row is rows.jsonl:4
    "##);
    for (more, settings, wanted) in [
        ("row_order = function(row) return row.lvel + 1 end,", &[][..], "a.lua:12"),
        (
            "",
            &["data.curriculum.low=0.8", "data.curriculum.high=0.2"][..],
            "data.curriculum.low is 0.8 and data.curriculum.high 0.2",
        ),
        ("", &["data.curriculum.outside=0.3"][..], "no band is set"),
        (
            "row_weight = function() return 1 end,",
            &["data.curriculum.low=0.2"][..],
            "`row_weight` and data.curriculum.low or high both select rows by their success",
        ),
    ] {
        let error = error(more, settings);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn check_calls_the_functions_of_a_curriculum() {
    let dir = with("row_weight = function(past) return past.successes / (past.attempts - 4) end,");
    let output = r1(dir.path(), &["check", "a.lua"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("row_weight returned"), "{text}");
    let dir = with("row_weight = function(past) return past.successes / past.attempts end,");
    succeed(dir.path(), &["check", "a.lua"]);
}
