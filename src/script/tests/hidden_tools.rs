//! Tools of the script (`hidden`): the policy neither sees nor calls them, and their calls are not
//! the policy's. Files of the Python tool that can't be given to a program.

use serde_json::json;

use super::*;
use crate::mdp::CallKind;

const GRADED: &str = r#"
local rewards = require("@r1/rewards")
local look = r1.tool { name = "look", description = "Looks", parameters = {}, run = function() return "seen" end }
local function double(arguments) return tostring(arguments.n * 2), 5 end
local count = r1.tool { name = "count", description = "Counts", parameters = { n = "number" }, run = double, hidden = true }
return r1.recipe {
  env = r1.env {
    tools = { look, r1.tools.python { hidden = true }, count }, max_calls = 1, call_rewards = { ok = 1, failed = -1 },
    step = function(state, action)
      state.calls = r1.call_tools(action.tool_calls)
      state.share, state.outcomes = rewards.pass_rate("def f(x): return x", {
        { expression = "f(1)", equals = 1 }, { expression = "f(1)", equals = 2 }, { input = "", output = "" },
      })
      state.broken = select(2, rewards.pass_rate("1 / 0", { { expression = "1", equals = 1 } }))
      state.own = r1.call_tools({ { name = "count", arguments = { n = 4 } } }, { hidden = true })
      return { reward = 0 }
    end,
  },
  reward = function() return 0 end,
}
"#;

#[test]
fn the_policy_neither_sees_nor_calls_hidden_tools() {
    let bench = Bench::new(GRADED);
    let worker = bench.worker();
    assert_eq!(worker.tools().len(), 1);
    run(async {
        let state = worker.reset(&json!({ "problem": "?" }), 0).await.map_err(|failure| bench.show(failure)).unwrap();
        assert_eq!(state.tools().len(), 1);
        assert_eq!(state.tools()[0]["function"]["name"], "look");
        let mut act = action("");
        act.tool_calls = vec![call("python", json!({ "code": "1" }))];
        let result = worker.step(&state, &act).await.map_err(|failure| bench.show(failure)).unwrap();
        let seen = state.snapshot().unwrap()["state"].clone();
        assert_eq!(seen["calls"][0]["content"], "Error: no tool `python`; tools: `look`");
        // The calls of the grader: not limited, without process rewards, told apart.
        assert_eq!((&seen["share"], &seen["own"][0]["content"]), (&json!(2.0 / 3.0), &json!("8")));
        assert_eq!(seen["own"][0]["reward"], 0);
        let error = seen["broken"][0]["output"].as_str().unwrap();
        assert!(error.starts_with("ZeroDivisionError"), "{error}");
        let hidden: Vec<(&str, bool)> = result.tools.iter().map(|tool| (tool.name.as_str(), tool.hidden)).collect();
        assert_eq!(
            hidden,
            [
                ("python", false),
                ("python", true),
                ("python", true),
                ("python", true),
                ("python", true),
                ("count", true)
            ]
        );
        assert_eq!((result.tools[0].kind, result.reward), (CallKind::Unknown, 0.0));
        // A code block of the policy is not for a hidden interpreter.
        act.tool_calls = vec![call("anything", json!({ "code": "print(1)" }))];
        let result = worker.step(&state, &act).await.map_err(|failure| bench.show(failure)).unwrap();
        assert_eq!(result.tools[0].kind, CallKind::Unknown);
    });
}

#[test]
fn rows_select_among_the_tools_that_are_shown() {
    let bench = Bench::new(GRADED);
    let worker = bench.worker();
    run(async {
        let state = worker.reset(&json!({ "problem": "?", "tools": [] }), 0).await.map_err(|_| ()).unwrap();
        assert_eq!(state.tools().len(), 0);
        let mut act = action("");
        act.tool_calls = vec![call("look", json!({}))];
        let result = worker.step(&state, &act).await.map_err(|failure| bench.show(failure)).unwrap();
        assert_eq!(result.tools[0].kind, CallKind::Unknown);
        let named = json!({ "problem": "?", "tools": ["count"] });
        let error = bench.show(worker.reset(&named, 0).await.map(drop).unwrap_err());
        assert!(error.contains("the column `tools` names `count`"), "{error}");
    });
}

#[test]
fn files_that_no_program_can_get_are_refused_when_the_script_is_loaded() {
    for (files, why) in [
        ("['a/'] = { text = '' }", "\"a/\" can't be the name of a file"),
        ("a = { text = '' }, ['a/b'] = { text = '' }", "`a` is a file, and a directory of another file"),
        ("big = 'big.bin'", "raise it, the program's own files need room too"),
        ("big = { path = 'big.bin', max_size = '1GiB' }", "`disk` of the tool is 4 MiB"),
        (
            "a = { text = string.rep('x', 3 * 2^20) }, b = { text = string.rep('x', 3 * 2^20) }",
            "`files` have 6 MiB and `disk` is 4 MiB",
        ),
    ] {
        let bench = Bench::new(&format!("local p = r1.tools.python {{ disk = '4MiB', files = {{ {files} }} }}"));
        std::fs::File::create(bench.dir.path().join("big.bin")).unwrap().set_len(5 << 30).unwrap();
        let error = bench.refusal();
        assert!(error.contains(why) && error.contains("x.lua:1"), "{files}: {error}");
    }
    let many = "local files = {}\nfor i = 1, 3000 do files['f' .. i] = { text = '' } end\nlocal p = r1.tools.python { files = files }";
    let error = refused(many);
    assert!(error.contains("3000 files and directories are more than 2048"), "{error}");
}
