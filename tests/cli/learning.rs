//! Algorithms on a tiny model: every one runs, a critic is resumed, a recipe defines its own
//! estimator.
#![allow(clippy::float_cmp)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use super::recipe::{Fields, THIRDS, TWO_STEPS, recipe};
use super::run_files::{checkpoint, json_lines, last_step, metrics, stored, weights};
use super::{directory, exits, fail, r1, shown, succeed};

/// Two replies per sample, so that there are several steps; even lengths are rewarded, so that
/// rewards differ.
static RECIPE: LazyLock<String> = LazyLock::new(|| recipe_with(&[]));

fn recipe_with(fields: &Fields<'_>) -> String {
    let all = [("env", TWO_STEPS), ("reward", THIRDS), ("checkpoint", "{ every = 2, keep = 0 }")];
    recipe(&[&all[..], fields].concat())
}

/// `advantage` with this body, and a trainer that uses it.
fn estimating(body: &str, trainer: &str) -> String {
    let function = format!("function(group)\n    {body}\n  end");
    let trainer =
        format!("r1.{trainer} {{ estimator = 'custom', steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 }}");
    recipe_with(&[("advantage", &function), ("trainer", &trainer)])
}

/// In one process, which loads libtorch once.
#[test]
fn every_algorithm_runs() {
    let program = r#"
for _, name in ipairs(arg) do
  local t = r1.training("a.lua", { name = name, settings = { ["trainer.algorithm"] = name } })
  t:update(t:rollout())
  t:next_step()
end"#;
    let dir = directory(&[("a.lua", &RECIPE), ("every.lua", program)], true);
    let names = r1::config::algorithm_names();
    succeed(dir.path(), &[&["lua", "every.lua"], &names[..]].concat());
    for name in names {
        let metrics = last_step(&dir.path().join("runs").join(name));
        assert!(metrics["policy/grad_norm"].as_f64().is_some_and(f64::is_finite), "{name}: {metrics:?}");
        assert_eq!(metrics.get("critic/loss").is_some(), ["ppo", "pspo", "capo"].contains(&name), "{name}");
        assert_eq!(metrics.get("kl/mean").is_some(), name == "pspo", "{name}");
    }
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_resumed_critic_ema_and_kl_coefficient_have_the_same_bits() {
    for shared in ["true", "false"] {
        let dir = directory(&[("a.lua", &RECIPE)], true);
        let shared = format!("trainer.critic.shared={shared}");
        let settings = [
            "trainer.algorithm=ppo",
            "trainer.steps=4",
            "trainer.critic.warmup=1",
            "trainer.critic.lr=1e-3",
            "trainer.kl.coef=0.1",
            "trainer.kl.target=0.01",
            "trainer.kl.horizon=10",
            "trainer.ema=0.5",
            "trainer.epochs=2",
            "trainer.mini_batches=2",
            &shared,
        ];
        let train = |name: &str, more: &[&str]| {
            succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", name], &settings[..], more].concat());
        };
        train("whole", &[]);
        train("parts", &[]);
        let parts = dir.path().join("runs/parts");
        fs::remove_dir_all(parts.join("checkpoints/step-000004")).unwrap();
        train("parts", &["--resume"]);
        for file in [
            "checkpoints/step-000004/model.safetensors",
            "checkpoints/step-000004/trainer_state/ema.safetensors",
            "checkpoints/step-000004/trainer_state/critic/value_head.safetensors",
            "checkpoints/step-000004/trainer_state/critic/optimizer.safetensors",
            "ema/model.safetensors",
        ] {
            let bytes = |run: &str| fs::read(dir.path().join("runs").join(run).join(file)).unwrap();
            assert!(bytes("whole") == bytes("parts"), "{shared}: {file} differs");
        }
        let state = fs::read_to_string(parts.join("checkpoints/step-000004/trainer_state/state.json")).unwrap();
        let coef = serde_json::from_str::<Value>(&state).unwrap()["kl_coef"].as_f64().unwrap();
        assert!((coef - 0.1).abs() > 1e-6, "the coefficient has not moved");
        // The average differs from the last weights.
        assert!(fs::read(parts.join("ema/model.safetensors")).unwrap() != weights(&parts, 4));
    }
}

#[test]
fn frozen_weights_do_not_change() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.freeze=[\"*.mlp.*\"]"]);
    let read = |path: &Path| -> HashMap<String, Vec<u8>> {
        let bytes = fs::read(path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        tensors.iter().map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec())).collect()
    };
    let before = read(&dir.path().join("model/model.safetensors"));
    let after = read(&dir.path().join("runs/a/checkpoints/step-000002/model.safetensors"));
    for (name, bytes) in &before {
        assert_eq!(*bytes == after[name], name.contains(".mlp."), "{name}");
    }
    let error = fail(dir.path(), &["run", "a.lua", "trainer.freeze=[\"model.norms.weight\"]"]);
    assert!(
        error.contains("no weight is called `model.norms.weight`") && error.contains("model.norm.weight"),
        "{error}"
    );
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_recipe_defines_an_estimator() {
    let with = |body: &str| directory(&[("a.lua", &estimating(body, "grpo"))], true);
    // Each reward minus the mean of its group, computed in Lua.
    let grpo = "local sum = 0
    for _, one in ipairs(group) do sum = sum + one.total end
    local advantages = {}
    for i, one in ipairs(group) do
      assert(#one.rewards == 2 and one.truncated and one.tokens[1] > 0)
      advantages[i] = one.total - sum / #group
    end
    return advantages";
    let dir = with(grpo);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "own"]);
    let plain_estimator = ["trainer.estimator.name=grpo", "trainer.estimator.normalize=none"];
    let plain = directory(&[("a.lua", &RECIPE)], true);
    succeed(plain.path(), &[&["run", "a.lua", "-q", "--name", "usual"], &plain_estimator[..]].concat());
    assert!(weights(&dir.path().join("runs/own"), 2) == weights(&plain.path().join("runs/usual"), 2));

    let dir = with("return { 1 }");
    let error = fail(dir.path(), &["run", "a.lua"]);
    assert!(error.contains("advantage returned 1 advantages for 2 trajectories\n  --> a.lua:"), "{error}");
    // NaN can't be used for training: exit code 9, or the step is skipped.
    let dir = with("return { 0 / 0, 1 }");
    let error = exits(dir.path(), 9, &["run", "a.lua", "-q"]);
    assert!(error.contains("error: step 1: an advantage is NaN\n  --> trajectory 1-0-0 step 0"), "{error}");
    assert!(error.contains("the function `advantage` of a.lua:"), "{error}");
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "skip", "trainer.on_nan=skip"]);
    let metrics = last_step(&dir.path().join("runs/skip"));
    assert_eq!((&metrics["policy/skipped"], &metrics["policy/version"]), (&Value::from(1.0), &Value::from(0.0)));
    // The reward's components, the row, the status, and the number of failures in the group.
    let seen = "for _, one in ipairs(group) do
      assert(one.parts.outcome * 1 == one.parts.outcome and one.status == 'truncated')
      assert(one.task.prompt:sub(1, 4) == 'Say ' and group.failed == 0)
    end
    return { 1, -1 }";
    succeed(with(seen).path(), &["run", "a.lua", "-q"]);
    let error = fail(plain.path(), &["run", "a.lua", "trainer.estimator=custom"]);
    assert!(error.contains("`advantage`"), "{error}");
}

#[test]
fn a_custom_estimator_that_keeps_state_between_calls_is_refused() {
    // A counter; and a running mean, whose first two results for one group are equal.
    let counter = "calls = (calls or 0) + 1\n    return { calls, -calls }";
    let running =
        "mean = mean and (mean + group[1].total) / 2 or group[1].total\n    return { group[1].total - mean, 1 - mean }";
    for (local, body) in [("calls", counter), ("mean", running)] {
        let script = format!("local {local}\n{}", estimating(body, "grpo"));
        let dir = directory(&[("a.lua", &script)], true);
        let error = fail(dir.path(), &["run", "a.lua", "-q", "trainer.steps=8"]);
        assert!(error.contains("advantage returned different numbers for the same group"), "{error}");
        assert!(error.contains("--> a.lua:") && error.contains("docs/guide/your-own-algorithm.md"), "{error}");
    }
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_with_a_custom_estimator_resumes_to_the_same_weights() {
    // `math.random` draws the same numbers in every call.
    let body = "local noise = math.random()\n    return { group[1].total + noise, -noise }";
    let dir = directory(&[("a.lua", &estimating(body, "grpo"))], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "whole", "trainer.steps=4"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "half", "trainer.steps=2"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "half", "--resume", "trainer.steps=4"]);
    assert!(weights(&dir.path().join("runs/whole"), 4) == weights(&dir.path().join("runs/half"), 4));
}

#[test]
fn groups_without_variance_are_resampled() {
    // Only rewards of the longer half of the tasks differ.
    let script = RECIPE.replace("return { reward = #action.text % 2 }", "return { reward = 0 }").replace(
        "{ outcome = #outcome.text % 3 == 0 and 1 or 0 }",
        "{ outcome = #state.messages[1].content % 2 * (#outcome.text % 3) }",
    );
    let dir = directory(&[("a.lua", &script)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.filter.uniform=true", "trainer.filter.refills=9"]);
    let metrics = last_step(&dir.path().join("runs/a"));
    let number = |name: &str| metrics[name].as_f64().unwrap();
    assert!(number("rollout/dropped_groups") > 0.0, "{metrics:?}");
    assert_eq!(number("rollout/groups") - number("rollout/dropped_groups"), 2.0);
    assert_eq!(number("reward/uniform_groups"), 0.0);
}

/// Earlier rounds contribute only groups with variance, the last round all: a step has exactly the
/// requested number of groups.
#[test]
fn the_last_refill_round_keeps_all_groups() {
    // Rewards depend on every character, so that they are never equal by chance; `vary` names the
    // rows with variance.
    let script = |vary: &str| {
        let reward = format!(
            "local sum = 0
             for i = 1, #outcome.text do sum = sum + i * outcome.text:byte(i) end
             return {{ outcome = ({{ {vary} }})[state.row + 1] and sum or 0 }}"
        );
        RECIPE
            .replace("return { reward = #action.text % 2 }", "return { reward = 0 }")
            .replace("return { messages = {", "return { row = task.row, messages = {")
            .replace("return { prompt =", "return { row = index % 8, prompt =")
            .replace("return { outcome = #outcome.text % 3 == 0 and 1 or 0 }", &reward)
    };
    let dir = directory(&[("a.lua", &script(""))], true);
    let step = |name: &str, settings: &[&str]| {
        let settings =
            [&["run", "a.lua", "-q", "--name", name, "trainer.algorithm=remax", "trainer.steps=1"], settings].concat();
        succeed(dir.path(), &[&settings[..], &["trainer.group_size=3", "trainer.groups_per_step=2"]].concat());
        let run = dir.path().join("runs").join(name);
        let stored = r1::store::read_trajectories(&run.join("trajectories/step-000001.parquet")).unwrap();
        let of = |greedy: bool| -> Vec<(u64, u64)> {
            let of_kept = stored.iter().filter(|trajectory| !trajectory.dropped);
            let selected = of_kept.filter(|trajectory| (trajectory.sample == 3) == greedy);
            selected.map(|trajectory| (trajectory.group, trajectory.task["row"].as_u64().unwrap())).collect()
        };
        let mut groups = of(false);
        groups.dedup();
        assert_eq!(groups, of(true), "greedy baselines are those of the groups that are kept");
        let metrics = last_step(&run);
        let number = |name: &str| metrics[name].as_f64().unwrap() as usize;
        // Three samples and a greedy baseline of every group are stored.
        assert_eq!(stored.len(), 4 * number("rollout/groups"));
        (groups, number("rollout/groups"), number("rollout/dropped_groups"))
    };
    // The order of the rows.
    let (order, sampled, dropped) = step("order", &[]);
    assert_eq!((order.len(), sampled, dropped), (2, 2, 0));
    let numbers = |groups: &[(u64, u64)]| groups.iter().map(|(group, _)| *group).collect::<Vec<_>>();
    for (varies, refills, stay, sampled, dropped) in [
        (None, "1", [2, 3], 4, 2),
        (Some(1), "1", [1, 2], 3, 1),
        (Some(1), "3", [1, 4], 5, 3),
        (Some(0), "2", [0, 3], 4, 2),
    ] {
        let row = varies.map(|index: usize| order[index].1);
        let vary: Vec<String> = (0..8).map(|number| (Some(number) == row).to_string()).collect();
        fs::write(dir.path().join("a.lua"), script(&vary.join(", "))).unwrap();
        let name = format!("{varies:?}-{refills}");
        let filter = ["trainer.filter.uniform=true", &format!("trainer.filter.refills={refills}")];
        let (groups, all, fewer) = step(&name.replace(['(', ')'], ""), &filter);
        assert_eq!((numbers(&groups), all, fewer), (stay.to_vec(), sampled, dropped), "{name}");
    }
}

/// Step-level GAE written in Lua, with the critic's targets: the weights of policy and critic equal
/// the weights with `gae`.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_recipe_defines_an_estimator_with_a_critic() {
    let gae = "local advantages, returns = {}, {}
    for i, one in ipairs(group) do
      assert(#one.values == #one.rewards and one.truncated and one.next_value)
      local after, ahead = one.next_value, 0
      advantages[i], returns[i] = {}, {}
      for t = #one.rewards, 1, -1 do
        ahead = one.rewards[t] + 0.9 * after - one.values[t] + 0.9 * 0.8 * ahead
        after = one.values[t]
        advantages[i][t], returns[i][t] = ahead, ahead + one.values[t]
      end
    end
    return advantages, returns";
    let with = |body: &str| directory(&[("a.lua", &estimating(body, "ppo"))], true);
    let settings = ["trainer.steps=3", "trainer.critic.lr=1e-2", "checkpoint.every=3"];
    let run = |dir: &Path, more: &[&str]| {
        succeed(dir, &[&["run", "a.lua", "-q"][..], &settings, more].concat());
        last_step(&dir.join("runs/a"))
    };
    let (dir, plain) = (with(gae), directory(&[("a.lua", &RECIPE.replace("r1.grpo", "r1.ppo"))], true));
    let custom = run(dir.path(), &[]);
    let options = ["gamma=0.9", "lambda=0.8", "whiten=none"].map(|option| format!("trainer.estimator.{option}"));
    let built_in = run(plain.path(), &options.each_ref().map(String::as_str));
    for name in ["critic/loss", "policy/loss", "policy/grad_norm", "advantage/std"] {
        assert_eq!(custom[name], built_in[name], "{name}");
    }
    assert!(custom["critic/loss"].as_f64().unwrap() > 0.0, "{custom:?}");
    let file = |dir: &Path, file: &str| fs::read(dir.join("runs/a/checkpoints/step-000003").join(file)).unwrap();
    for name in ["model.safetensors", "trainer_state/critic/value_head.safetensors"] {
        assert!(file(dir.path(), name) == file(plain.path(), name), "{name}");
    }
    // The critic gets no targets.
    let silent = with("local none = {} for i = 1, #group do none[i] = 0 end return none");
    let error = fail(silent.path(), &["run", "a.lua"]);
    assert!(error.contains("advantage must return a second list") && error.contains("--> a.lua:"), "{error}");
}

#[test]
fn truncated_sampling_distributions_are_used_in_training() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let cuts = ["sampling.top_k=40", "sampling.top_p=0.9", "sampling.min_p=0.01", "sampling.temperature=0.9"];
    for (name, more) in
        [("plain", "trainer.epochs=2"), ("penalty", "trainer.kl.coef=0.1"), ("own", "trainer.recompute_above=1e-9")]
    {
        succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", name, more], &cuts[..]].concat());
        let metrics = last_step(&dir.path().join("runs").join(name));
        let number = |name: &str| metrics[name].as_f64().unwrap();
        // The engine's and the learner's log-probabilities are under the truncated distribution.
        assert!(number("mismatch/max_abs") < 1e-4, "{name}: {metrics:?}");
        assert!(number("policy/grad_norm") > 0.0, "{name}: {metrics:?}");
        assert!(number("policy/entropy") < f64::ln(40.0) + 1e-6, "{name}: {metrics:?}");
    }
}

#[test]
fn contradictory_trainer_settings_are_refused_before_a_run() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    for (settings, message) in [
        (&["trainer.estimator=gae"][..], "use r1.ppo"),
        (&["trainer.group_size=1"], "compares the trajectories of a group"),
        (&["trainer.mini_batches=5"], "a step has 4 trajectories"),
        (&["trainer.loss=gpgs"], "did you mean gpg"),
        (&["trainer.loss=reinforce", "trainer.clip=[0.1,0.2]"], "has no clip"),
        (&["trainer.estimator=gigpo", "trainer.loss=pspo"], "gae"),
    ] {
        let error = fail(dir.path(), &[&["run", "a.lua"], settings].concat());
        assert!(error.contains(message), "{settings:?}: {error}");
    }
    assert!(!dir.path().join("runs").exists());
}

#[test]
fn check_masks_shows_advantages_and_writes_no_files() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let reported = succeed(dir.path(), &["check", "a.lua"]);
    assert!(reported.starts_with("a.lua: estimator grpo, loss ppo: no contradicting settings\n"), "{reported}");
    let shown = succeed(dir.path(), &["check", "--masks", "a.lua", "--json"]);
    let trajectories = json_lines(&shown);
    assert_eq!(trajectories.len(), 2);
    let mut sum = 0.0;
    for trajectory in &trajectories {
        assert_eq!(trajectory["steps"], 2);
        let tokens: Vec<&Value> =
            trajectory["rows"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap()).collect();
        let advantages: Vec<f64> = tokens
            .iter()
            .filter(|token| token["sampled"] == true)
            .map(|token| token["advantage"].as_f64().unwrap())
            .collect();
        assert!(!advantages.is_empty() && advantages.windows(2).all(|pair| pair[0] == pair[1]));
        assert!(tokens.iter().any(|token| token["sampled"] == false && token["special"] == true));
        sum += advantages[0];
    }
    assert!(sum.abs() < 1e-9, "a group's advantages add up to 0, not {sum}");
    let text = succeed(dir.path(), &["check", "--masks", "a.lua", "trainer.algorithm=ppo", "trainer.group_size=2"]);
    assert!(text.contains("trajectory 1-0-1: truncated") && text.contains("<|im_start|>user"), "{text}");
    let error = fail(dir.path(), &["check", "a.lua", "trainer.estimator=gae"]);
    assert!(error.contains("use r1.ppo"), "{error}");
    assert!(!dir.path().join("runs").exists());
}

/// Rewards are finite, but their differences are not.
#[test]
fn nan_advantages_stop_or_skip_a_step_and_keep_the_last_checkpoint() {
    let huge = recipe_with(&[(
        "reward",
        "function(_, outcome) return { outcome = (#outcome.text % 2 * 2 - 1) * 1.7e308 } end",
    )]);
    for algorithm in ["trainer.algorithm=grpo", "trainer.algorithm=ppo"] {
        let dir = directory(&[("a.lua", &RECIPE)], true);
        let settings =
            ["run", "a.lua", "-q", "--name", "a", algorithm, "trainer.group_size=8", "trainer.mini_batches=2"];
        succeed(dir.path(), &settings);
        fs::write(dir.path().join("a.lua"), &huge).unwrap();
        let on = [&settings[..], &["--yes", "--resume", "trainer.steps=4"]].concat();
        let error = exits(dir.path(), 9, &on);
        // The step, the invalid value, the trajectory and its step.
        assert!(error.contains("error: step 3: an advantage is ") && error.contains("--> trajectory 3-"), "{error}");
        let run = dir.path().join("runs/a");
        let (last, checkpoint) = r1::store::latest_checkpoint(&run).unwrap().unwrap();
        assert_eq!(last, 2);
        // The sampled trajectories are stored, and the message has a command that shows them.
        let stored = r1::store::read_trajectories(&run.join("trajectories/step-000003.parquet")).unwrap();
        assert!(stored.len() == 16 && stored.iter().any(|one| one.total_reward().abs() > 1e308), "{}", stored.len());
        let id = error.split("--> trajectory ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!(error.contains(&format!("r1 repl a.lua --replay runs/a:{id}")), "{error}");
        assert!(succeed(dir.path(), &["replay", "a", "3"]).contains("reward and status as recorded"));
        let read = "local all = r1.store.trajectories('runs/a', 3) return #all, all[1].status";
        let seen = succeed(dir.path(), &["lua", "-e", read]);
        assert_eq!(seen, "16\ntruncated\n");
        succeed(dir.path(), &[&on[..], &["trainer.on_nan=skip"]].concat());
        let metrics = last_step(&run);
        let number = |name: &str| metrics[name].as_f64().unwrap();
        assert_eq!((number("step"), number("policy/skipped"), number("policy/updates")), (4.0, 2.0, 0.0));
        let (last, after) = r1::store::latest_checkpoint(&run).unwrap().unwrap();
        let weights = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
        assert!(last == 4 && weights(&checkpoint) == weights(&after), "the weights have changed");
    }
}

/// The second half of an update fails on weights that the first half has broken.
#[test]
fn a_step_that_fails_in_its_update_is_stored() {
    for algorithm in ["trainer.algorithm=grpo", "trainer.algorithm=ppo"] {
        let dir = directory(&[("a.lua", &RECIPE)], true);
        let settings =
            ["run", "a.lua", "-q", algorithm, "trainer.group_size=8", "trainer.mini_batches=2", "trainer.lr=1e39"];
        let error = exits(dir.path(), 9, &settings);
        assert!(error.contains("step 1: ") && error.contains("stored: r1 repl a.lua --replay runs/a:1-"), "{error}");
        let stored = stored(dir.path(), "a", 1);
        assert!(stored.len() == 16 && stored.iter().all(|one| one.steps.len() == 2));
        assert!(succeed(dir.path(), &["replay", "a", "1-0"]).contains("as recorded"));
        let account = succeed(dir.path(), &["traj", "account", "a", "--json"]);
        let account: Value = serde_json::from_str(&account).unwrap();
        assert_eq!((&account["tasks"]["unused"], &account["right"]), (&2.into(), &true.into()), "{account}");
    }
}

/// A reward that is not a number is a failure of its trajectory; a run with only such failures ends
/// and reports the reason.
#[test]
fn nan_rewards_are_stored_with_their_trajectories() {
    let nan = recipe_with(&[("reward", "function() return 0 / 0 end")]);
    let dir = directory(&[("a.lua", &nan)], true);
    let output = r1(dir.path(), &["run", "a.lua", "-q"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", shown(dir.path(), &output));
    let stored = stored(dir.path(), "a", 1);
    let says = |one: &::r1::mdp::Trajectory| one.error_text().is_some_and(|text| text.contains("reward is NaN"));
    assert!(stored.len() == 4 && stored.iter().all(|one| one.steps.len() == 2 && says(one)), "{stored:?}");
    assert!(
        succeed(dir.path(), &["replay", "a"])
            .contains("4 trajectories: every observation, reward and status as recorded")
    );
}

#[test]
fn the_policy_is_not_updated_during_critic_warmup() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let settings = ["trainer.algorithm=ppo", "trainer.critic.warmup=1", "trainer.kl.coef=0.1", "trainer.kl.target=0.1"];
    succeed(dir.path(), &[&["run", "a.lua", "-q", "checkpoint.every=1"], &settings[..]].concat());
    let run = dir.path().join("runs/a");
    let steps = metrics(&run);
    let of = |name: &str| -> Vec<f64> { steps.iter().filter_map(|step| step[name].as_f64()).collect() };
    assert_eq!(of("policy/updates"), [0.0, 1.0]);
    // The KL coefficient is not adapted either: no KL was measured.
    assert!((of("kl/coef")[0] - 0.1).abs() < 1e-12, "{:?}", of("kl/coef"));
    assert!(weights(&run, 1) != weights(&run, 2));
}

/// Rewards divided by a running standard deviation of the returns, which is state that a resume
/// restores.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_running_reward_deviation_is_resumed() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let train = |name: &'static str, more: &[&'static str]| {
        let settings = ["run", "a.lua", "-q", "--name", name, "trainer.steps=4", "trainer.estimator.normalize=none"];
        succeed(dir.path(), &[&settings[..], more].concat());
        dir.path().join("runs").join(name)
    };
    let running = "trainer.shaping.running=0.9";
    let (plain, whole, parts) = (train("plain", &[]), train("whole", &[running]), train("parts", &[running]));
    fs::remove_dir_all(parts.join("checkpoints/step-000004")).unwrap();
    train("parts", &[running, "--resume"]);
    let state = |run: &Path| fs::read_to_string(checkpoint(run, 4).join("trainer_state/state.json")).unwrap();
    assert_eq!(state(&whole), state(&parts));
    assert!(weights(&whole, 4) == weights(&parts, 4), "the weights differ");
    // The first step has the same trajectories, and advantages divided by one number.
    let first = |run: &Path| metrics(run).into_iter().find(|line| line.get("policy/loss").is_some()).unwrap();
    let (plain, whole) = (first(&plain), first(&whole));
    let ratio = |name: &str| whole[name].as_f64().unwrap() / plain[name].as_f64().unwrap();
    assert_eq!(plain["reward/mean"], whole["reward/mean"]);
    let factor = ratio("advantage/std");
    assert!((factor - 1.0).abs() > 0.01 && (ratio("advantage/max") - factor).abs() < 1e-9, "{factor}");
}

#[test]
fn process_rewards_are_counted_once() {
    let env = r#"r1.env {
    tools = { r1.tool { name = "bonus", description = "Gives", parameters = {}, run = function() return "ok", 0.25 end } },
    format = "retool",
    step = function(state, action)
      r1.call_tools { { name = "bonus", arguments = {} } }
      return { done = true, reward = 1 }
    end,
  }"#;
    let script = recipe(&[("env", env), ("reward", "function() return 2 end")]);
    let dir = directory(&[("a.lua", &script)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.steps=1"]);
    let metrics = last_step(&dir.path().join("runs/a"));
    assert_eq!((metrics["reward/min"].as_f64(), metrics["reward/max"].as_f64()), (Some(3.25), Some(3.25)));
    // Shaped separately by PRIME's method they are 1, next to an outcome of 3.
    let settings = [
        "trainer.steps=1",
        "trainer.shaping.prime=true",
        "trainer.algorithm=reinforce_pp",
        "trainer.estimator.whiten=none",
    ];
    succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", "prime"], &settings[..]].concat());
    let metrics = last_step(&dir.path().join("runs/prime"));
    assert!((metrics["advantage/max"].as_f64().unwrap() - 4.0).abs() < 1e-4, "{metrics:?}");
}
