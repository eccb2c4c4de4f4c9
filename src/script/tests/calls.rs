//! Calls of tools: their limits, their process rewards, and the length of their results.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::mdp::{Split, Status};
use crate::text::Renderer;

/// The result of a step with these calls, with the fields of `env` and overrides of settings.
fn stepped(env: &str, overrides: &[&str], calls: Vec<ToolCall>, errors: usize) -> Result<StepResult, String> {
    let bench = Bench::new(&recipe(env));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "hermes").unwrap());
    let worker = Worker::new(&bench.load(overrides).unwrap(), Some(renderer)).unwrap();
    run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let mut act = action("");
        act.tool_calls = calls;
        act.errors = (0..errors).map(|number| format!("call {number} can't be read")).collect();
        worker.step(&state, &act).await.map_err(|failure| format!("{}: {}", failure.status.name(), bench.show(failure)))
    })
}

fn rewards(result: &StepResult) -> Vec<f64> {
    result.tools.iter().map(|tool| tool.reward).collect()
}

const TOOLS: &str = r#"
local search = r1.tool { name = "search", parameters = { q = "string" }, rewards = { refused = -0.5 }, run = function(x)
  if x.q == "none" then return nil, "nothing found", -0.05 end
  if x.q == "bad" then return nil, "broken" end
  if x.q == "good" then return "found", 0.25 end
  return "found"
end }
local env = r1.env { tools = { search, r1.tools.rhai { rewards = { ok = 0.75 } } }, ENV }
"#;

fn tools(env: &str) -> String {
    TOOLS.replace("ENV", env)
}

#[test]
fn failed_refused_and_malformed_calls_have_process_rewards() {
    let calls = || {
        vec![
            call("search", json!({"q": "none"})),
            call("search", json!({"q": "bad"})),
            call("search", json!({"q": "good"})),
            call("search", json!({"q": "fine"})),
            call("search", json!({})),
            call("serch", json!({})),
            call("rhai", json!({"code": "1 + 1"})),
            call("rhai", json!({"code": "1 +"})),
        ]
    };
    let default_rewards = stepped(&tools(""), &[], calls(), 1).unwrap();
    assert_eq!(rewards(&default_rewards), [-0.05, 0.0, 0.25, 0.0, -0.5, 0.0, 0.75, 0.0, 0.0]);
    assert_eq!(default_rewards.reward, -0.05 + 0.25 - 0.5 + 0.75);
    let env = "call_rewards = { ok = 0.1, failed = -0.2, refused = -0.3, malformed = -0.4 }";
    let with_rewards = stepped(&tools(env), &[], calls(), 1).unwrap();
    // A number from `run` takes precedence over the tool's `rewards`, and these over the env's.
    assert_eq!(rewards(&with_rewards), [-0.05, -0.2, 0.25, 0.1, -0.5, -0.3, 0.75, -0.2, -0.4]);
    let typed = stepped(&tools(env), &["env.call_rewards.malformed=-1"], calls(), 1).unwrap();
    assert_eq!(rewards(&typed)[8], -1.0);
    let wrong = stepped(&tools("").replace("-0.05", "0/0"), &[], calls(), 0).unwrap_err();
    assert!(wrong.starts_with("env_error: tool `search` returned the reward NaN\n  --> x.lua:2"), "{wrong}");
    let wrong = refused(&recipe(&tools("call_rewards = { bad = 1 }")));
    assert!(wrong.contains("unknown field `env.call_rewards.bad`"), "{wrong}");
    let wrong = refused(&recipe(&tools("").replace("refused = -0.5", "refused = '-0.5'")));
    assert!(wrong.contains("`rewards.refused` must be a number"), "{wrong}");
}

#[test]
fn calls_of_a_reply_have_a_limit() {
    let calls = || (0..3).map(|_| call("search", json!({"q": "fine"}))).collect::<Vec<_>>();
    let outputs = |settings: &[&str]| {
        let result = stepped(&tools(""), settings, calls(), 1).unwrap();
        result.tools.iter().map(|tool| format!("{} {}", tool.ok, tool.output)).collect::<Vec<_>>()
    };
    assert_eq!(outputs(&[]), ["true found", "true found", "true found", "false call 0 can't be read"]);
    assert_eq!(
        outputs(&["env.max_calls=1"]),
        [
            "true found",
            "false Error: a reply may have 1 call: this one was not run",
            "false Error: a reply may have 1 call: this one was not run",
            "false call 0 can't be read"
        ]
    );
    let all = outputs(&["env.max_calls=2", "env.excess_calls=refuse_all"]);
    assert_eq!(all[..3], ["false Error: a reply may have 2 calls, this one has 3: none was run"; 3]);
    assert_eq!(outputs(&["env.max_calls=3", "env.excess_calls=refuse_all"])[..3], ["true found"; 3]);
    // The calls beyond the limit get no answer and are not recorded; those that can't be read still
    // do.
    let answered = outputs(&["env.max_calls=1", "env.excess_calls=ignore"]);
    assert_eq!(answered, ["true found", "false call 0 can't be read"]);
    let rewards = rewards(&stepped(&tools(""), &["env.max_calls=2"], calls(), 0).unwrap());
    assert_eq!(rewards, [0.0, 0.0, -0.5]);
    // All lists of a step count as one reply; calls of `reset` and of tools do not count.
    let env = r#"
        local inner = r1.tool { name = "inner", run = function() return "in" end }
        local outer = r1.tool { name = "outer", run = function()
          return r1.call_tools({ { name = "inner" }, { name = "inner" } })[2].content
        end }
        local env = r1.env { tools = { inner, outer }, max_calls = 1,
          reset = function() return { messages = {}, n = #r1.call_tools { { name = "inner" }, { name = "inner" } } } end,
          step = function(state, action)
            local one, two = r1.call_tools { action.tool_calls[1] }, r1.call_tools { action.tool_calls[1] }
            return { done = one[1].content == "in" and not two[1].ok }
          end }"#;
    assert!(stepped(env, &[], vec![call("outer", json!({}))], 0).unwrap().done);
}

#[test]
fn a_reply_may_be_required_to_call_a_tool() {
    let env = tools("call_rewards = { malformed = -0.25 }");
    let bench = Bench::new(&recipe(&env));
    let outcome = |choice: &str, replies: &[Action]| -> Vec<(bool, Vec<String>, f64)> {
        let worker = Worker::new(&bench.load(&[&format!("env.tool_choice={choice}")]).unwrap(), None).unwrap();
        run(async {
            let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
            let mut results = Vec::new();
            for reply in replies {
                let result = worker.step(&state, reply).await.unwrap();
                let outputs = result.tools.iter().map(|tool| tool.output.clone()).collect();
                results.push((result.done, outputs, result.reward));
            }
            results
        })
    };
    let answer = || action("it is 5");
    let calls = || Action { tool_calls: vec![call("search", json!({"q": "fine"}))], ..action("") };
    let lacking = |which: &str| (false, vec![format!("{which} reply must call a tool: `search`, `rhai`")], -0.25);
    let called = (false, vec!["found".to_owned()], 0.0);
    let ends = (true, Vec::new(), 0.0);
    assert_eq!(outcome("auto", &[answer()]), std::slice::from_ref(&ends));
    assert_eq!(outcome("first", &[answer(), answer()]), [lacking("the first"), ends.clone()]);
    assert_eq!(outcome("first", &[calls(), answer()]), [called.clone(), ends]);
    assert_eq!(outcome("required", &[calls(), answer()]), [called, lacking("every")]);
    // Truncated replies are accepted, since a call may have followed.
    let cut = Action { finish_reason: FinishReason::Length, ..answer() };
    assert!(outcome("required", &[cut])[0].1.is_empty());
    let refused = bench.show(bench.load(&["env.tool_choice=always"]).unwrap_err());
    assert!(refused.contains("env.tool_choice") && refused.contains("required"), "{refused}");
}

#[test]
fn a_tool_that_calls_tools_is_one_call() {
    let env = r#"
        local run = r1.tool { name = "run", parameters = { n = "integer" }, run = function(x)
          local result = r1.call_tools({ { name = "rhai", arguments = { code = "print(" .. x.n .. " + 1)" } } })[1]
          return result.content, result.reward + 1
        end }
        local env = r1.env { tools = { run, r1.tools.rhai { rewards = { ok = 0.5 } } } }"#;
    let result = stepped(env, &[], vec![call("run", json!({"n": 1})), call("run", json!({"n": 5}))], 0).unwrap();
    let reported: Vec<(&str, &str)> =
        result.tools.iter().map(|tool| (tool.name.as_str(), tool.output.trim())).collect();
    assert_eq!(reported, [("run", "2"), ("run", "6")]);
    assert_eq!((rewards(&result), result.reward), (vec![1.5, 1.5], 3.0));
}

#[test]
fn results_are_cut_to_tokens() {
    let env = r#"
        local words = r1.tool { name = "words", max_result_tokens = 5, run = function() return string.rep("word ", 100) end }
        local short = r1.tool { name = "short", run = function() return "ä" end }
        local long = r1.tool { name = "long", run = function() return string.rep("ä", 100) end }
        local free = r1.tool { name = "free", max_result_tokens = 0, run = function() return string.rep("x ", 50) end }
        local env = r1.env { tools = { words, short, long, free, r1.tools.rhai { max_result_tokens = 4 } }, max_result_tokens = 9 }"#;
    let names = ["words", "short", "long", "free"];
    let mut calls: Vec<ToolCall> = names.iter().map(|name| call(name, json!({}))).collect();
    calls.push(call("rhai", json!({"code": "print(\"one two three four five six seven eight nine\")"})));
    let result = stepped(env, &[], calls, 0).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let renderer = Renderer::load(&root.join("models/r1-nano"), "hermes").unwrap();
    let count = |text: &str| renderer.tokenizer().encode(text).unwrap().len();
    let output = |index: usize| result.tools[index].output.as_str();
    for (index, limit) in [(0, 5), (2, 9), (4, 4)] {
        let (shown, mark) = output(index).rsplit_once('\n').unwrap();
        assert!(count(shown) <= limit && count(shown) + 1 >= limit, "{shown}");
        assert!(mark.starts_with("… (") && mark.ends_with(" more tokens)"), "{mark}");
    }
    assert!(output(0).starts_with("word ") && !output(2).contains(char::REPLACEMENT_CHARACTER));
    assert_eq!((output(1), output(3).len()), ("ä", 100));
}

#[test]
fn an_undeclared_host_is_an_error_of_the_recipe() {
    let env = |needs: &str, body: &str| {
        let tool = format!("local page = r1.tool {{ name = 'page', run = function() {body} end }}");
        let env = "local env = r1.env { tools = { page } }";
        recipe(&format!("{tool}\n{env}")).replace("trainer =", &format!("needs = {needs}, trainer ="))
    };
    let failed = |source: &str| {
        let bench = Bench::new(source);
        let worker = bench.worker();
        run(async {
            let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
            let mut act = action("");
            act.tool_calls.push(call("page", json!({})));
            let failure = worker.step(&state, &act).await.unwrap_err();
            (failure.status, failure.lasting, failure.error.message, failure.error.hint.unwrap())
        })
    };
    let url = "r1.http.get('http://127.0.0.1:9/')";
    for (needs, body) in [
        ("{ 'http' }", format!("return {url}")),
        ("{ 'http' }", format!("pcall(function() return {url} end) return {url}")),
        ("{}", format!("return {url}")),
    ] {
        let (status, lasting, message, hint) = failed(&env(needs, &body));
        assert_eq!((status, lasting), (Status::EnvError, true), "{needs} {body}");
        assert_eq!(message, "r1.http.get: the recipe does not declare that it needs this");
        assert_eq!(hint, "add needs = { \"http:127.0.0.1\" } to r1.recipe");
    }
    // The address of a name is known only after its lookup; these are read as numbers by the
    // system's resolver.
    for name in ["127.1", "2130706433"] {
        for body in ["return URL", "pcall(function() return URL end) return URL"] {
            let body = body.replace("URL", &format!("r1.http.get('http://{name}:9/')"));
            let (status, lasting, message, hint) = failed(&env("{ 'http' }", &body));
            assert_eq!((status, lasting), (Status::EnvError, true), "{body}");
            let wanted = "leads to a host that the recipe does not declare: 127.0.0.1 is not a public address";
            assert_eq!(message, format!("r1.http.get: {name} {wanted}"));
            assert_eq!(hint, format!("add needs = {{ \"http:{name}\" }} to r1.recipe, or \"http:{name}:9\""));
        }
    }
}

/// A tool that counts how often it ran, and fails as often as its argument specifies.
const COUNTED: &str = r#"
local ran = 0
local tool = r1.tool { name = "t", parameters = { n = "integer", x = { optional = true } }, TOOL run = function(a, call)
  ran = ran + 1
  if ran <= a.n then return nil, "busy " .. ran, -0.5, AGAIN end
  BODY
  return "ran " .. ran, 0.25
end }
local env = r1.env { tools = { tool }, step = function(state, action)
  for _, result in ipairs(r1.call_tools(action.tool_calls, { state = state })) do r1.push(state.messages, r1.observation(result)) end
  return { reward = 0 }
end }
"#;

fn counted(tool: &str, again: &str, body: &str) -> String {
    COUNTED.replace("TOOL", tool).replace("AGAIN", again).replace("BODY", body)
}

fn outputs(result: &StepResult) -> Vec<(&str, u32, bool)> {
    result.tools.iter().map(|tool| (tool.output.as_str(), tool.retries, tool.cached)).collect()
}

#[test]
fn retryable_tool_failures_are_retried() {
    let calls = |n: i64| vec![call("t", json!({ "n": n }))];
    let retries = "retries = { times = 2, backoff = 0.01 },";
    let twice = stepped(&counted(retries, "true", ""), &[], calls(2), 0).unwrap();
    assert_eq!(outputs(&twice), [("ran 3", 2, false)]);
    assert_eq!(rewards(&twice), [0.25]);
    // The policy receives the last failure.
    let three = stepped(&counted(retries, "true", ""), &[], calls(3), 0).unwrap();
    assert_eq!((outputs(&three), rewards(&three)), (vec![("busy 3", 2, false)], vec![-0.5]));
    // Other failures are not retried.
    let lasting = stepped(&counted(retries, "nil", ""), &[], calls(1), 0).unwrap();
    assert_eq!(outputs(&lasting), [("busy 1", 0, false)]);
    assert_eq!(outputs(&stepped(&counted("", "true", ""), &[], calls(1), 0).unwrap()), [("busy 1", 0, false)]);
    let error = stepped(&counted("", "5", ""), &[], calls(1), 0).unwrap_err();
    let why = "env_error: tool `t` returned the number 5 as fourth value; it must be true or false: whether a retry may succeed";
    assert!(error.starts_with(why), "{error}");
}

#[test]
fn a_timed_out_tool_call_is_retried() {
    let slow = "if ran == 1 then r1.call_tools({ { name = 'wait', arguments = {} } }) end";
    let env = counted("timeout = 0.1, retries = { times = 1, backoff = 0.01 },", "nil", slow)
        .replace("tools = { tool }", "tools = { tool, wait }")
        .replace("local ran = 0", "local ran = 0\nlocal wait = r1.tools.python { name = 'wait' }");
    let env = env.replace("arguments = {} }", "arguments = { code = 'import time; time.sleep(5)' } }");
    let result = stepped(&env, &[], vec![call("t", json!({ "n": 0 }))], 0).unwrap();
    assert_eq!(outputs(&result), [("ran 2", 1, false)]);
}

#[test]
fn tool_results_are_cached_by_arguments() {
    let bench = Bench::new(&recipe(&counted("cache = 'run',", "true", "")));
    let script = bench.load(&[]).unwrap();
    let ran = |worker: &Worker, state: &State, arguments: Json| {
        let mut act = action("");
        act.tool_calls = vec![call("t", arguments)];
        let result = run(worker.step(state, &act)).unwrap();
        (result.tools[0].output.clone(), result.tools[0].cached, result.tools[0].reward)
    };
    let began = |worker: &Worker| run(worker.reset(&json!({ "prompt": "?" }), 1)).unwrap();
    let worker = Worker::new(&script, None).unwrap();
    let state = began(&worker);
    let fresh = |text: &str| (text.to_owned(), false, 0.25);
    let kept = |text: &str| (text.to_owned(), true, 0.25);
    assert_eq!(ran(&worker, &state, json!({ "n": 0, "x": 1 })), fresh("ran 1"));
    assert_eq!(ran(&worker, &state, json!({ "x": 1, "n": 0 })), kept("ran 1"));
    assert_eq!(ran(&worker, &state, json!({ "n": 0, "x": 2 })), fresh("ran 2"));
    // Another trajectory, another virtual machine: the same results.
    let other = Worker::new(&script, None).unwrap();
    assert_eq!(ran(&other, &began(&other), json!({ "n": 0, "x": 1 })), kept("ran 1"));
    // Another version of the script has separate results.
    let later = Worker::new(&bench.load(&[]).unwrap(), None).unwrap();
    assert_eq!(ran(&later, &began(&later), json!({ "n": 0, "x": 1 })), fresh("ran 1"));

    let bench = Bench::new(&recipe(&counted("cache = true,", "true", "")));
    let worker = bench.worker();
    let (one, two) = (began(&worker), began(&worker));
    assert_eq!(ran(&worker, &one, json!({ "n": 0 })), fresh("ran 1"));
    assert_eq!(ran(&worker, &one, json!({ "n": 0 })), kept("ran 1"));
    assert_eq!(ran(&worker, &two, json!({ "n": 0 })), fresh("ran 2"));
    // A fork has a copy of its trajectory's cache, and then its own.
    let fork = one.fork().unwrap();
    assert_eq!(ran(&worker, &fork, json!({ "n": 0 })), kept("ran 1"));
    assert_eq!(ran(&worker, &fork, json!({ "n": 0, "x": 5 })), fresh("ran 3"));
    assert_eq!(ran(&worker, &one, json!({ "n": 0, "x": 5 })), fresh("ran 4"));
    // Failures are not kept.
    let worker = Bench::new(&recipe(&counted("cache = true,", "nil", ""))).worker();
    let state = began(&worker);
    assert_eq!(ran(&worker, &state, json!({ "n": 1 })), ("busy 1".to_owned(), false, -0.5));
    assert_eq!(ran(&worker, &state, json!({ "n": 1 })), fresh("ran 2"));
}

/// Equal calls of one reply, and of several trajectories, run once; after a failure the others run.
#[test]
fn concurrent_equal_calls_of_a_tool_with_a_cache_run_once() {
    let slow = "local own = ran\nr1.sleep(0.05)\nif own > 0 then return 'ran ' .. own end";
    for scope in ["true", "'run'"] {
        let bench = Bench::new(&recipe(&counted(&format!("cache = {scope},"), "true", slow)));
        let script = bench.load(&[]).unwrap();
        let worker = Worker::new(&script, None).unwrap();
        let mut act = action("");
        act.tool_calls = [0, 0, 7, 0].map(|x| call("t", json!({ "n": 0, "x": x }))).to_vec();
        let record = Record::live();
        let (one, two) = run(async {
            let one = worker.reset_as(Split::Train, &json!({ "prompt": "?" }), 1, &record).await.unwrap();
            let two = worker.reset(&json!({ "prompt": "?" }), 2).await.unwrap();
            let (one, two) = tokio::join!(worker.step(&one, &act), worker.step(&two, &act));
            (one.unwrap(), two.unwrap())
        });
        let cached = |result: &StepResult| result.tools.iter().map(|tool| tool.cached).collect::<Vec<_>>();
        assert_eq!(cached(&one), [false, true, false, true], "{scope}");
        let of_the_run = scope == "'run'";
        assert_eq!(cached(&two), [of_the_run, true, of_the_run, true], "{scope}");
        let texts = |result: &StepResult| result.tools.iter().map(|tool| tool.output.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&one), ["ran 1", "ran 1", "ran 2", "ran 1"], "{scope}");
        // The replay waits for nothing and gets the same.
        let replay = Record::replay(record.take(), Strictness::Exact);
        let worker = Worker::new(&bench.load(&[]).unwrap(), None).unwrap();
        let again = run(async {
            let state = worker.reset_as(Split::Train, &json!({ "prompt": "?" }), 1, &replay).await.unwrap();
            worker.step(&state, &act).await.unwrap()
        });
        assert_eq!((texts(&again), cached(&again), replay.close()), (texts(&one), cached(&one), None), "{scope}");
    }
    let failing = counted("cache = 'run',", "nil", &slow.replace("return", "return nil,"));
    let calls = [0, 0, 0].map(|_| call("t", json!({ "n": 0 }))).to_vec();
    let result = stepped(&failing, &[], calls, 0).unwrap();
    assert_eq!(outputs(&result), [("ran 1", 0, false), ("ran 2", 0, false), ("ran 3", 0, false)]);
}

/// A replay answers from its record where the run answered from the cache.
#[test]
fn a_cached_tool_result_is_recorded() {
    let bench = Bench::new(&recipe(&counted("cache = 'run',", "true", "")));
    let script = bench.load(&[]).unwrap();
    let step = |worker: &Worker, record: &Record| {
        let mut act = action("");
        act.tool_calls = vec![call("t", json!({ "n": 0 }))];
        let state = run(worker.reset_as(Split::Train, &json!({ "prompt": "?" }), 1, record)).unwrap();
        run(worker.step(&state, &act)).unwrap().tools[0].clone()
    };
    let worker = Worker::new(&script, None).unwrap();
    step(&worker, &Record::live());
    let record = Record::live();
    assert!(step(&worker, &record).cached);
    // A new process: its cache is empty.
    let exchanges = record.take();
    let replay = Record::replay(exchanges.clone(), Strictness::Exact);
    let again = step(&Worker::new(&bench.load(&[]).unwrap(), None).unwrap(), &replay);
    assert_eq!((again.output.as_str(), again.cached, replay.close()), ("ran 1", true, None));
    assert_eq!(exchanges[0].kind, "cache");
}

#[test]
fn a_tool_with_a_cache_has_no_state() {
    let env = counted("cache = true,", "true", "local n = #call.state.messages");
    let error = stepped(&env, &[], vec![call("t", json!({ "n": 0 }))], 0).unwrap_err();
    let why = "env_error: tool `t` has a cache and uses call.state: its results would depend on the trajectory\n  --> x.lua:6";
    assert!(error.starts_with(why), "{error}");
    let without = counted("", "true", "local n = #call.state.messages");
    stepped(&without, &[], vec![call("t", json!({ "n": 0 }))], 0).unwrap();
}

#[test]
fn concurrency_of_a_tool_is_limited() {
    let peak = |limits: &str| {
        let env = "local wait = r1.tools.python { name = 'wait' }\nlocal now, most = 0, 0\n\
             local t = r1.tool { name = 't', LIMITS run = function()\n  now += 1\n  most = math.max(most, now)\n  \
             r1.call_tools({ { name = 'wait', arguments = { code = 'import time; time.sleep(0.05)' } } })\n  now -= 1\n  return most\nend }\n\
             local env = r1.env { tools = { wait, t } }";
        let calls = (0..4).map(|_| call("t", json!({}))).collect();
        let result = stepped(&env.replace("LIMITS", limits), &[], calls, 0).unwrap();
        result.tools.iter().map(|tool| tool.output.parse::<f64>().unwrap() as u32).max().unwrap()
    };
    assert_eq!(peak(""), 4);
    assert_eq!(peak("concurrency = 2,"), 2);
    // A tool that calls itself already holds a permit.
    let nested = "local t\nt = r1.tool { name = 't', parameters = { deep = 'boolean' }, concurrency = 1, run = function(a)\n  \
         if a.deep then return r1.call_tools({ { name = 't', arguments = { deep = false } } })[1].content end\n  return 'end'\nend }\n\
         local env = r1.env { tools = { t } }";
    let result = stepped(nested, &[], vec![call("t", json!({ "deep": true }))], 0).unwrap();
    assert_eq!(result.tools[0].output, "end");
}

#[test]
fn limits_of_a_tool_are_checked() {
    let tool = |fields: &str| refused(&format!("r1.tool {{ name = 't', run = print,\n{fields} }}"));
    for (fields, why) in [
        ("retries = -1", "`retries` must be a whole number from 0 to 20, or { times =, backoff = }, got the number -1"),
        ("retries = 21", "`retries` must be a whole number from 0 to 20, or { times =, backoff = }, got the number 21"),
        ("retries = {}", "`retries` needs `times`, a whole number from 0 to 20\n"),
        ("retries = { times = 1, backoff = 'x' }", "`retries.backoff` must be "),
        ("retries = { times = 1, backof = 1 }", "unknown field `retries.backof`"),
        ("cache = 'always'", "`cache` must be true, \"trajectory\" or \"run\", got the text \"always\""),
        ("cache = 1", "`cache` must be true, \"trajectory\" or \"run\", got the number 1"),
        ("concurrency = 0", "`concurrency` must be a whole number, 1 or more, got the number 0"),
        ("concurrency = 1.5", "`concurrency` must be a whole number, 1 or more, got the number 1.5"),
        ("retrys = 1", "unknown field `retrys`\n  --> x.lua:2\n  hint: did you mean `retries`?"),
    ] {
        let message = tool(fields);
        assert!(message.starts_with(&format!("r1.tool: {why}")), "{message}");
        assert!(message.contains("--> x.lua:2"), "{message}");
    }
    let session = refused("r1.tools.python { session = true, cache = true }");
    assert!(session.starts_with("r1.tools.python: `cache` needs independent programs"), "{session}");
}
