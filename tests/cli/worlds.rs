//! Environments in a Python process: `r1 check`, a run whose process is killed, its replay without
//! Python. WebSockets and the proxy of the environment.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{directory, printed, r1, shown, succeed};

const GYMNASIUM: &str = include_str!("../fixtures/gymnasium.py");

const RECIPE: &str = r#"
local env_gym = require("@r1/env_gym")
return r1.recipe {
  needs = { "process:python3" },
  env = env_gym {
    "Count-v0", max_steps = 2,
    action = function() return 1 end,
    reward = function(answer) return answer.reward + answer.observation / 1000 end,
  },
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 4, row = function(index) return { index = index } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

#[test]
fn runs_in_gymnasium_environments_are_replayed_without_python() {
    let dir = directory(&[("a.lua", RECIPE), ("gymnasium.py", GYMNASIUM)], true);
    let checked = succeed(dir.path(), &["check", "a.lua"]);
    assert!(checked.contains("it starts program `gymnasium Count-v0`, outside the sandbox: python3"), "{checked}");
    let run = printed(dir.path(), &["run", "a.lua"]);
    assert!(run.starts_with("exit: 0") && run.contains("the script starts program `gymnasium Count-v0`"), "{run}");
    std::fs::remove_file(dir.path().join("gymnasium.py")).unwrap();
    let same = "exit: 0\n--- stdout\n8 trajectories: every observation, reward and status as recorded";
    assert_eq!(printed(dir.path(), &["replay", "a", "-q"]), same);
    let missing = printed(dir.path(), &["check", "a.lua"]);
    assert!(missing.contains("-m pip install gymnasium"), "{missing}");
}

#[test]
fn a_run_goes_on_when_the_process_of_its_environments_dies() {
    // The process ends at the second step of every third trajectory.
    let dying = GYMNASIUM.replace(
        "        self.steps += 1\n",
        "        self.steps += 1\n        if self.steps == 2 and self.total % 3 == 0:\n            os._exit(9)\n",
    );
    let text =
        RECIPE.replace("reward = function", "seed = function(task) return task.index end,\n    reward = function");
    let text = text.replace(
        "trainer = r1.grpo { steps = 2,",
        "rollout = { max_failure_rate = 1 }, trainer = r1.grpo { steps = 4,",
    );
    let dir = directory(&[("a.lua", &text), ("gymnasium.py", &dying)], true);
    let run = printed(dir.path(), &["run", "a.lua"]);
    assert!(run.starts_with("exit: 0"), "{run}");
    assert!(run.contains("it ended (exit status: 9)"), "{run}");
    let replayed = printed(dir.path(), &["replay", "a", "-q"]);
    assert!(replayed.starts_with("exit: 0\n--- stdout\n16 trajectories"), "{replayed}");
}

/// scripts/webshop.lua with a server of AgentGym's protocol.
const SHOPPING: &str = r#"
local function visit(url, replies)
  local script = r1.script("ROOT/scripts/webshop.lua", { settings = { ["params.url"] = url } })
  local attempt, result = script:reset { row = 0 }, nil
  local first = attempt:observe()
  for _, reply in ipairs(replies) do result = attempt:step(reply) end
  local seen, reward, parts = attempt:observe(), attempt:reward()
  return first, result, seen[#seen].content, reward, parts
end

test("a product is bought", function()
  local first, result, page, reward, parts = visit("URL", { "search[red pens]", "click[b0a]", "click[red]", "click[buy now]" })
  expect(first[2].content):contains("[SEP] Search\nclick: search")
  expect(result.done):equals(true)
  expect(result.reward):equals(1)
  expect(page):contains("Thank you")
  expect(reward):equals(1)
  expect(parts.success):equals(1)
end)

test("the page after some actions", function()
  local _, result, page, reward = visit("URL", { "search[red pens]", "I do not know" })
  expect(result.done):equals(false)
  expect(page):contains("You did: search[red pens], none\n")
  expect(page):contains("click: back to search, b0a")
  expect(reward):near(-0.1)
end)
"#;

/// scripts/alfworld.lua with a server of AgentGym's protocol.
const HOUSEHOLD: &str = r#"
test("a task is done, and the prompt has the last two actions", function()
  local script = r1.script("ROOT/scripts/alfworld.lua", { settings = { ["params.url"] = "URL" } })
  local attempt = script:reset { task = { game = 3 } }
  local first = attempt:observe()[2].content
  expect(first):contains("Your task is to: put some book on shelf 1.")
  attempt:step("I look around.\nAction: look")
  attempt:step("I do not know")
  attempt:step("Action: go to shelf 1")
  local shown = attempt:observe()
  expect(#shown):equals(2)
  local last = "> none\nError: the reply has no line Action:\n> go to shelf 1\nOn the shelf 1, you see nothing.\n"
  expect(shown[2].content):equals(`{first}\n{last}Your task is to: put some book on shelf 1.`)
  local result = attempt:step("Action: put book in/on shelf 1")
  expect({ result.done, result.reward }):equals { true, 1 }
  local reward, parts = attempt:reward()
  expect(reward):near(0.9)
  expect(parts):equals { success = 1, invalid = -0.1, steps = 4 }
end)
"#;

/// Runs a test in Lua, whose `ROOT` and `URL` are replaced, beside a server of tests/fixtures.
fn with_server(server: &str, test: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("tests/fixtures").join(server);
    let mut server = Command::new("python3").arg("-B").arg(program).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("http://127.0.0.1:{}", port.trim());
    let test = test.replace("ROOT", &root.display().to_string()).replace("URL", &url);
    let dir = directory(&[("world_test.lua", &test)], false);
    let output = r1(dir.path(), &["test", "world_test.lua"]).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
}

#[test]
fn webshop_buys_from_a_server_of_agentgym() {
    with_server("webshop_server.py", SHOPPING);
}

#[test]
fn alfworld_plays_on_a_server_of_agentgym() {
    with_server("alfworld_server.py", HOUSEHOLD);
}

#[test]
fn websockets_use_the_proxy_of_the_environment() {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = proxy.local_addr().unwrap().to_string();
    let requests = std::thread::spawn(move || {
        let mut stream = proxy.accept().unwrap().0;
        let head: Vec<String> = BufReader::new(stream.try_clone().unwrap())
            .lines()
            .map_while(|line| line.ok().filter(|line| !line.is_empty()))
            .collect();
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").unwrap();
        head
    });
    let program = r#"local _, why = r1.connection { url = "ws://room.invalid:8/ws" }:request("a") print(why)"#;
    let dir = directory(&[("a.lua", program)], false);
    let with = |variables: &[(&str, &str)]| {
        let mut command = r1(dir.path(), &["lua", "a.lua"]);
        for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"] {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        shown(dir.path(), &command.envs(variables.iter().copied()).output().unwrap())
    };
    let refused = with(&[("https_proxy", &format!("http://me:pw@{at}")), ("NO_PROXY", "localhost")]);
    assert!(refused.contains(&format!("the proxy {at} refuses the connection to room.invalid:8 with status 403")));
    let head = requests.join().unwrap();
    assert_eq!(head[0], "CONNECT room.invalid:8 HTTP/1.1");
    assert!(head.contains(&"Proxy-Authorization: Basic bWU6cHc=".to_owned()), "{head:?}");
    // Nothing listens at the proxy now.
    let absent = with(&[("ALL_PROXY", &at)]);
    assert!(absent.contains(&format!("the proxy {at}: connection refused")), "{absent}");
    let without = with(&[("ALL_PROXY", &at), ("no_proxy", ".invalid")]);
    assert!(without.starts_with("exit: 0") && !without.contains("proxy"), "{without}");
}
