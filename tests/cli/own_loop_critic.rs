//! Training loops in Lua with a critic, and with a reference policy that is updated.

use std::fs;
use std::sync::LazyLock;

use super::recipe::{THIRDS, TWO_STEPS, recipe};
use super::run_files::checkpoint_files;
use super::{directory, fail, succeed};

static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let trainer = r#"r1.ppo {
    steps = 3, group_size = 1, groups_per_step = 4, lr = 1e-3, epochs = 2, mini_batches = 2,
    critic = { lr = 1e-2, warmup = 1 }, kl = { coef = 0.05, place = "reward" },
  }"#;
    recipe(&[
        ("env", TWO_STEPS),
        ("reward", THIRDS),
        ("trainer", trainer),
        ("seed", "3"),
        ("checkpoint", "{ every = 0, keep = 0 }"),
    ])
});

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_ppo_loop_in_lua_equals_the_run_to_the_bit() {
    let program = r#"
local t = r1.training("a.lua", { name = "loop", settings = { ["trainer.critic.shared"] = arg[1] == "shared" } })
assert(t.critic)
while t.step < t.steps do
  local stats = t:update(t:rollout())
  assert(stats["critic/loss"] and stats["policy/updates"] == (t.step == 0 and 0 or 4))
  t:next_step()
end
t:save()
"#;
    // Advantages and returns in Lua: a step's value is the value of its first token, and the
    // discount is 1.
    let by_hand = r#"
local t = r1.training("a.lua", { name = "by-hand", settings = {
  ["trainer.kl.coef"] = 0, ["trainer.estimator.lambda"] = 1, ["trainer.estimator.gamma"] = 1, ["trainer.estimator.whiten"] = "none",
} })
while t.step < t.steps do
  local batch = t:rollout()
  local values, next_values = t:values(batch)
  local advantages, returns = {}, {}
  for i, one in ipairs(batch) do
    local rest, count = next_values[i] or 0, #one.steps
    assert(#values[i] == count and #values[i][1] > 0 and one.status == "truncated" and next_values[i] ~= nil)
    advantages[i], returns[i] = {}, {}
    for step = count, 1, -1 do
      rest = rest + one.steps[step].reward
      advantages[i][step], returns[i][step] = rest - values[i][step][1], rest
    end
  end
  local theirs = t:advantages(batch)
  for i = 1, #batch do
    for step = 1, #theirs[i] do assert(math.abs(theirs[i][step][1] - advantages[i][step]) < 1e-6) end
  end
  t:update(batch, { advantages = advantages, returns = returns })
  t:next_step()
end
local before = t:values({ "1-0-0" })[1][1][1]
local stats = t:update({ "1-0-0" }, { returns = { 9 }, policy = false, mini_batches = 1 })
assert(stats["critic/loss"] > 0 and stats["policy/updates"] == 0)
assert(t:values({ "1-0-0" })[1][1][1] ~= before)
t:next_step()
"#;
    let dir = directory(&[("a.lua", &RECIPE), ("t.lua", program), ("h.lua", by_hand)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "run"]);
    succeed(dir.path(), &["lua", "t.lua"]);
    let (run, from_loop) = (checkpoint_files(dir.path(), "run", 3), checkpoint_files(dir.path(), "loop", 3));
    assert!(run.keys().any(|name| name.contains("critic/")) && run.keys().eq(from_loop.keys()));
    for (name, bytes) in &run {
        assert!(*bytes == from_loop[name], "{name}");
    }
    // Also with a shared trunk.
    fs::remove_dir_all(dir.path().join("runs/loop")).unwrap();
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "shared", "trainer.critic.shared=true"]);
    succeed(dir.path(), &["lua", "t.lua", "shared"]);
    assert!(checkpoint_files(dir.path(), "shared", 3) == checkpoint_files(dir.path(), "loop", 3));
    succeed(dir.path(), &["lua", "h.lua"]);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn an_updated_reference_policy_is_used_and_saved() {
    let recipe = RECIPE.replace("r1.ppo", "r1.grpo").replace("critic = { lr = 1e-2, warmup = 1 }, ", "");
    let recipe = recipe.replace("group_size = 1", "group_size = 2").replace("place = \"reward\"", "place = \"loss\"");
    let program = r#"
local last, resume = tonumber(arg[1]), arg[2] ~= "" and arg[2] or nil
local t = r1.training("a.lua", { name = "loop", resume = resume, settings = arg[3] and { ["policy.lora.rank"] = 2 } or nil })
while t.step < last do
  local batch = t:rollout()
  if t.step == 1 and not resume then
    local before = t:logprobs(batch, { model = "reference" })[1][1][1]
    local now = t:logprobs(batch)[1][1][1]
    assert(before ~= now)
    t:renew_reference()
    assert(t:logprobs(batch, { model = "reference" })[1][1][1] == now)
  end
  local stats = t:update(batch)
  t:next_step { kl = stats["kl/mean"] }
end
t:save()
"#;
    let dir = directory(&[("a.lua", &recipe), ("t.lua", program)], true);
    for adapter in [&[][..], &["lora"]] {
        succeed(dir.path(), &[&["lua", "t.lua", "3", ""][..], adapter].concat());
        let whole = checkpoint_files(dir.path(), "loop", 3);
        assert!(whole.keys().any(|name| name.starts_with("trainer_state/reference/")), "{:?}", whole.keys());
        fs::remove_dir_all(dir.path().join("runs/loop")).unwrap();
        succeed(dir.path(), &[&["lua", "t.lua", "2", ""][..], adapter].concat());
        succeed(dir.path(), &[&["lua", "t.lua", "3", "runs/loop"][..], adapter].concat());
        let parts = checkpoint_files(dir.path(), "loop", 3);
        assert!(whole.keys().eq(parts.keys()));
        for (name, bytes) in &whole {
            assert!(*bytes == parts[name], "{name} {adapter:?}");
        }
        // `r1 run` resumes it as well.
        let resume = ["run", "a.lua", "-q", "--resume", "runs/loop", "trainer.steps=4"];
        let lora = if adapter.is_empty() { &[][..] } else { &["policy.lora.rank=2"] };
        succeed(dir.path(), &[&resume[..], lora].concat());
        assert!(checkpoint_files(dir.path(), "loop", 4).keys().eq(whole.keys()));
        fs::remove_dir_all(dir.path().join("runs/loop")).unwrap();
    }
}

/// The recipe may be part of the program: script workers load the program up to that call.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_recipe_inside_a_program_equals_a_recipe_file() {
    let table = RECIPE.trim().strip_prefix("return r1.recipe ").unwrap();
    let program = |open: &str| {
        format!(
            "{open}\nwhile t.step < t.steps do\n  t:update(t:rollout())\n  t:next_step()\nend\nt:save()\nprint(t.step)\n"
        )
    };
    let with_program = program(&format!(
        "local words = require('words')\nlocal t = r1.training({}, {{ name = 'own', settings = {{ ['trainer.steps'] = arg[1] }} }})",
        table.replace("\"Go on\"", "words.on")
    ));
    let dir =
        directory(&[("a.lua", &RECIPE), ("own.lua", &with_program), ("words.lua", "return { on = 'Go on' }")], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "run", "trainer.steps=2"]);
    assert_eq!(succeed(dir.path(), &["lua", "own.lua", "2"]).trim(), "2");
    assert!(checkpoint_files(dir.path(), "run", 2) == checkpoint_files(dir.path(), "own", 2));
    // Its output is a run, and the program is a recipe.
    succeed(dir.path(), &["replay", "runs/own"]);
    succeed(dir.path(), &["check", "own.lua"]);
    succeed(dir.path(), &["run", "own.lua", "-q", "--resume", "own", "trainer.steps=3"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "run", "trainer.steps=3"]);
    assert!(checkpoint_files(dir.path(), "run", 3) == checkpoint_files(dir.path(), "own", 3));

    let refused = |text: &str, message: &str| {
        fs::write(dir.path().join("b.lua"), text).unwrap();
        let error = fail(dir.path(), &["lua", "b.lua", "7"]);
        assert!(error.contains(message) && error.contains("b.lua"), "{text}: {error}");
    };
    let varies = table.replace("seed = 3", "seed = tonumber(arg[1]) or 0");
    refused(
        &program(&format!("local t = r1.training({varies})")),
        "returns another recipe when a script worker loads it again",
    );
    let reads = format!("local text = io.open('words.lua'):read('a')\nlocal t = r1.training({table})");
    refused(&program(&reads), "each script worker loads the file again, up to r1.training");
    refused("r1.training { trainr = 3 }", "unknown field `trainr`");
    refused("r1.training(3)", "takes a table, got");
    refused("r1.training()", "takes a recipe, or the path of one");
    let error = fail(dir.path(), &["lua", "-e", &format!("r1.training({table})")]);
    assert!(error.contains("a recipe as a table requires a program file"), "{error}");
}
