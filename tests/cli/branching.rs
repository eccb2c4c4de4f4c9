//! Tree sampling with a tiny model: stored branches, metrics, replay, resume, and refused settings.
#![allow(clippy::float_cmp)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use r1::mdp::{Step, TrainedTokens};
use serde_json::Value;

use super::recipe::{THIRDS, recipe};
use super::run_files::{run_dir, stored, training_steps};
use super::{directory, fail, r1, succeed};

/// Four replies per sample; the env draws random numbers, and the context of each step is written
/// by the policy and trained.
static RECIPE: LazyLock<String> = LazyLock::new(|| {
    let env = r#"r1.env {
    format = "retool",
    max_steps = 4,
    reset = function(task) return { luck = { math.random(9) }, messages = { r1.user(task.prompt) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.luck, math.random(9))
      r1.push(state.messages, r1.user("" .. state.luck[#state.luck] .. " " .. math.floor(r1.clock()) % 10))
      return { reward = #action.text % 2 }
    end,
  }"#;
    let trainer = r#"r1.grpo {
    steps = 2, group_size = 5, groups_per_step = 2, lr = 1e-3, estimator = "tree", branch = { roots = 2, at = "entropy" },
  }"#;
    recipe(&[
        ("env", env),
        ("reward", THIRDS),
        ("sampling", "{ max_new_tokens = 4 }"),
        ("trainer", trainer),
        ("checkpoint", "{ every = 1, keep = 0 }"),
    ])
});

/// The metrics of the training steps, without times.
fn timeless_metrics(dir: &Path, run: &str) -> Vec<Value> {
    let mut steps = training_steps(&run_dir(dir, run));
    for line in &mut steps {
        line.as_object_mut().unwrap().retain(|name, _| {
            !["time", "memory", "throughput", "script", "rollout/cached"].iter().any(|odd| name.starts_with(odd))
        });
    }
    steps
}

/// Steps without the numbers of the update, which differ where a fork shares steps.
fn untrained(steps: &[Step]) -> Vec<Step> {
    steps.iter().map(|step| Step { trained: TrainedTokens::default(), ..step.clone() }).collect()
}

#[test]
fn a_run_with_branches_stores_trees_that_replay() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    for step in [1, 2] {
        let all = stored(dir.path(), "a", step);
        assert_eq!(all.len(), 10);
        for trajectory in &all {
            let parent = trajectory.fork.as_ref().map(|fork| fork.parent.clone());
            // Samples 0 and 1 are roots; the others are assigned to them in turn.
            let wanted = match trajectory.sample {
                0 | 1 => None,
                sample => Some(format!("{step}-{}-{}", trajectory.group, sample % 2)),
            };
            assert_eq!(parent, wanted, "{}", trajectory.id);
            if let Some(fork) = &trajectory.fork {
                let parent = all.iter().find(|other| other.id == fork.parent).unwrap();
                let shared = fork.step as usize;
                assert!((1..4).contains(&shared));
                assert_eq!(untrained(&parent.steps[..shared]), untrained(&trajectory.steps[..shared]));
                // Shared steps are in the loss in the rows of the trajectory that sampled them.
                for (number, step) in trajectory.steps.iter().enumerate() {
                    let numbers = &step.trained;
                    assert_eq!(numbers.advantages.len(), step.response_ids.len());
                    assert_eq!(numbers.loss_mask, vec![number >= shared; step.response_ids.len()]);
                    assert!(number >= shared || numbers.learner_logprobs.is_empty());
                }
            }
        }
    }
    // The script reads the clock, and each branch has its own recorded answers.
    let replayed = succeed(dir.path(), &["replay", "a"]);
    assert_eq!(replayed, "20 trajectories: every observation, reward and status as recorded\n");
    let rescored = succeed(dir.path(), &["rescore", "a", "--script", "a.lua"]);
    assert!(rescored.contains("no reward changed"), "{rescored}");

    let last = timeless_metrics(dir.path(), "a").pop().unwrap();
    assert_eq!(last["rollout/branches"], 6.0);
    let number = |name: &str| last[name].as_f64().unwrap();
    assert!(number("rollout/shared_token_share") > 0.1 && number("rollout/forked_at") >= 1.0, "{last:?}");
    assert!(number("mismatch/max_abs") < 1e-4, "{last:?}");
    // Shared steps are not counted as computed prompt tokens.
    let all = stored(dir.path(), "a", 2);
    for trajectory in all.iter().filter(|trajectory| trajectory.fork.is_some()) {
        let first = &trajectory.own_steps()[0];
        assert!(
            (first.prefilled as usize) * 2 < first.prompt_ids.len(),
            "{} of {}",
            first.prefilled,
            first.prompt_ids.len()
        );
    }
    let code = "local t = r1.store.trajectories('a', 1)[3] return t.fork.parent, t.fork.step, t.steps[1].text ~= nil";
    let printed = succeed(dir.path(), &["lua", "-e", code]);
    assert!(printed.starts_with("1-0-0") && printed.contains("true"), "{printed}");
}

#[test]
fn branches_of_branches_are_sampled_in_rounds() {
    let dir = directory(&[("a.lua", &RECIPE)], true);
    let tree =
        ["trainer.group_size=8", "trainer.branch.roots=1", "trainer.branch.rounds=6", "trainer.branch.at=random"];
    succeed(dir.path(), &[&["run", "a.lua", "-q", "trainer.steps=1"], &tree[..]].concat());
    let all = stored(dir.path(), "a", 1);
    let mut depths: HashMap<&str, usize> = HashMap::new();
    for trajectory in &all {
        let depth = trajectory.fork.as_ref().map_or(0, |fork| {
            let parent = all.iter().find(|other| other.id == fork.parent).unwrap();
            let shared = fork.step as usize;
            assert!(parent.sample < trajectory.sample && parent.group == trajectory.group);
            assert_eq!(untrained(&parent.steps[..shared]), untrained(&trajectory.steps[..shared]));
            assert!(shared > parent.shared_steps(), "its parent's own state");
            depths[fork.parent.as_str()] + 1
        });
        depths.insert(&trajectory.id, depth);
    }
    assert!(depths.values().any(|depth| *depth > 1), "{depths:?}");
    let replayed = succeed(dir.path(), &["replay", "a"]);
    assert_eq!(replayed, "16 trajectories: every observation, reward and status as recorded\n");
    let last = timeless_metrics(dir.path(), "a").pop().unwrap();
    assert_eq!(last["rollout/branches"], 14.0);
    assert!(last["mismatch/max_abs"].as_f64().unwrap() < 1e-4, "{last:?}");
}

/// The clock in the observation may differ between two runs, so it is removed here.
fn still() -> String {
    RECIPE.replace(" .. \" \" .. math.floor(r1.clock()) % 10", "")
}

#[test]
fn branches_do_not_depend_on_concurrent_trajectories() {
    let dir = directory(&[("a.lua", &still())], true);
    for (name, more) in
        [("one", "rollout.concurrency=1"), ("few", "rollout.concurrency=3"), ("many", "rollout.workers=3")]
    {
        succeed(dir.path(), &["run", "a.lua", "-q", "--name", name, more]);
    }
    let printed = |run: &str| -> Vec<_> {
        let all = [1, 2].into_iter().flat_map(|step| stored(dir.path(), run, step));
        all.map(|t| (t.id.clone(), t.fork.clone(), t.total_reward(), t.steps.last().map(|s| s.response_ids.clone())))
            .collect()
    };
    assert_eq!(printed("one"), printed("many"));
    assert_eq!(printed("few"), printed("many"));
    // A run that was stopped and resumed equals one that was not.
    succeed(dir.path(), &["run", "a.lua", "-q", "--name", "halves", "trainer.steps=1"]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/halves", "trainer.steps=2"]);
    assert_eq!(printed("halves"), printed("many"));
}

/// Without branches everything equals a run without the setting, bit for bit.
#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn as_many_roots_as_samples_equals_no_branches() {
    let dir = directory(&[("a.lua", &still())], true);
    for (name, more) in [
        ("off", ["trainer.branch.roots=0", "trainer.estimator=grpo"]),
        ("all", ["trainer.branch.roots=5", "trainer.estimator=grpo"]),
        ("tree", ["trainer.branch.roots=5", "trainer.estimator=tree"]),
    ] {
        succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", name], &more[..]].concat());
    }
    assert_eq!(timeless_metrics(dir.path(), "all"), timeless_metrics(dir.path(), "off"));
    assert_eq!(timeless_metrics(dir.path(), "tree"), timeless_metrics(dir.path(), "off"));
    let weights =
        |run: &str| fs::read(dir.path().join("runs").join(run).join("checkpoints/step-000002/model.safetensors"));
    assert_eq!(weights("all").unwrap(), weights("off").unwrap());
    assert_eq!(weights("tree").unwrap(), weights("off").unwrap());
}

#[test]
fn every_kind_of_algorithm_trains_on_branches() {
    let dir = directory(&[("a.lua", &still())], true);
    for (name, more) in [
        ("grpo", vec!["trainer.estimator=grpo", "trainer.branch.at=random"]),
        ("gigpo", vec!["trainer.estimator=gigpo", "trainer.branch.at=[1,2]", "trainer.branch.width=2"]),
        (
            "ppo",
            vec![
                "trainer.algorithm=ppo",
                "trainer.estimator=gae_token",
                "trainer.kl.coef=0.01",
                "trainer.kl.place=reward",
            ],
        ),
        ("remax", vec!["trainer.estimator=remax", "trainer.mini_batches=2", "trainer.recompute_above=1e-9"]),
    ] {
        let args = ["run", "a.lua", "-q", "--name", name, "trainer.steps=1"];
        succeed(dir.path(), &[&args[..], &more].concat());
        let metrics = timeless_metrics(dir.path(), name).pop().unwrap();
        assert!(
            metrics["policy/grad_norm"].as_f64().is_some_and(|norm| norm.is_finite() && norm > 0.0),
            "{name}: {metrics:?}"
        );
        assert_eq!(metrics["rollout/branches"], 6.0, "{name}");
    }
    let custom = still().replace("estimator = \"tree\"", "estimator = \"custom\"").replace(
        "  reward = function",
        "  advantage = function(group)\n    local list = {}\n    for i, t in ipairs(group) do\n      \
         if t.fork then assert(group[t.fork.parent].fork == nil and t.fork.step >= 1) end\n      list[i] = t.total - 1\n    \
         end\n    return list\n  end,\n  reward = function",
    );
    fs::write(dir.path().join("c.lua"), custom).unwrap();
    succeed(dir.path(), &["run", "c.lua", "-q", "trainer.steps=1"]);
}

#[test]
fn check_masks_show_shared_steps_of_branches() {
    let dir = directory(&[("a.lua", &still())], true);
    let text = succeed(dir.path(), &["check", "--masks", "a.lua", "trainer.branch.at=[2]"]);
    assert!(text.contains("4 steps in 1 row, forked from 1-0-0 after 2\n"), "{text}");
    let lines = succeed(dir.path(), &["check", "--masks", "--json", "a.lua", "trainer.branch.at=[2]"]);
    let fork: Value = serde_json::from_str(lines.lines().nth(2).unwrap()).unwrap();
    assert_eq!(fork["fork"], serde_json::json!({ "parent": "1-0-0", "step": 2 }));
}

#[test]
fn invalid_branching_settings_are_refused() {
    let dir = directory(&[("a.lua", &still())], true);
    let refused = |setting: &str| fail(dir.path(), &["run", "a.lua", "-q", setting]);
    let text = refused("trainer.branch.rots=3");
    assert!(text.contains("unknown setting `trainer.branch.rots`") && text.contains("trainer.branch.roots"), "{text}");
    let text = refused("trainer.branch.at=entropi");
    assert!(text.contains("`trainer.branch.at` is \"entropi\"") && text.contains("did you mean `entropy`?"), "{text}");
    let text = refused("trainer.branch.at=3");
    assert!(text.contains("`trainer.branch.at` must be a name or a list of steps, got the number 3"), "{text}");
    assert!(refused("trainer.branch.roots=6").contains("trainer.branch.roots is 6 and trainer.group_size 5"));
    assert!(refused("trainer.branch.at=[0]").contains("1 is the state after the first"));
    let none = r1(dir.path(), &["run", "a.lua", "trainer.branch.at=first_tool", "trainer.steps=1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&none.stderr).contains("no trajectory had a state to branch from"));
    assert!(refused("env.max_steps=1").contains("env.max_steps is 1: there are none"));
    assert!(refused("trainer.branch.rounds=2").contains("1 trajectories branch off each root"));
    let text = fail(dir.path(), &["check", "a.lua", "trainer.branch.width=0"]);
    assert!(text.contains("trainer.branch.width is 0"), "{text}");
    fs::write(dir.path().join("b.lua"), RECIPE.replace("roots = 2", "rots = 2")).unwrap();
    let text = fail(dir.path(), &["run", "b.lua", "-q"]);
    assert!(text.contains("unknown field `trainer.branch.rots`") && text.contains("did you mean `roots`?"), "{text}");
}
