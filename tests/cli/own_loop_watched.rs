//! Training loops in Lua reload their recipe, warn, and save after failures, as `r1 run` does.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::run_files::training_steps;
use super::{directory, fail, r1, shown, succeed};

const RECIPE: &str = r#"
local seen = 0
return r1.recipe {
  env = r1.env {
    format = "retool",
    reset = function(task)
      seen = seen + 1
      RESET
    end,
  },
  reward = function(state, outcome) return { REWARD } end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { prompt = "Say " .. index } end } },
  sampling = { max_new_tokens = 6 },
  rollout = { workers = 1, retries = 0 },
  trainer = r1.grpo { steps = 4, group_size = 2, groups_per_step = 2, lr = 1e-3, epochs = 2 },
  checkpoint = { every = 0 },
}
"#;

/// A recipe in which `seen` counts the trajectories of a worker.
fn recipe(reset: &str, reward: &str) -> String {
    RECIPE.replace("RESET", reset).replace("REWARD", reward)
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
fn changed(dir: &Path, argument: &str) -> Child {
    let mut child = r1(dir, &["lua", "t.lua", argument]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !dir.join("runs/loop/metrics.jsonl").is_file() || training_steps(&dir.join("runs/loop")).is_empty() {
        assert!(begun.elapsed() < Duration::from_mins(5) && child.try_wait().unwrap().is_none(), "no step ends");
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = recipe(ALONE, "two = #outcome.text % 2").replace("lr = 1e-3", "lr = 5e-4");
    fs::write(dir.join("new.lua"), text).unwrap();
    fs::rename(dir.join("new.lua"), dir.join("a.lua")).unwrap();
    child
}

#[test]
fn a_loop_in_lua_reloads_its_recipe() {
    let first = recipe(ALONE, "one = #outcome.text % 2").replace("steps = 4", "steps = 100000");
    let dir = directory(&[("a.lua", &first), ("t.lua", LOOP)], true);
    // The new version has fewer steps, so that the loop ends.
    let output = changed(dir.path(), "").wait_with_output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("ended after") && printed.trim().ends_with(" of 4"), "{printed}");
    let steps = training_steps(&dir.path().join("runs/loop"));
    assert!((steps.iter().filter_map(|step| step["script/reloads"].as_f64()).sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(steps[0]["reward/one"].is_number() && steps[0]["script/generation"] == 0.0);
    assert!(dir.path().join("runs/loop/profile/operations.md").is_file());

    fs::remove_dir_all(dir.path().join("runs")).unwrap();
    fs::write(dir.path().join("a.lua"), &first).unwrap();
    let mut child = changed(dir.path(), "fixed");
    let count = || training_steps(&dir.path().join("runs/loop")).len();
    let before = count();
    std::thread::sleep(Duration::from_millis(600));
    while child.try_wait().unwrap().is_none() && count() < before + 5 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(child.try_wait().unwrap().is_none(), "the recipe was reloaded");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(training_steps(&dir.path().join("runs/loop")).iter().all(|step| step["script/reloads"] == 0.0));
}

/// What the loop writes to stderr.
fn warnings(recipe: &str, program: &str) -> String {
    let dir = directory(&[("a.lua", recipe), ("t.lua", program)], true);
    let output = r1(dir.path(), &["lua", "t.lua"]).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_loop_in_lua_warns_as_a_run_does() {
    let shared = recipe("return { messages = { r1.user(task.prompt .. seen) } }", "outcome = 1");
    let text = warnings(&shared, LOOP);
    for warning in [
        "trajectories share state",
        "--> a.lua:6",
        "step 1: no token was trained: the trajectories of each group earned the same reward",
        "step 3: nothing could be learned in the first 3 steps",
    ] {
        assert_eq!(text.matches(warning).count(), 1, "{warning}: {text}");
    }
    let varied = recipe(ALONE, "outcome = #outcome.text % 3");
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
    let once = recipe(&format!("if seen == 2 then error('once') end {ALONE}"), "outcome = #outcome.text % 2");
    let text = warnings(&once, LOOP);
    assert!(text.contains("env_error: once") && text.contains("in 1 of 4 trajectories of step 1"), "{text}");
    assert!(text.contains("1 trajectory failed in this run and was left out"), "{text}");
}

/// `t:save` writes the average of the weights, as the end of a run does.
#[test]
fn a_loop_in_lua_saves_the_average_of_its_weights() {
    let program = LOOP.replace("profile = true", r#"settings = { ["trainer.ema"] = 0.9 }"#) + "t:save()\n";
    let dir = directory(&[("a.lua", &recipe(ALONE, "outcome = #outcome.text % 2")), ("t.lua", &program)], true);
    succeed(dir.path(), &["lua", "t.lua"]);
    assert!(dir.path().join("runs/loop/ema/model.safetensors").is_file());
}

/// A rollout that fails ends the program after a checkpoint of the steps that have ended.
#[test]
fn a_failed_rollout_keeps_the_weights() {
    let broken = recipe(&format!("if seen > 4 then error('no more') end {ALONE}"), "outcome = #outcome.text % 2");
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
