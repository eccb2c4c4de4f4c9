//! Trajectories: reset, observe, step, reward; tools; defaults.

use serde_json::json;

use super::*;
use crate::mdp::{CallKind, Observation, Role, Status};

const DESIGN: &str = include_str!("../../../tests/lua/retool_design.lua");

#[test]
fn the_example_recipe_works_as_written() {
    let bench = Bench::new(DESIGN);
    bench.file("train.jsonl", "{\"problem\": \"6*7?\", \"answer\": \"42\"}\n");
    let script = bench.load(&[]).unwrap();
    let grpo = script.settings.trainer.learner().unwrap();
    assert_eq!((grpo.group_size, grpo.clip, grpo.lr), (8, Some((0.2, 0.28)), 1e-6));
    assert_eq!(script.settings.env.format, "retool");
    let worker = Worker::new(&script, None).unwrap();
    assert_eq!(worker.tools()[0]["function"]["name"], "python");
    let task = worker.row(Split::Train, 0).unwrap();
    run(async {
        let state = worker.reset(&task, 7).await.unwrap();
        let mut act = action("<code>print(6*7)</code>");
        act.tool_calls.push(call("python", json!({"code": "print(6*7)"})));
        let result = worker.step(&state, &act).await.unwrap();
        assert!(!result.done);
        assert_eq!(result.tools.len(), 1);
        let roles: Vec<Role> = worker.messages(&state).iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
        let done = worker.step(&state, &action("<answer>\\boxed{42}</answer>")).await.unwrap();
        assert!(done.done);
        let ended = TrajectoryOutcome { calls: 1, ..outcome("<answer>\\boxed{42}</answer>") };
        let reward = worker.reward(&state, &ended).await.unwrap();
        assert_eq!(reward.total, 1.0);
        assert_eq!(reward.parts, [("calls".to_owned(), 1.0), ("outcome".to_owned(), 1.0)].into());
    });
}

#[test]
fn the_defaults_need_only_tools_a_prompt_and_a_reward() {
    let bench = Bench::new(
        r#"
        local double = r1.tool {
          name = "double", description = "Doubles", parameters = { n = "integer" },
          run = function(args) return args.n * 2, 0.25 end,
        }
        return r1.recipe {
          env = r1.env { tools = { double }, system = "Be brief." },
          reward = function(state, outcome) return r1.math_equal(r1.answer(outcome.text), state.task.answer) and 1 or 0 end,
          trainer = r1.grpo {},
        }
        "#,
    );
    let worker = bench.worker();
    assert_eq!(
        worker.tools()[0]["function"]["parameters"],
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    );
    run(async {
        let state = worker.reset(&json!({"question": "2*3?", "answer": 6}), 1).await.unwrap();
        let Observation::Messages(shown) = worker.observe(&state, 100).await.unwrap() else { panic!() };
        assert_eq!(shown.iter().map(|m| m.content.text()).collect::<Vec<_>>(), ["Be brief.", "2*3?"]);
        let mut act = action("calling");
        act.tool_calls.push(call("double", json!({"n": 3})));
        act.errors.push("Tool call 2 can't be read: not JSON.".to_owned());
        let result = worker.step(&state, &act).await.unwrap();
        assert_eq!((result.done, result.reward), (false, 0.25));
        assert_eq!(result.tools[0].output, "6");
        assert_eq!((result.tools[1].name.as_str(), result.tools[1].ok), ("malformed", false));
        assert_eq!([result.tools[0].kind, result.tools[1].kind], [CallKind::Ran, CallKind::Malformed]);
        let Observation::Messages(shown) = worker.observe(&state, 100).await.unwrap() else { panic!() };
        assert_eq!(shown[3].tool_call_id.as_deref(), Some("c1"));
        assert_eq!(shown[4].content.text(), "Tool call 2 can't be read: not JSON.");
        assert!(worker.step(&state, &action("<answer>6</answer>")).await.unwrap().done);
        assert_eq!(worker.reward(&state, &outcome("<answer>6.0</answer>")).await.unwrap().total, 1.0);
    });
}

#[test]
fn errors_of_tool_calls_are_returned_to_the_policy() {
    let bench = Bench::new(&recipe(
        r#"
        local weather = r1.tool {
          name = "weather", parameters = { city = { type = "string", enum = { "Oslo", "Rome" } }, days = { type = "integer", optional = true } },
          run = function(args) return "sun" end,
        }
        local lost = r1.tool { name = "lost", run = function() return nil, "the sea is empty" end }
        local env = r1.env { tools = { weather, lost } }
        "#,
    ));
    let worker = bench.worker();
    let answers = run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let mut act = action("");
        act.tool_calls = vec![
            call("weather", json!({"city": "Oslo", "days": 2})),
            call("wether", json!({})),
            call("weather", json!({})),
            call("weather", json!({"city": "Paris"})),
            call("weather", json!({"city": "Rome", "days": "two"})),
            call("lost", json!({})),
        ];
        let result = worker.step(&state, &act).await.unwrap();
        let (ran, bad) = (CallKind::Ran, CallKind::BadArguments);
        let kinds: Vec<CallKind> = result.tools.iter().map(|tool| tool.kind).collect();
        assert_eq!(kinds, [ran, CallKind::Unknown, bad, bad, bad, ran]);
        result.tools.iter().map(|tool| format!("{} {}", tool.ok, tool.output)).collect::<Vec<_>>()
    });
    assert_eq!(
        answers,
        [
            "true sun",
            "false Error: no tool `wether`; tools: `weather`, `lost`",
            "false Error: arguments.city is missing",
            "false Error: arguments.city must be one of \"Oslo\", \"Rome\", got \"Paris\"",
            "false Error: arguments.days must be integer, got \"two\"",
            "false the sea is empty",
        ]
    );
}

#[test]
fn a_code_block_calls_the_only_code_tool() {
    let bench = Bench::new(&recipe(r#"local env = r1.env { format = "retool", tools = { r1.tools.rhai {} } }"#));
    let worker = bench.worker();
    let result = run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let mut act = action("<code>print(6 * 7)</code>");
        act.tool_calls.push(call("python", json!({"code": "print(6 * 7)"})));
        worker.step(&state, &act).await.unwrap()
    });
    assert_eq!((result.tools[0].name.as_str(), result.tools[0].output.trim()), ("rhai", "42"));
}

#[test]
fn tools_run_concurrently_and_return_in_order() {
    let bench = Bench::new(&recipe(
        r#"
        local seen = r1.tool { name = "seen", parameters = { n = "integer" }, run = function(args, options)
          return r1.call_tools({ { name = "python", arguments = { code = "import time; time.sleep(3); print(x + " .. args.n .. ")" } } }, options)[1].content
        end }
        local env = r1.env {
          tools = { seen, r1.tools.python {} },
          step = function(state, action)
            local results = r1.call_tools(action.tool_calls, { prelude = "x = 10" })
            state.got = {}
            for _, result in ipairs(results) do r1.push(state.got, result.content) end
            return { reward = 0 }
          end,
        }
        "#,
    ));
    let worker = bench.worker();
    if let Err(error) = worker.prepare() {
        eprintln!("skipped: {error}");
        return;
    }
    run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let mut act = action("");
        act.tool_calls = (1..=2).map(|n| call("seen", json!({"n": n}))).collect();
        let started = std::time::Instant::now();
        worker.step(&state, &act).await.unwrap();
        let got = &state.snapshot().unwrap()["state"]["got"];
        assert_eq!((got[0].as_str().unwrap().trim(), got[1].as_str().unwrap().trim()), ("11", "12"));
        assert!(started.elapsed().as_secs_f64() < 5.9, "one after the other they wait 6 s");
    });
}

#[test]
fn a_session_keeps_names_for_its_trajectory_only() {
    let bench = Bench::new(&recipe(r#"local env = r1.env { tools = { r1.tools.python { session = true } } }"#));
    let worker = bench.worker();
    if let Err(error) = worker.prepare() {
        eprintln!("skipped: {error}");
        return;
    }
    let python = |state: State, code: &'static str| {
        let worker = &worker;
        async move {
            let mut act = action("");
            act.tool_calls.push(call("python", json!({ "code": code })));
            worker.step(&state, &act).await.unwrap().tools[0].output.trim().to_owned()
        }
    };
    run(async {
        let task = json!({"prompt": "?"});
        let one = worker.reset(&task, 1).await.unwrap();
        let two = worker.reset(&task, 1).await.unwrap();
        python(one.clone(), "x = 5").await;
        assert_eq!(python(one.clone(), "print(x)").await, "5");
        assert!(python(two, "print(x)").await.contains("NameError"));
        let snapshot = one.snapshot().unwrap();
        assert_eq!(python(worker.resume(&one, &snapshot).unwrap(), "print(x)").await, "5");
        assert!(python(worker.restore(&snapshot).unwrap(), "print(x)").await.contains("NameError"));
    });
}

#[test]
fn observations_may_be_text_or_ids() {
    let with = |context: &str| {
        Bench::new(&format!(
            "return r1.recipe {{ env = r1.env {{ reset = function() return {{}} end }},\n\
             context = {context}, reward = function() return 0 end }}"
        ))
    };
    let observe = |bench: &Bench| {
        let worker = bench.worker();
        run(async {
            let state = worker.reset(&json!({}), 1).await.unwrap();
            worker.observe(&state, 9).await.map_err(|failure| bench.show(failure))
        })
    };
    assert_eq!(observe(&with("function(s, b) return 'n' .. b.tokens end")), Ok(Observation::Text("n9".to_owned())));
    assert_eq!(observe(&with("function() return { token_ids = { 1, 2 } } end")), Ok(Observation::TokenIds(vec![1, 2])));
    assert_eq!(
        observe(&with("function() return { { role = 'usr', content = 'x' } } end")).unwrap_err(),
        "messages[1].role is the text \"usr\"; did you mean `user`?\n  --> x.lua:2"
    );
    assert_eq!(
        observe(&with("function() return { { role = 'user', contents = 'x' } } end")).unwrap_err(),
        "messages[1] has the unknown field `contents` (did you mean `content`?)\n  --> x.lua:2"
    );
    assert_eq!(
        observe(&with("function() end")).unwrap_err(),
        "context returned nil; context must return messages, text or { token_ids = { … } }\n  --> x.lua:2"
    );
}

/// The result of the reward function `body`.
fn reward(body: &str) -> Result<Reward, String> {
    let bench = Bench::new(&format!(
        "return r1.recipe {{ env = r1.env {{ reset = function() return {{}} end }},\n\
         reward = function(state, outcome) {body} end }}"
    ));
    let worker = bench.worker();
    run(async {
        let state = worker.reset(&json!({}), 1).await.unwrap();
        worker.reward(&state, &outcome("x")).await.map_err(|failure| {
            assert_eq!(failure.status, Status::EnvError);
            bench.show(failure)
        })
    })
}

#[test]
fn rewards_are_numbers_or_named_parts() {
    assert_eq!(reward("return -0.5").unwrap().total, -0.5);
    let parts = reward("return { a = 1, b = { value = 3, weight = 0.5 }, c = { value = 9, weight = 0 } }").unwrap();
    assert_eq!(parts.total, 2.5);
    assert_eq!(parts.parts, [("a".to_owned(), 1.0), ("b".to_owned(), 3.0), ("c".to_owned(), 9.0)].into());
    let total = reward("return { total = 7, a = 1 }").unwrap();
    assert_eq!((total.total, total.parts.len()), (7.0, 1));
}

#[test]
fn an_invalid_reward_has_the_line_of_its_function() {
    let mut text = String::new();
    for body in [
        "",
        "return 0/0",
        "return 'high'",
        "return true",
        "return {}",
        "return { a = 1/0 }",
        "return { correct = outcome.text == 'x' }",
        "return { a = { value = nil, weight = 1 } }",
        "return { a = { value = 1, wieght = 1 } }",
        "return { 1 }",
        "return { ['caf\\xe9'] = true }",
        "return { a = { value = 1, ['\\xe9'] = 1 } }",
        "return outcome.txt.x",
        "error { code = 3 }",
        "r1.user(state.nothing)",
    ] {
        text.push_str(&format!("{body}\n    {}\n", reward(body).unwrap_err().replace('\n', "\n    ")));
    }
    insta::assert_snapshot!(text, @r#"
        reward returned nil; it must return a number or a table of named parts
          --> x.lua:2
    return 0/0
        reward is NaN
          --> x.lua:2
    return 'high'
        reward returned the text "high"; it must return a number or a table of named parts
          --> x.lua:2
    return true
        reward returned true; it must return a number or a table of named parts
          --> x.lua:2
    return {}
        reward returned an empty table; it must return a number or a table of named parts
          --> x.lua:2
    return { a = 1/0 }
        reward part `a` is infinity
          --> x.lua:2
    return { correct = outcome.text == 'x' }
        reward part `correct` is true; it must be a number: write `x and 1 or 0`
          --> x.lua:2
    return { a = { value = nil, weight = 1 } }
        reward part `a` has no value (nil)
          --> x.lua:2
    return { a = { value = 1, wieght = 1 } }
        reward part `a` has the unknown field `wieght` (did you mean `weight`?)
          --> x.lua:2
    return { 1 }
        a field has a name, got the key 1
          --> x.lua:2
    return { ['caf\xe9'] = true }
        reward part `caf�` is true; it must be a number: write `x and 1 or 0`
          --> x.lua:2
    return { a = { value = 1, ['\xe9'] = 1 } }
        reward part `a` has the unknown field `�` (known: `value`, `weight`)
          --> x.lua:2
    return outcome.txt.x
        attempt to index nil with 'x'
          --> x.lua:2
    error { code = 3 }
        {"code":3}
          --> x.lua:2
    r1.user(state.nothing)
        r1.user: the content must be text or a list of parts, got nil
          --> x.lua:2
    "#);
}

#[test]
fn an_error_of_an_environment_has_its_line() {
    let mut text = String::new();
    for (reset, step) in [
        ("return nil", ""),
        ("error('no luck')", ""),
        ("return { messages = { r1.user(task.problem) } }", ""),
        ("return { messages = {} }", "return nil"),
        ("return { messages = {} }", "return { rewrd = 1 }"),
        ("return { messages = {} }", "return { reward = 0/0 }"),
        ("return { messages = {} }", "return { done = 1 }"),
        ("return { messages = {} }", "local x = nil; return x.y"),
        ("return { messages = {} }", "r1.call_tools(5)"),
        (
            "return { messages = {} }",
            "table.sort({ 3, 2, 1 }, function() r1.call_tools { { name = 'rhai', arguments = { code = '1' } } } end)",
        ),
    ] {
        let bench = Bench::new(&recipe(&format!(
            "local env = r1.env {{ tools = {{ r1.tools.rhai() }},\n  reset = function(task) {reset} end,\n  step = function(state, action) {step} end,\n}}"
        )));
        let worker = bench.worker();
        let failure = run(async {
            let state = worker.reset(&json!({"question": "?"}), 1).await?;
            worker.step(&state, &action("x")).await.map(drop)
        })
        .unwrap_err();
        text.push_str(&format!("{reset} | {step}\n    {}\n", bench.show(failure).replace('\n', "\n    ")));
    }
    insta::assert_snapshot!(text, @r#"
    return nil | 
        reset returned nil; it must return the state, a table
          --> x.lua:2
    error('no luck') | 
        no luck
          --> x.lua:2
    return { messages = { r1.user(task.problem) } } | 
        r1.user: the content must be text or a list of parts, got nil
          --> x.lua:2
          hint: the task's columns: `question`
    return { messages = {} } | return nil
        step returned nil; it must return { reward = …, done = … }
          --> x.lua:3
    return { messages = {} } | return { rewrd = 1 }
        step returned the unknown field `rewrd` (did you mean `reward`?)
          --> x.lua:3
    return { messages = {} } | return { reward = 0/0 }
        step: reward is NaN
          --> x.lua:3
    return { messages = {} } | return { done = 1 }
        step: done is the number 1; it must be true or false
          --> x.lua:3
    return { messages = {} } | local x = nil; return x.y
        attempt to index nil with 'y'
          --> x.lua:3
    return { messages = {} } | r1.call_tools(5)
        r1.call_tools: takes a list of calls such as action.tool_calls, got the number 5
          --> x.lua:3
    return { messages = {} } | table.sort({ 3, 2, 1 }, function() r1.call_tools { { name = 'rhai', arguments = { code = '1' } } } end)
        attempt to yield across metamethod/C-call boundary
          --> x.lua:3
          hint: host functions that wait can't be called inside table.sort, string.gsub or a metamethod
          from x.lua:3 in step
    "#);
}

#[test]
fn a_traceback_contains_the_frames_of_the_script() {
    let bench = Bench::new(&recipe(
        "local function inner(x)\n  return x.y.z\nend\nlocal function outer(x)\n  return (inner(x))\nend\n\
         local env = r1.env { reset = function() return { it = (outer({})) } end }",
    ));
    let failure = run(bench.worker().reset(&json!({}), 1)).unwrap_err();
    insta::assert_snapshot!(bench.show(failure), @r#"
    attempt to index nil with 'z'
      --> x.lua:2
      hint: the task's columns: none
      from x.lua:5 in outer
      from x.lua:7 in reset
    "#);
}

#[test]
fn a_traceback_continues_through_host_functions_and_shows_the_line() {
    let bench = Bench::new(&recipe(
        "local function look(where)\n  return where.place.name -- here\nend\n\
         local search = r1.tool { name = 'search', run = function() return (look({})) end }\n\
         local env = r1.env { tools = { search }, step = function(state, action)\n\
         local results = r1.call_tools(action.tool_calls)\n  return { done = #results > 0 }\nend }",
    ));
    let worker = bench.worker();
    let failure = run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let mut act = action("");
        act.tool_calls.push(call("search", json!({})));
        worker.step(&state, &act).await.unwrap_err()
    });
    insta::assert_snapshot!(bench.show(worker.error_record(&failure)), @r#"
    attempt to index nil with 'name'
      --> x.lua:2
         2 |   return where.place.name -- here
      from x.lua:4 in run
      from r1.call_tools, tool `search`
      from x.lua:6 in step
    "#);
}
