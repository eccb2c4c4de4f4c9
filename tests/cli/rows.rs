//! Rows of large datasets: the first are checked before step 1, the others during training.

use std::sync::LazyLock;

use super::recipe::{THIRDS, recipe};
use super::{directory, printed, r1, shown};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    recipe(&[
        ("reward", THIRDS),
        ("data", r#"{ train = "rows.jsonl" }"#),
        ("sampling", "{ max_new_tokens = 2 }"),
        ("trainer", "r1.grpo { steps = 40, group_size = 2, groups_per_step = 1, lr = 1e-3 }"),
    ])
});

/// Forty rows, of which row 30 (line 31) is not JSON.
fn rows() -> String {
    (0..40).map(|n| if n == 30 { "{ broken\n".to_owned() } else { format!("{{\"prompt\": \"Say {n}\"}}\n") }).collect()
}

#[test]
fn a_bad_row_after_the_checked_ones_ends_the_run_with_a_checkpoint() {
    let dir = directory(&[("a.lua", &RECIPE), ("rows.jsonl", &rows())], true);
    // All rows are checked before the first step.
    let text = printed(dir.path(), &["run", "a.lua", "--name", "whole"]);
    assert!(text.starts_with("exit: 4") && text.contains("--> rows.jsonl:31"), "{text}");
    assert!(!dir.path().join("runs/whole").exists());

    // Seed 3, so that the invalid row is not drawn first.
    let output = r1(dir.path(), &["run", "a.lua", "data.check_rows=20", "seed=3"]).output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(text.contains("20 rows after the first 20 of their dataset are read during training"), "{text}");
    assert!(text.contains("the run ends with a checkpoint when it draws this row"), "{text}");
    assert!(text.starts_with("exit: 4") && text.matches("rows.jsonl:31").count() == 2, "{text}");
    let steps = super::run_files::training_steps(&dir.path().join("runs/a")).len() as u64;
    assert!((1..40).contains(&steps), "{steps}");
    assert!(super::run_files::checkpoint(&dir.path().join("runs/a"), steps).is_dir(), "{text}");

    // With the row fixed the run continues.
    std::fs::write(dir.path().join("rows.jsonl"), rows().replace("{ broken", "{\"prompt\": \"Say 30\"}")).unwrap();
    let more = format!("trainer.steps={}", steps + 1);
    let text = printed(dir.path(), &["run", "a.lua", "--resume", &more]);
    assert!(text.starts_with("exit: 0") && text.contains(&format!("from step {steps}")), "{text}");
}

/// A long prompt among the checked rows is filtered; among the others it ends its trajectories.
#[test]
fn prompt_lengths_are_checked_among_the_checked_rows() {
    let long = format!("{{\"prompt\": \"{}\"}}\n", "q w ".repeat(200));
    let dir = directory(&[("a.lua", &RECIPE), ("rows.jsonl", &format!("{{\"prompt\": \"Say 1\"}}\n{long}"))], true);
    let run = |name: &str, more: &[&str]| {
        let args = ["run", "a.lua", "--name", name, "trainer.steps=2", "rollout.max_failure_rate=1"];
        printed(dir.path(), &[&args[..], more].concat())
    };
    let (whole, first) = (run("whole", &[]), run("first", &["data.check_rows=1"]));
    assert!(whole.contains("1 of 2 rows in data.train have a first prompt of more than"), "{whole}");
    assert!(first.starts_with("exit: 0") && !first.contains("have a first prompt"), "{first}");
    let checked = run("checked", &["data.check_rows=1", "data.overlong_prompts=filter"]);
    assert!(checked.contains("1 of 2 rows in data.train"), "{checked}");
}
