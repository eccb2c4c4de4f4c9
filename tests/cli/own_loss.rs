//! A policy loss written in Lua by a recipe, in complete runs.

use std::fs;
use std::path::Path;

use super::recipe::{Fields, THIRDS, TWO_STEPS, line_of, recipe};
use super::run_files::{last_step, run_dir, weights};
use super::running::Running;
use super::{directory, exits, fail, succeed};

/// A recipe with these fields, such as a loss.
fn recipe_with(fields: &Fields<'_>) -> String {
    let trainer = "r1.grpo {
    steps = 3, group_size = 3, groups_per_step = 2, lr = 1e-3, epochs = 2, mini_batches = 2, tokens_per_batch = 64,
  }";
    let all = [("env", TWO_STEPS), ("reward", THIRDS), ("trainer", trainer), ("checkpoint", "{ every = 3, keep = 0 }")];
    recipe(&[&all[..], fields].concat())
}

fn with_loss(body: &str) -> String {
    recipe_with(&[("loss", &format!("function(b, options)\n{body}\n  end"))])
}

fn with(body: &str) -> tempfile::TempDir {
    directory(&[("a.lua", &with_loss(body))], true)
}

fn weights_of(dir: &Path, run: &str) -> Vec<u8> {
    weights(&run_dir(dir, run), 3)
}

/// Whether a run with the loss in Lua has the same weights as one with a built-in loss and these
/// settings.
fn both(body: &str, settings: &[&str]) -> (tempfile::TempDir, bool) {
    let dir = with(body);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "own"]);
    succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", "usual"], settings].concat());
    let same = weights_of(dir.path(), "own") == weights_of(dir.path(), "usual");
    assert!(weights_of(dir.path(), "own") != fs::read(dir.path().join("model/model.safetensors")).unwrap());
    (dir, same)
}

const PPO: &str = r#"
    local ratio = (b.logp - b.logp_old):clamp(-20, 20):exp()
    local push = -b.advantages
    local loss = (push * ratio):max(push * ratio:clamp(0.8, 1.2))
    b:log("clip_frac", ratio:gt(1.2):logical_and(b.advantages:gt(0)))
    b:log("policy", b:token_mean(loss))
    return b:token_mean(b:where(b.advantages:lt(0), loss:min(push * 3), loss))"#;

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_ppo_loss_in_lua_equals_the_built_in_one_to_the_bit() {
    let (dir, same) = both(PPO, &["trainer.loss=ppo"]);
    assert!(same);
    let (in_lua, built_in) = (last_step(&run_dir(dir.path(), "own")), last_step(&run_dir(dir.path(), "usual")));
    for name in ["policy/loss", "policy/grad_norm", "policy/approx_kl", "policy/tokens"] {
        assert_eq!(in_lua[name], built_in[name], "{name}");
    }
    assert_eq!(in_lua["loss/clip_frac"], built_in["policy/clip_frac_high"]);
    assert!(in_lua["loss/policy"].is_number() && in_lua.get("policy/clip_frac").is_none());
    // A loss per token is aggregated with trainer.loss_agg, and the trainer's KL and entropy terms
    // are added.
    let settings = ["trainer.loss_agg=seq-mean-token-mean", "trainer.entropy=0.01", "trainer.kl.coef=0.1"];
    let run = |name: &str, more: &[&str]| {
        succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", name], &settings[..], more].concat());
        weights_of(dir.path(), name)
    };
    let built_in = run("terms-usual", &["trainer.loss=ppo"]);
    let by_token = PPO.replace(
        "return b:token_mean(b:where(b.advantages:lt(0), loss:min(push * 3), loss))",
        "return b:where(b.advantages:lt(0), loss:min(push * 3), loss)",
    );
    fs::write(dir.path().join("a.lua"), with_loss(&by_token)).unwrap();
    assert!(run("terms-own", &[]) == built_in);
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_copy_of_an_algorithm_trains_to_the_same_weights_and_has_its_options() {
    let recipe = |algorithm: &str| {
        let trainer = format!("trainer = r1.trainer {{\n    algorithm = {algorithm},");
        recipe_with(&[]).replace("trainer = r1.grpo {", &trainer)
    };
    let (copied, built_in) = (recipe("require(\"mine\")"), recipe("\"gspo\""));
    let dir = directory(&[("a.lua", &copied), ("b.lua", &built_in)], true);
    let printed = succeed(dir.path(), &["new", "mine", "--algorithm", "gspo"]);
    assert!(printed.contains("r1.trainer { algorithm = require(\"mine\") }"), "{printed}");
    let run = |script: &str, name: &str, more: &[&str]| {
        succeed(dir.path(), &[&["run", script, "-q", "--name", name], more].concat());
        weights_of(dir.path(), name)
    };
    assert!(run("a.lua", "own", &[]) == run("b.lua", "usual", &[]));
    let (copied, built_in) = (last_step(&run_dir(dir.path(), "own")), last_step(&run_dir(dir.path(), "usual")));
    assert_eq!(copied["policy/clip_frac_high"], built_in["policy/clip_frac_high"]);
    let wide = run("a.lua", "own-wide", &["trainer.loss.clip_high=0.5"]);
    assert!(wide == run("b.lua", "usual-wide", &["trainer.loss.clip_high=0.5"]));
    assert!(wide != weights_of(dir.path(), "own"));
    let error = fail(dir.path(), &["run", "a.lua", "trainer.loss.clip_low=2"]);
    assert!(error.contains("option `clip_low` of `trainer.loss` is from 0 to 1, not 2"), "{error}");
    let error = fail(dir.path(), &["run", "a.lua", "trainer.loss.clip_lo=0.1"]);
    assert!(error.contains("declares no option `clip_lo`") && error.contains("`clip_low`"), "{error}");
    // An option of the command line that does not exist is a mistake of usage in both.
    for script in ["a.lua", "b.lua"] {
        exits(dir.path(), 2, &["run", script, "trainer.loss.clip_lo=0.1"]);
    }
    let error = fail(dir.path(), &["run", "a.lua", "trainer.algorithm=rloo"]);
    assert!(error.contains("an algorithm of its own, which trainer.algorithm does not replace"), "{error}");
    let error = fail(dir.path(), &["new", "other", "--algorithm", "gsp"]);
    assert!(error.contains("there is no algorithm `gsp`") && error.contains("`gspo`"), "{error}");
    let error = fail(dir.path(), &["new", "mine", "--algorithm", "gspo"]);
    assert!(error.contains("the file exists already"), "{error}");
}

#[test]
fn a_group_loss_in_lua_does_not_depend_on_micro_batches() {
    // Pairs within a group: the whole group is one micro-batch, independent of tokens_per_batch.
    let dir = with(
        r#"
    local margin = (b.advantages * (b.logp - b.logp_ref) + 0 * b.rewards):sum("group")
    b:log("margin", margin / b:count("group"))
    return b:seq_mean(-(0.5 * margin):log_sigmoid(), "group")"#,
    );
    let loss = |name: &str, tokens: &str| {
        let tokens = format!("trainer.tokens_per_batch={tokens}");
        succeed(dir.path(), &["run", "a.lua", "-q", "--name", name, &tokens, "trainer.steps=1", "trainer.epochs=1"]);
        last_step(&run_dir(dir.path(), name))["policy/loss"].as_f64().unwrap()
    };
    let (one, many) = (loss("whole", "4096"), loss("parts", "1"));
    assert!((one - many).abs() < 1e-6 && one > 0.0, "{one} {many}");
    assert!(last_step(&run_dir(dir.path(), "whole")).get("kl/mean").is_none());
}

#[test]
fn an_invalid_loss_in_lua_is_reported_by_check_and_run() {
    let script = with_loss("    return b:token_mean(b.logp * b.advantags)");
    let dir = directory(&[("a.lua", &script)], true);
    let error = fail(dir.path(), &["check", "a.lua"]);
    let location = format!("--> a.lua:{}\n", line_of(&script, "advantags"));
    assert!(error.contains("the batch has no tensor `advantags`") && error.contains(&location), "{error}");
    assert!(error.contains("did you mean `advantages`"), "{error}");
    let script = with_loss("    local x = b.logp - b.logp\n    return b:token_mean(b.logp / x)");
    let dir = directory(&[("a.lua", &script)], true);
    let error = fail(dir.path(), &["run", "a.lua"]);
    let location = format!("NaN or infinite is computed at a.lua:{}", line_of(&script, "b.logp / x"));
    assert!(error.contains(&location), "{error}");
    let dir = with("    return b:token_mean(b.logp * b.advantages)");
    let error = fail(dir.path(), &["run", "a.lua", "trainer.importance={}", "trainer.recompute_above=1e-3"]);
    assert!(error.contains("without b.weights"), "{error}");
    let error = fail(dir.path(), &["run", "a.lua", "trainer.clip=[0.2, 0.2]"]);
    assert!(error.contains("the recipe's function `loss` has no clip"), "{error}");
}

#[test]
fn a_program_computes_a_loss_on_plain_tables() {
    let program = r#"
local rows = {
  { group = 1, trajectory = 1, step = 1, mask = { 1, 1 }, rewards = { 0, 1 }, logp = { -1, -2 }, logp_old = { -1.1, -2 }, advantages = { 1, 1 } },
  { group = 1, trajectory = 2, step = 1, mask = { 1 }, rewards = { 0 }, logp = { -0.5 }, logp_old = { -1.5 }, advantages = { -1 } },
}
local function ppo(b, options)
  local ratio = (b.logp - b.logp_old):clamp(-20, 20):exp()
  local push = -b.advantages
  local loss = (push * ratio):max(push * ratio:clamp(1 - options.low, 1.2))
  b:log("ratio", ratio)
  return b:where(b.advantages:lt(0), loss:min(push * 3), loss)
end
local own = r1.rl.loss(ppo, rows, { low = 0.2, loss_agg = "token-mean" })
local usual = r1.rl.loss("ppo", rows)
assert(own.loss == usual.loss and own.metrics.ratio > 1)
assert(r1.json.encode(own.gradient) == r1.json.encode(usual.gradient))
print(pcall(r1.rl.loss, function(b) return b.logp:exq() end, rows))
"#;
    let dir = directory(&[("p.lua", program)], false);
    let printed = succeed(dir.path(), &["lua", "p.lua"]);
    assert!(
        printed.starts_with("false") && printed.contains("no method `exq`") && printed.contains("p.lua:17"),
        "{printed}"
    );
}

#[test]
fn an_edited_loss_is_used_from_the_next_step_on() {
    let script = |name: &str, scale: &str| {
        let body = format!("    local x = {scale} * b.logp * b.advantages\n    b:log(\"{name}\", x)\n    return x");
        with_loss(&body).replace("steps = 3", "steps = 100000")
    };
    let dir = directory(&[("a.lua", &script("first", "-1"))], true);
    let metrics = || fs::read_to_string(dir.path().join("runs/a/metrics.jsonl")).unwrap_or_default();
    let run = Running::start(dir.path(), &["run", "a.lua", "checkpoint.every=0"]);
    run.until("a step", || metrics().contains("loss/first"));
    fs::write(dir.path().join("a.lua"), script("third", "-1 * b.logpp")).unwrap();
    run.until_reported("the batch has no tensor `logpp`");
    // No reference policy was loaded at the start of the run.
    fs::write(dir.path().join("a.lua"), script("third", "-1 * (b.logp - b.logp_ref)")).unwrap();
    run.until_reported("without a reference policy");
    fs::write(dir.path().join("a.lua"), script("second", "-0.5")).unwrap();
    run.until("the new loss", || metrics().contains("loss/second"));
    drop(run);
    let text = metrics();
    let last = text.lines().rfind(|line| line.ends_with('}')).unwrap();
    assert!(!last.contains("loss/first") && !text.contains("loss/third"));
}
