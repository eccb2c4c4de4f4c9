//! Reports of failed trajectories: each cause once, with its line and the command to reproduce it.

use serde_json::Value;

use super::run_files::{json_lines, stored};
use super::{directory, exits, r1};

/// Fails for every second row, in a function called by a tool's `run`, with a different number each
/// time.
const RECIPE: &str = r#"
local function look(task)
  if task.n % 2 == 0 then error("row " .. task.n .. " is odd in its way") end
  return "fine"
end
local search = r1.tool { name = "search", parameters = { n = "integer" }, run = function(task) return (look(task)) end }
return r1.recipe {
  env = r1.env {
    tools = { search }, format = "retool",
    reset = function(task) return { task = task, messages = { r1.user("Say") } } end,
    step = function(state, action)
      r1.call_tools { { name = "search", arguments = { n = state.task.n } } }
      return { done = true }
    end,
  },
  reward = function(state, outcome) return #outcome.text % 2 end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { n = index } end } },
  sampling = { max_new_tokens = 4 },
  rollout = { max_failure_rate = 0.9 },
  trainer = r1.grpo { steps = 3, group_size = 2, groups_per_step = 8, lr = 1e-3 },
}
"#;

#[test]
fn a_failure_cause_is_reported_once_with_its_line_frames_and_command() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let stderr = exits(dir.path(), 0, &["run", "a.lua", "-q"]);
    assert_eq!(stderr.matches("is odd in its way").count(), 3, "{stderr}");
    let (first, last) = stderr.split_once("warning: 24 trajectories failed in this run").unwrap();
    let lines: Vec<&str> = first.lines().collect();
    assert!(lines[0].starts_with("warning: env_error: row ") && lines[0].ends_with("is odd in its way"), "{first}");
    assert_eq!(lines[1], "  --> a.lua:3");
    assert_eq!(lines[2], r#"     3 |   if task.n % 2 == 0 then error("row " .. task.n .. " is odd in its way") end"#);
    assert_eq!(
        lines[3..6],
        ["  from a.lua:6 in run", "  from r1.call_tools, tool `search`", "  from a.lua:12 in step"]
    );
    assert!(lines[6].starts_with("  in 8 of 16 trajectories of step 1; the first is 1-"), "{first}");
    assert!(lines[7].starts_with("  again: r1 repl a.lua --replay runs/a:1-") && lines[7].ends_with(":1"), "{first}");
    assert!(last.contains("\n  24 x env_error: row "), "{last}");
    // The reason is stored with each of them.
    let stored = stored(dir.path(), "a", 2);
    let failed: Vec<_> = stored.iter().filter_map(r1::mdp::Trajectory::error_text).collect();
    assert_eq!(failed.len(), 8);
    assert!(
        failed.iter().all(|error| error.contains("     3 |   if task.n") && error.contains("in step")),
        "{failed:?}"
    );
}

#[test]
fn a_failure_cause_is_a_json_event() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let output = r1(dir.path(), &["run", "a.lua", "--json"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let events = json_lines(&stdout);
    let failures: Vec<&Value> = events.iter().filter(|event| event["event"] == "failure").collect();
    assert_eq!(failures.len(), 1, "{stdout}");
    assert_eq!((&failures[0]["status"], &failures[0]["count"]), (&Value::from("env_error"), &Value::from(8)));
    assert!(failures[0]["again"].as_str().unwrap().starts_with("r1 repl a.lua --replay runs/a:1-"));
    let fields = &failures[0]["error_fields"];
    assert_eq!((&fields["kind"], &fields["place"]), (&Value::from("script"), &Value::from("a.lua:3")), "{fields}");
    assert!(fields["message"].as_str().unwrap().ends_with("is odd in its way"), "{fields}");
    assert_eq!((fields["traceback"].as_array().unwrap().len(), fields["line"].is_string()), (4, true), "{fields}");
    assert!(failures[0]["seed"].is_u64() && failures[0]["error"].as_str().unwrap().contains("--> a.lua:3"));
}

/// A step in which most trajectories fail is stored before the run ends.
#[test]
fn the_failed_step_that_stopped_a_run_is_stored() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let stderr = exits(dir.path(), 6, &["run", "a.lua", "-q", "rollout.max_failure_rate=0.4"]);
    assert!(stderr.contains("error: 8 of 16 trajectories failed\n  8 x env_error: row "), "{stderr}");
    let stored = stored(dir.path(), "a", 1);
    assert_eq!(stored.iter().filter(|trajectory| trajectory.status.is_failure()).count(), 8);
}
