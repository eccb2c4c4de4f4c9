//! A script whose memory is full while it holds a suspended host function: its call fails, and the
//! process continues.
//!
//! Each host function runs in a separate process, because these tests guard against an
//! abort.

use std::net::TcpListener;
use std::process::Command;

use serde_json::json;

use super::*;
use crate::script::{Record, Split};

/// The host functions that can suspend, as a recipe calls them; `ADDRESS` accepts connections and
/// never answers.
const SUSPENDING: [(&str, &str); 10] = [
    ("sleep", "r1.sleep(20)"),
    ("join", "r1.join { function() r1.sleep(20) end, function() r1.sleep(20) end }"),
    ("lua_tool", "r1.call_tools { { name = 'sleeper', arguments = {} } }"),
    ("rhai", "r1.call_tools { { name = 'rhai', arguments = { code = 'let x = 0; loop { x += 1; }' } } }"),
    ("python", "r1.call_tools { { name = 'python', arguments = { code = 'import time; time.sleep(20)' } } }"),
    ("generate", "r1.generate('Say something.')"),
    ("http_get", "r1.http.get('http://ADDRESS/')"),
    ("http_post", "r1.http.post('http://ADDRESS/', 'text')"),
    ("http_request", "r1.http.request { url = 'http://ADDRESS/' }"),
    ("process", "r1.process.run { 'sleep', '20' }"),
];

/// Endings of a call that holds a suspended call while the memory is full: by the limit of waits,
/// by the limit of CPU time, by an error of a concurrent call, by a tool's own limit, or by itself.
const ENDINGS: [(&str, &str); 5] = [
    ("wait", "r1.join { function() pcall(suspend) end, function() local held = fill() r1.sleep(20) return held end }"),
    (
        "cpu",
        "r1.join { function() pcall(suspend) end, function() local held = fill() while true do end return held end }",
    ),
    (
        "error",
        "pcall(function() r1.call_tools { { name = 'suspended', arguments = {} }, { name = 'failing', arguments = {} } } end)",
    ),
    (
        "tool_limit",
        "pcall(function() r1.call_tools { { name = 'hasty', arguments = {} }, { name = 'filling', arguments = {} } } end)",
    ),
    ("own", "local held = fill() pcall(suspend) pcall(function() r1.join { suspend, suspend } end) held = nil"),
];

const RECIPE: &str = "
-- Fills the memory to the last bytes: large pieces first, then ever smaller ones.
local function fill()
  local held = {}
  for _, size in { 1000000, 100000, 1000, 100 } do
    pcall(function() while true do held = { held, string.rep('x', size) .. tostring(held) } end end)
  end
  pcall(function() while true do held = { held } end end)
  pcall(function() while true do held = { held } end end)
  return held
end
local function suspend() return SUSPEND end
local function tool(name, run, timeout) return r1.tool { name = name, description = name, run = run, timeout = timeout } end
local env = r1.env {
  tools = {
    r1.tools.rhai { timeout = '2s' },
    tool('sleeper', function() r1.sleep(20) return 'late' end),
    tool('suspended', function() suspend() return 'late' end),
    tool('hasty', function() suspend() return 'late' end, '100ms'),
    tool('filling', function() local held = fill() r1.sleep(0.2) return held and 'full' end),
    tool('failing', function() local held = fill() r1.sleep(0.02) error('failed') return held end),
    PYTHON
  },
  reset = function(task)
    if task.calm then return {} end
    ENDING
    return {}
  end,
}
return r1.recipe {
  needs = { 'http', 'http:127.0.0.1', 'process' },
  limits = { memory = 16, cpu = 2, wait = 0.4 },
  env = env,
  reward = function() return 0 end,
}";

/// The test in the child process: every ending for one host function.
fn exhaust(suspend: &str, needs_python: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let python = if needs_python { "r1.tools.python {}," } else { "" };
    for (name, ending) in ENDINGS {
        let source = RECIPE
            .replace("SUSPEND", suspend)
            .replace("ENDING", ending)
            .replace("PYTHON", python)
            .replace("ADDRESS", &address);
        let worker = Bench::new(&source).worker();
        if let Err(error) = worker.prepare() {
            eprintln!("skipped: {error}");
            return;
        }
        run(async {
            for _ in 0..2 {
                let record = Record::live();
                // Requests for texts never return here.
                let _asks = record.listen();
                let outcome = worker.reset_as(Split::Train, &json!({}), 1, &record).await;
                eprintln!("{name}: {:?}", outcome.map(drop).map_err(|failure| failure.to_string()));
                worker.reset(&json!({"calm": true}), 1).await.expect("the worker continues");
            }
        });
    }
}

const CHILD: &str = "R1_TEST_SUSPENDED";

#[test]
fn full_memory_with_a_suspended_host_function_does_not_end_the_process() {
    if let Ok(wanted) = std::env::var(CHILD) {
        let (_, suspend) = SUSPENDING.into_iter().find(|(name, _)| *name == wanted).unwrap();
        return exhaust(suspend, wanted == "python");
    }
    let this = "script::tests::memory::full_memory_with_a_suspended_host_function_does_not_end_the_process";
    let children = SUSPENDING.map(|(name, _)| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([this, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, name);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        (name, command.spawn().unwrap())
    });
    let mut failed = Vec::new();
    for (name, child) in children {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
        if !output.status.success() || !ran {
            failed.push(format!("{name}: {}\n{stderr}", output.status));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
