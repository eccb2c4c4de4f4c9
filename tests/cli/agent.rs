//! A run as an agent: `r1 infer`, `eval`, `repl`, `mcp`, `replay` and `rescore` with what a run
//! trained.

use std::path::Path;

use r1::store::read_trajectories;
use serde_json::{Value, json};

use super::infer::{delta, finish, infer, serving, streamed};
use super::repl::type_in;
use super::{directory, fail, printed, r1, ran, shown, succeed};

/// A recipe with a parameter, a module and a tool.
const RECIPE: &str = r#"
    local lib = require("./lib")
    local params = r1.params { instruct = false, bonus = 0 }
    local double = r1.tool {
      name = "double", description = "Doubles a number", parameters = { n = "integer" },
      run = function(args) return args.n * 2 end,
    }
    return r1.recipe {
      env = r1.env { tools = { double }, format = "hermes", system = params.instruct and lib.long or "Short.", max_steps = 2 },
      reward = function(state, outcome) return #outcome.text % 2 + params.bonus end,
      policy = { model = "r1-nano" },
      data = { train = { { problem = "one", answer = "1" } }, eval = { { problem = "two", answer = "2" } } },
      sampling = { max_new_tokens = 4 },
      trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 1, lr = 1e-4 },
      eval = { before = false, after = false },
    }"#;
const LIB: &str = r#"return { long = "Use the tool double." }"#;
/// Without the parameter.
const OTHER: &str = r#"
    return r1.recipe {
      env = r1.env { system = "Another." },
      reward = function() return 0 end,
      data = { train = { { problem = "one" } } },
      trainer = r1.grpo {},
    }"#;

#[test]
fn names_that_are_not_found_have_the_nearest() {
    let config = r#"{"script": {}}"#;
    let dir = directory(&[("game.lua", OTHER)], false);
    std::fs::create_dir_all(dir.path().join("runs/sokoban")).unwrap();
    std::fs::write(dir.path().join("runs/sokoban/config.json"), config).unwrap();
    std::fs::write(dir.path().join("runs/sokoban/recipe.lua"), OTHER).unwrap();
    for (args, message, hint) in [
        (&["eval", "gam"][..], "there is no script or run `gam`", "did you mean `game.lua`"),
        (&["repl", "sokobn"], "there is no script or run `sokobn`", "did you mean `sokoban`"),
        (&["mcp", "sokobn"], "there is no script or run `sokobn`", "did you mean `sokoban`"),
        (&["lua", "gam.lua"], "can't read the script", "did you mean `game.lua`"),
        (&["test", "gam.lua"], "can't read the script", "did you mean `game.lua`"),
        (&["run", "game.lua", "--resume", "sokobn"], "there is no run `sokobn`", "did you mean `sokoban`"),
        (&["infer", "--model", "sokobn", "-p", "a"], "there is no model `sokobn`", "did you mean `runs/sokoban`?"),
    ] {
        let text = fail(dir.path(), args);
        assert!(text.contains(message) && text.contains(hint), "{args:?}: {text}");
    }
}

#[test]
fn arguments_are_checked_before_a_run_begins() {
    let dir = directory(&[("game.lua", OTHER), ("file", "precious")], false);
    for (args, message) in [
        (&["run", "game.lua", "--seed", "1", "seed=2"][..], "--seed 1 and seed=2 differ, and stand for the same"),
        (&["run", "game.lua", "--name", "a", "name=b"], "--name a and name=b differ, and stand for the same"),
        (&["eval", "game.lua", "--seed", "1", "seed=2"], "--seed 1 and seed=2 differ, and stand for the same"),
        (&["check", "game.lua", "--model", "a", "policy.model=b"], "--model a and policy.model=b differ"),
        (
            &["infer", "--script", "game.lua", "-p", "a", "--temperature", "0", "sampling.temperature=1"],
            "--temperature 0 and sam",
        ),
        (&["run", "game.lua", "--out", "file"], "this is a file; a directory is written"),
        (&["sft", "game.lua", "--out", "file/model"], "this is a file; a directory is written"),
    ] {
        let text = fail(dir.path(), args);
        assert!(text.contains(message), "{args:?}: {text}");
    }
    assert!(!dir.path().join("runs").exists());
}

/// What `r1 infer` sends to a server: the system prompt and the names of the tools.
fn asked(dir: &Path, args: &[&str]) -> (String, Vec<String>) {
    let server = serving(|_, _| streamed(&[delta(&json!({ "content": "Yes." })), finish("stop")]));
    let output = infer(dir, &server, &[&["-p", "Hello?"], args].concat());
    assert!(output.status.success(), "{}", shown(dir, &output));
    let body: Value = serde_json::from_slice(&server.requests()[0].body).unwrap();
    let tools = body["tools"].as_array().into_iter().flatten();
    let names = tools.filter_map(|tool| tool["function"]["name"].as_str()).map(str::to_owned).collect();
    (body["messages"][0]["content"].as_str().unwrap_or_default().to_owned(), names)
}

#[test]
fn a_run_is_the_agent_that_was_trained() {
    let dir = directory(&[("a.lua", RECIPE), ("lib.lua", LIB), ("other.lua", OTHER)], false);
    let at = dir.path();
    let text = succeed(at, &["run", "a.lua", "params.instruct=true", "--threads", "1"]);
    assert!(text.contains("r1 infer --model runs/a/checkpoints/step-000001\n"), "{text}");
    // The run is moved, its script changed and its module gone.
    std::fs::rename(at.join("runs/a"), at.join("moved")).unwrap();
    std::fs::remove_file(at.join("lib.lua")).unwrap();
    std::fs::write(at.join("a.lua"), OTHER).unwrap();

    let told = "agent of moved: a.lua (version ";
    for model in ["moved", "moved/checkpoints/step-000001", "moved/checkpoints/latest"] {
        let text = ran(at, &["infer", "--model", model, "-p", "Hello?", "--max-new-tokens", "4"]);
        assert!(text.contains(told) && text.contains(") with params.instruct=true"), "{text}");
    }
    let long = ("Use the tool double.".to_owned(), vec!["double".to_owned()]);
    assert_eq!(asked(at, &["--script", "moved"]), long);
    let short = asked(at, &["--script", "moved", "params.instruct=false"]);
    assert_eq!(short, ("Short.".to_owned(), vec!["double".to_owned()]));
    // By name, in the directory of runs.
    std::fs::create_dir_all(at.join("elsewhere")).unwrap();
    std::fs::rename(at.join("moved"), at.join("elsewhere/b")).unwrap();
    assert_eq!(asked(at, &["--script", "b", "--runs-dir", "elsewhere"]), long);
    std::fs::rename(at.join("elsewhere/b"), at.join("moved")).unwrap();

    // A script that is named with the run gets the run's settings that it knows.
    let args = ["infer", "--model", "moved", "--script", "other.lua", "-p", "Hi", "--max-new-tokens", "4"];
    let text = printed(at, &args);
    assert!(text.contains("agent of moved: other.lua"), "{text}");
    assert!(text.contains("settings of the run that other.lua does not know: params.instruct=true"), "{text}");
    // Settings of the command line are checked.
    let refused = fail(at, &["infer", "--model", "moved", "-p", "Hi", "params.instrukt=true"]);
    assert!(refused.contains("unknown setting `params.instrukt`") && refused.contains("params.instruct"), "{refused}");
    let refused = fail(at, &["infer", "--model", "moved", "--plain", "-p", "Hi", "params.instruct=true"]);
    assert!(refused.contains("there is no recipe that has the setting"), "{refused}");
    let refused = fail(at, &["infer", "--model", "r1-nano", "Hello?"]);
    assert!(refused.contains("a question is given by -p TEXT"), "{refused}");

    let output = r1(at, &["mcp", "moved"]).output().unwrap();
    assert!(shown(at, &output).contains(told), "{}", shown(at, &output));

    // Evaluations: as trained, or with a warning.
    succeed(at, &["eval", "moved", "-q", "--name", "mine"]);
    let stored = read_trajectories(&at.join("runs/mine/evaluations/step-000000.parquet")).unwrap();
    assert_eq!(stored[0].messages[0].content.text(), long.0);
    succeed(at, &["replay", "runs/mine", "eval", "-q"]);
    std::fs::write(at.join("a.lua"), RECIPE.replace("require(\"./lib\")", LIB.strip_prefix("return ").unwrap()))
        .unwrap();
    let text = printed(at, &["eval", "a.lua", "policy.model=moved", "-q"]);
    assert!(
        text.contains("moved was trained with other settings") && text.contains("params.instruct true -> false"),
        "{text}"
    );

    // Replays under other settings.
    let text = succeed(at, &["replay", "moved", "-q"]);
    assert!(text.starts_with("2 trajectories: every observation"), "{text}");
    let output = r1(at, &["replay", "moved", "params.bonus=1", "-q"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", shown(at, &output));
    let text = succeed(at, &["rescore", "moved", "params.bonus=1", "-q"]);
    assert!(text.starts_with("moved, step 1: 2 trajectories under params.bonus=1"), "{text}");
}

#[test]
fn the_repl_opens_a_run() {
    let dir = directory(&[("a.lua", RECIPE), ("lib.lua", LIB)], false);
    let at = dir.path();
    succeed(at, &["run", "a.lua", "params.instruct=true", "-q"]);
    for args in [&["a"][..], &["runs/a"], &["--model", "runs/a"], &["a.lua", "--model", "runs/a"]] {
        let text = type_in(at, args, ":obs\n");
        assert!(text.contains("Use the tool double.") && text.starts_with("exit: 0"), "{args:?}: {text}");
    }
    // The recorded trajectory under the file, with the settings of the run.
    let text = type_in(at, &["a.lua", "--replay", "a:1-0-0"], ":obs\n:save saved_test.lua\n");
    assert!(text.contains("Use the tool double.") && !text.contains("not the recorded one"), "{text}");
    let saved = std::fs::read_to_string(at.join("saved_test.lua")).unwrap();
    assert!(saved.contains("[\"params.instruct\"] = true"), "{saved}");
    succeed(at, &["test", "saved_test.lua"]);
}

#[cfg(unix)]
#[test]
fn recipes_of_every_kind_are_agents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = "{\"id\": 1, \"title\": \"Rome\", \"text\": \"Rome is in Italy.\"}\n{\"id\": 2, \"title\": \"Bern\", \"text\": \"Bern is in Switzerland.\"}\n";
    let dir = directory(&[("pages.jsonl", pages)], false);
    let at = dir.path();
    std::os::unix::fs::symlink(root.join("scripts"), at.join("scripts")).unwrap();
    let small = [
        "-q",
        "--threads=1",
        "trainer.steps=1",
        "trainer.groups_per_step=1",
        "trainer.group_size=2",
        "sampling.max_new_tokens=4",
        "eval.before=false",
        "eval.after=false",
    ];
    let train = |script: &str, more: &[&str]| {
        let cold = std::fs::read_to_string(at.join(script)).unwrap().contains("cold_start =");
        let cold: &[&str] = if cold { &["cold_start=false"] } else { &[] };
        succeed(at, &[&["run", script], &small[..], cold, more].concat());
    };
    let ask = |run: &str, more: &[&str]| {
        let question = ["infer", "--model", run, "-p", "How many?", "--max-new-tokens", "4", "--json"];
        let text = ran(at, &[&question[..], more].concat());
        assert!(text.contains(&format!("agent of {run}: scripts/")), "{text}");
        text
    };
    train("scripts/retool.lua", &["params.instruct=true"]);
    assert!(ask("runs/retool", &[]).contains("with params.instruct=true"));
    for name in ["flow", "frozen_lake", "mcp"] {
        train(&format!("scripts/{name}.lua"), &[]);
        ask(&format!("runs/{name}"), &[]);
    }
    // The settings of scripts/speedrun.sh.
    succeed(at, &["index", "build", "pages.jsonl", "--out", "index", "-q"]);
    let index = format!("params.index={}", at.join("index").display());
    let system =
        "env.system=Think in <think></think> first, then search or give the answer alone in <answer></answer>.";
    train(
        "scripts/search_qa.lua",
        &[&index, "params.passages=2", "env.format=auto", "env.max_result_tokens=64", system],
    );
    let (prompt, tools) = asked(at, &["--script", "runs/search_qa"]);
    assert!(prompt.starts_with("Think in <think>") && tools == ["search"], "{prompt} {tools:?}");
    let text = ask("runs/search_qa", &["params.passages=1"]);
    assert!(text.contains("env.format=auto") && text.contains("params.passages=1"), "{text}");
}

/// The model that a run started from does not stand in for one that it trained.
#[test]
fn a_run_without_a_model_is_not_evaluated() {
    let dir = directory(&[("a.lua", RECIPE), ("lib.lua", LIB)], false);
    let at = dir.path();
    succeed(at, &["run", "a.lua", "-q", "--threads", "1"]);
    let refused = fail(at, &["infer", "--model", "runs/a/best", "-p", "Hello?"]);
    assert!(
        refused.contains("the run runs/a has no model `runs/a/best`")
            && refused.contains("it has `runs/a/checkpoints/step-000001`"),
        "{refused}"
    );
    std::fs::rename(at.join("runs/a/checkpoints/step-000001"), at.join("model")).unwrap();
    for args in [["eval", "runs/a", "-q"].as_slice(), &["infer", "--script", "runs/a", "-p", "Hello?"]] {
        let refused = fail(at, args);
        assert!(
            refused.contains("the run has no checkpoint yet") && refused.contains("policy.model=MODEL"),
            "{refused}"
        );
    }
    succeed(at, &["eval", "runs/a", "-q", "policy.model=r1-nano", "--name", "first"]);
    // An evaluation has the model that it evaluated.
    succeed(at, &["eval", "runs/first", "-q"]);
}

/// `eval.accuracy` that names no part of the reward is not silently the sign of the reward.
#[test]
fn a_misspelt_accuracy_is_reported() {
    let recipe = RECIPE.replace("return #outcome.text % 2 + params.bonus", "return { total = 1, exact = 0 }");
    let recipe = recipe.replace("eval = { before", "eval = { accuracy = 'exakt', before");
    let dir = directory(&[("a.lua", &recipe), ("lib.lua", LIB)], false);
    let told = "eval.accuracy is `exakt`, and no reward has such a part: a task counts as solved if its reward is above 0; \
                did you mean `exact`?";
    for args in
        [["eval", "a.lua"].as_slice(), &["check", "a.lua"], &["run", "a.lua", "eval.after=true", "--threads", "1"]]
    {
        let text = printed(dir.path(), args);
        assert_eq!(text.matches(told).count(), 1, "{args:?}: {text}");
    }
    let output = r1(dir.path(), &["eval", "a.lua", "eval.accuracy=exact"]).output().unwrap();
    assert!(!shown(dir.path(), &output).contains("no reward has such a part"));
}
