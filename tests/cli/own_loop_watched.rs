//! Training loops in Lua reload their recipe, warn, and save after failures, as `r1 run` does.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::recipe::recipe;
use super::run_files::{json_lines, training_steps};
use super::running::Running;
use super::{directory, exits, fail, shown, succeed};

/// A recipe in which `seen` counts the trajectories of a worker.
fn counting(reset: &str, reward: &str) -> String {
    let reset = format!("function(task)\n      seen = seen + 1\n      {reset}\n    end");
    let fields = recipe(&[
        ("env", &format!("r1.env {{ format = 'retool', reset = {reset} }}")),
        ("reward", &format!("function(state, outcome) return {{ {reward} }} end")),
        ("rollout", "{ workers = 1, retries = 0 }"),
        ("trainer", "r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3, epochs = 2 }"),
        ("checkpoint", "{ every = 0 }"),
    ]);
    format!("local seen = 0\n{fields}")
}

const ALONE: &str = "return { messages = { r1.user(task.prompt) } }";

const LOOP: &str = r#"
local t = r1.training("a.lua", { name = "loop", reload = arg[1] ~= "fixed", profile = true })
while t.step < t.steps do
  t:update(t:rollout())
  t:next_step()
end
print("ended after " .. t.step .. " of " .. t.steps)
"#;

/// Starts the loop, and changes its recipe after the first step.
fn changed(dir: &Path, argument: &str) -> Running {
    let program = Running::start(dir, &["lua", "t.lua", argument]);
    program.until_lines(&dir.join("runs/loop/metrics.jsonl"), 1);
    let text = counting(ALONE, "two = #outcome.text % 2").replace("lr = 1e-3", "lr = 5e-4");
    fs::write(dir.join("new.lua"), text).unwrap();
    fs::rename(dir.join("new.lua"), dir.join("a.lua")).unwrap();
    program
}

#[test]
fn a_loop_in_lua_reloads_its_recipe() {
    let first = counting(ALONE, "one = #outcome.text % 2").replace("steps = 4", "steps = 100000");
    let dir = directory(&[("a.lua", &first), ("t.lua", LOOP)], true);
    // The new version has fewer steps, so that the loop ends.
    let output = changed(dir.path(), "").end();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("ended after") && printed.trim().ends_with(" of 4"), "{printed}");
    let steps = training_steps(&dir.path().join("runs/loop"));
    assert!((steps.iter().filter_map(|step| step["script/reloads"].as_f64()).sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(steps[0]["reward/one"].is_number() && steps[0]["script/generation"] == 0.0);
    assert!(dir.path().join("runs/loop/profile/operations.md").is_file());

    fs::remove_dir_all(dir.path().join("runs")).unwrap();
    fs::write(dir.path().join("a.lua"), &first).unwrap();
    let program = changed(dir.path(), "fixed");
    let metrics = dir.path().join("runs/loop/metrics.jsonl");
    let before = training_steps(&dir.path().join("runs/loop")).len();
    // Longer than the time in which a change is noticed.
    std::thread::sleep(Duration::from_millis(600));
    program.until_lines(&metrics, before + 5);
    assert!(program.is_running(), "the recipe was reloaded");
    drop(program);
    let complete = fs::read_to_string(&metrics).unwrap();
    let complete = &complete[..=complete.rfind('\n').unwrap()];
    assert!(json_lines(complete).iter().all(|step| step["script/reloads"] == 0.0));
}

/// What the loop writes to stderr.
fn warnings(recipe: &str, program: &str) -> String {
    let dir = directory(&[("a.lua", recipe), ("t.lua", program)], true);
    exits(dir.path(), 0, &["lua", "t.lua"])
}

#[test]
fn a_loop_in_lua_warns_as_a_run_does() {
    let shared = counting("return { messages = { r1.user(task.prompt .. seen) } }", "outcome = 1");
    let text = warnings(&shared, LOOP);
    for warning in [
        "trajectories share state",
        "--> a.lua:3",
        "step 1: no token was trained: the trajectories of each group earned the same reward",
        "step 3: nothing could be learned in the first 3 steps",
    ] {
        assert_eq!(text.matches(warning).count(), 1, "{warning}: {text}");
    }
    let varied = counting(ALONE, "outcome = #outcome.text % 3");
    let large = LOOP.replace("profile = true", r#"settings = { ["trainer.lr"] = 0.5 }"#);
    let text = warnings(&varied, &large);
    assert!(text.contains("changed the policy by a KL of"), "{text}");
    // Trajectories without an update have no learning signal to lack.
    let other = LOOP.replace("t:update(t:rollout())", "t:rollout()");
    let text = warnings(&shared.replace("prompt .. seen", "prompt"), &other);
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn a_loop_in_lua_sums_up_its_failures() {
    let once = counting(&format!("if seen == 2 then error('once') end {ALONE}"), "outcome = #outcome.text % 2");
    let text = warnings(&once, LOOP);
    assert!(text.contains("env_error: once") && text.contains("in 1 of 4 trajectories of step 1"), "{text}");
    assert!(text.contains("1 trajectory failed in this run and was left out"), "{text}");
}

/// `t:save` writes the average of the weights, as the end of a run does.
#[test]
fn a_loop_in_lua_saves_the_average_of_its_weights() {
    let program = LOOP.replace("profile = true", r#"settings = { ["trainer.ema"] = 0.9 }"#) + "t:save()\n";
    let dir = directory(&[("a.lua", &counting(ALONE, "outcome = #outcome.text % 2")), ("t.lua", &program)], true);
    succeed(dir.path(), &["lua", "t.lua"]);
    assert!(dir.path().join("runs/loop/ema/model.safetensors").is_file());
}

/// A rollout that fails ends the program after a checkpoint of the steps that have ended.
#[test]
fn a_failed_rollout_keeps_the_weights() {
    let broken = counting(&format!("if seen > 4 then error('no more') end {ALONE}"), "outcome = #outcome.text % 2");
    let dir = directory(&[("a.lua", &broken), ("t.lua", LOOP)], true);
    let error = fail(dir.path(), &["lua", "t.lua"]);
    assert!(error.contains("4 of 4 trajectories failed") && error.contains("t.lua:4"), "{error}");
    assert!(error.contains("the weights after step 1 are kept in runs/loop/checkpoints/step-000001"), "{error}");
    assert!(dir.path().join("runs/loop/checkpoints/step-000001/model.safetensors").is_file());
    // Within a step that has changed the weights there are none of a step that has ended.
    let inside = LOOP.replace(
        "  t:update(t:rollout())",
        "  t:sft { { messages = { r1.user('Say 4'), r1.assistant('4') } } }\n  t:update(t:rollout())",
    );
    fs::remove_dir_all(dir.path().join("runs")).unwrap();
    fs::write(dir.path().join("t.lua"), inside).unwrap();
    let error = fail(dir.path(), &["lua", "t.lua"]);
    assert!(error.contains("4 of 4 trajectories failed") && !error.contains("are kept in"), "{error}");
    assert!(!dir.path().join("runs/loop/checkpoints").join("step-000001").exists());
}
