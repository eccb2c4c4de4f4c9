//! Flows in whole runs: the same weights as the environment that does the same, evaluation, replays, mixtures, the prompt.

use super::{directory, r1, shown};

/// An environment and a flow that do the same.
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

fn ran(dir: &std::path::Path, args: &[&str]) -> String {
    let output = r1(dir, args).output().unwrap();
    assert!(output.status.success(), "{}", shown(dir, &output));
    shown(dir, &output)
}

#[test]
fn a_run_with_a_flow_gives_the_weights_of_the_environment_that_does_the_same() {
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
        // What was stored runs again, and can be rescored.
        let told = ran(dir.path(), &["replay", "runs/flow"]);
        assert!(told.contains("every observation, reward and status as recorded"), "{told}");
        if name == "grpo" {
            let told = ran(dir.path(), &["rescore", "runs/flow", "--script", "flow.lua"]);
            assert!(!told.contains("error"), "{told}");
        }
    }
}

#[test]
fn rows_choose_between_an_environment_and_a_flow() {
    let trainer = "r1.grpo { steps = 2, groups_per_step = 4, group_size = 2, lr = 1e-3, warmup = 0 }";
    let mixed = source("envs = kinds", trainer);
    let dir = directory(&[("mixed.lua", &mixed)], true);
    ran(dir.path(), &["run", "mixed.lua", "--name", "mixed"]);
    let told = ran(dir.path(), &["replay", "runs/mixed"]);
    assert!(told.contains("16 trajectories: every observation, reward and status as recorded"), "{told}");
    ran(dir.path(), &["check", "mixed.lua"]);
}

#[test]
fn a_flow_is_checked_stepped_through_and_not_chatted_with() {
    let flow = source("env = kinds.flow", "r1.grpo { steps = 1 }");
    let dir = directory(&[("flow.lua", &flow)], true);
    ran(dir.path(), &["check", "flow.lua"]);
    let output = r1(dir.path(), &["infer", "--model", "model", "--script", "flow.lua", "-p", "hi"]).output().unwrap();
    let told = shown(dir.path(), &output);
    assert!(told.contains("it is a flow, which drives its own conversations") && told.contains("r1 repl"), "{told}");
    std::fs::write(
        dir.path().join("typed"),
        ":step one\n:step two\n:undo\n:step other\n:fork b\n:step last\n:reward\n",
    )
    .unwrap();
    let input = std::fs::File::open(dir.path().join("typed")).unwrap();
    let output = r1(dir.path(), &["repl", "flow.lua", "seed=4"]).stdin(input).output().unwrap();
    let told = shown(dir.path(), &output);
    assert!(output.status.success() && told.contains("step 2: reward +0.05"), "{told}");
    assert!(told.contains("terminated after 3 steps: reward +1.12"), "{told}");
}
