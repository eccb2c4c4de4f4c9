//! Environments, tools and arguments by row.

use serde_json::json;

use super::*;
use crate::mdp::Observation;
use crate::text::{Format, Renderer};

const TWO: &str = r#"
local look = r1.tool { name = "look", description = "Looks", parameters = {}, run = function(_, call)
  return (call.kwargs or {}).answer or "nothing"
end }
local ask = r1.tool { name = "ask", description = "Asks", parameters = {}, run = function() return "asked" end }
return r1.recipe {
  envs = {
    search = r1.env { tools = { look, ask }, max_steps = 3, format = "hermes", system = "Search." },
    math = r1.env {
      max_steps = 1, format = "retool",
      reset = function(task, kwargs)
        return { task = task, level = kwargs.level, messages = { r1.user(task.problem) } }
      end,
      context = function(state) return { r1.system("Calculate."), state.messages[1] } end,
      reward = function() return 2 end,
    },
  },
  reward = function() return 1 end,
  trainer = r1.grpo {},
  data = { train = {
    { env = "search", problem = "a" },
    { env = "math", problem = "b", env_kwargs = '{"level": 4}' },
    { agent_name = "search", problem = "c", tools = { "look" },
      extra_info = { tools_kwargs = { look = { create_kwargs = { answer = "here" } } } } },
    { agent_name = "single_step_agent", env = "search", problem = "d" },
  } },
}
"#;

fn texts(observation: &Observation) -> Vec<String> {
    let Observation::Messages(messages) = observation else { panic!() };
    messages.iter().map(|message| message.content.text()).collect()
}

#[test]
fn rows_choose_their_environment_tools_and_arguments() {
    let worker = Bench::new(TWO).worker();
    let task = |index| worker.row(Split::Train, index).unwrap();
    let names = |state: &State| -> Vec<String> {
        state.tools().iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
    };
    run(async {
        let search = worker.reset(&task(0), 0).await.unwrap();
        assert_eq!((search.env_name(), search.max_steps()), ("search", 3));
        assert_eq!(names(&search), ["look", "ask"]);
        assert_eq!(texts(&worker.observe(&search, 100).await.unwrap()), ["Search.", "a"]);
        assert_eq!(worker.reward(&search, &outcome("")).await.unwrap().total, 1.0);

        let math = worker.reset(&task(1), 0).await.unwrap();
        assert_eq!((math.env_name(), math.max_steps(), math.settings().format.as_str()), ("math", 1, "retool"));
        assert_eq!(math.tools().len(), 0);
        assert_eq!(math.snapshot().unwrap()["state"]["level"], 4);
        assert_eq!(math.snapshot().unwrap()["state"]["task"]["env_kwargs"], json!({"level": 4}));
        assert!(worker.has_context(&math) && !worker.has_context(&search));
        assert_eq!(texts(&worker.observe(&math, 100).await.unwrap()), ["Calculate.", "b"]);
        assert_eq!(worker.reward(&math, &outcome("")).await.unwrap().total, 2.0);

        // Another subset of the tools is another prompt; a tool that is not in it is unknown.
        let fewer = worker.reset(&task(2), 0).await.unwrap();
        assert_eq!(names(&fewer), ["look"]);
        let mut act = action("");
        act.tool_calls = vec![call("look", json!({})), call("ask", json!({}))];
        let result = worker.step(&fewer, &act).await.unwrap();
        assert_eq!(result.tools[0].output, "here");
        assert_eq!(result.tools[1].output, "Error: no tool `ask`; tools: `look`");
        // A kept state knows its environment.
        let back = worker.restore(&fewer.snapshot().unwrap()).unwrap();
        assert_eq!((back.env_name(), names(&back)), ("search", vec!["look".to_owned()]));
        // Elsewhere the tool has no arguments of a row.
        act.tool_calls.truncate(1);
        assert_eq!(worker.step(&search, &act).await.unwrap().tools[0].output, "nothing");

        assert_eq!(worker.reset(&task(3), 0).await.unwrap().max_steps(), 1);
    });
}

#[test]
fn environments_write_their_calls_each_in_its_format() {
    let nano = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let renderer = std::sync::Arc::new(Renderer::load(&nano, Format::Hermes).unwrap());
    let worker = Worker::new(&Bench::new(TWO).load(&[]).unwrap(), Some(renderer.clone())).unwrap();
    run(async {
        let search = worker.reset(&worker.row(Split::Train, 0).unwrap(), 0).await.unwrap();
        let math = worker.reset(&worker.row(Split::Train, 1).unwrap(), 0).await.unwrap();
        assert_eq!(search.renderer().unwrap().format(), Format::Hermes);
        assert_eq!(math.renderer().unwrap().format(), Format::Retool);
        // Made once for all workers.
        let again = Worker::new(&Bench::new(TWO).load(&[]).unwrap(), Some(renderer)).unwrap();
        let other = again.reset(&worker.row(Split::Train, 1).unwrap(), 0).await.unwrap();
        assert!(std::sync::Arc::ptr_eq(math.renderer().unwrap(), other.renderer().unwrap()));
    });
}

#[test]
fn what_rows_name_must_be_there() {
    let worker =
        Bench::new(&TWO.replace("env = \"search\", problem = \"a\"", "env = \"serch\", problem = \"a\"")).worker();
    let error = worker.row(Split::Train, 0).unwrap_err();
    assert_eq!(error.message, "the column `env` is \"serch\", and the recipe has no such environment");
    assert_eq!(error.hint.as_deref(), Some("did you mean `search`?"));
    let worker = Bench::new(&TWO.replace("env = \"search\", problem = \"a\"", "problem = \"a\"")).worker();
    let error = worker.row(Split::Train, 0).unwrap_err();
    assert_eq!(error.message, "the row does not say which of the recipe's environments it is for");
    assert_eq!(error.hint.as_deref(), Some("add the column `env`: one of `math`, `search`"));
    let worker = Bench::new(&TWO.replace("tools = { \"look\" }", "tools = { \"loook\" }")).worker();
    let error = worker.row(Split::Train, 2).unwrap_err();
    assert_eq!(error.message, "the column `tools` names `loook`, which is no tool of the environment");
    let worker = Bench::new(&TWO.replace("'{\"level\": 4}'", "'{\"level\"'")).worker();
    let error = worker.row(Split::Train, 1).unwrap_err();
    assert!(error.message.starts_with("the column `env_kwargs` is not JSON"), "{error}");
}

#[test]
fn recipes_have_one_environment_or_several() {
    let recipe = |fields: &str| refused(&format!("return r1.recipe {{ {fields} }}"));
    assert!(recipe("env = r1.env {}, envs = { a = r1.env {} }").contains("`env` and `envs` are both set"));
    assert!(recipe("envs = {}").contains("`envs` is empty"));
    assert!(recipe("envs = { r1.env {} }").contains("environments of `envs` have names"));
    assert!(recipe("envs = { a = 4 }").contains("`envs.a` must be what r1.env { … } gives"));
    assert!(recipe("envs = { a = r1.env {} }, trainer = r1.grpo {}").contains("`a` has none"));
    let bench = Bench::new(TWO);
    let script = bench.load(&["envs.search.max_steps=7"]).unwrap();
    assert_eq!(script.settings.envs["search"].max_steps, 7);
    assert_eq!(script.settings.envs["math"].max_steps, 1);
    let error = bench.load(&["env.max_steps=7"]).unwrap_err();
    assert_eq!(error.message, "unknown setting `env.max_steps`");
    assert!(error.hint.unwrap().contains("envs."));
}

/// One environment: the columns still choose tools and arguments, and a column `env` is the script's own.
#[test]
fn columns_work_with_a_single_environment() {
    let worker = Bench::new(
        r#"
        local look = r1.tool { name = "look", run = function(_, call) return call.kwargs.n, call.state.n end }
        local ask = r1.tool { name = "ask", run = function() return "asked" end }
        return r1.recipe {
          env = r1.env {
            tools = { look, ask },
            reset = function(task, kwargs) return { n = kwargs.n, messages = { r1.user("x") } } end,
          },
          reward = function() return 0 end,
        }"#,
    )
    .worker();
    run(async {
        let task = json!({
            "env": "mine", "agent_name": "agent_env_loop",
            "env_kwargs": {"env_type": "tool", "n": 3, "tools": ["look"], "tools_kwargs": {"look": {"n": 5}}},
        });
        let state = worker.reset(&task, 0).await.unwrap();
        assert_eq!(state.tools().len(), 1);
        let mut act = action("");
        act.tool_calls = vec![call("look", json!({}))];
        let result = worker.step(&state, &act).await.unwrap();
        assert_eq!((result.tools[0].output.as_str(), result.reward), ("5", 3.0));
        assert_eq!(worker.reset(&json!({}), 0).await.unwrap().tools().len(), 2);
    });
}
