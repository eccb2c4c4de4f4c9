//! Changes by a training step, and its warnings when there is no gradient.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use super::recipe::{TWO_STEPS, recipe};
use super::run_files::{checkpoint, files, last_step, stored, training_steps};
use super::{directory, exits, fail, r1, shown, succeed};

/// Rewards that differ within groups. Tests replace the reward.
static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let data = r#"{ train = r1.data.generate { count = 8, row = function(index)
    return { prompt = "Say " .. index, tag = index % 2 == 0 and "even" or "odd", number = index }
  end } }"#;
    recipe(&[
        ("data", data),
        ("trainer", "r1.grpo { steps = 2, group_size = 4, groups_per_step = 2, lr = 1e-3 }"),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ])
});

const UNIFORM: &str = "return 0.5";

fn with(reward: &str) -> String {
    RECIPE.replace("return #outcome.text % 2", reward)
}

/// Every tensor file of a checkpoint by its path, with its bytes.
fn tensors(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut tensors = files(checkpoint);
    tensors.retain(|name, _| name.ends_with(".safetensors"));
    tensors
}

fn state(dir: &Path, step: u64, name: &str) -> u64 {
    let text = fs::read_to_string(checkpoint(&dir.join("runs/a"), step).join("trainer_state/state.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[name].as_u64().unwrap()
}

#[test]
fn a_step_without_trained_tokens_changes_nothing_and_warns_once() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let healthy = exits(dir.path(), 0, &["run", "a.lua", "-q", "--name", "a"]);
    assert!(!healthy.contains("no token was trained"), "{healthy}");
    let versions =
        |steps: &[Value]| steps.iter().map(|step| step["policy/version"].as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(versions(&training_steps(&dir.path().join("runs/a"))), [1.0, 2.0]);
    // From here on every group is uniform: neither the weights nor the optimiser's moments change.
    fs::write(dir.path().join("a.lua"), with(UNIFORM)).unwrap();
    let printed = exits(dir.path(), 0, &["run", "a.lua", "-q", "--resume", "runs/a", "trainer.steps=8", "--yes"]);
    let (before, after) =
        (tensors(&checkpoint(&dir.path().join("runs/a"), 2)), tensors(&checkpoint(&dir.path().join("runs/a"), 8)));
    assert!(before.len() > 1 && before == after, "weights or moments have changed");
    for name in ["optimizer_step", "policy_version"] {
        assert_eq!(state(dir.path(), 2, name), state(dir.path(), 8, name), "{name}");
    }
    let steps = training_steps(&dir.path().join("runs/a"));
    assert_eq!(versions(&steps), [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
    for step in &steps[2..] {
        assert_eq!((&step["policy/updates"], &step["policy/tokens"]), (&Value::from(0.0), &Value::from(0.0)));
        for name in ["policy/loss", "policy/entropy", "policy/grad_norm", "policy/approx_kl", "mismatch/max_abs"] {
            assert_eq!(step.get(name), None, "{name}");
        }
    }
    let line = "step 3: no token was trained: the trajectories of each group earned the same reward";
    assert!(printed.contains(line) && printed.matches("no token was trained").count() == 1, "{printed}");
    // By the third step the warning names the cause and a remedy; there is no warning about
    // entropy, which was not measured.
    assert!(printed.contains("step 5: nothing could be learned in the first 3 steps:"), "{printed}");
    assert!(printed.contains("every trajectory earned 0.5") && !printed.contains("entropy is"), "{printed}");
}

#[test]
fn entropy_and_kl_terms_train_without_advantages() {
    let dir = directory(&[("a.lua", &with(UNIFORM))], true);
    for (name, setting) in [("kl", "trainer.kl.coef=0.1"), ("entropy", "trainer.entropy=0.01")] {
        let printed =
            exits(dir.path(), 0, &["run", "a.lua", "-q", "--name", name, setting, "trainer.weight_decay=0.1"]);
        assert!(!printed.contains("no token was trained"), "{printed}");
        let last = last_step(&dir.path().join("runs").join(name));
        assert_eq!((&last["policy/updates"], &last["policy/version"]), (&Value::from(1.0), &Value::from(2.0)));
        assert!(last["policy/tokens"].as_f64().unwrap() > 0.0);
    }
    // A critic is trained on its targets with or without a policy gradient.
    let settings = ["run", "a.lua", "-q", "--name", "ppo", "trainer.algorithm=ppo", "trainer.steps=3"];
    let printed = exits(dir.path(), 0, &settings);
    assert!(printed.contains("step 3: nothing could be learned in the first 3 steps"), "{printed}");
    assert!(training_steps(&dir.path().join("runs/ppo"))[2]["critic/loss"].is_number());
}

#[test]
fn steps_with_only_failed_trajectories_change_nothing() {
    let dir = directory(&[("a.lua", &with("error(\"broken\")"))], true);
    for algorithm in ["grpo", "ppo"] {
        let algorithm = format!("trainer.algorithm={algorithm}");
        let settings =
            ["run", "a.lua", "-q", "--name", "a", "trainer.steps=3", "rollout.max_failure_rate=1", &algorithm];
        let printed = exits(dir.path(), 0, &settings);
        assert!(printed.contains("step 1: no token was trained: all trajectories failed"), "{printed}");
        assert!(printed.contains("every trajectory failed"), "{printed}");
        assert!(
            tensors(&checkpoint(&dir.path().join("runs/a"), 1)) == tensors(&checkpoint(&dir.path().join("runs/a"), 3))
        );
        assert_eq!((state(dir.path(), 3, "optimizer_step"), state(dir.path(), 3, "policy_version")), (0, 0));
        let last = last_step(&dir.path().join("runs/a"));
        assert_eq!(last["rollout/failed_share"], 1.0);
        for name in ["reward/mean", "advantage/mean", "policy/loss", "critic/loss", "rollout/accuracy"] {
            assert_eq!(last.get(name), None, "{name}");
        }
        fs::remove_dir_all(dir.path().join("runs")).unwrap();
    }
}

/// RAGEN's normalisation by task type, on tasks with different reward scales.
#[test]
fn row_tags_define_advantage_normalisation_groups() {
    let dir = directory(&[("a.lua", &with("return #outcome.text % 2 + 100 * (state.task.number % 2)"))], true);
    let settings = [
        "run",
        "a.lua",
        "-q",
        "trainer.algorithm=reinforce_pp",
        "trainer.estimator.whiten=none",
        "trainer.steps=1",
        "trainer.groups_per_step=8",
        "trainer.group_size=2",
    ];
    let largest = |name: &'static str, grouping: &str| {
        let normalize = format!("trainer.shaping.normalize=[\"{grouping}\", \"mean\"]");
        succeed(dir.path(), &[&settings[..], &["--name", name, &normalize]].concat());
        training_steps(&dir.path().join("runs").join(name))[0]["advantage/max"].as_f64().unwrap()
    };
    let (batch, inductive, state) = (largest("b", "batch"), largest("i", "inductive"), largest("s", "state"));
    assert!(batch > 40.0 && inductive <= 1.0 && inductive > 0.0 && state <= 0.5, "{batch} {inductive} {state}");
    // Without tags the batch would be normalised as a whole: refused.
    fs::write(dir.path().join("a.lua"), RECIPE.replace("tag = index", "kind = index")).unwrap();
    let normalize = "trainer.shaping.normalize=[\"inductive\", \"mean\"]";
    let error = exits(dir.path(), 4, &[&settings[..], &[normalize]].concat());
    assert!(error.contains("a row has no `tag`") && error.contains("--> training row "), "{error}");
}

/// A NaN reward is a failure of its trajectory: exit code 0 while some succeed, 6 when too many
/// fail.
#[test]
fn rewards_that_are_nan_fail_their_trajectories() {
    let dir = directory(&[("a.lua", &with("return #outcome.text % 2 == 0 and 0 / 0 or #outcome.text"))], true);
    let printed = exits(dir.path(), 0, &["run", "a.lua", "-q", "rollout.max_failure_rate=0.9"]);
    assert!(printed.contains("env_error: reward is NaN"), "{printed}");
    let dir = directory(&[("a.lua", &with("return 0 / 0"))], true);
    let output = r1(dir.path(), &["run", "a.lua", "-q"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", shown(dir.path(), &output));
}

/// With a KL penalty in the reward, the KL is in the metrics, and an adaptive coefficient follows
/// it.
#[test]
fn a_kl_penalty_in_the_reward_is_measured() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let settings =
        ["trainer.kl.coef=0.1", "trainer.kl.place=reward", "trainer.kl.target=1e-9", "trainer.kl.horizon=100"];
    exits(dir.path(), 0, &[&["run", "a.lua", "-q", "trainer.steps=4", "trainer.lr=1e-2"], &settings[..]].concat());
    let steps = training_steps(&dir.path().join("runs/a"));
    // The policy equals its reference in the first step only.
    assert!(steps[0]["kl/mean"].as_f64().unwrap() < 1e-6 && steps[3]["kl/mean"].as_f64().unwrap() > 1e-6, "{steps:?}");
    assert!(steps[3]["kl/coef"].as_f64().unwrap() > steps[1]["kl/coef"].as_f64().unwrap(), "{steps:?}");
}

/// By step, an epoch has one optimiser step per step number, and together they train the same
/// tokens.
#[test]
fn mini_batches_by_step_have_one_update_per_step_number() {
    let three_steps = TWO_STEPS.replace("max_steps = 2", "max_steps = 3");
    let recipe = RECIPE.replace("r1.env { format = \"retool\" }", &three_steps);
    let dir = directory(&[("a.lua", &recipe)], true);
    let train = |name: &str, more: &[&str]| {
        // With an entropy bonus every token is trained, with any rewards.
        let settings = ["run", "a.lua", "-q", "--name", name, "trainer.steps=1", "trainer.entropy=0.01"];
        succeed(dir.path(), &[&settings[..], more].concat());
        last_step(&dir.path().join("runs").join(name))
    };
    let (whole, by_step) = (train("whole", &[]), train("step", &["trainer.mini_batch_by=step"]));
    assert_eq!((&whole["policy/updates"], &by_step["policy/updates"]), (&Value::from(1.0), &Value::from(3.0)));
    assert_eq!(whole["policy/tokens"], by_step["policy/tokens"], "every sampled token is trained once");
    assert_eq!(whole["reward/mean"], by_step["reward/mean"]);
}

/// Text that only the critic reads changes its values, but nothing for the policy.
#[test]
fn a_critic_can_read_privileged_state() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let train = |name: &str, more: &[&str]| {
        // A new critic returns 0 for any input, so the first step is the same.
        let settings = ["run", "a.lua", "-q", "--name", name, "trainer.algorithm=ppo", "trainer.steps=2"];
        let settings = [&settings[..], &["trainer.critic.lr=1e-2"]].concat();
        succeed(dir.path(), &[&settings[..], more].concat());
        last_step(&dir.path().join("runs").join(name))
    };
    let plain = train("plain", &[]);
    let informed = train("informed", &["trainer.critic.privileged=The number is {number}. "]);
    assert_eq!(plain["reward/mean"], informed["reward/mean"], "the trajectories are the same");
    assert_eq!(plain["rollout/prompt_tokens"], informed["rollout/prompt_tokens"]);
    assert!(
        plain["critic/loss"] != informed["critic/loss"] && informed["critic/loss"].is_number(),
        "{plain} {informed}"
    );
    let refused = |setting: &str| {
        let output = r1(dir.path(), &["run", "a.lua", "-q", "trainer.algorithm=ppo", setting]).output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", shown(dir.path(), &output));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused("trainer.critic.privileged={numbr}");
    assert!(error.contains("column `numbr`") && error.contains("--> training row "), "{error}");
    let long = format!("trainer.critic.privileged={}", "x y z ".repeat(100));
    assert!(refused(&long).contains("trainer.critic.privileged_tokens is 256"));
}

/// A function that returns the same text as the template gives the same weights; its texts are
/// stored, and training uses the stored texts even if the function would return others.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn privileged_text_can_be_a_function_of_the_state() {
    let env = "env = r1.env { format = \"retool\", max_steps = 2,
    reset = function(task) return { messages = { r1.user(task.prompt) }, number = task.number, turn = 1 } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user(\"Go on\"))
      state.turn = state.turn + 1
      return {}
    end,
  },";
    let recipe = RECIPE.replace("env = r1.env { format = \"retool\" },", env).replace("r1.grpo", "r1.ppo");
    let with = |text: &str| {
        recipe.replace("  policy =", &format!("  privileged = function(state, task) return {text} end,\n  policy ="))
    };
    let same = with("'The number is ' .. state.number .. '. '");
    let dir = directory(
        &[
            ("a.lua", &recipe),
            ("same.lua", &same),
            ("turn.lua", &with("'Turn ' .. state.turn .. ' of ' .. task.number")),
            ("shared.lua", &same.replace("r1.ppo {", "r1.ppo { critic = { shared = true },")),
            ("none.lua", &same.replace("r1.ppo", "r1.grpo")),
            ("odd.lua", &with("{ 1 }")),
        ],
        true,
    );
    let train = |script: &str, name: &str, more: &[&str]| {
        let settings = ["run", script, "-q", "--name", name, "trainer.critic.lr=1e-2", "trainer.steps=3"];
        succeed(dir.path(), &[&settings[..], more].concat());
        tensors(&dir.path().join(format!("runs/{name}/checkpoints/step-000003")))
    };
    let template = "trainer.critic.privileged=The number is {number}. ";
    let (by_template, by_function) = (train("a.lua", "template", &[template]), train("same.lua", "function", &[]));
    assert!(by_template.len() > 3 && by_template == by_function, "the weights differ");
    let by_turn = train("turn.lua", "turn", &[]);
    assert!(by_turn != by_function);
    for one in stored(dir.path(), "turn", 1) {
        let number = one.task["number"].as_f64().unwrap();
        let texts: Vec<_> = one.steps.iter().map(|step| step.privileged.clone().unwrap()).collect();
        assert_eq!(texts, [1, 2].map(|turn| format!("Turn {turn} of {number}")));
        // The trajectory was truncated, and the critic's bootstrap value is the value of the state
        // after the truncation.
        assert_eq!(one.steps[1].next_privileged.as_deref(), Some(format!("Turn 3 of {number}").as_str()));
        assert_eq!(one.steps[0].next_privileged, None);
    }
    assert!(stored(dir.path(), "template", 1).iter().all(|one| one.steps[0].privileged.is_none()));
    // Resumed to the same bytes.
    succeed(dir.path(), &["run", "turn.lua", "-q", "--name", "parts", "trainer.critic.lr=1e-2", "trainer.steps=1"]);
    succeed(dir.path(), &["run", "turn.lua", "-q", "--resume", "runs/parts", "trainer.steps=3"]);
    assert!(tensors(&dir.path().join("runs/parts/checkpoints/step-000003")) == by_turn);
    // A replay needs only the record, and training only the stored texts.
    succeed(dir.path(), &["replay", "runs/turn"]);
    let refused = |script: &str, message: &str| {
        let error = fail(dir.path(), &["run", script, "-q", "--name", "bad"]);
        assert!(error.contains(message) && error.contains(script), "{error}");
    };
    refused("shared.lua", "with trainer.critic.shared it reads what the policy reads");
    refused("none.lua", "`privileged` is text for a critic, and this algorithm trains none");
    let output = r1(dir.path(), &["run", "odd.lua", "-q", "--name", "odd"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("privileged returned a table; it must return text"), "{error}");
    let both = ["run", "same.lua", "-q", "--name", "both", template];
    let output = r1(dir.path(), &both).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("both give the text that only the critic reads"));
}
