//! Limits of CPU time, memory and waiting time: the call ends with a message, the worker continues.

use serde_json::json;

use super::*;
use crate::mdp::Status;

/// A worker whose `reset` runs `body`.
fn bench(body: &str, limits: &str) -> Bench {
    Bench::new(&format!(
        "return r1.recipe {{ limits = {{ {limits} }},\n  env = r1.env {{ reset = function(task)\n\
         if task.calm then return {{}} end\n{body}\n end }}, reward = function() return 0 end }}"
    ))
}

/// Returns the failure of the body, and checks that the worker continues after it.
fn failure(body: &str, limits: &str) -> (Status, String) {
    let bench = bench(body, limits);
    let worker = bench.worker();
    run(async {
        let failure = worker.reset(&json!({}), 1).await.expect_err("this must fail");
        worker.reset(&json!({"calm": true}), 1).await.expect("the worker continues");
        (failure.status, bench.show(failure))
    })
}

#[test]
fn endless_loops_are_stopped() {
    for body in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local s = string.rep('a', 40) .. 'b' string.find(s, string.rep('a*', 30) .. 'c')",
        "local t = setmetatable({}, { __index = function(t, k) return t[k + 1] end }) return pcall(function() while true do pcall(function() return t[1] end) end end)",
        "table.sort({ 1, 2, 3 }, function() while true do end end)",
        "string.gsub('aaa', 'a', function() while true do end end)",
        "local function f() return pcall(f) end while true do f() end",
    ] {
        let started = std::time::Instant::now();
        let (status, text) = failure(body, "cpu = 0.05");
        assert_eq!(status, Status::ScriptLimit, "{body}: {text}");
        assert!(text.starts_with("reset used more than 0.05 s of CPU time\n  --> x.lua:"), "{text}");
        assert!(started.elapsed().as_secs_f64() < 60.0, "{body}");
    }
}

#[test]
fn a_script_that_loops_while_it_loads_is_stopped() {
    let text = refused("local x = 1\nwhile true do end");
    insta::assert_snapshot!(text, @r#"
    loading used more than 0.1 s of CPU time
      --> x.lua:2
      hint: is there an endless loop?
    "#);
}

#[test]
fn memory_is_limited_per_worker() {
    for body in [
        "local t = {} while true do t[#t + 1] = string.rep('x', 1000) .. #t end",
        "return { s = string.rep('x', 2^28) }",
        "return { t = table.create(2^25, 1) }",
        "local s = 'xxxxxxxxxxxxxxxx' while true do s = s .. s end",
    ] {
        let (status, text) = failure(body, "memory = 16, cpu = 20");
        assert_eq!(status, Status::ScriptLimit, "{body}: {text}");
        assert!(text.starts_with("reset needs more memory than limits.memory = 16 MiB"), "{body}: {text}");
    }
}

#[test]
fn caught_memory_errors_reach_the_cpu_limit() {
    let body = "local t = {} while true do pcall(function() t[#t + 1] = string.rep('y', 2^20) end) end";
    let (status, text) = failure(body, "memory = 16, cpu = 0.1");
    assert_eq!(status, Status::ScriptLimit);
    assert!(text.starts_with("reset used more than 0.1 s of CPU time"), "{text}");
}

#[test]
fn a_state_that_fills_the_memory_is_refused() {
    let body =
        "local t = {} pcall(function() while true do t[#t + 1] = string.rep('y', 100) .. #t end end) return { t = t }";
    let (status, text) = failure(body, "memory = 16, cpu = 20");
    assert_eq!(status, Status::ScriptLimit);
    assert!(text.starts_with("reset needs more memory"), "{text}");
}

#[test]
fn runaway_recursion_is_an_error_of_the_script() {
    let (status, text) = failure("local function f(n) return 1 + f(n + 1) end return f(1)", "cpu = 5");
    assert_eq!(status, Status::EnvError);
    assert!(text.starts_with("stack overflow"), "{text}");
}

#[test]
fn waits_are_limited() {
    let bench = Bench::new(
        "local slow = r1.tools.python {}\n\
         return r1.recipe { limits = { wait = 0.2 }, env = r1.env { tools = { slow }, reset = function()\n\
         r1.call_tools { { name = 'python', arguments = { code = 'import time; time.sleep(5)' } } }\n\
         return {} end }, reward = function() return 0 end }",
    );
    let worker = bench.worker();
    if let Err(error) = worker.prepare() {
        eprintln!("skipped: {error}");
        return;
    }
    let failure = run(worker.reset(&json!({}), 1)).unwrap_err();
    assert_eq!(failure.status, Status::ToolTimeout);
    insta::assert_snapshot!(bench.show(failure), @r#"
    reset waited for a tool longer than limits.wait = 0.2 s
      --> x.lua:2
      hint: raise limits.wait, which is the time of all waits of one call, or make them shorter: a `timeout`, fewer tokens, fewer calls
    "#);
}

#[test]
fn a_tool_of_the_script_may_have_a_limit_of_its_own() {
    let bench = Bench::new(&recipe(
        "local sleep = r1.tools.python {}\n\
         local slow = r1.tool { name = 'slow', timeout = '100ms', run = function()\n\
           return r1.call_tools({ { name = 'python', arguments = { code = 'import time; time.sleep(5)' } } })[1].content end }\n\
         local env = r1.env { tools = { slow, sleep } }",
    ));
    let worker = bench.worker();
    if let Err(error) = worker.prepare() {
        eprintln!("skipped: {error}");
        return;
    }
    let result = run(async {
        let state = worker.reset(&json!({"prompt": "?"}), 1).await.unwrap();
        let mut act = action("");
        act.tool_calls.push(call("slow", json!({})));
        worker.step(&state, &act).await.unwrap()
    });
    assert_eq!((result.tools[0].ok, result.tools[0].output.as_str()), (false, "Error: timed out after 0.1 s"));
}

#[test]
fn cpu_time_is_counted_per_call_across_waits_and_not_for_others() {
    // A call takes a part of the limit; all of them together take several times as much.
    let bench = Bench::new(&recipe(
        "local env = r1.env { reset = function() local x = 0 for k = 1, 3e5 do x = (x + k * k) % 7 end return {} end }",
    ));
    let script = bench.load(&["limits.cpu=0.3"]).unwrap();
    let worker = Worker::new(&script, None).unwrap();
    let clock = crate::clock::Clock::of_this_thread();
    let started = clock.now();
    run(async {
        while clock.now() - started < 1_000_000_000 {
            worker.reset(&json!({}), 1).await.unwrap();
        }
    });
}

#[test]
fn cpu_time_of_short_turns_between_waits_is_summed() {
    let body = "while true do local x = 0 for k = 1, 5000 do x = (x + k * k) % 7 end r1.sleep(0.001) end";
    let (status, text) = failure(body, "cpu = 0.05, wait = 600");
    assert_eq!(status, Status::ScriptLimit, "{text}");
    assert!(text.starts_with("reset used more than 0.05 s of CPU time\n  --> x.lua:"), "{text}");
    // Waiting uses no CPU time.
    let body = "for _ = 1, 20 do r1.sleep(0.02) end error('over')";
    let (status, text) = failure(body, "cpu = 0.2, wait = 600");
    assert_eq!(status, Status::EnvError, "{text}");
}
