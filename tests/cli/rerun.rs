//! `r1 rerun`: steps of a run are repeated, and what differs is reported.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use super::recipe::{HELD_OUT, recipe};
use super::run_files::json_lines;
use super::{directory, fail, r1, shown, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    recipe(&[
        ("reward", "function(state, outcome) return { outcome = #outcome.text % 3 } end"),
        ("data", HELD_OUT),
        ("trainer", "r1.grpo { steps = 4, group_size = 4, groups_per_step = 2, lr = 1e-3 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ])
});

/// The stdout of a repetition that differs.
fn differing(dir: &Path, args: &[&str]) -> String {
    let output = r1(dir, args).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", shown(dir, &output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_repeated_run_is_equal_and_a_changed_one_differs_where_it_was_changed() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    let repeated = succeed(dir.path(), &["rerun", "a", "--from", "1"]);
    let equal = "equal prompt ids, ids, log-probabilities, rewards, advantages, learner's log-probabilities, entropies, weights";
    let line = |step: u64| format!("step {step}, 8 trajectories: {equal}\n");
    assert_eq!(repeated, format!("{}{}{}3 steps repeated: every number is equal.\n", line(2), line(3), line(4)));
    let sampled = succeed(dir.path(), &["rerun", "a", "--from", "2", "--sample", "--steps", "1"]);
    assert_eq!(sampled, format!("{}1 step repeated: every number is equal.\n", line(3)));
    // Nothing of the repetition stays.
    assert_eq!(fs::read_dir(dir.path().join("runs")).unwrap().count(), 1);

    // Another learning rate changes the weights after the first update, and then what they compute.
    let lower = ["rerun", "a", "--from", "1", "--name", "lower", "trainer.lr=1e-4", "--json"];
    let events = json_lines(&differing(dir.path(), &lower));
    assert_eq!(events.len(), 4);
    let differs = |step: usize, name: &str| events[step]["compared"][name]["differ"].as_u64().unwrap() > 0;
    assert!(differs(0, "weights") && !differs(0, "learner's log-probabilities") && !differs(0, "advantages"));
    assert!(differs(1, "learner's log-probabilities") && !differs(1, "ids") && !differs(1, "advantages"));
    assert_eq!(events[3]["first"], serde_json::json!({ "step": 2, "name": "weights" }));
    assert!(dir.path().join("runs/lower/metrics.jsonl").is_file());

    // Another reward function does not change stored rewards, and it does those of a new rollout.
    fs::write(dir.path().join("b.lua"), RECIPE.replace("% 3", "% 2")).unwrap();
    succeed(dir.path(), &["rerun", "a", "--from", "3", "--script", "b.lua"]);
    let text = differing(dir.path(), &["rerun", "a", "--from", "3", "--script", "b.lua", "--sample"]);
    assert!(text.contains("\n  rewards: ") && text.contains("The first difference is in step 4: rewards."), "{text}");
}

#[test]
fn refusals_of_rerun_say_what_is_there() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.steps=1"]);
    let error = fail(dir.path(), &["rerun", "a", "--from", "1"]);
    assert!(error.contains("the run has no trajectories after step 1"), "{error}");
    fs::write(dir.path().join("a.lua"), RECIPE.replace("% 3", "% 2")).unwrap();
    let error = fail(dir.path(), &["rerun", "a", "--from", "1"]);
    assert!(
        error.contains("the script has changed since the run") && error.contains("--script a.lua repeats"),
        "{error}"
    );
}
