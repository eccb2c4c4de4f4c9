//! Stored trajectories of evaluations: which are stored, and their replay.

use std::path::Path;

use r1::mdp::{Split, Trajectory};
use r1::store::read_trajectories;

use super::run_files::{files, metrics};
use super::{directory, fail, succeed};

/// The evaluation has its own environment, limits and rows, which differ from the training's.
const RECIPE: &str = r#"
local function env(word, steps)
  return r1.env {
    format = "retool", max_steps = steps,
    reset = function(task) return { draws = math.random(1000), messages = { r1.user(word .. " " .. task.prompt) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user(word .. " on " .. state.draws))
      return { reward = #action.text % 3 }
    end,
  }
end
local function rows(count) return r1.data.generate { count = count, row = function(n) return { prompt = "say " .. n } end } end
return r1.recipe {
  env = env("train", 1),
  reward = function(state, outcome) return { outcome = #outcome.text % 2 } end,
  policy = { model = "model" },
  data = { train = rows(8), eval = rows(5) },
  eval = { env = env("held", 3), max_steps = 2, max_new_tokens = 5, every = 1 },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

fn stored(run: &Path, step: u64) -> Vec<Trajectory> {
    read_trajectories(&run.join(format!("evaluations/step-{step:06}.parquet"))).unwrap()
}

#[test]
fn trajectories_of_evaluations_are_stored_and_replay() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "seed=5", "eval.store=3"]);
    let run = dir.path().join("runs/a");
    assert_eq!(files(&run.join("evaluations")).len(), 3, "before, after step 1 and after the last step");
    let before = stored(&run, 0);
    let ids: Vec<&str> = before.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["eval-0-0-0", "eval-0-1-0", "eval-0-3-0"]);
    assert!(before.iter().all(|one| one.split == Split::Eval && one.steps.len() == 2), "{before:?}");
    assert!(before[0].steps.iter().all(|step| (1..=5).contains(&step.response_ids.len())), "{before:?}");

    let same = |ids: &[&str], count: &str| {
        let printed = succeed(dir.path(), &[&["replay", "a", "-q"], ids].concat());
        assert_eq!(printed, format!("{count}: every observation, reward and status as recorded\n"), "{ids:?}");
    };
    same(&[], "8 trajectories");
    same(&["eval"], "9 trajectories");
    same(&["eval-2"], "3 trajectories");
    same(&["eval-0-3-0", "1-0-0"], "2 trajectories");
    let unknown = fail(dir.path(), &["replay", "a", "eval-7", "-q"]);
    assert!(unknown.contains("no evaluation after step 7") && unknown.contains("steps 0 to 2"), "{unknown}");
    let unknown = fail(dir.path(), &["replay", "a", "eval-0-2-0", "-q"]);
    assert!(unknown.contains("the run has no trajectory eval-0-2-0"), "{unknown}");

    let shown = succeed(dir.path(), &["repl", "--replay", "a:eval-1-3-0:1"]);
    assert!(shown.contains("eval-1-3-0: 2 steps, truncated") && shown.contains("held say"), "{shown}");
    let rescored = succeed(dir.path(), &["rescore", "a", "--script", "a.lua", "--eval", "--last", "1", "-q"]);
    assert!(rescored.contains("3 trajectories under a.lua") && rescored.contains("no reward changed"), "{rescored}");
    let program = "local list = r1.store.trajectories('a', 2, { split = 'eval' })
        return { r1.store.steps('a', { split = 'eval' }), r1.store.steps('a'), #list, list[2].id, list[2].split }";
    assert_eq!(succeed(dir.path(), &["lua", "-e", program]).trim(), r#"[[0,1,2],[1,2],3,"eval-2-1-0","eval"]"#);
    let refused = fail(dir.path(), &["lua", "-e", "return r1.store.steps('a', { split = 'evl' })"]);
    assert!(refused.contains("`split` must be \"train\" or \"eval\""), "{refused}");
}

/// An evaluation has its own environment, sampling and reward, during training and in `r1 eval`;
/// training keeps its own.
#[test]
fn the_reward_of_evaluations_is_their_own() {
    let eval_settings = "env = env(\"held\", 3), accuracy = \"short\", temperature = 0.7,
        reward = function(state, outcome) return { short = #outcome.text < 9 and 1 or 0 } end,";
    let recipe = RECIPE.replace("env = env(\"held\", 3),", eval_settings);
    let dir = directory(&[("a.lua", &recipe)], true);
    succeed(dir.path(), &["run", "a.lua", "-q", "trainer.steps=1"]);
    let run = dir.path().join("runs/a");
    let parts = |all: &[Trajectory]| all.iter().flat_map(|one| one.reward_parts.keys().cloned()).collect::<Vec<_>>();
    let held_out = stored(&run, 0);
    assert_eq!(parts(&held_out), vec!["short"; 5]);
    assert!(held_out.iter().all(|one| one.messages[0].content.text().starts_with("held say")));
    let trained = read_trajectories(&run.join("trajectories/step-000001.parquet")).unwrap();
    assert_eq!(parts(&trained), vec!["outcome"; 4]);
    assert!(trained.iter().all(|one| one.messages[0].content.text().starts_with("train say")));
    let evaluated = &metrics(&run)[0];
    assert!(evaluated["eval/short"].is_number(), "{evaluated}");
    assert_eq!(evaluated["eval/short"], evaluated["eval/accuracy"]);

    // The same model, tasks, sampling and reward: the same figures.
    succeed(dir.path(), &["eval", "a.lua", "-q"]);
    let again = stored(&dir.path().join("runs/a-eval"), 0);
    let of = |all: &[Trajectory]| {
        let ids = |one: &Trajectory| one.steps.iter().map(|step| step.response_ids.clone()).collect::<Vec<_>>();
        all.iter().map(|one| (ids(one), one.total_reward())).collect::<Vec<_>>()
    };
    assert_eq!(of(&again), of(&held_out));
    let same = succeed(dir.path(), &["replay", "a", "eval", "-q"]);
    assert!(same.contains("every observation, reward and status as recorded"), "{same}");
}

/// Without wall times and the number of computed prompt tokens, which depends on the order of
/// requests.
fn timeless(mut trajectories: Vec<Trajectory>) -> Vec<Trajectory> {
    for one in &mut trajectories {
        one.seconds = 0.0;
    }
    for step in trajectories.iter_mut().flat_map(|one| &mut one.steps) {
        (step.prefilled, step.seconds) = Default::default();
    }
    trajectories
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn an_evaluation_is_stored_the_same_by_a_resumed_run() {
    let dir = directory(&[("a.lua", RECIPE)], true);
    let train = |name: &str, more: &[&str]| {
        succeed(dir.path(), &[&["run", "a.lua", "-q", "--name", name, "--seed", "7"], more].concat());
    };
    train("whole", &["trainer.steps=4"]);
    train("parts", &[]);
    succeed(dir.path(), &["run", "a.lua", "-q", "--resume", "runs/parts", "trainer.steps=4"]);
    let of = |name: &str| files(&dir.path().join("runs").join(name).join("evaluations"));
    let (whole, parts) = (of("whole"), of("parts"));
    assert_eq!(whole.keys().collect::<Vec<_>>(), parts.keys().collect::<Vec<_>>());
    for step in 0..=4 {
        let [whole, parts] = ["whole", "parts"].map(|name| timeless(stored(&dir.path().join("runs").join(name), step)));
        assert_eq!(whole.len(), 5);
        assert!(whole == parts, "step {step}");
    }
    // Storing changes nothing else, and can be disabled.
    train("none", &["trainer.steps=4", "eval.store=0"]);
    assert!(!dir.path().join("runs/none/evaluations").exists());
    let last = |name: &str| files(&super::run_files::checkpoint(&dir.path().join("runs").join(name), 4));
    assert!(last("whole") == last("none"), "the checkpoints differ");
}

/// As supervised training keeps the model with the lowest loss.
#[test]
fn the_model_with_the_highest_accuracy_is_kept() {
    // The accuracies of the evaluations at steps 0 to 3.
    let reward_code = "seen = seen + 1 return ({ 0, 1, 1, 0 })[seen] or 0";
    let recipe = RECIPE
        .replacen("local function env", "local seen = 0\nlocal function env", 1)
        .replace(
            "every = 1 }",
            &format!("every = 1, reward = function() {reward_code} end }}, rollout = {{ workers = 1 }}"),
        )
        .replace(
            "return { reward = #action.text % 3 }",
            "return { reward = word == 'train' and #action.text % 3 or 0 }",
        )
        .replace("eval = rows(5)", "eval = rows(1)");
    let dir = directory(&[("a.lua", &recipe)], true);
    let text = succeed(dir.path(), &["run", "a.lua", "trainer.steps=3", "checkpoint.every=1", "checkpoint.keep=0"]);
    assert!(text.contains("best        runs/a/best (accuracy 1.000, step 1)"), "{text}");
    let run = dir.path().join("runs/a");
    let weights = |folder: &str| std::fs::read(run.join(folder).join("model.safetensors")).unwrap();
    assert!(weights("best") == weights("checkpoints/step-000001"));
    assert!(weights("best") != weights("checkpoints/step-000003"));
    succeed(dir.path(), &["infer", "--model", "runs/a/best", "-p", "say 3", "--max-new-tokens", "2"]);
    // A resumed run knows it.
    let text = succeed(dir.path(), &["run", "a.lua", "--resume", "runs/a", "trainer.steps=4"]);
    assert!(text.contains("best        runs/a/best (accuracy 1.000, step 1)"), "{text}");
    // Without an evaluation that is better than the first, there is none.
    std::fs::write(dir.path().join("a.lua"), recipe.replace("{ 0, 1, 1, 0 }", "{ 1, 1, 0, 1 }")).unwrap();
    let text = succeed(dir.path(), &["run", "a.lua", "--name", "b", "trainer.steps=3"]);
    assert!(!text.contains("best  ") && !dir.path().join("runs/b/best").exists(), "{text}");
}
