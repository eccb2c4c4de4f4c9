//! Environments, tools and arguments by row.

use serde_json::json;

use super::*;
use crate::mdp::Observation;
use crate::text::Renderer;

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
fn rows_select_their_environment_tools_and_arguments() {
    let worker = Bench::new(TWO).worker();
    let task = |index| worker.row(Split::Train, index).unwrap();
    let names = |state: &State| -> Vec<String> {
        state.tools().iter().map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
    };
    run(async {
        let search = worker.reset(&task(0), 0).await.unwrap();
        assert_eq!((search.env.env.name.as_str(), search.max_steps()), ("search", 3));
        assert_eq!(names(&search), ["look", "ask"]);
        assert_eq!(texts(&worker.observe(&search, 100).await.unwrap()), ["Search.", "a"]);
        assert_eq!(worker.reward(&search, &outcome("")).await.unwrap().total, 1.0);

        let math = worker.reset(&task(1), 0).await.unwrap();
        assert_eq!(
            (math.env.env.name.as_str(), math.max_steps(), math.settings().format.as_str()),
            ("math", 1, "retool")
        );
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
        // A kept state has its environment.
        let back = worker.restore(&fewer.snapshot().unwrap()).unwrap();
        assert_eq!((back.env.env.name.as_str(), names(&back)), ("search", vec!["look".to_owned()]));
        // Elsewhere the tool has no arguments of a row.
        act.tool_calls.truncate(1);
        assert_eq!(worker.step(&search, &act).await.unwrap().tools[0].output, "nothing");

        assert_eq!(worker.reset(&task(3), 0).await.unwrap().max_steps(), 1);
    });
}

#[test]
fn each_environment_writes_calls_in_its_own_format() {
    let nano = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let renderer = std::sync::Arc::new(Renderer::load(&nano, "hermes").unwrap());
    let worker = Worker::new(&Bench::new(TWO).load(&[]).unwrap(), Some(renderer.clone())).unwrap();
    run(async {
        let search = worker.reset(&worker.row(Split::Train, 0).unwrap(), 0).await.unwrap();
        let math = worker.reset(&worker.row(Split::Train, 1).unwrap(), 0).await.unwrap();
        assert_eq!(search.renderer().unwrap().format().name(), "hermes");
        assert_eq!(math.renderer().unwrap().format().name(), "retool");
        // Made once for all workers.
        let again = Worker::new(&Bench::new(TWO).load(&[]).unwrap(), Some(renderer)).unwrap();
        let other = again.reset(&worker.row(Split::Train, 1).unwrap(), 0).await.unwrap();
        assert!(std::sync::Arc::ptr_eq(math.renderer().unwrap(), other.renderer().unwrap()));
    });
}

#[test]
fn environments_and_tools_named_by_rows_must_exist() {
    let worker =
        Bench::new(&TWO.replace("env = \"search\", problem = \"a\"", "env = \"serch\", problem = \"a\"")).worker();
    let error = worker.row(Split::Train, 0).unwrap_err();
    assert_eq!(error.message, "the column `env` is \"serch\", and the recipe has no such environment");
    assert_eq!(error.hint.as_deref(), Some("did you mean `search`?"));
    let worker = Bench::new(&TWO.replace("env = \"search\", problem = \"a\"", "problem = \"a\"")).worker();
    let error = worker.row(Split::Train, 0).unwrap_err();
    assert_eq!(error.message, "the row does not name one of the recipe's environments");
    assert_eq!(error.hint.as_deref(), Some("add the column `env`: one of `math`, `search`"));
    let worker = Bench::new(&TWO.replace("tools = { \"look\" }", "tools = { \"loook\" }")).worker();
    let error = worker.row(Split::Train, 2).unwrap_err();
    assert_eq!(error.message, "the column `tools` names `loook`, which is not a tool of the environment");
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
    assert!(recipe("envs = { a = 4 }").contains("`envs.a` must be a result of r1.env { … }"));
    assert!(recipe("envs = { a = r1.env {} }, trainer = r1.grpo {}").contains("`a` has none"));
    let bench = Bench::new(TWO);
    let script = bench.load(&["envs.search.max_steps=7"]).unwrap();
    assert_eq!(script.settings.envs["search"].max_steps, 7);
    assert_eq!(script.settings.envs["math"].max_steps, 1);
    let error = bench.load(&["env.max_steps=7"]).unwrap_err();
    assert_eq!(error.message, "unknown setting `env.max_steps`");
    assert!(error.hint.unwrap().contains("envs."));
}

/// One environment: the columns still choose tools and arguments, and a column `env` is the
/// script's own.
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

#[test]
fn several_datasets_are_one_with_names_and_environments() {
    let bench = Bench::new(
        r#"
        return r1.recipe {
          envs = { search = r1.env {}, math = r1.env {} },
          reward = function() return 0 end,
          data = {
            train = {
              gsm = r1.data.jsonl { path = "gsm.jsonl", weight = 3, env = "math" },
              made = r1.data.generate { count = 2, env = "search", row = function(n) return { problem = "made " .. n } end },
            },
            eval = {
              r1.data.jsonl { path = "gsm.jsonl", env = "math" },
              r1.data.jsonl { path = "gsm.jsonl", name = "again", env = "search" },
            },
          },
        }"#,
    );
    bench.file(
        "gsm.jsonl",
        "{\"problem\": \"a\"}\n{\"problem\": \"b\", \"data_source\": \"mine\", \"env\": \"search\"}\n",
    );
    let worker = bench.worker();
    let parts = worker.parts(Split::Train).unwrap();
    let shown: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.weight, part.rows, part.generated)).collect();
    assert_eq!(shown, [("gsm", Some(3.0), 2, false), ("made", None, 2, true)]);
    assert_eq!(worker.rows(Split::Train).unwrap(), Some(4));
    let row = |index| worker.row(Split::Train, index).unwrap();
    assert_eq!(row(0), json!({"problem": "a", "data_source": "gsm", "env": "math"}));
    // A field of the row takes precedence.
    assert_eq!(row(1), json!({"problem": "b", "data_source": "mine", "env": "search"}));
    assert_eq!(row(3), json!({"problem": "made 2", "data_source": "made", "env": "search"}));
    assert!(worker.place_of_row(Split::Train, 1).ends_with("gsm.jsonl:2"));
    assert_eq!(worker.row(Split::Train, 4).unwrap_err().message, "there is no row 4; data.train has 4");
    let names: Vec<String> = worker.parts(Split::Eval).unwrap().into_iter().map(|part| part.name).collect();
    assert_eq!(names, ["again", "gsm"]);

    let weights = |script: &Script| {
        let Some(crate::config::Source::Mixed(parts)) = &script.settings.data.train else { panic!() };
        parts.values().map(|part| part.weight).collect::<Vec<_>>()
    };
    assert_eq!(weights(&bench.load(&["data.train.made.weight=0.5"]).unwrap()), [Some(3.0), Some(0.5)]);
    let refusal = |setting: &str| bench.load(&[setting]).unwrap_err().message;
    assert_eq!(refusal("data.train.gsm.weight=0"), "`data.train.gsm.weight` is 0");
    let unknown = "`data.train.gsm.env` is \"mth\", and the recipe has no such environment";
    assert_eq!(refusal("data.train.gsm.env=mth"), unknown);
    // The settings are the same when they are read back.
    let settings = bench.load(&[]).unwrap().settings;
    let back: crate::config::Settings = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
    assert_eq!(back, settings);
}

#[test]
fn datasets_need_names_of_their_own() {
    let recipe = |train: &str| refused(&format!("return r1.recipe {{ data = {{ train = {train} }} }}"));
    let twice = recipe("{ r1.data.jsonl 'a.jsonl', r1.data.jsonl 'x/a.jsonl' }");
    assert!(twice.contains("two datasets of `data.train` are called `a`"), "{twice}");
    let misspelt = recipe("{ pth = 'a.jsonl' }");
    assert!(misspelt.contains("unknown field `data.train.pth`"), "{misspelt}");
    let named = Bench::new("return r1.recipe { data = { train = { one = 'a.jsonl', two = { path = 'b.csv' } } } }");
    let Some(crate::config::Source::Mixed(parts)) = named.load(&[]).unwrap().settings.data.train else { panic!() };
    assert_eq!(parts.keys().map(String::as_str).collect::<Vec<_>>(), ["one", "two"]);
}

/// `data.train.hf=…` with any recipe.
#[test]
fn an_override_replaces_the_dataset_of_the_recipe() {
    use crate::config::Source;
    let hf = "data.train.hf=openai/gsm8k";
    for train in [
        "r1.data.generate { count = 3, row = function() return { problem = 'x' } end }",
        "'t.jsonl'",
        "{ path = 't.jsonl', columns = { problem = 'q' } }",
        "{ { problem = 'x' } }",
        "{ a = 'a.jsonl', b = 'b.jsonl' }",
    ] {
        let bench = Bench::new(&format!("return r1.recipe {{ data = {{ train = {train} }} }}"));
        let script = bench.load(&[hf, "data.train.split=test"]).unwrap();
        let Some(Source::Hub(hub)) = &script.settings.data.train else { panic!("{train}") };
        assert_eq!((hub.hf.as_str(), hub.split.as_str()), ("openai/gsm8k", "test"));
        let script = bench.load(&[hf, "data.train.path=other.csv"]).unwrap();
        let Some(Source::File(file)) = &script.settings.data.train else { panic!("{train}") };
        assert_eq!(file.path, "other.csv".into());
    }
    // The order of the arguments has no effect on the fields of the new dataset.
    let bench = Bench::new("return r1.recipe { data = { train = { { problem = 'x' } } } }");
    let script = bench.load(&["data.train.columns.problem=q", "data.train.path=other.csv"]).unwrap();
    let Some(Source::File(file)) = &script.settings.data.train else { panic!() };
    assert_eq!((&file.path, file.columns.get("problem").map(String::as_str)), (&"other.csv".into(), Some("q")));
    // A part of several keeps its name and its weight.
    let bench =
        Bench::new("return r1.recipe { data = { train = { a = { path = 'a.jsonl', weight = 2 }, b = 'b.jsonl' } } }");
    let script = bench.load(&["data.train.a.hf=openai/gsm8k"]).unwrap();
    let Some(Source::Mixed(parts)) = &script.settings.data.train else { panic!() };
    assert!(matches!((&parts["a"].source, parts["a"].weight), (Source::Hub(_), Some(2.0))));
}

#[test]
fn evaluation_has_an_environment_context_and_limits_of_its_own() {
    let bench = Bench::new(
        r#"
        local look = r1.tool { name = "look", run = function() return "seen" end }
        return r1.recipe {
          env = r1.env { tools = { look }, max_steps = 2 },
          reward = function() return 1 end,
          data = { train = { { problem = "a" } }, eval = { { problem = "b" } } },
          eval = {
            env = r1.env { max_steps = 5, system = "Held out." }, temperature = 0.5, top_p = 0.9, max_new_tokens = 7,
            before = false,
            context = function(state) return { state.messages[1], r1.user("again: " .. state.task.problem) } end,
          },
        }"#,
    );
    let script = bench.load(&[]).unwrap();
    let eval = &script.settings.eval;
    assert!(!eval.before && eval.after);
    let sampling = eval.sampling(&script.settings.sampling);
    assert_eq!((sampling.temperature, sampling.top_p, sampling.max_new_tokens), (0.5, 0.9, 7));
    assert_eq!(sampling.top_k, script.settings.sampling.top_k);
    let worker = bench.worker();
    run(async {
        let trained = worker.reset(&worker.row(Split::Train, 0).unwrap(), 0).await.unwrap();
        assert_eq!((trained.tools().len(), trained.max_steps()), (1, 2));
        assert_eq!(texts(&worker.observe(&trained, 100).await.unwrap()), ["a"]);
        let task = worker.row(Split::Eval, 0).unwrap();
        let held = worker.reset_as(Split::Eval, &task, 0, &Record::live()).await.unwrap();
        assert_eq!((held.tools().len(), held.max_steps()), (0, 5));
        assert_eq!(texts(&worker.observe(&held, 100).await.unwrap()), ["Held out.", "again: b"]);
        assert_eq!(worker.reward(&held, &outcome("")).await.unwrap().total, 1.0);
        assert_eq!(worker.restore(&held.snapshot().unwrap()).unwrap().max_steps(), 5);
    });
    let named = Bench::new(&TWO.replace("trainer =", "eval = { env = \"math\" }, trainer ="));
    let worker = named.worker();
    let held = run(worker.reset_as(Split::Eval, &json!({"env": "search", "problem": "x"}), 0, &Record::live()));
    assert_eq!(held.unwrap().env.env.name, "math");
    let unknown = Bench::new(&TWO.replace("trainer =", "eval = { env = \"maths\" }, trainer ="));
    assert!(unknown.refusal().contains("`eval.env` is \"maths\""));
}

#[test]
fn datasets_are_files_folders_lists_and_patterns_compressed_or_not() {
    use std::io::Write;
    let bench = |train: &str| {
        let bench = Bench::new(&format!(
            "return r1.recipe {{ data = {{ train = {train} }}, reward = function() return 0 end }}"
        ));
        let row = |name: &str| format!("{{\"problem\": \"{name}\"}}\n");
        bench.file("d/a.jsonl", &row("a"));
        bench.file("d/b.csv", "problem\nb\n");
        let path = |name: &str| bench.dir.path().join(name);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(format!("{}{}", row("g1"), row("g2")).as_bytes()).unwrap();
        std::fs::write(path("d/g.jsonl.gz"), gzip.finish().unwrap()).unwrap();
        std::fs::write(path("d/z.jsonl.zst"), zstd::encode_all(row("z").as_bytes(), 3).unwrap()).unwrap();
        bench
    };
    let problems = |train: &str| -> Vec<String> {
        let bench = bench(train);
        let worker = bench.worker();
        let count = worker.rows(Split::Train).unwrap().unwrap();
        (0..count)
            .map(|index| worker.row(Split::Train, index).unwrap()["problem"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(problems("'d'"), ["a", "b", "g1", "g2", "z"]);
    assert_eq!(problems("{ 'd/z.jsonl.zst', 'd/a.jsonl' }"), ["z", "a"]);
    assert_eq!(problems("r1.data.jsonl { path = { 'd/a.jsonl', 'd/g.jsonl.gz' } }"), ["a", "g1", "g2"]);
    assert_eq!(problems("'d/*.jsonl.*'"), ["g1", "g2", "z"]);
    let broken = bench("'d/g.jsonl.gz'");
    broken.file("d/g.jsonl.gz", "not gzip");
    let error = broken.worker().row(Split::Train, 0).unwrap_err();
    assert!(error.message.starts_with("the file can't be decompressed"), "{error}");
}

#[test]
fn numbers_of_more_than_64_bits_keep_their_digits() {
    let digits = "12345678901234567890123";
    let row = format!("{{\"answer\": {digits}, \"problem\": \"{digits} {{\"}}");
    for (name, text) in [("t.jsonl", row.clone()), ("t.json", format!("[{row}]"))] {
        let source = format!("return r1.recipe {{ reward = function() return 0 end, data = {{ train = '{name}' }} }}");
        let bench = Bench::new(&source);
        bench.file(name, &text);
        let task = bench.worker().row(Split::Train, 0).unwrap();
        assert_eq!(task["answer"], digits, "{name}");
    }
}

#[test]
fn an_object_with_the_rows_in_a_field_is_refused() {
    let bench = Bench::new("return r1.recipe { reward = function() return 0 end, data = { train = 't.json' } }");
    bench.file("t.json", "{\"version\": 1, \"rows\": [{\"problem\": \"a\"}, {\"problem\": \"b\"}]}");
    let error = bench.worker().row(Split::Train, 0).unwrap_err();
    assert_eq!(error.message, "the file is one object, and not a list of rows: its `rows` is a list of 2");
    assert!(error.hint.unwrap().starts_with("write that list alone: jq -c '.rows[]'"));
    // A conversation is a row.
    bench.file("t.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}");
    assert!(bench.worker().row(Split::Train, 0).is_ok());
}

#[test]
fn large_integers_stay_as_text_in_lua() {
    let bench = Bench::new(
        "return r1.recipe { env = r1.env { reset = function(task) return { id = task.id, small = task.small } end },\n\
         reward = function() return 0 end, data = { train = 't.jsonl' } }",
    );
    bench
        .file("t.jsonl", "{\"id\": 9007199254740993, \"small\": 9007199254740992, \"list\": [-9223372036854775807]}\n");
    let worker = bench.worker();
    let task = worker.row(Split::Train, 0).unwrap();
    assert_eq!(
        (&task["id"], &task["list"]),
        (&json!(9_007_199_254_740_993_u64), &json!([-9_223_372_036_854_775_807_i64]))
    );
    let state = run(worker.reset(&task, 0)).unwrap().snapshot().unwrap()["state"].clone();
    assert_eq!((&state["id"], &state["small"]), (&json!("9007199254740993"), &json!(9_007_199_254_740_992_u64)));
}
