//! Output of recipes and programs: where it appears, and its limits.

use std::fs;

use serde_json::Value;

use super::run_files::json_lines;
use super::{directory, printed, r1, shown, succeed};

/// Prints while it is loaded, in every row, step and reward, with the same text in every reward.
const RECIPE: &str = r#"
print("loaded", { answer = 42 })
return r1.recipe {
  env = r1.env {
    reset = function(task) return { messages = { r1.user("Say " .. task.n) }, n = task.n } end,
    step = function(state, action)
      print("step of task", state.n, state)
      return { done = true }
    end,
  },
  reward = function(state, outcome) r1.log("always the same") return #outcome.text % 2 end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 64, row = function(index) return { n = index } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 16 },
}
"#;

#[test]
fn a_run_prints_the_first_log_lines_of_a_step_and_stores_all() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let output = r1(dir.path(), &["run", "a.lua"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    // The output of the file itself is shown once, though every worker loads it.
    assert_eq!(stderr.matches("a.lua:2: loaded {\"answer\":42}").count(), 1, "{stderr}");
    let of_steps = stderr.lines().filter(|line| line.contains(": step of task")).count();
    assert!((16..=20).contains(&of_steps), "at most ten different lines a step, not {of_steps}:\n{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("always the same")).count(), 2, "{stderr}");
    // Two workers run side by side, so any trajectory may be the first.
    let named = |line: &str| line.contains("log      1-") && line.contains(" step  a.lua:7: step of task");
    assert!(stderr.lines().any(named), "{stderr}");
    assert!(stderr.contains("more lines in runs/a/log.jsonl"), "{stderr}");

    let kept = json_lines(&fs::read_to_string(dir.path().join("runs/a/log.jsonl")).unwrap());
    let of = |function: &str, step: u64| {
        kept.iter().filter(|line| line["function"] == function && line["step"] == step).count()
    };
    assert_eq!([of("script", 0), of("step", 1), of("reward", 1), of("step", 2), of("reward", 2)], [1, 32, 32, 32, 32]);
    let line = kept.iter().find(|line| line["trajectory"] == "2-3-1" && line["function"] == "step").unwrap();
    assert_eq!((&line["place"], &line["steps"]), (&Value::from("a.lua:7"), &Value::from(0)));
    assert!(line["text"].as_str().unwrap().contains("\"messages\":["), "{line}");

    // Resumed from step 2, the log file is continued.
    let output = r1(dir.path(), &["run", "a.lua", "--resume", "runs/a", "trainer.steps=3", "-q"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", shown(dir.path(), &output));
    let kept = json_lines(&fs::read_to_string(dir.path().join("runs/a/log.jsonl")).unwrap());
    let steps = |step: u64| kept.iter().filter(|line| line["function"] == "step" && line["step"] == step).count();
    assert_eq!([steps(1), steps(2), steps(3)], [32, 32, 32]);
}

#[test]
fn script_output_of_a_run_is_json_events() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let events = json_lines(&succeed(dir.path(), &["run", "a.lua", "--json", "trainer.steps=1"]));
    let logged: Vec<&Value> = events.iter().filter(|event| event["event"] == "log").collect();
    assert_eq!(logged.len(), 11, "{logged:?}");
    assert_eq!((&logged[0]["function"], &logged[0]["place"]), (&Value::from("script"), &Value::from("a.lua:2")));
    assert!(logged[1..].iter().all(|line| line["step"] == 1 && line["trajectory"].is_string()), "{logged:?}");
    let page = include_str!("../../docs/reference/outputs.md");
    for event in &events {
        let name = event["event"].as_str().unwrap();
        assert!(page.contains(&format!("`{name}`")), "docs/reference/outputs.md does not document the event `{name}`");
    }
    let omitted = events.iter().find(|event| event["event"] == "log_omitted").unwrap();
    // 32 trajectories print twice.
    assert_eq!(omitted["lines"], 64 - 10);
}

#[test]
fn check_shows_the_scripts_output() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let text = printed(dir.path(), &["check", "a.lua"]);
    assert!(text.contains("a.lua:2: loaded {\"answer\":42}") && text.contains("a.lua:7: step of task"), "{text}");
    assert_eq!(text.matches("always the same").count(), 1, "{text}");
    let events = json_lines(&succeed(dir.path(), &["check", "a.lua", "--json"]));
    assert!(events.iter().any(|event| event["event"] == "log" && event["function"] == "reward"), "{events:?}");
}

#[test]
fn too_much_logging_in_a_call_is_reported_once() {
    let source = RECIPE.replace("print(\"step of task\"", "for n = 1, 300 do print(n) end print(\"step of task\"");
    let dir = directory(&[("a.lua", &source)], true);
    succeed(dir.path(), &["run", "a.lua", "trainer.steps=1", "trainer.groups_per_step=1", "limits.log=50"]);
    let kept = json_lines(&fs::read_to_string(dir.path().join("runs/a/log.jsonl")).unwrap());
    let steps: Vec<&Value> = kept.iter().filter(|line| line["function"] == "step").collect();
    assert_eq!(steps.len(), 2 * 51);
    assert_eq!(steps.iter().filter(|line| line["text"].as_str().unwrap().contains("limits.log")).count(), 2);
}

#[test]
fn a_program_prints_complete_tables() {
    let dir = directory(&[], false);
    let code = "local t = {} for n = 1, 100 do t[n] = { id = n, name = 'row ' .. n } end print(t) print({ a = 1 })";
    let text = succeed(dir.path(), &["lua", "-e", code]);
    let (last, all) = (text.lines().last().unwrap(), text.strip_suffix("{\"a\":1}\n").unwrap());
    assert_eq!(last, "{\"a\":1}");
    let back: Value = serde_json::from_str(all).unwrap();
    assert_eq!((back.as_array().unwrap().len(), &back[99]["name"]), (100, &Value::from("row 100")));
    // Values without a JSON form are shown as in the console, not as \"a table\".
    let text = succeed(dir.path(), &["lua", "-e", "print({ 1, x = math.huge, f = print })"]);
    assert!(text.starts_with("{ 1, f = function") && text.contains("x = inf"), "{text}");
}
