//! Tools of MCP servers over standard input and output: `tests/fixtures/mcp_server.py`,
//! well-behaved and hostile.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::script::{Record, Split, State, Strictness};

pub(super) const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mcp_server.py");

/// A recipe whose `step` keeps the results of its calls in the state.
pub(super) fn recipe_with(tools: &str, needs: &str) -> Bench {
    Bench::new(&format!(
        "local function served(options, ...)
           options.command = {{ 'python3', '{FIXTURE}', ... }}
           return r1.tools.mcp(options)
         end
         local env = r1.env {{
           tools = {tools},
           reset = function() return {{ seen = {{}}, messages = {{ r1.user 'x' }} }} end,
           step = function(state, action)
             for _, result in ipairs(r1.call_tools(action.tool_calls)) do
               r1.push(state.seen, {{ result.content, result.ok }})
             end
             return {{ reward = 0 }}
           end,
         }}
         return r1.recipe {{ env = env, needs = {needs}, reward = function() return 0 end, trainer = r1.grpo {{}} }}"
    ))
}

fn served(options: &str) -> Bench {
    recipe_with(&format!("served({options})"), "{ 'process:python3' }")
}

/// Sends the calls in one action, and returns their results.
async fn act(worker: &Worker, state: &State, calls: &[(&str, Json)]) -> Vec<(String, bool)> {
    let before = state.snapshot().unwrap()["state"]["seen"].as_array().map_or(0, Vec::len);
    let mut action = action("");
    action.tool_calls = calls.iter().map(|(name, arguments)| call(name, arguments.clone())).collect();
    worker.step(state, &action).await.unwrap();
    let seen = state.snapshot().unwrap()["state"]["seen"].clone();
    let seen: Vec<(String, bool)> = serde_json::from_value(seen).unwrap();
    seen[before..].to_vec()
}

/// The results of calls, one action each, in a new trajectory.
pub(super) fn results(bench: &Bench, calls: &[(&str, Json)]) -> Vec<(String, bool)> {
    let worker = bench.worker();
    run(async {
        let state = worker.reset(&json!({}), 0).await.unwrap();
        let mut all = Vec::new();
        for call in calls {
            all.extend(act(&worker, &state, std::slice::from_ref(call)).await);
        }
        all
    })
}

pub(super) fn result(bench: &Bench, name: &str, arguments: Json) -> (String, bool) {
    results(bench, &[(name, arguments)]).remove(0)
}

pub(super) fn good(text: &str) -> (String, bool) {
    (text.to_owned(), true)
}

/// The error of starting a worker.
pub(super) fn start_error(bench: &Bench) -> String {
    let script = bench.load(&[]).unwrap();
    let error = Worker::new(&script, None).err().expect("the server must be refused");
    bench.show(error).replace(FIXTURE, "mcp_server.py")
}

#[test]
fn mcp_tools_are_listed_called_and_replayed_without_the_server() {
    let bench =
        served("{ allow = { 'add', 'echo', 'fail', 'refuse', 'picture', 'data', 'progress', 'point', 'count' } }");
    let (record, script) = (Record::live(), bench.load(&[]).unwrap());
    let worker = Worker::new(&script, None).unwrap();
    let names: Vec<&str> = worker.tools().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["echo", "add", "count", "fail", "refuse", "picture", "data", "progress", "point"]);
    assert_eq!(worker.tools()[1]["function"]["parameters"]["required"], json!(["a", "b"]));
    // Schema keywords that are not checked are shown to the policy.
    assert_eq!(worker.tools()[8]["function"]["parameters"]["properties"]["x"], json!({ "$ref": "#/$defs/n" }));

    let calls = [
        ("count", json!({})),
        ("add", json!({ "a": 1, "b": 2 })),
        ("add", json!({ "a": 1 })),
        ("fail", json!({})),
        ("refuse", json!({})),
        ("picture", json!({})),
        ("data", json!({})),
        ("progress", json!({})),
        ("point", json!({ "kind": "c" })),
        ("point", json!({ "kind": "a", "x": "not checked" })),
        ("sub", json!({})),
    ];
    let play = |worker: &Worker, record: &Record| {
        run(async {
            let state = worker.reset_as(Split::Train, &json!({}), 0, record).await.unwrap();
            act(worker, &state, &calls).await
        })
    };
    let live = play(&worker, &record);
    let shown: Vec<String> = live.iter().map(|(text, ok)| format!("{ok} {text}")).collect();
    assert_snapshot!(shown.join("\n"), @r#"
    true 1
    true 3
    false Error: arguments.b is missing
    false it did not work
    false Error: the disk is full
    true [image image/png, 5 bytes]
    [resource file:///note.txt]
    a note
    true {"sum":3}
    true done
    false Error: arguments.kind must be one of "a", "b", got "c"
    true {"kind": "a", "x": "not checked"}
    false Error: no tool `sub`; tools: `echo`, `add`, `count`, `fail`, `refuse`, `picture`, `data`, `progress`, `point`
    "#);

    // A replay sends no request, so the server's counter stays.
    let replay = Record::replay(record.exchanges(), Strictness::Exact);
    assert_eq!(play(&worker, &replay), live);
    assert_eq!(replay.close(), None);
    assert_eq!(results(&bench, &[("count", json!({}))]), [good("2")]);

    // The stored list of a run replaces the server's list.
    let kept = bench.load(&[]).unwrap();
    let lists = script.listings.to_json().to_string().replace("Counts its calls", "As it was");
    kept.listings.extend(&serde_json::from_str(&lists).unwrap());
    let worker = Worker::new(&kept, None).unwrap();
    assert_eq!(worker.tools()[2]["function"]["description"], "As it was");
}

#[test]
fn mcp_servers_that_do_not_start_are_reported() {
    let error = |options: &str| start_error(&served(options));
    assert_snapshot!(error("{}, '--mode', 'dies'"), @r"
    MCP server `python3`: it ended (exit status: 1): no licence found
      --> x.lua:3
      hint: run it by hand to see its output: python3 mcp_server.py --mode dies
    ");
    assert_snapshot!(error("{ start_timeout = 0.5 }, '--mode', 'silent'"), @r"
    MCP server `python3`: no answer within 0.5 s
      --> x.lua:3
      hint: run it by hand to see its output: python3 mcp_server.py --mode silent; `start_timeout` sets the limit
    ");
    assert_snapshot!(error("{ start_timeout = 4.5 }, '--mode', 'chatty'"), @r"
    MCP server `python3`: no answer within 4.5 s
      --> x.lua:3
      hint: it printed lines that are not messages of the protocol; a server may print only those on standard output; `start_timeout` sets the limit
    ");
    assert_snapshot!(error("{}, '--mode', 'refuse'"), @r"
    MCP server `python3`: it refuses the handshake: unsupported protocol version
      --> x.lua:3
      hint: run it by hand to see its output: python3 mcp_server.py --mode refuse
    ");
    assert_snapshot!(error("{}, '--mode', 'no-schemas'"), @r"
    MCP server `python3`: none of its tools can be used: `echo`: its `inputSchema` is not an object
      --> x.lua:3
    ");
    for mode in ["many-513", "many-pages"] {
        let error = error(&format!("{{}}, '--mode', '{mode}'"));
        assert!(error.contains("it lists more than 512 tools, or more than 64 pages of them"), "{mode}: {error}");
    }
    assert_eq!(served("{}, '--mode', 'many-512'").worker().tools().len(), 512);
    let missing =
        recipe_with("{ r1.tools.mcp { command = { 'r1-no-such-server' } } }", "{ 'process:r1-no-such-server' }");
    assert_snapshot!(start_error(&missing), @r"
    MCP server `r1-no-such-server`: there is no program `r1-no-such-server` on the PATH
      --> x.lua:6
      hint: install it, or give its path in `command`
    ");
    let path = recipe_with("{ r1.tools.mcp { command = { './server' } } }", "{ 'process:./server' }");
    assert_snapshot!(start_error(&path), @r"
    MCP server `server`: can't find the program ./server: No such file or directory (os error 2)
      --> x.lua:6
      hint: a path in `command` is relative to the script's directory
    ");
    let undeclared = recipe_with("{ served {} }", "{ 'process' }");
    assert_snapshot!(start_error(&undeclared), @r#"
    MCP server `python3`: the recipe does not declare that it starts python3 (outside the sandbox)
      --> x.lua:3
      hint: add needs = { "process:python3" } to r1.recipe
    "#);
}

/// Answers of servers that were written by hand, and what the policy reads.
pub(super) const ANSWERS: [(&str, &str, bool); 14] = [
    (r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\ud83d"}]}}"#, "a\u{fffd}", true),
    (r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"x":NaN}}}"#, r#"{"x":null}"#, true),
    (
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"x":12345678901234567890123}}}"#,
        r#"{"x":"12345678901234567890123"}"#,
        true,
    ),
    ("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":\"bom\"}}", "bom", true),
    ("{\n \"jsonrpc\": \"2.0\",\n \"id\": ID,\n \"result\": {\n  \"content\": \"pretty\"\n }\n}", "pretty", true),
    (r#"[{"jsonrpc":"2.0","id":ID,"result":{"content":"batch"}}]"#, "batch", true),
    (r#"{"jsonrpc":"2.0","id":"ID","result":{"content":"id as text"}}"#, "id as text", true),
    (r#"{"jsonrpc":"2.0","id":ID,"result":{"content":"no error"},"error":null}"#, "no error", true),
    (
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a"},{"type":"hologram"}]}}"#,
        "a\n[content of the unknown kind hologram]",
        true,
    ),
    (r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no credit"}}"#, "Error: no credit", false),
    (r#"{"jsonrpc":"2.0","error":{"code":1,"message":"no credit"}}"#, "Error: no credit", false),
    (r#"{"jsonrpc":"2.0","id":ID,"error":"no credit"}"#, "Error: no credit", false),
    (
        r#"{"jsonrpc":"2.0","id":ID,"result":{"content":"a" "b"}}"#,
        "Error: its answer is not JSON: expected `,` or `}`",
        false,
    ),
    (r#"{"jsonrpc":"1.0","id":ID,"result":{}}"#, "Error: its answer can't be read", false),
];

#[test]
fn unusual_answers_of_mcp_servers_are_read_or_end_their_call_at_once() {
    let bench = served("{ timeout = 60, restarts = 0 }");
    let calls: Vec<(&str, Json)> = ANSWERS.iter().map(|(text, ..)| ("raw", json!({ "text": text }))).collect();
    for ((result_text, ok), (sent, text, expected)) in results(&bench, &calls).into_iter().zip(ANSWERS) {
        assert!(ok == expected && result_text.starts_with(text), "{sent}: {result_text}");
    }
}

#[test]
fn mcp_tools_that_cannot_be_used_are_left_out() {
    let bench = served("{}, '--mode', 'no-schema'");
    let script = bench.load(&[]).unwrap();
    let worker = Worker::new(&script, None).unwrap();
    let names: Vec<Json> = worker.tools().iter().map(|tool| tool["function"]["name"].clone()).collect();
    assert_eq!(names[..2], [json!("echo"), json!("fail")]);
    let line = script.listings.in_words().remove(0);
    let without = "; without `add`: its `inputSchema` is not an object; without `count`: it has no `inputSchema`)";
    assert!(line.ends_with(without), "{line}");
    assert_eq!(served("{ allow = { 'echo' } }, '--mode', 'no-schema'").worker().tools().len(), 1);
    assert_snapshot!(start_error(&served("{ allow = { 'add' } }, '--mode', 'no-schema'")), @r"
    `allow` names `add` of the MCP server `python3`, which can't be used: its `inputSchema` is not an object
      --> x.lua:3
      hint: leave it out of `allow`; the fault is in the server
    ");
    assert_eq!(result(&served("{}, '--mode', 'no-version'"), "echo", json!({ "text": "x" })), good("x"));
}

#[test]
fn names_of_mcp_tools_clash_and_get_prefixes() {
    let needs = "{ 'process:python3' }";
    let clash = recipe_with("{ served { name = 'one' }, served({ name = 'two' }, '--mode', 'x') }", needs);
    assert_snapshot!(start_error(&clash), @r#"
    two tools are called `echo`: of the MCP server `one` and of the MCP server `two`
      --> x.lua:3
      hint: give one server a prefix: r1.tools.mcp { …, prefix = "two_" }
    "#);
    let clashing = recipe_with(
        "{ r1.tool { name = 'echo', run = function() return 1 end }, served { name = 'one', allow = { 'echo' } } }",
        needs,
    );
    assert_snapshot!(start_error(&clashing), @r#"
    two tools are called `echo`: of the recipe and of the MCP server `one`
      --> x.lua:3
      hint: give one server a prefix: r1.tools.mcp { …, prefix = "one_" }
    "#);
    assert_snapshot!(start_error(&served("{ allow = { 'ecko' } }")), @r"
    `allow` names `ecko`, which is not a tool of the MCP server `python3`
      --> x.lua:3
      hint: did you mean `echo`?
    ");
    let odd = served("{ allow = { 'read/file.txt', 'read:file.txt' } }, '--mode', 'odd-names'");
    assert_snapshot!(start_error(&odd), @r"
    the MCP server `python3` has two tools whose names become `read_file_txt`
      --> x.lua:3
      hint: `allow` names those that the policy may use
    ");

    let both = recipe_with(
        "{ served { allow = { 'echo' } }, served({ allow = { 'echo' }, prefix = 'b_' }, '--mode', 'x') }",
        needs,
    );
    let replies = results(&both, &[("echo", json!({ "text": "x" })), ("b_echo", json!({ "text": "y" }))]);
    assert_eq!(replies, [good("x"), good("y")]);
    let one = served("{ allow = { 'read/file.txt' } }, '--mode', 'odd-names'");
    assert_eq!(one.worker().tools()[0]["function"]["name"], "read_file_txt");
    let long = served("{ allow = { 'echo' } }, '--mode', 'long-description'");
    let long = long.worker().tools()[0].clone();
    assert_eq!(long["function"]["description"].as_str().unwrap().chars().count(), 1025);
}

#[test]
fn options_of_mcp_servers_are_checked() {
    let refused = |options: &str| {
        let message = refused(&recipe(&format!("local env = r1.env {{ tools = {{ r1.tools.mcp {options} }} }}")));
        message.lines().filter(|line| !line.trim_start().starts_with("-->")).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(refused("{}"), @r#"r1.tools.mcp: needs `command`, a list such as { "npx", "-y", "PACKAGE" }, or `url`"#);
    assert_snapshot!(refused("{ command = 'npx' }"), @r#"r1.tools.mcp: `command` must be a list, the program and its arguments: { "npx", "-y", "PACKAGE" }, got the text "npx""#);
    assert_snapshot!(refused("{ command = {} }"), @r#"r1.tools.mcp: `command` must be a list, the program and its arguments: { "npx", "-y", "PACKAGE" }, got a table"#);
    assert_snapshot!(refused("{ command = { 'npx' }, url = 'http://a.co/mcp' }"), @"r1.tools.mcp: has both `command` and `url`: a server is one of them");
    assert_snapshot!(refused("{ url = 'a.co/mcp' }"), @"r1.tools.mcp: `a.co/mcp` is not a URL: it must begin with http:// or https://");
    assert_snapshot!(refused("{ url = 'http://a.co', env = { A = 1 } }"), @"r1.tools.mcp: `env` is for a server with `command`");
    assert_snapshot!(refused("{ command = { 'npx' }, headers = { A = 1 } }"), @"r1.tools.mcp: `headers` is for a server with `url`");
    assert_snapshot!(refused("{ command = { 'npx' }, scope = 'traject' }"), @r#"
    r1.tools.mcp: `scope` is "traject"; it is "run" (one server for all) or "trajectory"
      hint: did you mean `trajectory`?
    "#);
    assert_snapshot!(refused("{ command = { 'npx' }, prefix = 'a.' }"), @"r1.tools.mcp: `prefix` has '.'; names of tools have letters, digits, _ and -");
    assert_snapshot!(refused("{ command = { 'npx' }, allow = {} }"), @"r1.tools.mcp: `allow` is empty: the policy could use no tool; leave it out to allow all");
    assert_snapshot!(refused("{ command = { 'npx' }, alow = { 'x' } }"), @r"
    r1.tools.mcp: unknown field `alow`
      hint: did you mean `allow`?
    ");
    assert_snapshot!(refused("{ command = { 'npx' }, restarts = -1 }"), @"r1.tools.mcp: `restarts` must be a whole number from 0 to 1000, got the number -1");
}

#[test]
fn an_mcp_server_that_crashes_is_started_again_a_limited_number_of_times() {
    let bench = served("{ restarts = 1, name = 'files' }");
    let calls =
        [("count", json!({})), ("crash", json!({})), ("count", json!({})), ("crash", json!({})), ("count", json!({}))];
    let replies = results(&bench, &calls);
    assert_eq!((&replies[0], &replies[2]), (&good("1"), &good("1")));
    assert_snapshot!(replies[1].0, @"Error: the server `files` stopped: it ended (exit status: 3): a fault on purpose");
    assert_snapshot!(replies[4].0, @"Error: the server `files` has ended 2 times and is not started again");
    assert!(!replies[1].1 && !replies[4].1);
}

#[test]
fn hostile_output_of_mcp_servers_is_bounded() {
    let bench = served("{ timeout = 20, restarts = 9, name = 'bad' }");
    let replies = results(
        &bench,
        &[
            ("garbage", json!({})),
            ("twice", json!({})),
            ("echo", json!({ "text": "still right" })),
            ("wrong", json!({})),
            ("big", json!({ "bytes": 3 << 20 })),
            ("big", json!({ "bytes": 9 << 20 })),
            ("flood", json!({})),
            ("echo", json!({ "text": "again" })),
            ("line", json!({})),
            ("echo", json!({ "text": "the line goes on" })),
            ("echo", json!({ "text": "and again" })),
        ],
    );
    assert_eq!([&replies[0], &replies[1], &replies[2]], [&good("after garbage"), &good("first"), &good("still right")]);
    assert_snapshot!(replies[3].0, @"Error: the answer of the server `bad` is not a tool's result");
    assert!(
        replies[4].1 && replies[4].0.len() < 2 << 20 && replies[4].0.contains("more bytes"),
        "{}",
        replies[4].0.len()
    );
    assert_snapshot!(replies[5].0, @"Error: the server `bad` sent a message of more than 8 MiB");
    assert_snapshot!(replies[6].0, @"Error: the server `bad` sent more than 64 MiB without an answer");
    assert_eq!(replies[7], good("again"));
    assert_snapshot!(replies[8].0, @"Error: the server `bad` sent a message of more than 8 MiB");
    assert_eq!(replies[9], replies[6]);
    assert_eq!(replies[10], good("and again"));
}

#[test]
fn a_restart_of_an_mcp_server_does_not_count_towards_the_time_of_a_call() {
    let calls = [("echo", json!({ "text": "a" })), ("crash", json!({})), ("echo", json!({ "text": "b" }))];
    let replies = results(&served("{ timeout = '500ms' }, '--mode', 'slow'"), &calls);
    assert_eq!((&replies[0], replies[1].1, &replies[2]), (&good("a"), false, &good("b")));
}

#[test]
fn progress_of_an_mcp_call_is_shown_and_may_extend_its_time() {
    let steps = [("steps", json!({ "count": 4, "seconds": 0.4 }))];
    let replies = results(&served("{ timeout = '1s' }"), &steps);
    assert_eq!(replies, [("Error: timed out after 1 s (progress 2 of 4: reading)".to_owned(), false)]);
    assert_eq!(results(&served("{ timeout = '1s', progress = true }"), &steps), [good("all steps")]);
}

#[test]
fn late_mcp_answers_time_out_and_the_call_is_cancelled() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let bench = served(&format!("{{ timeout = '300ms' }}, '--log', '{}'", log.path().display()));
    let replies = results(
        &bench,
        &[("wait", json!({ "seconds": 0.6 })), ("echo", json!({ "text": "x" })), ("wait", json!({ "seconds": 0.0 }))],
    );
    assert_eq!(replies, [("Error: timed out after 0.3 s".to_owned(), false), good("x"), good("waited")]);
    assert_eq!(cancelled(&log), 1);

    // A server that never answers is replaced.
    let hung = [
        ("count", json!({})),
        ("wait", json!({ "seconds": 60 })),
        ("wait", json!({ "seconds": 60 })),
        ("wait", json!({ "seconds": 60 })),
        ("count", json!({})),
    ];
    let replies = results(&served("{ timeout = '300ms', restarts = 1 }, '--mode', 'hung'"), &hung);
    assert_eq!((&replies[0], &replies[3].1), (&good("1"), &false));
}

#[test]
fn only_calls_in_a_row_without_an_answer_stop_an_mcp_server() {
    let wait = ("wait", json!({ "seconds": 30 }));
    let count = ("count", json!({}));
    let calls = [wait.clone(), wait.clone(), count.clone(), wait, count];
    let replies = results(&served("{ timeout = '500ms' }, '--mode', 'two-silences'"), &calls);
    assert_eq!((&replies[2], &replies[4]), (&good("1"), &good("2")));
}

/// The number of cancellations that a server has received.
fn cancelled(log: &tempfile::NamedTempFile) -> usize {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let text = std::fs::read_to_string(log.path()).unwrap();
        let count = text.matches("notifications/cancelled").count();
        if count > 0 || Instant::now() > until {
            return count;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn mcp_calls_of_a_trajectory_that_ends_are_cancelled() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let bench = served(&format!("{{}}, '--log', '{}'", log.path().display()));
    let worker = bench.worker();
    run(async {
        let state = worker.reset(&json!({}), 0).await.unwrap();
        let mut waiting = action("");
        waiting.tool_calls.push(call("wait", json!({ "seconds": 1 })));
        let step = worker.step(&state, &waiting);
        assert!(tokio::time::timeout(Duration::from_millis(300), step).await.is_err());
    });
    assert_eq!(cancelled(&log), 1);
}

#[test]
fn mcp_servers_are_shared_or_one_per_trajectory() {
    let count = [("count", json!({}))];
    for (scope, expected) in [("run", ["1", "2", "3"]), ("trajectory", ["1", "1", "2"])] {
        let bench = served(&format!("{{ scope = '{scope}' }}, '--mode', 'scope-{scope}'"));
        let worker = bench.worker();
        run(async {
            let (first, second) =
                (worker.reset(&json!({}), 0).await.unwrap(), worker.reset(&json!({}), 1).await.unwrap());
            let replies = [
                act(&worker, &first, &count).await,
                act(&worker, &second, &count).await,
                act(&worker, &first, &count).await,
            ];
            assert_eq!(replies.map(|replies| replies[0].0.clone()), expected, "{scope}");
            if scope == "trajectory" {
                // A fork repeats the calls on another server.
                let fork = first.fork().unwrap();
                assert_eq!(act(&worker, &fork, &count).await, [good("3")]);
                assert_eq!(act(&worker, &first, &count).await, [good("3")]);
            }
        });
    }
}

#[test]
fn mcp_servers_have_a_minimal_environment_with_masked_secrets() {
    let variable = "CARGO_MANIFEST_DIR";
    let bench = recipe_with(
        &format!("{{ served {{ env = {{ KEY = r1.secret '{variable}', PLAIN = 5 }} }} }}"),
        &format!("{{ 'process:python3', 'env:{variable}' }}"),
    );
    let names = ["KEY", "PLAIN", variable, "HOME"].map(|name| ("variable", json!({ "name": name })));
    let replies = results(&bench, &names);
    assert_eq!([&replies[0], &replies[1], &replies[2]], [&good("(secret)"), &good("5"), &good("(unset)")]);
    assert_eq!(replies[3], good(&std::env::var("HOME").unwrap()));
    let directory = result(&bench, "directory", json!({}));
    assert_eq!(PathBuf::from(directory.0), bench.dir.path().canonicalize().unwrap());
    let lists = bench.worker().script.listings.to_json().to_string();
    assert!(lists.contains(r#"\"KEY\":\"(secret)\""#), "{lists}");
    let undeclared =
        recipe_with(&format!("{{ served {{ env = {{ KEY = r1.secret '{variable}' }} }} }}"), "{ 'process:python3' }");
    assert_snapshot!(start_error(&undeclared), @r#"
    MCP server `python3`: the recipe does not declare that it uses the variable CARGO_MANIFEST_DIR
      --> x.lua:3
      hint: add needs = { "env:CARGO_MANIFEST_DIR" } to r1.recipe
    "#);
}

#[test]
fn mcp_servers_end_with_their_child_processes() {
    let bench = served("{ scope = 'trajectory' }, '--mode', 'children'");
    let worker = bench.worker();
    let child: i32 = run(async {
        let state = worker.reset(&json!({}), 0).await.unwrap();
        act(&worker, &state, &[("spawn", json!({}))]).await[0].0.parse().unwrap()
    });
    let until = Instant::now() + Duration::from_secs(10);
    while PathBuf::from(format!("/proc/{child}")).exists() {
        assert!(Instant::now() < until, "the server's child process {child} still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn timeouts_of_mcp_calls_are_retried_and_results_cached() {
    let cached = served("{ cache = 'run' }, '--mode', 'cached'");
    let replies = results(&cached, &[("count", json!({})), ("count", json!({})), ("echo", json!({ "text": "x" }))]);
    assert_eq!(replies, [good("1"), good("1"), good("x")]);
    let bench = served("{ timeout = '200ms', retries = { times = 1, backoff = '1ms' } }, '--mode', 'retried'");
    let worker = bench.worker();
    let tools = run(async {
        let state = worker.reset(&json!({}), 0).await.unwrap();
        let mut slow = action("");
        slow.tool_calls.push(call("wait", json!({ "seconds": 5 })));
        worker.step(&state, &slow).await.unwrap().tools
    });
    assert_eq!((tools[0].retries, tools[0].ok), (1, false));
}
