//! Runs of environments whose trajectories reach their limits.

use ::r1::mdp::{Limit, Status};

use super::run_files::{last_step, stored};
use super::{directory, fail, r1, succeed};

/// The env never ends: the context of 96 tokens is full after a few steps.
const ENDLESS: &str = r#"
return r1.recipe {
  env = r1.env {
    max_steps = 20, format = "retool",
    reset = function(task) return { messages = { r1.user(string.rep("long ", task.words)) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user("Go on"))
      return { reward = #action.text % 2 }
    end,
  },
  reward = function(state, outcome)
    local full = outcome.truncated_by == "context_overflow"
    return { outcome = #outcome.text % 3, full = { value = full and 1 or 0, weight = 0 } }
  end,
  policy = { model = "model", max_context = 96 },
  data = { train = r1.data.generate { count = 8, row = function(n) return { words = 1 } end } },
  sampling = { max_new_tokens = 12 },
  trainer = r1.grpo { steps = 2, group_size = 4, groups_per_step = 2, lr = 1e-3 },
}
"#;

#[test]
fn a_full_context_is_scored_and_trained_on() {
    for algorithm in ["grpo", "ppo"] {
        let dir = directory(&[("a.lua", ENDLESS)], true);
        let algorithm = format!("trainer.algorithm={algorithm}");
        let small = ["trainer.group_size=4", "trainer.groups_per_step=2"];
        succeed(dir.path(), &[&["run", "a.lua", "-q", &algorithm], &small[..]].concat());
        let run = dir.path().join("runs/a");
        let metrics = last_step(&run);
        let number = |name: &str| metrics[name].as_f64().unwrap();
        assert_eq!((number("rollout/overflow_share"), number("reward/full")), (1.0, 1.0), "{algorithm}: {metrics:?}");
        assert_eq!((number("rollout/truncated_share"), number("rollout/failed_share")), (1.0, 0.0));
        assert_eq!((number("rollout/truncated/context_overflow"), number("rollout/retries")), (8.0, 0.0));
        assert!(number("policy/grad_norm") > 0.0, "{algorithm}");
        for trajectory in stored(dir.path(), "a", 2) {
            assert_eq!(trajectory.truncated_by, Some(Limit::ContextOverflow));
            assert!(trajectory.steps.last().unwrap().next_prompt_ids.is_empty());
        }
        succeed(dir.path(), &["replay", "runs/a"]);
    }
    let dir = directory(&[("a.lua", ENDLESS)], true);
    let error = fail(dir.path(), &["run", "a.lua", "-q", "env.on_overflow=fail", "rollout.retries=0"]);
    assert!(
        error.contains("8 of 8 trajectories failed") && error.contains(" x context_overflow: the prompt has"),
        "{error}"
    );
    let error = fail(dir.path(), &["run", "a.lua", "env.on_overflow=stop"]);
    assert!(error.contains("`env.on_overflow` is \"stop\"; it is one of `end`, `fail`"), "{error}");
}

/// First prompts that do not fit: nothing is sampled for them, and the other trajectories are
/// trained on.
#[test]
fn trajectories_without_a_step_do_not_stop_training() {
    for algorithm in ["trainer.algorithm=grpo", "trainer.algorithm=ppo"] {
        let script = ENDLESS.replace("words = 1", "words = n % 2 == 0 and 1 or 400");
        let dir = directory(&[("a.lua", &script)], true);
        let settings = ["trainer.groups_per_step=8", "trainer.group_size=2", "rollout.retries=3"];
        succeed(dir.path(), &[&["run", "a.lua", "-q", algorithm], &settings[..]].concat());
        let trajectories = stored(dir.path(), "a", 1);
        let empty: Vec<_> = trajectories.iter().filter(|trajectory| trajectory.steps.is_empty()).collect();
        assert_eq!((empty.len(), trajectories.len()), (8, 16), "{algorithm}");
        assert!(empty.iter().all(|it| (it.status, it.retries) == (Status::ContextOverflow, 0)));
    }
}

#[test]
fn sampled_tokens_of_a_trajectory_have_a_limit() {
    for algorithm in ["trainer.algorithm=grpo", "trainer.algorithm=ppo"] {
        let dir = directory(&[("a.lua", ENDLESS)], true);
        let small = ["trainer.group_size=4", "trainer.groups_per_step=2", "env.max_tokens=14"];
        succeed(dir.path(), &[&["run", "a.lua", "-q", algorithm], &small[..]].concat());
        let run = dir.path().join("runs/a");
        assert_eq!(last_step(&run)["rollout/truncated/max_tokens"], 8.0, "{algorithm}");
        for trajectory in stored(dir.path(), "a", 1) {
            assert_eq!(trajectory.response_tokens(), 14);
            assert!(trajectory.steps.iter().all(|step| step.response_ids.len() <= 12));
        }
        succeed(dir.path(), &["replay", "runs/a"]);
    }
}

/// Process rewards of malformed calls are shaped as process rewards: only PRIME makes their scale
/// irrelevant.
#[test]
fn penalties_of_malformed_calls_are_process_rewards() {
    let script = ENDLESS
        .replace(
            "      return { reward = #action.text % 2 }",
            "      r1.call_tools(#action.text % 2 == 0 and { { error = 'not a call' } } or {})\n      return { done = true }",
        )
        .replace("group_size = 4", "group_size = 8, shaping = { prime = true }");
    let dir = directory(&[("a.lua", &script)], true);
    let spread = |name: &str, settings: &[&str]| {
        let run = ["run", "a.lua", "-q", "--name", name, "trainer.steps=1", "trainer.estimator.normalize=none"];
        succeed(dir.path(), &[&run[..], settings].concat());
        let run = dir.path().join("runs").join(name);
        let tools: Vec<f64> = stored(dir.path(), name, 1)
            .iter()
            .flat_map(|it| &it.steps)
            .flat_map(|step| &step.tools)
            .map(|t| t.reward)
            .collect();
        (tools, last_step(&run)["advantage/std"].as_f64().unwrap())
    };
    let (tools, small) = spread("small", &["env.call_rewards.malformed=-0.1"]);
    assert!(!tools.is_empty() && tools.iter().all(|reward| (reward + 0.1).abs() < 1e-12), "{tools:?}");
    let (_, large) = spread("large", &["env.call_rewards.malformed=-10"]);
    assert!((small - large).abs() < 1e-3, "{small} {large}");
    let (_, plain) = spread("plain", &["env.call_rewards.malformed=-10", "trainer.shaping.prime=false"]);
    assert!(plain > 2.0 * large, "{plain} {large}");
}

/// A missing grant is an error of the recipe: it is reported once, not retried, and found by `r1
/// check`.
#[test]
fn a_missing_grant_is_an_error_of_the_recipe() {
    let script = ENDLESS
        .replace(
            "      return { reward = #action.text % 2 }",
            "      r1.http.get('http://127.0.0.1:9/')\n      return { done = true }",
        )
        .replace("return r1.recipe {", "return r1.recipe {\n  needs = { 'http' },");
    let dir = directory(&[("a.lua", &script)], true);
    let error = fail(dir.path(), &["run", "a.lua", "-q", "rollout.retries=3"]);
    assert!(
        error.contains("8 of 8 trajectories failed\n  8 x env_error: r1.http.get: the recipe does not declare"),
        "{error}"
    );
    assert!(error.contains("needs = { \"http:127.0.0.1\" }"), "{error}");
    assert!(stored(dir.path(), "a", 1).iter().all(|it| it.retries == 0 && it.steps.len() == 1));
    let checked = r1(dir.path(), &["check", "a.lua", "--json"]).output().unwrap();
    let checked = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.contains("the recipe does not declare that it needs this"), "{checked}");
}
