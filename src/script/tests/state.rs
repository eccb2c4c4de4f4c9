//! States: snapshots, forks, randomness.

use serde_json::json;

use super::*;

fn state_of(reset: &str) -> (Bench, Worker, State) {
    let bench = Bench::new(&recipe(&format!("local env = r1.env {{ reset = function(task) {reset} end }}")));
    let worker = bench.worker();
    let state = run(worker.reset(&json!({"list": [], "object": {}, "nothing": null, "big": 12345}), 9)).unwrap();
    (bench, worker, state)
}

#[test]
fn a_snapshot_restores_the_same_state() {
    let (_bench, worker, state) = state_of(
        "return { task = task, n = 0.5, whole = 3, bytes = '\\255\\0', nan = 0/0, inf = 1/0, sparse = { [2] = 'b', [9] = 'i' }, \
         mixed = { 1, 2, x = 3 }, none = r1.json.null, deep = { { { 'x' } } } }",
    );
    let snapshot = state.snapshot().unwrap();
    assert_eq!(snapshot["state"]["task"], json!({"list": [], "object": {}, "big": 12345}));
    let back = worker.restore(&snapshot).unwrap();
    assert_eq!(back.snapshot().unwrap(), snapshot);
    let text = serde_json::to_string(&snapshot).unwrap();
    let through_text = worker.restore(&serde_json::from_str(&text).unwrap()).unwrap();
    assert_eq!(through_text.snapshot().unwrap(), snapshot);
}

/// The host stores nothing in the state.
#[test]
fn a_state_contains_only_values_of_the_script() {
    let bench = Bench::new(&recipe(
        "local t = r1.tool { name = 't', run = function() return 'x' end }\n\
         local env = r1.env { tools = { t }, reset = function() return { messages = {} } end }",
    ));
    let worker = bench.worker();
    let state = run(worker.reset(&Json::Null, 9)).unwrap();
    assert_eq!(state.snapshot().unwrap()["state"], json!({ "messages": {} }));
    let mut act = action("");
    act.tool_calls = vec![call("t", json!({}))];
    run(worker.step(&state, &act)).unwrap();
    let names: Vec<String> =
        state.snapshot().unwrap()["state"].as_object().unwrap().keys().map(String::to_owned).collect();
    assert_eq!(names, ["messages"]);
}

#[test]
fn a_state_that_is_not_plain_data_is_refused_with_its_place() {
    let mut text = String::new();
    for reset in [
        "return { f = { g = print } }",
        "return { board = setmetatable({}, {}) }",
        "local s = {} s.me = s return s",
        "return { tool = r1.tools.rhai() }",
        "return { [{}] = 1 }",
    ] {
        let bench = Bench::new(&recipe(&format!("local env = r1.env {{ reset = function(task) {reset} end }}")));
        let failure = run(bench.worker().reset(&json!({}), 9)).unwrap_err();
        text.push_str(&format!("{}\n", failure.error.message));
    }
    insta::assert_snapshot!(text, @r#"
    state.f.g is a function; plain data holds text, numbers, booleans and tables
    state.board has a metatable; plain data has none
    state.me.me.me.me.me.me.me.me.me.me.me.me.me.me.me.me.me.me.me.me is nested too deeply, or contains itself
    state.tool is a userdata; plain data holds text, numbers, booleans and tables
    state has a table as a key
    "#);
}

#[test]
fn a_fork_of_a_state_is_independent() {
    let (_bench, worker, state) = state_of("return { messages = { r1.user 'x' } }");
    let fork = state.fork().unwrap();
    run(worker.step(&fork, &action("y"))).unwrap();
    assert_eq!((worker.messages(&state).len(), worker.messages(&fork).len()), (1, 2));
    assert_eq!((state.steps(), fork.steps()), (0, 1));
}

#[test]
fn a_fork_of_a_python_session_has_its_state() {
    let bench = Bench::new(&recipe("local env = r1.env { tools = { r1.tools.python { session = true } } }"));
    let worker = bench.worker();
    if let Err(error) = worker.prepare() {
        eprintln!("skipped: {error}");
        return;
    }
    run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let say = async |state: &State, code: &str| {
            let action = Action { tool_calls: vec![call("python", json!({ "code": code }))], ..action("") };
            worker.step(state, &action).await.unwrap().tools[0].output.clone()
        };
        say(&state, "x = [1]").await;
        let fork = state.fork().unwrap();
        let second = fork.fork().unwrap();
        assert_eq!(say(&state, "x.append(2)\nprint(x)").await, "[1, 2]");
        assert_eq!(say(&fork, "x.append(3)\nprint(x)").await, "[1, 3]");
        assert_eq!(say(&fork, "print(x)").await, "[1, 3]", "what is caught up runs once");
        assert_eq!(say(&second, "print(x)").await, "[1]");
        assert_eq!(say(&fork.fork().unwrap(), "print(len(x))").await, "2");
    });
}

#[test]
fn randomness_is_a_function_of_seed_and_step() {
    let source = recipe(
        "local env = r1.env { reset = function() return { a = math.random(), messages = { r1.user 'x' } } end,\n\
         step = function(s) s.a = math.random(1, 1000000) s.b = math.random(1, 1000000) return {} end }",
    );
    let numbers = |seed: u64| {
        let worker = Bench::new(&source).worker();
        run(async {
            let state = worker.reset(&json!({}), seed).await.unwrap();
            let mut all = vec![state.snapshot().unwrap()["state"]["a"].clone()];
            for _ in 0..2 {
                worker.step(&state, &action("")).await.unwrap();
                let snapshot = state.snapshot().unwrap();
                all.extend([snapshot["state"]["a"].clone(), snapshot["state"]["b"].clone()]);
            }
            all
        })
    };
    assert_eq!(numbers(5), numbers(5));
    let (one, other) = (numbers(5), numbers(6));
    assert!(one.iter().zip(&other).all(|(a, b)| a != b), "{one:?} {other:?}");
    assert!(one[1] != one[2] && one[1] != one[3], "{one:?}");
}

#[test]
fn a_replay_from_a_snapshot_draws_the_same_numbers() {
    let source = recipe(
        "local env = r1.env { reset = function() return { messages = { r1.user 'x' } } end,\n\
         step = function(s) s.a = math.random() return {} end }",
    );
    let worker = Bench::new(&source).worker();
    run(async {
        let state = worker.reset(&json!({}), 3).await.unwrap();
        worker.step(&state, &action("")).await.unwrap();
        let snapshot = state.snapshot().unwrap();
        worker.step(&state, &action("")).await.unwrap();
        let again = Bench::new(&source).worker();
        let replayed = again.restore(&snapshot).unwrap();
        again.step(&replayed, &action("")).await.unwrap();
        assert_eq!(replayed.snapshot().unwrap(), state.snapshot().unwrap());
    });
}
