//! The contract of all tools: time limit, retries, cache, concurrency, rewards, truncated results,
//! failures that the policy reads, replay. Tools of servers have their own files (mcp, passages).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::*;
use crate::mdp::{Split, ToolRecord};
use crate::text::Renderer;

/// A tool with arguments that succeed, fail, never end, and give a long result.
struct Case {
    name: &'static str,
    /// `LIMITS` is replaced by fields of the declaration.
    declaration: &'static str,
    good: Json,
    bad: Json,
    endless: Json,
    long: Json,
}

fn cases() -> Vec<Case> {
    let code = |text: &str| json!({ "code": text });
    let sql = |text: &str| json!({ "sql": text });
    vec![
        Case {
            name: "lua",
            declaration: "r1.tool { name = 'lua', parameters = { n = 'integer' }, LIMITS run = function(a)\n  \
                 if a.n == 0 then return nil, 'no such number' end\n  if a.n == 1 then r1.sleep(60) end\n  \
                 return string.rep('word ', a.n)\nend }",
            good: json!({ "n": 2 }),
            bad: json!({ "n": 0 }),
            endless: json!({ "n": 1 }),
            long: json!({ "n": 2000 }),
        },
        Case {
            name: "python",
            declaration: "r1.tools.python { LIMITS }",
            good: code("print(1 + 1)"),
            bad: code("1 / 0"),
            endless: code("while True: pass"),
            long: code("print('word ' * 1000)"),
        },
        Case {
            name: "rhai",
            declaration: "r1.tools.rhai { operations = 1000000000, LIMITS }",
            good: code("1 + 1"),
            bad: code("1 / 0"),
            endless: code("loop {}"),
            long: code("let s = \"\"; for n in 0..1000 { s += \"word \" } s"),
        },
        Case {
            name: "sql",
            declaration: "r1.tools.table { tables = { t = { data = { { a = 1 }, { a = 2 } } } }, max_cell = 100000, LIMITS }",
            good: sql("SELECT sum(a) FROM t"),
            bad: sql("SELECT b FROM t"),
            endless: sql("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"),
            long: sql("SELECT replace(hex(zeroblob(1000)), '00', 'word ')"),
        },
    ]
}

/// The records of calls in one step.
fn called(case: &Case, limits: &str, calls: &[&Json], record: &Record) -> Vec<ToolRecord> {
    stepped(case, limits, &[calls], record)
}

/// The records of calls in several steps.
fn stepped(case: &Case, limits: &str, steps: &[&[&Json]], record: &Record) -> Vec<ToolRecord> {
    let env = format!("local env = r1.env {{ tools = {{ {} }} }}", case.declaration.replace("LIMITS", limits));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "hermes").unwrap());
    let worker = Worker::new(&Bench::new(&recipe(&env)).load(&[]).unwrap(), Some(renderer)).unwrap();
    let state = run(worker.reset_as(Split::Train, &json!({ "prompt": "?" }), 1, record)).unwrap();
    let mut tools = Vec::new();
    for calls in steps {
        let mut act = action("");
        act.tool_calls = calls.iter().map(|arguments| call(case.name, (*arguments).clone())).collect();
        tools.extend(run(worker.step(&state, &act)).unwrap().tools);
    }
    tools
}

#[test]
fn every_tool_has_a_time_limit_with_retries_and_a_failure_that_the_policy_reads() {
    for case in cases() {
        let limits = "timeout = 0.5, retries = { times = 1, backoff = '1ms' },";
        let tools = called(&case, limits, &[&case.endless, &case.bad], &Record::live());
        assert!(!tools[0].ok && tools[0].retries == 1, "{}: {:?}", case.name, tools[0]);
        assert!(tools[0].output.contains("0.5 s"), "{}: {}", case.name, tools[0].output);
        // A failure that would repeat is not retried.
        assert!(!tools[1].ok && tools[1].retries == 0 && !tools[1].output.is_empty(), "{}: {:?}", case.name, tools[1]);
    }
}

#[test]
fn every_tool_has_a_cache_rewards_and_truncated_results() {
    for case in cases() {
        let limits = "cache = 'trajectory', rewards = { ok = 0.5, failed = -0.25 }, max_result_tokens = 50,";
        let record = Record::live();
        let tools = called(&case, limits, &[&case.good, &case.bad, &case.long], &record);
        let rewards: Vec<f64> = tools.iter().map(|tool| tool.reward).collect();
        assert_eq!(rewards, [0.5, -0.25, 0.5], "{}: {tools:?}", case.name);
        let long = &tools[2].output;
        assert!(long.contains("word") && long.contains("more") && long.len() < 1000, "{}: {long}", case.name);
        // A replay takes every result from the record.
        let replay = Record::replay(record.take(), Strictness::Exact);
        let again = called(&case, limits, &[&case.good, &case.bad, &case.long], &replay);
        let texts = |tools: &[ToolRecord]| tools.iter().map(|tool| tool.output.clone()).collect::<Vec<_>>();
        assert_eq!((texts(&again), replay.close()), (texts(&tools), None), "{}", case.name);

        let steps: [&[&Json]; 2] = [&[&case.good], &[&case.good]];
        let twice = stepped(&case, "cache = 'run',", &steps, &Record::live());
        assert_eq!(twice[0].output, twice[1].output, "{}", case.name);
        assert!(!twice[0].cached && twice[1].cached, "{}: {twice:?}", case.name);
    }
}

#[test]
fn calls_of_every_tool_wait_for_its_limit_of_concurrency() {
    for case in cases() {
        let started = Instant::now();
        let calls = [&case.endless, &case.endless];
        called(&case, "timeout = 0.4, concurrency = 1,", &calls, &Record::live());
        assert!(started.elapsed() >= Duration::from_millis(800), "{}", case.name);
    }
    let refused = refused("r1.tools.python { session = true, retries = 1 }");
    assert!(refused.starts_with("r1.tools.python: `retries` needs independent programs"), "{refused}");
}
