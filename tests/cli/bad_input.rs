//! Invalid input: one clear message with file and line or path, and the exit code of its kind.

use super::{cli_snapshot, directory, fail};

/// A recipe that runs on the tiny model within a second; tests break parts of it.
const RECIPE: &str = r#"local env = r1.env {
  format = "retool",
  max_steps = 2,
  reset = function(task)
    return { task = task, messages = { r1.user(task.problem) } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    return { done = true }
  end,
}
return r1.recipe {
  env = env,
  reward = function(state, outcome) return #outcome.text % 2 end,
  policy = { model = "model" },
  data = { train = "tasks.jsonl" },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 2 },
}
"#;

const TASKS: &str = "{\"problem\": \"1+1\"}\n{\"problem\": \"2+2\"}\n";

fn broken(from: &str, to: &str) -> String {
    assert!(RECIPE.contains(from), "{from}");
    RECIPE.replace(from, to)
}

#[test]
fn a_missing_script() {
    cli_snapshot!(["run", "none.lua"], @"
    exit: 3
    --- stderr
    error: can't read the script: no such file or directory
      --> none.lua
    ");
}

#[test]
fn a_syntax_error() {
    cli_snapshot!({ "a.lua" => broken("return { done = true }", "return { done = = true }") }, ["run", "a.lua"], @"
    exit: 3
    --- stderr
    error: Expected identifier when parsing expression, got '='
      --> a.lua:9
    ");
}

#[test]
fn a_script_that_returns_no_recipe_is_refused() {
    cli_snapshot!({ "a.lua" => "return 42" }, ["run", "a.lua"], @"
    exit: 3
    --- stderr
    error: the script returns the number 42; it must return r1.recipe { … }
      --> a.lua
    ");
}

#[test]
fn an_unknown_field() {
    cli_snapshot!({ "a.lua" => broken("group_size", "goup_size") }, ["run", "a.lua"], @"
    exit: 3
    --- stderr
    error: r1.grpo: unknown field `goup_size`
      --> a.lua:18
      hint: did you mean `group_size` or `groups`?
    ");
}

#[test]
fn a_wrong_type() {
    cli_snapshot!({ "a.lua" => broken("max_new_tokens = 4", "max_new_tokens = \"four\"") }, ["run", "a.lua"], @r#"
    exit: 3
    --- stderr
    error: r1.recipe: `sampling.max_new_tokens` must be a whole number, 0 or more, got the text "four"
      --> a.lua:17
    "#);
}

#[test]
fn an_unknown_override() {
    cli_snapshot!({ "a.lua" => RECIPE }, ["run", "a.lua", "trainer.goup_size=4"], @"
    exit: 2
    --- stderr
    error: unknown setting `trainer.goup_size`
      --> trainer.goup_size=4
      hint: did you mean `trainer.group_size` or `trainer.groups`?
    ");
    cli_snapshot!({ "a.lua" => RECIPE }, ["run", "a.lua", "trainer.lr"], @"
    exit: 2
    --- stderr
    error: `trainer.lr` is not a setting
      --> trainer.lr
      hint: write settings as key=value: trainer.lr=2e-6
    ");
    cli_snapshot!({ "a.lua" => RECIPE }, ["run", "a.lua", "trainer.lr=fast"], @r#"
    exit: 2
    --- stderr
    error: `trainer.lr` must be a number, got the text "fast"
      --> trainer.lr=fast
    "#);
}

#[test]
fn the_other_trainer() {
    cli_snapshot!({ "a.lua" => RECIPE }, ["sft", "a.lua"], @"
    exit: 2
    --- stderr
    error: this recipe's trainer is not r1.sft
      --> a.lua
      hint: run it with `r1 run a.lua`, or give it a `cold_start`
    ");
}

#[test]
fn a_missing_data_file_is_an_error() {
    cli_snapshot!(model, { "a.lua" => RECIPE }, ["run", "a.lua"], @"
    exit: 4
    --- stderr
    error: can't read the dataset: no such file or directory
      --> tasks.jsonl
      hint: data.train of a.lua names it
    ");
}

#[test]
fn a_row_without_its_column_is_an_error() {
    cli_snapshot!(model, { "a.lua" => RECIPE, "tasks.jsonl" => "{\"question\": \"1+1\"}\n" }, ["run", "a.lua"], @"
    exit: 6
    --- stderr
    warning: 1 row of data.train can't be started; row 0: r1.user: the content must be text or a list of parts, got nil (a.lua:5)
      policy   model (0.0M parameters, f32 on the CPU, 1 MiB)
      data     1 training task
      training 1 step of 2 groups of 2 trajectories, lr 1e-6
      run      runs/a
    error: 4 of 4 trajectories failed
      4 x env_error: r1.user: the content must be text or a list of parts, got nil
        --> a.lua:5
           5 |     return { task = task, messages = { r1.user(task.problem) } }
        hint: the task's columns: `question`
        the first is 1-0-0 (row 0, seed 0)
        again: r1 repl a.lua --replay runs/a:1-0-0
      hint: fix the script and start again with --resume; rollout.max_failure_rate sets the limit
    ");
}

#[test]
fn a_row_that_is_not_json_is_an_error() {
    cli_snapshot!(
        model,
        { "a.lua" => RECIPE, "tasks.jsonl" => "{\"problem\": \"1+1\"}\n{\"problem\": 2+2}\n" },
        ["run", "a.lua"],
        @"
    exit: 4
    --- stderr
    error: the row is not JSON: expected `,` or `}` in column 14
      --> tasks.jsonl:2
      hint: a dataset has one JSON object per line
    "
    );
}

#[test]
fn a_model_without_weights_is_an_error() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    std::fs::remove_file(dir.path().join("model/model.safetensors")).unwrap();
    cli_snapshot!(in dir, ["run", "a.lua"], @"
    exit: 5
    --- stderr
    error: no model.safetensors and no model.safetensors.index.json
      --> model
      hint: weights in other formats (pytorch_model.bin) are not read; convert them to safetensors
    ");
    cli_snapshot!({ "a.lua" => RECIPE, "tasks.jsonl" => TASKS }, ["run", "a.lua"], @"
    exit: 5
    --- stderr
    error: there is no model `model`
      hint: give a directory, a Hub id such as Qwen/Qwen2.5-1.5B-Instruct, or `r1-nano` for the embedded model
    ");
}

#[test]
fn truncated_weights() {
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", TASKS)], true);
    let weights = dir.path().join("model/model.safetensors");
    std::fs::File::options().write(true).open(weights).unwrap().set_len(2000).unwrap();
    cli_snapshot!(in dir, ["run", "a.lua"], @"
    exit: 5
    --- stderr
    error: the weights are damaged or cut short: incomplete metadata, file not fully covered
      --> model/model.safetensors
      hint: fetch or copy the file again
    ");
}

#[test]
fn a_reward_that_is_not_a_number_is_an_error() {
    let nil = broken("return #outcome.text % 2", "return nil");
    cli_snapshot!(model, { "a.lua" => nil, "tasks.jsonl" => TASKS }, ["run", "a.lua"], @"
    exit: 6
    --- stderr
      policy   model (0.0M parameters, f32 on the CPU, 1 MiB)
      data     2 training tasks
      training 1 step of 2 groups of 2 trajectories, lr 1e-6
      run      runs/a
    error: 4 of 4 trajectories failed
      4 x env_error: reward returned nil; it must return a number or a table of named parts
        --> a.lua:14
          14 |   reward = function(state, outcome) return nil end,
        the first is 1-0-0 (row 1, seed 0)
        again: r1 repl a.lua --replay runs/a:1-0-0:1
      hint: fix the script and start again with --resume; rollout.max_failure_rate sets the limit
    ");
    let nan = broken("return #outcome.text % 2", "return 0 / 0");
    cli_snapshot!(model, { "a.lua" => nan, "tasks.jsonl" => TASKS }, ["run", "a.lua"], @"
    exit: 6
    --- stderr
      policy   model (0.0M parameters, f32 on the CPU, 1 MiB)
      data     2 training tasks
      training 1 step of 2 groups of 2 trajectories, lr 1e-6
      run      runs/a
    error: 4 of 4 trajectories failed
      4 x env_error: reward is NaN
        --> a.lua:14
          14 |   reward = function(state, outcome) return 0 / 0 end,
        the first is 1-0-0 (row 1, seed 0)
        again: r1 repl a.lua --replay runs/a:1-0-0:1
      hint: fix the script and start again with --resume; rollout.max_failure_rate sets the limit
    ");
}

#[test]
fn an_error_of_an_env_is_reported() {
    let throws = broken("return { done = true }", "error(\"no such room\")");
    cli_snapshot!(model, { "a.lua" => throws, "tasks.jsonl" => TASKS }, ["run", "a.lua"], @r#"
    exit: 6
    --- stderr
      policy   model (0.0M parameters, f32 on the CPU, 1 MiB)
      data     2 training tasks
      training 1 step of 2 groups of 2 trajectories, lr 1e-6
      run      runs/a
    error: 4 of 4 trajectories failed
      4 x env_error: no such room
        --> a.lua:9
           9 |     error("no such room")
        the first is 1-0-0 (row 1, seed 0)
        again: r1 repl a.lua --replay runs/a:1-0-0:1
      hint: fix the script and start again with --resume; rollout.max_failure_rate sets the limit
    "#);
}

#[test]
fn an_endless_loop_of_an_env_is_reported() {
    let loops = broken("return { done = true }", "while true do end");
    cli_snapshot!(model, { "a.lua" => loops, "tasks.jsonl" => TASKS }, ["run", "a.lua", "limits.cpu=0.05"], @"
    exit: 6
    --- stderr
      policy   model (0.0M parameters, f32 on the CPU, 1 MiB)
      data     2 training tasks
      training 1 step of 2 groups of 2 trajectories, lr 1e-6
      run      runs/a
    error: 4 of 4 trajectories failed
      4 x script_limit: step used more than [time] of CPU time
        --> a.lua:9
           9 |     while true do end
        hint: is there an endless loop? limits.cpu sets the limit
        the first is 1-0-0 (row 1, seed 0)
        again: r1 repl a.lua --replay runs/a:1-0-0:1
      hint: fix the script and start again with --resume; rollout.max_failure_rate sets the limit
    ");
}

#[test]
fn errors_as_json() {
    cli_snapshot!({ "a.lua" => RECIPE }, ["run", "a.lua", "--json", "trainer.goup_size=4"], @r#"
    exit: 2
    --- stdout
    {"event":"error","kind":"usage","exit_code":2,"message":"unknown setting `trainer.goup_size`","subject":{"setting":"trainer.goup_size"},"place":"trainer.goup_size=4","hint":"did you mean `trainer.group_size` or `trainer.groups`?"}
    "#);
}

#[test]
fn a_flag_that_is_a_setting_is_refused_with_the_setting() {
    cli_snapshot!({}, ["run", "a.lua", "--lr", "3"], @"
    exit: 2
    --- stderr
    error: unexpected argument `--lr`
      hint: settings are written as key=value: trainer.lr=3
    ");
    cli_snapshot!({}, ["run", "a.lua", "--max-new-tokens=9"], @"
    exit: 2
    --- stderr
    error: unexpected argument `--max-new-tokens`
      hint: settings are written as key=value: sampling.max_new_tokens=9
    ");
}

#[test]
fn settings_of_verl_and_trl_are_refused_with_their_name_in_r1() {
    cli_snapshot!({ "a.lua" => RECIPE }, ["check", "a.lua", "actor_rollout_ref.actor.clip_ratio_low=0.2"], @"
    exit: 2
    --- stderr
    error: unknown setting `actor_rollout_ref.actor.clip_ratio_low`
      --> actor_rollout_ref.actor.clip_ratio_low=0.2
      hint: `actor_rollout_ref.actor.clip_ratio_low` of verl is `trainer.clip` in r1: the first number of { low, high }
    ");
    cli_snapshot!({ "a.lua" => RECIPE }, ["check", "a.lua", "rollout.n=8"], @"
    exit: 2
    --- stderr
    error: unknown setting `rollout.n`
      --> rollout.n=8
      hint: `actor_rollout_ref.rollout.n` of verl is `trainer.group_size` in r1: trajectories per task
    ");
    cli_snapshot!({ "a.lua" => RECIPE }, ["check", "a.lua", "trainer.beta=0.04"], @"
    exit: 2
    --- stderr
    error: unknown setting `trainer.beta`
      --> trainer.beta=0.04
      hint: `beta` of TRL is `trainer.kl.coef` in r1: a number
    ");
    cli_snapshot!({ "a.lua" => RECIPE }, ["check", "a.lua", "trainer.fsdp_config=1"], @"
    exit: 2
    --- stderr
    error: unknown setting `trainer.fsdp_config`
      --> trainer.fsdp_config=1
      hint: `actor_rollout_ref.actor.fsdp_config` of verl is `trainer.zero_stage` in r1: 1, 2 or 3: what is divided among processes (docs/guide/scale.md)
    ");
    cli_snapshot!({}, ["run", "a.lua", "--num_generations", "8"], @"
    exit: 2
    --- stderr
    error: unexpected argument `--num_generations`
      hint: `num_generations` of TRL is `trainer.group_size` in r1: trajectories per task; settings are written as key=value
    ");
    let recipe = "return r1.recipe { trainer = r1.grpo {\n  max_completion_length = 9,\n} }";
    cli_snapshot!({ "a.lua" => recipe }, ["check", "a.lua"], @"
    exit: 3
    --- stderr
    error: r1.grpo: unknown field `max_completion_length`
      --> a.lua:2
      hint: `max_completion_length` of TRL is `sampling.max_new_tokens` in r1: tokens of one step; `env.max_tokens` bounds a trajectory
    ");
}

/// Values of verl's settings: algorithms, losses and KL estimators.
#[test]
fn values_of_verl_are_refused_with_their_name_in_r1() {
    let dir = directory(&[("a.lua", RECIPE)], false);
    for (setting, instead) in [
        ("trainer.algorithm=reinforce_plus_plus", "`trainer.algorithm=reinforce_pp`"),
        ("trainer.algorithm=token_gae", "`trainer.estimator=gae_token`"),
        ("trainer.loss=vanilla", "`trainer.loss=ppo`"),
        ("trainer.kl.kind=low_var_kl", "`trainer.kl.kind=k3`"),
    ] {
        let error = fail(dir.path(), &["check", "a.lua", setting, "trainer.kl.coef=0.1"]);
        assert!(error.contains(&format!("hint: `{}` of ", setting.rsplit('=').next().unwrap())), "{error}");
        assert!(error.contains(&format!("is {instead} in r1")), "{error}");
    }
}

#[test]
fn flags_of_the_legacy_chat_are_refused_with_the_r1_flag() {
    cli_snapshot!({}, ["infer", "--model", "r1-nano", "--tools", "search"], @"
    exit: 2
    --- stderr
    error: unexpected argument `--tools`
      hint: tools belong to a recipe: r1 infer --script RECIPE
    ");
    cli_snapshot!({}, ["infer", "--model", "r1-nano", "--api-key", "secret"], @"
    exit: 2
    --- stderr
    error: unexpected argument `--api-key`
      hint: set the variable OPENAI_API_KEY; other users of the machine can read command lines
    ");
    let error = fail(directory(&[], false).path(), &["infer", "--use-hf-model", "--hf-model-path", "ORG/NAME"]);
    assert!(error.contains("r1 infer --hf ORG/NAME"), "{error}");
    // An alias of the same flag is accepted.
    let error = fail(directory(&[], false).path(), &["infer", "--model", "r1-nano", "--question", " "]);
    assert!(error.contains("the question is empty"), "{error}");
}

/// An invalid row is found before training, at any position in the dataset.
#[test]
fn a_bad_row_deep_in_a_dataset_is_found_before_training() {
    let rows = |bad: &str| format!("{}{bad}\n", "{\"prompt\": \"Say 1\"}\n".repeat(500));
    let dir = directory(&[("a.lua", RECIPE), ("tasks.jsonl", &rows("{\"prompt\": "))], true);
    let error = fail(dir.path(), &["run", "a.lua", "-q", "trainer.steps=1"]);
    assert!(error.contains("tasks.jsonl:501"), "{error}");
    assert!(!dir.path().join("runs").exists(), "a run was begun");
}

#[test]
fn a_run_that_cannot_be_resumed_is_refused() {
    cli_snapshot!(model, { "a.lua" => RECIPE, "tasks.jsonl" => TASKS }, ["run", "a.lua", "--resume", "model"], @"
    exit: 8
    --- stderr
    error: not a run directory: its config.json names no script
      --> model
      hint: name a directory that `r1 run` or `r1 sft` made, such as runs/NAME
    ");
}

#[test]
fn a_runs_directory_that_cannot_be_made_is_an_error() {
    cli_snapshot!(
        model,
        { "a.lua" => RECIPE, "tasks.jsonl" => TASKS, "runs" => "a file in the way" },
        ["run", "a.lua"],
        @"
    exit: 8
    --- stderr
    error: can't make the directory: file exists
      --> runs
    "
    );
}

#[test]
fn infer_without_a_question_is_refused() {
    cli_snapshot!(model, {}, ["infer", "--model", "model"], @"
    exit: 2
    --- stderr
    error: the question is empty
      hint: ask with -p TEXT, or through a pipe
    ");
    cli_snapshot!(["infer", "--model", "none", "-p", "Hello"], @"
    exit: 5
    --- stderr
    error: there is no model `none`
      hint: give a directory, a Hub id such as Qwen/Qwen2.5-1.5B-Instruct, or `r1-nano` for the embedded model
    ");
}

#[test]
fn unused_settings_are_reported() {
    let files = |from: &str, to: &str| broken(from, to);
    cli_snapshot!(model, { "a.lua" => files("steps = 1,", "steps = 1, warmup = 4,"), "tasks.jsonl" => TASKS }, ["run", "a.lua"], @"
    exit: 3
    --- stderr
    error: trainer.warmup is 4 and trainer.steps 1: the learning rate never reaches trainer.lr
      --> a.lua:18
      hint: lower trainer.warmup or raise trainer.steps
    ");
    cli_snapshot!(
        model,
        { "a.lua" => files("steps = 1,", "steps = 8,\n    warmup = 4,"), "tasks.jsonl" => TASKS },
        ["check", "a.lua", "trainer.steps=2"],
        @"
        exit: 0
        --- stdout
        a.lua: estimator grpo, loss ppo
        22 trajectories of 2 of 2 tasks with scripted replies, 22 steps, in [time]; rewards from 0 to 1; longest prompt 22 tokens, budget 124

        warning (settings): trainer.warmup is 4 and trainer.steps 2: the learning rate never reaches trainer.lr
          --> a.lua:19
          hint: lower trainer.warmup or raise trainer.steps

        0 errors, 1 warning
        "
    );
    cli_snapshot!(
        model,
        { "a.lua" => files("r1.grpo {", "r1.grpo { critic = { lr = 1e-4 },"), "tasks.jsonl" => TASKS },
        ["run", "a.lua", "--plan"],
        @r#"
        exit: 3
        --- stderr
        error: trainer.critic.lr is set and has no effect: trainer.algorithm is "grpo"
          --> a.lua:18
          hint: set trainer.algorithm = "ppo", "pspo" or "capo", or leave trainer.critic.lr out
        "#
    );
    cli_snapshot!(
        model,
        { "a.lua" => files("policy = { model = \"model\" }", "policy = { model = \"model\", max_context = 4096 }"), "tasks.jsonl" => TASKS },
        ["check", "a.lua"],
        @"
        exit: 0
        --- stdout
        a.lua: estimator grpo, loss ppo: no contradicting settings
        22 trajectories of 2 of 2 tasks with scripted replies, 22 steps, in [time]; rewards from 0 to 1; longest prompt 22 tokens, budget 124

        warning (settings): policy.max_context is 4096, and the limit of the model is 128 tokens: 128 is used

        0 errors, 1 warning
        "
    );
    // Warnings about settings of runs.
    cli_snapshot!(
        model,
        { "a.lua" => files("steps = 1,", "steps = 8, warmup = 4,").replace("\"model\" }", "\"model\", max_context = 4096 }"), "tasks.jsonl" => TASKS },
        ["run", "a.lua", "-q", "trainer.steps=2"],
        @"
        exit: 0
        --- stderr
        warning: trainer.warmup is 4 and trainer.steps 2: the learning rate never reaches trainer.lr
          --> a.lua:18
          hint: lower trainer.warmup or raise trainer.steps
        warning: policy.max_context is 4096, and the limit of the model is 128 tokens: 128 is used
        warning: step 1: no token was trained: the trajectories of each group earned the same reward; weights and optimiser are unchanged (reported once)
        "
    );
}
