//! Every kind of call that a script or the policy can start and that may not end: its limit, and
//! Ctrl-C. docs/guide/containment.md has the table of results.
#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use r1::mdp::{Policy, Scripted, StreamSeed};
use r1::rollout::{Pool, PoolOptions, Spec, no_progress};
use r1::script::{Script, Split};
use r1::text::Renderer;

use crate::cli::r1;
use crate::reference_data::parts_up_to_date;

/// A kind of call.
struct Kind {
    what: &'static str,
    limit: &'static str,
    /// Lua that does not end before its limit. The result of a tool is an observation.
    body: &'static str,
    /// The status of the trajectory, and a part of the message or the observation.
    ends: (&'static str, &'static str),
}

const TERMINATED: &str = "terminated";
const SCRIPT_LIMIT: &str = "script_limit";

const KINDS: [Kind; 17] = [
    Kind {
        what: "a function of the script: `reset`, `step`, `reward`, `context`, a tool",
        limit: "`limits.cpu`",
        body: "while true do end",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "Lua patterns: `string.find`, `gsub` …",
        limit: "`limits.cpu`",
        body: "return string.find(('a'):rep(200), ('a*'):rep(60) .. 'b')",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "`r1.re`, `r1.text.index`",
        limit: "`limits.cpu`, its own threads included",
        body: "return #r1.re.find_all(('a'):rep(2 ^ 20), '.*[^a]|a')",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "templates: `r1.text.template`, prompts",
        limit: "`limits.cpu`; prompts: 20 s",
        body: "return r1.text.template('{% for a in range(99999) %}{% for b in range(999) %}{% endfor %}{% endfor %}'):render({})",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "tokenizers: `Tokenizer:encode`",
        limit: "`limits.cpu`, its own thread included",
        body: "local text = ('ab '):rep(2 ^ 18)\nwhile true do tokenizer:encode(text) text = 'a' .. text end",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "prompts of a script: `Template:encode`",
        limit: "`limits.cpu`, its own thread included",
        body: "local text = ('ab '):rep(2 ^ 18)\n\
               while true do template:encode({ r1.user(text) }) text = 'a' .. text end",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "counted contexts: `r1.context`",
        limit: "`limits.cpu`, its own thread included",
        body: "local text = ('ab '):rep(2 ^ 18)\n\
               while true do r1.context({ r1.user(text) }):tokens() text = 'a' .. text end",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "`r1.json`",
        limit: "`limits.cpu`",
        body: "while true do r1.json.decode('[' .. ('[],'):rep(100000) .. '0]') end",
        ends: (SCRIPT_LIMIT, "reset used more than 0.3 s of CPU time"),
    },
    Kind {
        what: "SQL of the script: `Tables:query`",
        limit: "`timeout`, and `limits.cpu`",
        body: "return select(2, tables:query(endless))",
        ends: (TERMINATED, "the query ran longer than"),
    },
    Kind {
        what: "SQL of the policy: `r1.tools.table`",
        limit: "`timeout`",
        body: "return tool('sql', { sql = endless })",
        ends: (TERMINATED, "Error: the query ran longer than 0.25 s"),
    },
    Kind {
        what: "programs of the policy: `r1.tools.python`",
        limit: "`timeout`",
        body: "return tool('python', { code = 'while True: pass' })",
        ends: (TERMINATED, "TimeoutError: the program ran longer than 0.25 s"),
    },
    Kind {
        what: "programs of the policy: `r1.tools.rhai`",
        limit: "`timeout`, `operations`",
        body: "return tool('rhai', { code = 'loop {}' })",
        ends: (TERMINATED, "TimeoutError: the program ran longer than 0.25 s"),
    },
    Kind {
        what: "tools in Lua that wait",
        limit: "`timeout`",
        body: "return tool('waits', {})",
        ends: (TERMINATED, "Error: timed out after 0.25 s"),
    },
    Kind {
        what: "waiting: `r1.sleep`, `r1.join`, `r1.call_tools`",
        limit: "`limits.wait`",
        body: "r1.sleep(3000)",
        ends: ("tool_timeout", "reset waited for r1.sleep longer than limits.wait = 10 s"),
    },
    Kind {
        what: "servers: `r1.http`, `r1.connection`",
        limit: "`timeout`",
        body: "return select(2, r1.http.get('http://127.0.0.1:PORT/', { timeout = LIMIT }))",
        ends: (TERMINATED, "no response after 0.25 s"),
    },
    Kind {
        what: "programs of the machine: `r1.process.run`",
        limit: "`timeout`",
        body: "local done, why = r1.process.run({ 'sleep', '3000' }, { timeout = LIMIT })\n\
               return done and (done.timed_out and 'timed out' or done.out) or why",
        ends: (TERMINATED, "timed out"),
    },
    Kind {
        what: "`r1.generate` and responses of the policy",
        limit: "`max_new_tokens`, the context",
        body: "return r1.generate('Count', { max_new_tokens = TOKENS })",
        ends: (TERMINATED, ""),
    },
];

/// A recipe whose task `n` makes the call of kind `n`, and task 0 none.
fn recipe(limit: &str, cpu: &str, wait: &str, port: u16) -> String {
    let mut kinds = String::new();
    for kind in &KINDS {
        let _ = writeln!(kinds, "function()\n{}\nend,", kind.body);
    }
    let tokens = if limit == "3000" { "1500" } else { "4" };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let kinds = kinds.replace("LIMIT", limit).replace("PORT", &port.to_string()).replace("TOKENS", tokens);
    format!(
        r#"
local tokenizer, template = r1.text.tokenizer("{model}"), r1.text.template("{model}")
local rows = {{ {{ a = 1 }} }}
local tables = r1.table.open({{ t = rows }}, {{ timeout = {limit} }})
local endless = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x"
local waits = r1.tool {{ name = "waits", description = "Waits", parameters = {{}}, timeout = {limit},
  run = function() r1.sleep(3000) return "" end }}
local tools = {{
  r1.tools.table {{ tables = {{ t = rows }}, timeout = {limit} }}, waits,
  r1.tools.python {{ timeout = {limit} }},
  r1.tools.rhai {{ timeout = {limit}, operations = 2 ^ 50 }},
}}
local function tool(name, arguments)
  return r1.call_tools({{ {{ name = name, arguments = arguments }} }})[1].content
end
local kinds = {{ {kinds} }}
return r1.recipe {{
  env = r1.env {{
    tools = tools,
    format = "retool",
    max_steps = 1,
    reset = function(task)
      local said = "nothing"
      if task.n > 0 then
        r1.http.get("http://127.0.0.1:{port}/begins/" .. task.n .. "/", {{ timeout = 60 }})
        said = kinds[task.n]()
      end
      return {{ messages = {{ r1.user(tostring(said)) }} }}
    end,
  }},
  needs = {{ "http:127.0.0.1:{port}", "process:sleep" }},
  reward = function(state, outcome) return #outcome.text % 2 end,
  data = {{ train = r1.data.generate {{ count = {count}, row = function(index) return {{ n = index - 1 }} end }} }},
  limits = {{ cpu = {cpu}, wait = {wait} }},
  policy = {{ model = "r1-nano" }},
  sampling = {{ max_new_tokens = 4 }},
  rollout = {{ workers = {workers}, retries = 0 }},
  trainer = r1.grpo {{ steps = 1, group_size = 2, groups_per_step = {count} }},
}}
"#,
        model = model.display(),
        count = KINDS.len() + 1,
        workers = 2 * (KINDS.len() + 1),
    )
}

/// A server that is told which calls begin, and never answers other requests. Its port, and the
/// numbers of the calls.
fn server() -> (u16, Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (begun, numbers) = channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            if let Some(number) = line.split("/begins/").nth(1).and_then(|rest| rest.split('/').next()) {
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
                let _ = begun.send(number.parse().unwrap());
            } else {
                open.push(stream);
            }
        }
    });
    (port, numbers)
}

/// Each call ends at its limit, and another trajectory of the worker goes on.
#[test]
fn calls_end_at_their_limit() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "retool").unwrap());
    let (port, _begun) = server();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.lua"), recipe("0.25", "0.3", "10", port)).unwrap();
    let script = Script::load(&dir.path().join("a.lua"), &[]).unwrap();
    let reply = renderer.tokenizer().encode("yes<|im_end|>").unwrap();
    let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_| reply.clone()));
    let pool = Pool::new(&script, &renderer, &PoolOptions { workers: 1, concurrency: 64, retries: 0 }).unwrap();
    let spec = |row: u64| Spec {
        seed: StreamSeed { seed: 1, trajectory: row, step: 0 },
        env_seed: row,
        ..Spec::new(Split::Train, row, &script.settings)
    };
    let started = Instant::now();
    let rows = (0..=KINDS.len() as u64).map(spec).collect();
    let ended = pool.start(&policy, rows, &no_progress()).unwrap().finish().unwrap();
    assert!(started.elapsed() < Duration::from_mins(3), "{:?}", started.elapsed());
    let ended: BTreeMap<u64, _> = ended.into_iter().map(|trajectory| (trajectory.task_index, trajectory)).collect();
    assert_eq!(ended[&0].status.name(), TERMINATED, "{:?}", ended[&0].error_text());
    let mut rows = Vec::new();
    for (kind, row) in KINDS.iter().zip(1..) {
        let trajectory = &ended[&row];
        let read = trajectory.steps.first().map(|step| renderer.tokenizer().decode(&step.prompt_ids, false));
        let text = trajectory.error_text().or(read).unwrap_or_default();
        let (status, message) = kind.ends;
        assert_eq!(trajectory.status.name(), status, "{}: {text}", kind.what);
        assert!(text.contains(message), "{}: {text}", kind.what);
        let then = match status {
            TERMINATED if kind.limit.contains("max_new_tokens") => "the response ends".to_owned(),
            TERMINATED if kind.body.contains("tool(") => "observation; the trajectory goes on".to_owned(),
            TERMINATED if kind.body.contains("process") => "`timed_out` in the result; the script goes on".to_owned(),
            TERMINATED => "`nil` and a message; the script goes on".to_owned(),
            status => format!("the trajectory ends with `{status}`"),
        };
        rows.push(format!("| {} | {} | {then} |", kind.what, kind.limit));
    }
    let head = "| call | limit | at its limit |\n|---|---|---|";
    parts_up_to_date("docs/guide/containment.md", &[("calls", format!("{head}\n{}\n", rows.join("\n")))]);
}

/// All calls at once, with limits of an hour. The first signal lets the step go on, the second ends
/// the run.
#[test]
fn the_second_ctrl_c_ends_a_run_during_any_call() {
    let (port, begun) = server();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.lua"), recipe("3000", "3000", "3000", port)).unwrap();
    let mut child =
        r1(dir.path(), &["run", "a.lua", "-q"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    let mut missing: BTreeSet<usize> = (1..=KINDS.len()).collect();
    while !missing.is_empty() {
        if let Ok(number) = begun.recv_timeout(Duration::from_millis(50)) {
            missing.remove(&number);
        }
        if let Some(status) = child.try_wait().unwrap() {
            let mut printed = String::new();
            child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
            panic!("the run ended with {status}: {printed}");
        }
        assert!(started.elapsed() < Duration::from_mins(3), "calls {missing:?} do not begin");
    }
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut until = |expected: &str| {
        let mut printed = String::new();
        while !printed.contains(expected) {
            assert!(stderr.read_line(&mut printed).unwrap() > 0, "`{expected}` was not reported: {printed}");
        }
    };
    send(&child);
    until("stopping after this step; press Ctrl-C again to stop at once");
    assert!(child.try_wait().unwrap().is_none(), "the first signal ended the run");
    let sent = Instant::now();
    send(&child);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(sent.elapsed() < Duration::from_mins(1), "it took {:?}", sent.elapsed());
}

fn send(child: &Child) {
    // SAFETY: the child is ours and has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
}
