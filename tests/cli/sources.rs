//! Several environments and datasets in one run, rows that are too long, reply prefixes.

use super::run_files::metrics;
use super::{directory, printed, r1, ran, shown};

/// Two environments, two datasets, and one row that is too long.
const TWO: &str = r#"
local long = string.rep("long ", 200)
local function rows(word, count)
  local list = {}
  for n = 1, count do list[n] = { problem = word .. n } end
  return list
end
local ones, twos = rows("one ", 4), rows("two ", 8)
twos[3].problem = long
return r1.recipe {
  policy = { model = "model" },
  envs = {
    first = r1.env { max_steps = 1, system = "First." },
    second = r1.env { max_steps = 2, format = "hermes", reply_prefix = "So: ", reward = function(state, outcome)
      return { prefixed = outcome.text:sub(1, 4) == "So: " and 1 or 0, total = #outcome.text }
    end },
  },
  reward = function(state, outcome) return { total = -#outcome.text } end,
  data = {
    train = {
      ones = { rows = ones, weight = 1, env = "first" },
      twos = { rows = twos, weight = 1, env = "second" },
    },
    eval = { ones = { rows = rows("one ", 2), env = "first" }, twos = { rows = rows("two ", 2), env = "second" } },
  },
  sampling = { max_new_tokens = 8 },
  trainer = r1.grpo { steps = 4, groups_per_step = 2, group_size = 2, lr = 1e-3, warmup = 0 },
  eval = { limit = 1 },
}
"#;

#[test]
fn one_run_trains_on_two_environments_and_datasets() {
    let dir = directory(&[("two.lua", TWO)], true);
    let text = ran(dir.path(), &["run", "two.lua", "--name", "whole", "checkpoint.every=1"]);
    assert!(
        text.contains("1 of 12 rows in data.train have a first prompt of more than 127 tokens, such as row 6"),
        "{text}"
    );
    // Each source separately, in the table and in the metrics.
    assert!(text.contains("before: ones") && text.contains("after: twos"), "{text}");
    let all = metrics(&dir.path().join("runs/whole"));
    let steps: Vec<_> = all.iter().filter(|line| line.get("source/ones/reward").is_some()).collect();
    assert_eq!(steps.len(), 4);
    for step in steps {
        assert_eq!(step["source/ones/share"], 0.5);
        assert!(step["source/ones/reward"].as_f64().unwrap() <= 0.0);
        assert!(step["source/twos/reward"].as_f64().unwrap() >= 0.0);
        // Only trajectories of the second environment have it.
        assert_eq!(step["reward/prefixed"], 0.5);
    }
    let evaluated = all.iter().find(|line| line.get("eval/accuracy").is_some()).unwrap();
    assert_eq!((&evaluated["eval/ones/tasks"], &evaluated["eval/twos/tasks"]), (&1.0.into(), &1.0.into()));

    // The same trajectories after an interruption.
    ran(dir.path(), &["run", "two.lua", "--name", "broken", "trainer.steps=2", "checkpoint.every=1"]);
    ran(dir.path(), &["run", "two.lua", "--name", "broken", "--resume", "trainer.steps=4"]);
    let rewards = |run: &str| -> Vec<serde_json::Value> {
        metrics(&dir.path().join("runs").join(run))
            .iter()
            .filter_map(|line| line.get("source/twos/reward").cloned())
            .collect()
    };
    assert_eq!(rewards("whole"), rewards("broken"));

    // Stored trajectories replay, each in its own environment.
    let text = ran(dir.path(), &["replay", "runs/whole"]);
    assert!(text.contains("16 trajectories: every observation, reward and status as recorded"), "{text}");
    // A check reports the rows that the run drops.
    let text = ran(dir.path(), &["check", "two.lua"]);
    assert!(text.contains("warning (context)") && text.contains("a run filters out such rows"), "{text}");
    let text = printed(dir.path(), &["check", "two.lua", "data.overlong_prompts=keep"]);
    assert!(text.contains("error (context): the prompt has 1023 tokens"), "{text}");
}

#[test]
fn overlong_prompts_can_be_kept_or_refused() {
    let dir = directory(&[("two.lua", TWO)], true);
    let text = printed(dir.path(), &["run", "two.lua", "data.overlong_prompts=error"]);
    assert!(text.starts_with("exit: 4") && text.contains("1 of 12 rows in data.train"), "{text}");
    let text = printed(dir.path(), &["run", "two.lua", "data.max_prompt_tokens=3"]);
    assert!(text.contains("no row of the dataset `ones` can be used"), "{text}");
    let wrong = TWO.replace("env = \"second\" },\n    },\n    eval", "},\n    },\n    eval");
    let dir = directory(&[("two.lua", &wrong)], true);
    let text = printed(dir.path(), &["run", "two.lua", "data.overlong_prompts=keep"]);
    // Before sampling, although the first row of the other dataset is valid.
    assert!(text.contains("the row does not name one of the recipe's environments"), "{text}");
    assert!(!dir.path().join("runs").exists(), "{text}");
}

#[test]
fn a_chat_reply_has_its_reply_prefix() {
    let dir = directory(&[], true);
    let printed = |args: &[&str]| {
        let common = ["infer", "--model", "model", "-p", "Say 1", "--temperature", "0", "--max-new-tokens", "4"];
        let output = r1(dir.path(), &[&common, args].concat()).output().unwrap();
        shown(dir.path(), &output)
    };
    assert!(
        printed(&["--reply-prefix", "Well\\n"]).contains("stdout\nWell"),
        "{}",
        printed(&["--reply-prefix", "Well\\n"])
    );
    let refused = printed(&["--template-arg", "enable_thinking=false"]);
    assert!(refused.contains("the chat template does not read `enable_thinking`"), "{refused}");
}
