//! Environments in a Python process: `r1 check`, a run whose process is killed, its replay without
//! Python.

use std::path::Path;

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
