//! MCP: a run whose tools come from a server, its replay without the server, and `r1 mcp`.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};

use super::{cli_snapshot, directory, fail, printed, r1, ran, shown, succeed};

const SERVER: &str = include_str!("../fixtures/mcp_server.py");

/// Every step calls a tool of the server with a counter, so that only the record can reproduce it.
const COUNTING: &str = r#"
local env = r1.env {
  format = "retool", max_steps = 2,
  tools = { r1.tools.mcp { command = { "python3", "server.py" }, prefix = "my_", allow = { "count", "add" } } },
  reset = function(task) return { total = 0, messages = { r1.user(task.prompt) } } end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    local counted = r1.call_tools({ { name = "my_count" } })[1].content
    local sum = r1.call_tools({ { name = "my_add", arguments = { a = tonumber(counted), b = 1 } } })[1].content
    r1.push(state.messages, r1.user("count " .. sum))
    state.total = state.total + tonumber(sum)
    return { reward = 0 }
  end,
}
return r1.recipe {
  env = env, needs = { "process:python3" },
  reward = function(state) return state.total end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 4, row = function(index) return { prompt = "Say " .. index } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

#[test]
fn runs_with_mcp_tools_are_replayed_and_rescored_without_the_server() {
    let dir = directory(&[("a.lua", COUNTING), ("server.py", SERVER)], true);
    let text = ran(dir.path(), &["run", "a.lua"]);
    let line =
        "tools    MCP server test-server 1.2.3, outside the sandbox: python3 server.py (23 tools: echo, add, count,";
    assert!(text.contains(line), "{text}");
    // The server and its counter no longer exist.
    std::fs::remove_file(dir.path().join("server.py")).unwrap();
    let same = "exit: 0\n--- stdout\n8 trajectories: every observation, reward and status as recorded";
    assert_eq!(printed(dir.path(), &["replay", "a", "-q"]), same);
    let rescored = printed(dir.path(), &["rescore", "a", "--script", "a.lua", "-q"]);
    assert!(rescored.starts_with("exit: 0"), "{rescored}");
    // A new run needs it.
    let again = fail(dir.path(), &["run", "a.lua", "--name", "b"]);
    assert!(
        again.contains("MCP server `python3`: it ended (exit status: 2): ") && again.contains("can't open file"),
        "{again}"
    );
    // A resumed run also needs it, although its list of tools is stored.
    let more = fail(dir.path(), &["run", "a.lua", "--resume", "trainer.steps=3"]);
    assert!(more.contains("MCP server `python3`: it ended"), "{more}");
}

/// The policy of a resumed run sees the tools of the first start, whatever the server has now.
#[test]
fn a_resumed_run_reports_changed_tools_of_a_server() {
    let dir = directory(&[("a.lua", COUNTING), ("server.py", SERVER)], true);
    succeed(dir.path(), &["run", "a.lua"]);
    let more = |steps: &str| {
        let output = r1(dir.path(), &["run", "a.lua", "--name", "a", "--resume", steps]).output().unwrap();
        assert!(output.status.success(), "{}", shown(dir.path(), &output));
        String::from_utf8(output.stderr).unwrap()
    };
    let same = more("trainer.steps=3");
    assert!(!same.contains("has changed its tools"), "{same}");
    let changed = SERVER.replace("Counts its calls", "Counts").replace("(\"fail\", ", "(\"failing\", ");
    std::fs::write(dir.path().join("server.py"), changed).unwrap();
    let warned = more("trainer.steps=4");
    let line = "warning: the MCP server `python3` has changed its tools (`count` differs, without `fail`, new: \
                `failing`); the policy sees the tools of the run's first start";
    assert!(warned.contains(line), "{warned}");
}

#[test]
fn check_reports_mcp_servers_and_their_tools() {
    let dir = directory(&[("a.lua", COUNTING), ("server.py", SERVER)], true);
    let checked = succeed(dir.path(), &["check", "a.lua"]);
    assert!(
        checked.contains("it starts MCP server test-server 1.2.3, outside the sandbox: python3 server.py"),
        "{checked}"
    );
    let wrong = |from: &str, to: &str| {
        std::fs::write(dir.path().join("b.lua"), COUNTING.replace(from, to)).unwrap();
        fail(dir.path(), &["check", "b.lua"])
    };
    let unknown = wrong("\"count\", \"add\"", "\"count\", \"ad\"");
    assert!(unknown.contains("`allow` names `ad`") && unknown.contains("did you mean `add`"), "{unknown}");
    let undeclared = wrong("needs = { \"process:python3\" },", "");
    assert!(undeclared.contains("needs = { \"process:python3\" }"), "{undeclared}");
}

#[test]
fn mcp_server_errors_at_the_command_line() {
    let recipe = |server: &str| {
        format!(
            "return r1.recipe {{ env = r1.env {{ tools = {{ r1.tools.mcp {{ command = {{ {server} }} }} }} }},\n\
             needs = {{ 'process:no-such-server', 'process:python3' }}, reward = function() return 0 end,\n\
             data = {{ train = r1.data.generate {{ count = 1, row = function() return {{ prompt = 'x' }} end }} }} }}"
        )
    };
    cli_snapshot!({ "a.lua" => recipe("'no-such-server'") }, ["check", "a.lua"], @r"
    exit: 7
    --- stderr
    error: MCP server `no-such-server`: there is no program `no-such-server` on the PATH
      --> a.lua:1
      hint: install it, or give its path in `command`
    ");
    let dies = recipe("'python3', 'server.py', '--mode', 'dies'");
    cli_snapshot!({ "a.lua" => dies, "server.py" => SERVER }, ["run", "a.lua"], @r"
    exit: 7
    --- stderr
    error: MCP server `python3`: it ended (exit status: 1): no licence found
      --> a.lua:1
      hint: run it by hand to see its output: python3 server.py --mode dies
    ");
}

/// A client of `r1 mcp`: raw JSON-RPC, a message per line.
struct Client {
    child: Child,
    output: BufReader<ChildStdout>,
    next: u64,
}

impl Client {
    fn start(dir: &Path, args: &[&str]) -> Self {
        let mut child =
            r1(dir, args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut client = Self { child, output, next: 0 };
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } });
        let answer = client.ask("initialize", &hello);
        assert_eq!(answer["result"]["serverInfo"]["name"], "r1", "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }));
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(answer["id"], self.next, "{answer}");
        answer
    }

    fn call(&mut self, name: &str, arguments: &Value) -> (String, bool) {
        let answer = self.ask("tools/call", &json!({ "name": name, "arguments": arguments }));
        let result = &answer["result"];
        (result["content"][0]["text"].as_str().unwrap_or_default().to_owned(), result["isError"] == true)
    }

    /// Closes the input; the exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

/// Tools with a state, an error, a wrong result, and one of another MCP server.
const LEDGER: &str = r#"
local add = r1.tool {
  name = "add", description = "Adds to the sum", parameters = { n = "integer" },
  run = function(arguments, call)
    call.state.sum = call.state.sum + arguments.n
    r1.log("sum", call.state.sum)
    if arguments.n == 13 then return nil, "13 is refused" end
    if arguments.n == 14 then error("a fault of the script") end
    return call.state.sum
  end,
}
local env = r1.env {
  tools = { add, r1.tools.mcp { command = { "python3", "server.py" }, allow = { "echo" }, prefix = "far_" } },
  reset = function(task) return { sum = task.start, messages = { r1.user "x" } } end,
}
return r1.recipe {
  env = env, needs = { "process:python3" }, reward = function() return 0 end,
  data = { train = { { start = 100 }, { start = 200 } } },
}
"#;

#[test]
fn mcp_clients_use_the_tools_of_a_recipe() {
    let dir = directory(&[("a.lua", LEDGER), ("server.py", SERVER)], false);
    let mut client = Client::start(dir.path(), &["mcp", "a.lua", "--row", "1"]);
    let listed = client.ask("tools/list", &json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["add", "far_echo"]);
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["n"]));
    assert_eq!(client.call("add", &json!({ "n": 5 })), ("205".to_owned(), false));
    assert_eq!(client.call("add", &json!({ "n": 5 })), ("210".to_owned(), false));
    assert_eq!(
        client.call("add", &json!({ "n": "x" })),
        ("Error: arguments.n must be integer, got \"x\"".to_owned(), true)
    );
    assert_eq!(client.call("add", &json!({ "n": 13 })), ("13 is refused".to_owned(), true));
    let (text, wrong) = client.call("add", &json!({ "n": 14 }));
    assert!(wrong && text.contains("a fault of the script"), "{text}");
    assert_eq!(client.call("far_echo", &json!({ "text": "hello" })), ("hello".to_owned(), false));
    let (text, wrong) = client.call("sub", &json!({}));
    assert!(wrong && text.contains("no tool `sub`; tools: `add`, `far_echo`"), "{text}");
    let unknown = client.ask("no/such/method", &json!({}));
    assert_eq!(unknown["error"]["code"], -32601);
    let (code, printed) = client.end();
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("sum 205") && printed.contains("a fault of the script"), "{printed}");
}

#[test]
fn r1_mcp_refuses_recipes_without_tools_and_other_clients() {
    let none = "return r1.recipe { env = r1.env {}, reward = function() return 0 end,\n\
                data = { train = { { prompt = 'x' } } } }";
    cli_snapshot!({ "a.lua" => none }, ["mcp", "a.lua"], @r"
    exit: 3
    --- stderr
    error: the recipe has no tools to serve
      --> a.lua
      hint: give its env tools: r1.env { tools = { r1.tools.python {} } }
    ");
    cli_snapshot!({ "a.lua" => LEDGER.replace("task.start", "task.begin.x"), "server.py" => SERVER }, ["mcp", "a.lua"], @r"
    exit: 3
    --- stderr
    error: attempt to index nil with 'x'
      --> a.lua:14
      hint: the task's columns: `start`
    ");
    let dir = directory(&[("a.lua", LEDGER), ("server.py", SERVER)], false);
    // A client that disconnects before the handshake.
    assert_eq!(printed(dir.path(), &["mcp", "a.lua"]).lines().next(), Some("exit: 0"));
}

/// One request to `r1 mcp --http`: status, session, and body.
fn posted(port: &str, headers: &str, message: &Value) -> (String, String, String) {
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let body = message.to_string();
    let accept = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nConnection: close";
    let length = body.len();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: 127.0.0.1:{port}\r\n") };
    write!(stream, "POST /mcp HTTP/1.1\r\n{host}{accept}\r\n{headers}Content-Length: {length}\r\n\r\n{body}").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap_or_default();
    (head.split(' ').nth(1).unwrap().to_owned(), session.to_owned(), body.to_owned())
}

/// Starts `r1 mcp --http`; the process, its port, and what it says before.
fn serving(dir: &Path, token: Option<&str>) -> (Child, String, String) {
    let mut command = r1(dir, &["mcp", "a.lua", "--http", "0"]);
    if let Some(token) = token {
        command.env("R1_MCP_TOKEN", token);
    }
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    let mut line = String::new();
    while !line.contains("http://127.0.0.1:") {
        text += &line;
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended: {text}");
    }
    let (_, rest) = line.split_once("http://127.0.0.1:").unwrap();
    (child, rest.split('/').next().unwrap().to_owned(), text)
}

fn hello() -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } })
}

#[test]
fn mcp_clients_over_http_send_the_token() {
    let dir = directory(&[("a.lua", LEDGER), ("server.py", SERVER)], false);
    let (mut child, port, text) = serving(dir.path(), Some("s3cret"));
    assert!(!text.contains("can run the tools"), "{text}");
    for (header, status) in [
        ("", "401"),
        ("Authorization: Bearer s3cre\r\n", "401"),
        ("Authorization: s3cret\r\n", "401"),
        ("Authorization: Bearer s3cret\r\n", "200"),
    ] {
        assert_eq!(posted(&port, header, &hello()).0, status, "{header}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn mcp_clients_over_http_have_a_session_each() {
    let dir = directory(&[("a.lua", LEDGER), ("server.py", SERVER)], false);
    let (mut child, port, text) = serving(dir.path(), None);
    assert!(text.contains("every user of this machine can run the tools"), "{text}");
    let hello = hello();
    let open = || {
        let (status, session, body) = posted(&port, "", &hello);
        assert!(status == "200" && !session.is_empty() && body.contains("\"name\":\"r1\""), "{status} {body}");
        let headers = format!("Mcp-Session-Id: {session}\r\nMcp-Protocol-Version: 2025-06-18\r\n");
        let begun = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(posted(&port, &headers, &begun).0, "202");
        headers
    };
    let add = |headers: &str, n: i64| {
        let params = json!({ "name": "add", "arguments": { "n": n } });
        posted(&port, headers, &json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params })).2
    };
    let (one, two) = (open(), open());
    assert!(add(&one, 5).contains("\"text\":\"105\""));
    assert!(add(&one, 5).contains("\"text\":\"110\""));
    assert!(add(&two, 1).contains("\"text\":\"101\""), "another session has a state of its own");
    // Each number takes 32 bytes.
    let params = json!({ "name": "add", "arguments": { "n": vec![0; 1 << 21] } });
    let large = posted(&port, &one, &json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params })).2;
    assert!(large.contains("have too many bytes"), "{large}");
    assert!(add(&one, 5).contains("\"text\":\"115\""));
    // Pages of other sites, and names that lead here, are refused.
    assert_eq!(posted(&port, "Origin: http://example.com\r\n", &hello).0, "403");
    assert_eq!(posted(&port, "Host: example.com\r\n", &hello).0, "403");
    let unknown = "Mcp-Session-Id: 00000000-0000-0000-0000-000000000000\r\n";
    assert_eq!(posted(&port, unknown, &json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list" })).0, "404");
    child.kill().unwrap();
    child.wait().unwrap();
}
