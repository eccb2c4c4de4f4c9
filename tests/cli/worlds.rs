//! Environments in a Python process: `r1 check`, a run whose process is killed, its replay without
//! Python.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{directory, r1, shown, succeed};

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

fn said(dir: &Path, args: &[&str]) -> String {
    shown(dir, &r1(dir, args).output().unwrap())
}

#[test]
fn runs_in_gymnasium_environments_are_replayed_without_python() {
    let dir = directory(&[("a.lua", RECIPE), ("gymnasium.py", GYMNASIUM)], true);
    let checked = succeed(dir.path(), &["check", "a.lua"]);
    assert!(checked.contains("it starts program `gymnasium Count-v0`, outside the sandbox: python3"), "{checked}");
    let run = said(dir.path(), &["run", "a.lua"]);
    assert!(run.starts_with("exit: 0") && run.contains("the script starts program `gymnasium Count-v0`"), "{run}");
    std::fs::remove_file(dir.path().join("gymnasium.py")).unwrap();
    let same = "exit: 0\n--- stdout\n8 trajectories: every observation, reward and status as recorded";
    assert_eq!(said(dir.path(), &["replay", "a", "-q"]), same);
    let missing = said(dir.path(), &["check", "a.lua"]);
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
    let run = said(dir.path(), &["run", "a.lua"]);
    assert!(run.starts_with("exit: 0"), "{run}");
    assert!(run.contains("it ended (exit status: 9)"), "{run}");
    let replayed = said(dir.path(), &["replay", "a", "-q"]);
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

#[test]
fn webshop_buys_from_a_server_of_agentgym() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut server = Command::new("python3")
        .arg(root.join("tests/fixtures/webshop_server.py"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("http://127.0.0.1:{}", port.trim());
    let test = SHOPPING.replace("ROOT", &root.display().to_string()).replace("URL", &url);
    let dir = directory(&[("shop_test.lua", &test)], false);
    let output = r1(dir.path(), &["test", "shop_test.lua"]).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
}
