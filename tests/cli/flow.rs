//! Flows in runs: the same weights as the equivalent environment, evaluation, replays, mixtures,
//! the prompt.

use super::repl::type_in;
use super::{directory, ran, run_files};

/// An environment and an equivalent flow.
const SAME: &str = r#"
local kinds = {
  env = r1.env {
    max_steps = 3,
    reset = function(task)
      return { task = task, messages = { r1.user(task.problem .. math.random(9)) } }
    end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user("more " .. math.random(9)))
      return { reward = #action.text / 100, done = math.random() < 0.3 }
    end,
  },
  flow = r1.env {
    max_steps = 3,
    flow = function(task, policy)
      local messages = { r1.user(task.problem .. math.random(9)) }
      while true do
        local action = policy:generate(messages)
        r1.push(messages, r1.assistant(action))
        r1.push(messages, r1.user("more " .. math.random(9)))
        if math.random() < 0.3 then return #action.text / 100 end
        policy:reward(#action.text / 100)
      end
    end,
  },
}
local rows = {}
for n = 1, 8 do rows[n] = { problem = "row" .. n, env = n % 2 == 0 and "env" or "flow" } end
return r1.recipe {
  policy = { model = "model" },
  ENVS,
  reward = function(state, outcome) return { length = #state.messages, total = outcome.truncated and -1 or 1 } end,
  data = { train = rows, eval = rows },
  sampling = { max_new_tokens = 6 },
  trainer = TRAINER,
  eval = { limit = 2 },
}
"#;

fn source(envs: &str, trainer: &str) -> String {
    SAME.replace("ENVS", envs).replace("TRAINER", trainer)
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_flow_gives_the_weights_of_the_equivalent_environment() {
    let trainers = [
        ("grpo", "r1.grpo { steps = 2, groups_per_step = 2, group_size = 3, lr = 1e-3, warmup = 0 }"),
        ("ppo", "r1.ppo { steps = 2, groups_per_step = 2, group_size = 2, lr = 1e-3, warmup = 0 }"),
    ];
    for (name, trainer) in trainers {
        let (env, flow) = (source("env = kinds.env", trainer), source("env = kinds.flow", trainer));
        let dir = directory(&[("env.lua", &env), ("flow.lua", &flow)], true);
        for script in ["env", "flow"] {
            ran(dir.path(), &["run", &format!("{script}.lua"), "--name", script, "seed=5"]);
        }
        let weights = |run: &str| {
            let newest = dir.path().join("runs").join(run).join("checkpoints/latest");
            let newest =
                std::fs::read_to_string(&newest).map_or(newest.clone(), |name| newest.with_file_name(name.trim()));
            std::fs::read(newest.join("model.safetensors")).unwrap()
        };
        assert!(weights("env") == weights("flow"), "{name}");
        // Stored trajectories can be replayed and rescored.
        let printed = ran(dir.path(), &["replay", "runs/flow"]);
        assert!(printed.contains("every observation, reward and status as recorded"), "{printed}");
        if name == "grpo" {
            let printed = ran(dir.path(), &["rescore", "runs/flow", "--script", "flow.lua"]);
            assert!(!printed.contains("error"), "{printed}");
        }
    }
}

/// Metrics of evaluations, and the reward of training steps.
fn metrics(dir: &std::path::Path, run: &str) -> (Vec<serde_json::Value>, Vec<f64>) {
    let lines = run_files::metrics(&run_files::run_dir(dir, run));
    let of_evaluation = |line: &serde_json::Value| -> Option<serde_json::Value> {
        let fields = line.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("eval/"));
        let step: serde_json::Map<_, _> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
        (!step.is_empty()).then(|| step.into())
    };
    let evaluations = lines.iter().filter_map(of_evaluation).collect();
    (evaluations, lines.iter().filter_map(|line| line["reward/mean"].as_f64()).collect())
}

/// Before, during and after training, a flow is evaluated like the equivalent environment.
#[test]
fn the_evaluation_of_a_flow_equals_that_of_the_equivalent_environment() {
    let trainer = "r1.grpo { steps = 2, groups_per_step = 2, group_size = 2, lr = 1e-3, warmup = 0 }";
    let eval = "eval = { limit = 5, every = 1, max_steps = 2 }";
    let of = |envs: &str| source(envs, trainer).replace("eval = { limit = 2 }", eval);
    let dir = directory(&[("env.lua", &of("env = kinds.env")), ("flow.lua", &of("env = kinds.flow"))], true);
    let [env, flow] = ["env", "flow"].map(|script| {
        ran(dir.path(), &["run", &format!("{script}.lua"), "--name", script, "seed=5"]);
        metrics(dir.path(), script).0
    });
    assert_eq!(env.len(), 3, "{env:?}");
    assert!(env[0]["eval/reward"].as_f64().is_some_and(|reward| reward != 0.0), "{env:?}");
    let without_time = |list: Vec<serde_json::Value>| -> Vec<serde_json::Value> {
        let timed = |name: &str| name.contains("seconds") || name.contains("time") || name.contains("per_second");
        let each = |mut one: serde_json::Value| {
            one.as_object_mut().unwrap().retain(|name, _| !timed(name));
            one
        };
        list.into_iter().map(each).collect()
    };
    assert_eq!(without_time(env), without_time(flow));
}

/// `eval.env` is a flow and the training environment is not, and the other way round.
#[test]
fn evaluation_can_have_a_separate_flow() {
    let trainer = "r1.grpo { steps = 1, groups_per_step = 2, group_size = 2, lr = 1e-3, warmup = 0 }";
    let flow = "r1.env { reward = function() return 0.5 end, max_steps = 2, flow = function(task, policy)\n\
                local action = policy:generate({ r1.user('eval ' .. task.problem) })\n\
                policy:reward(1)\n\
                policy:generate({ r1.user('again') })\n\
                return { reward = 6, parts = { own = 1 } } end }";
    let env = "r1.env { reward = function() return 0.5 end, step = function() return { reward = 7, done = true } end,\n\
               reset = function() return { messages = { r1.user('eval') } } end }";
    for (trained, evaluated, part) in [("env", flow, true), ("flow", env, false)] {
        let script = source(&format!("env = kinds.{trained}"), trainer);
        let script = script.replace("eval = { limit = 2 }", &format!("eval = {{ limit = 3, env = {evaluated} }}"));
        let dir = directory(&[("a.lua", &script)], true);
        ran(dir.path(), &["run", "a.lua", "--name", "a"]);
        let (evaluations, rewards) = metrics(dir.path(), "a");
        assert_eq!(evaluations.len(), 2);
        for evaluation in evaluations {
            assert_eq!(evaluation["eval/reward"], 7.5, "{evaluation}");
            assert_eq!(evaluation.get("eval/own").is_some(), part, "{evaluation}");
        }
        // Training has the other one.
        assert!(rewards.len() == 1 && (rewards[0] - 7.5).abs() > 0.1, "{rewards:?}");
        ran(dir.path(), &["check", "a.lua"]);
    }
}

#[test]
fn rows_select_an_environment_or_a_flow() {
    let trainer = "r1.grpo { steps = 2, groups_per_step = 4, group_size = 2, lr = 1e-3, warmup = 0 }";
    let mixed = source("envs = kinds", trainer);
    let dir = directory(&[("mixed.lua", &mixed)], true);
    ran(dir.path(), &["run", "mixed.lua", "--name", "mixed"]);
    let printed = ran(dir.path(), &["replay", "runs/mixed"]);
    assert!(printed.contains("16 trajectories: every observation, reward and status as recorded"), "{printed}");
    ran(dir.path(), &["check", "mixed.lua"]);
}

#[test]
fn flows_work_in_check_repl_and_infer() {
    let flow = source("env = kinds.flow", "r1.grpo { steps = 1 }");
    let dir = directory(&[("flow.lua", &flow)], true);
    ran(dir.path(), &["check", "flow.lua"]);
    let printed = ran(dir.path(), &["infer", "--model", "model", "--script", "flow.lua", "-p", "hi"]);
    assert!(!printed.contains("error"), "{printed}");
    let typed = ":step one\n:step two\n:undo\n:step other\n:fork b\n:step last\n:reward\n";
    let printed = type_in(dir.path(), &["flow.lua", "seed=4"], typed);
    assert!(printed.starts_with("exit: 0") && printed.contains("step 2: reward +0.05"), "{printed}");
    assert!(printed.contains("terminated after 3 steps: reward +1.12"), "{printed}");
}

/// The recipe of docs/guide/agents.md: the advantages of a player sum to zero over a group.
#[test]
fn the_self_play_of_the_page_of_agents_runs() {
    let page = include_str!("../../docs/guide/agents.md");
    let (_, code) = page.split_once("```lua\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let dir = directory(&[("a.lua", &code.replace("r1-nano", "model"))], true);
    ran(dir.path(), &["check", "a.lua"]);
    ran(dir.path(), &["run", "a.lua"]);
    let printed = ran(dir.path(), &["replay", "runs/a"]);
    assert!(printed.contains("every observation, reward and status as recorded"), "{printed}");
    // An illegal first move loses, a game of two legal moves has one winner.
    let printed = type_in(dir.path(), &["a.lua"], ":reset 0\n:step 9\n");
    assert!(printed.contains("terminated after 1 step"), "{printed}");
    let printed = type_in(dir.path(), &["a.lua"], ":reset 0\n:step 3\n:step 2\n");
    assert!(printed.contains("terminated after 2 steps"), "{printed}");
}
