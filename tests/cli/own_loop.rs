//! Training loops written as Lua programs.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use super::recipe::{HELD_OUT, THIRDS, TWO_STEPS, recipe};
use super::run_files::{checkpoint, stored, training_steps, weights};
use super::{directory, fail, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let trainer = "r1.grpo { steps = 3, group_size = 3, groups_per_step = 2, lr = 1e-3, epochs = 2, mini_batches = 2, warmup = 2 }";
    recipe(&[
        ("env", TWO_STEPS),
        ("reward", THIRDS),
        ("data", HELD_OUT),
        ("trainer", trainer),
        ("checkpoint", "{ every = 0, keep = 0 }"),
    ])
});

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_grpo_loop_in_lua_equals_the_run_to_the_bit() {
    let program = r#"
local t = r1.training("a.lua", { name = "loop" })
assert(t.step == 0 and t.steps == 3 and t.rows == 8 and t.settings.trainer.lr == 1e-3)
while t.step < t.steps do
  local batch = t:rollout()
  assert(#batch == 6 and batch[1].id == (t.step + 1) .. "-0-0" and batch[1].steps[1].text)
  t:update(batch)
  t:next_step()
end
t:save("exported")
"#;
    // The same with the advantages copied to Lua and back, and an explicit loss.
    let by_hand = r#"
local t = r1.training("a.lua", { name = "by-hand" })
while t.step < t.steps do
  local batch = t:rollout { groups = 1 }
  for _, one in ipairs(t:rollout { groups = 1 }) do table.insert(batch, one) end
  local advantages = t:advantages(batch, "grpo")
  assert(#advantages[1][1] == #t:logprobs(batch)[1][1])
  local stats = t:update(batch, { advantages = advantages, loss = "ppo", lr = t.step == 0 and 5e-4 or 1e-3 })
  t:log { ["loop/loss"] = stats["policy/loss"] }
  t:next_step()
end
print(t:save())
"#;
    let dir = directory(&[("a.lua", &RECIPE), ("t.lua", program), ("h.lua", by_hand)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "run"]);
    succeed(dir.path(), &["lua", "t.lua"]);
    assert!(weights(&dir.path().join("runs/run"), 3) == weights(&dir.path().join("runs/loop"), 3));
    let state = |run: &str| r1::store::RunProgress::load(&checkpoint(&dir.path().join("runs").join(run), 3)).unwrap();
    assert_eq!(state("run"), state("loop"));
    for step in 1..=3 {
        let stored = |run: &str| {
            let mut all = stored(dir.path(), run, step);
            for one in &mut all {
                one.seconds = 0.0;
            }
            // The number of cached tokens depends on the order of requests.
            for step in all.iter_mut().flat_map(|one| &mut one.steps) {
                (step.prefilled, step.seconds) = Default::default();
            }
            all
        };
        assert!(stored("run") == stored("loop"), "step {step}");
    }
    // Metrics that depend on the clock or the order of requests, and evaluations, which the loop
    // does not run.
    let clocked = ["time", "throughput", "memory", "script", "rollout/cached_share", "eval"];
    let timed = |name: &str| clocked.iter().any(|start| name.starts_with(start));
    for (run, from_loop) in
        training_steps(&dir.path().join("runs/run")).iter().zip(training_steps(&dir.path().join("runs/loop")))
    {
        for (name, value) in run.as_object().unwrap().iter().filter(|(name, _)| !timed(name)) {
            assert_eq!(*value, from_loop[name], "{name}");
        }
    }
    assert!(dir.path().join("exported/model.safetensors").is_file());
    // Two rollouts of one task draw the same tasks as one rollout of two.
    let printed = succeed(dir.path(), &["lua", "h.lua"]);
    assert!(printed.trim().ends_with("checkpoints/step-000003"), "{printed}");
    assert!(weights(&dir.path().join("runs/by-hand"), 3) == weights(&dir.path().join("runs/run"), 3));
    assert!(training_steps(&dir.path().join("runs/by-hand"))[0]["loop/loss"].is_number());
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_saved_training_loop_resumes() {
    let program = r#"
local t = r1.training("a.lua", { name = "loop", resume = arg[1], settings = { ["trainer.lr"] = 1e-2 } })
local last = tonumber(arg[2])
while t.step < last do
  t:update(t:rollout())
  t:next_step()
end
t:save()
"#;
    let dir = directory(&[("a.lua", &RECIPE), ("t.lua", program)], true);
    fs::write(dir.path().join("u.lua"), program.replace("resume = arg[1], ", "").replace("arg[2]", "arg[1]")).unwrap();
    succeed(dir.path(), &["lua", "u.lua", "2"]);
    succeed(dir.path(), &["lua", "t.lua", "runs/loop", "3"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "run", "trainer.lr=1e-2"]);
    assert!(weights(&dir.path().join("runs/run"), 3) == weights(&dir.path().join("runs/loop"), 3));
    // The run of a loop can be resumed, replayed and chatted with.
    let more = ["trainer.lr=1e-2", "trainer.steps=4"];
    succeed(dir.path(), &[&["run", "a.lua", "-q", "--resume", "runs/loop"], &more[..]].concat());
    assert!(dir.path().join("runs/loop/checkpoints/step-000004").is_dir());
    succeed(dir.path(), &["replay", "runs/loop"]);
}

#[test]
fn training_loops_can_use_preferences_and_demonstrations() {
    let program = r#"
local t = r1.training("a.lua", { name = "loop" })
local function dpo(b, options)
  local margin = (b.advantages * (b.logp - b.logp_ref)):sum("group")
  b:log("margin", margin)
  return b:seq_mean(-(options.beta * margin):log_sigmoid(), "group")
end
local pair = t:rollout { rows = { 5 }, samples = 2 }
assert(#pair == 2 and pair[1].task_index == 5 and pair[1].group == pair[2].group)
local options = { loss = dpo, options = { beta = 0.5 }, advantages = { 1, -1 }, epochs = 1, mini_batches = 1, lr = 1e-2 }
local first = t:update(pair, options)
assert(math.abs(first["policy/loss"] - math.log(2)) < 1e-6 and first["loss/margin"] == 0)
local second = t:update(pair, options)
assert(second["policy/loss"] < first["policy/loss"] and second["loss/margin"] > 0)
local now, before = t:logprobs(pair), t:logprobs(pair, { model = "reference" })
assert(#now[1] == 2 and now[1][1][1] ~= before[1][1][1])
t:next_step()
-- Trajectories of earlier steps are in the run directory.
local again = t:update({ pair[1].id, "1-0-1" }, options)
assert(again["loss/margin"] > 0)
local examples = { { messages = { r1.user("Say 4"), r1.assistant("I say 4") } } }
local losses = {}
for round = 1, 3 do losses[round] = t:sft(examples, { lr = 1e-2 })["sft/loss"] end
assert(losses[3] < losses[1])
assert(t:next_step { ["loop/rounds"] = 3 }["loop/rounds"] == 3 and t.step == 2)
local held_out = t:evaluate()
assert(held_out.tasks == 2 and held_out.accuracy >= 0)
print(t.run_dir)
"#;
    let dir = directory(&[("a.lua", &RECIPE), ("t.lua", program)], true);
    assert_eq!(succeed(dir.path(), &["lua", "t.lua"]).trim(), "runs/loop");
    let stored = stored(dir.path(), "loop", 1);
    assert_eq!(stored.len(), 2);
}

#[test]
fn invalid_training_loop_calls_are_errors_with_their_line() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let printed = |body: &str| {
        fs::write(dir.path().join("t.lua"), format!("local t = r1.training('a.lua')\n{body}")).unwrap();
        fail(dir.path(), &["lua", "t.lua"])
    };
    for (body, message) in [
        ("t:rollout { sample = 2 }", "unknown field `sample`"),
        ("t:rollout { rows = { 8 } }", "there is no row 8: the training data has 8"),
        ("t:update { 'x' }", "this run has no trajectory `x`"),
        ("t:update({ 1 })", "entry 1 is neither a trajectory"),
        ("t:update(t:rollout(), { advantages = { 1 } })", "there are 1 advantages for 6 trajectories"),
        (
            "local b = t:rollout { groups = 1, samples = 1 }\nt:update(b, { advantages = { { { 1 } } } })",
            "advantages for",
        ),
        ("t:update(t:rollout(), { loss = 'pppo' })", "there is no loss `pppo`"),
        ("t:update(t:rollout(), { loss = function(b) return b.logpp end })", "no tensor `logpp`"),
        ("t:update(t:rollout(), { estimator = 'gae' })", "needs the values of a critic"),
        ("t:rollout()\nt:save()", "a checkpoint is written between steps"),
        ("t:values(t:rollout())", "t:values needs a critic, and this recipe's trainer has none"),
        ("t:update(t:rollout(), { policy = false })", "`policy = false` is for the critic"),
        ("t:sft({ { messages = 3 } })", "`messages` is not a list of messages"),
        ("t:log { a = 'b' }", "takes numbers by name"),
        ("t:logprobs({}, { model = 'other' })", "`model` is \"policy\" or \"reference\""),
    ] {
        let error = printed(body);
        assert!(error.contains(message) && error.contains("t.lua:"), "{body}: {error}");
    }
}

#[test]
fn shipped_training_loops_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/loops");
    let dir = directory(&[("a.lua", &RECIPE)], true);
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let printed = succeed(dir.path(), &["lua", path.to_str().unwrap(), "a.lua", "trainer.steps=2"]);
        assert!(printed.contains("step 2: accuracy") && printed.contains("checkpoints/step-000002"), "{printed}");
    }
    let metrics = fs::read_to_string(dir.path().join("runs/iterated-dpo/metrics.jsonl")).unwrap();
    assert!(metrics.contains("loss/right") && metrics.contains("loop/pairs"), "{metrics}");
}

/// The Lua listings of a page.
fn listings(page: &str) -> Vec<String> {
    let blocks = page.split("```lua\n").skip(1);
    blocks.filter_map(|block| block.split("```").next()).map(|code| code.replace("r1-nano", "model")).collect()
}

#[test]
fn listings_of_your_own_algorithm_run() {
    let page = include_str!("../../docs/guide/your-own-algorithm.md");
    let dir = directory(&[], true);
    let (recipes, programs): (Vec<_>, Vec<_>) =
        listings(page).into_iter().partition(|code| code.starts_with("return r1.recipe"));
    assert_eq!((recipes.len(), programs.len()), (2, 2));
    for recipe in &recipes {
        fs::write(dir.path().join("recipe.lua"), recipe).unwrap();
        succeed(dir.path(), &["run", "recipe.lua", "-q"]);
    }
    for program in &programs {
        fs::write(dir.path().join("train.lua"), program).unwrap();
        succeed(dir.path(), &["lua", "train.lua"]);
    }
    let metrics = fs::read_to_string(dir.path().join("runs/dpo/metrics.jsonl")).unwrap();
    assert!(metrics.contains("loop/pairs"), "{metrics}");
    let last = |run: &str| weights(&dir.path().join("runs").join(run), 2);
    // Without the CPU kernels, the bits depend on the batches of sampling.
    assert!(cfg!(not(feature = "cpu-kernels")) || last("recipe-2") == last("recipe-3"), "the loop equals the run");
}
