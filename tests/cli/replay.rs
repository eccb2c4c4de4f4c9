//! `r1 replay` and `r1 rescore`: recorded trajectories compared with the results of the current
//! script.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::run_files::json_lines;
use super::{directory, printed, r1, succeed};

/// Every step reads random numbers of the operating system, so that only the record can reproduce
/// it.
const LUCKY: &str = r#"
local lib = require("lib/luck")
local python = r1.tools.python {}
local env = r1.env {
  format = "retool", tools = { python }, max_steps = 3,
  reset = function(task) return { luck = 0, messages = { r1.user(task.prompt) } } end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    local reported = r1.call_tools({ { name = "python", arguments = { code = lib.code } } })[1].content
    r1.push(state.messages, r1.user("luck " .. reported))
    state.luck = state.luck + tonumber(reported) % 100 + math.random(10)
    return { reward = state.luck / 7, done = math.random() < 0.3 }
  end,
}
return r1.recipe {
  env = env,
  reward = function(state, outcome) return { luck = state.luck, terminated = outcome.terminated and 1 or 0 } end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 8, row = function(index) return { prompt = "Say " .. index } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}
"#;

const LUCK: &str = "return { code = 'import os; print(int.from_bytes(os.urandom(2), \"big\"))' }";

/// A run of two steps with four trajectories each.
fn lucky_run() -> tempfile::TempDir {
    let dir = directory(&[("a.lua", LUCKY)], true);
    fs::create_dir(dir.path().join("lib")).unwrap();
    fs::write(dir.path().join("lib/luck.lua"), LUCK).unwrap();
    succeed(dir.path(), &["run", "a.lua", "-q"]);
    dir
}

fn events(dir: &Path, args: &[&str]) -> Vec<Value> {
    let output = r1(dir, &[args, &["--json"]].concat()).output().unwrap();
    json_lines(std::str::from_utf8(&output.stdout).unwrap())
}

#[test]
fn a_replay_repeats_a_run_and_shows_differences() {
    let dir = lucky_run();
    // The run stores what it needs: the script may change or be deleted.
    fs::remove_dir_all(dir.path().join("lib")).unwrap();
    fs::write(dir.path().join("a.lua"), "return nothing at all").unwrap();
    let same = "exit: 0\n--- stdout\n8 trajectories: every observation, reward and status as recorded";
    assert_eq!(printed(dir.path(), &["replay", "a", "-q"]), same);
    assert_eq!(printed(dir.path(), &["replay", "runs/a", "-q"]), same);
    let one = "exit: 0\n--- stdout\n1 trajectory: every observation, reward and status as recorded";
    assert_eq!(printed(dir.path(), &["replay", "a", "2-1-0", "-q"]), one);
    assert_eq!(events(dir.path(), &["replay", "a", "--last", "1"]).len(), 5);
    let unknown = printed(dir.path(), &["replay", "a", "2-1-7", "-q"]);
    assert!(unknown.starts_with("exit: 2") && unknown.contains("did you mean `2-1-0`"), "{unknown}");
    assert!(printed(dir.path(), &["replay", "b", "-q"]).contains("there is no run `b`"));

    // Another script: first another reward, then another external call.
    fs::create_dir(dir.path().join("lib")).unwrap();
    fs::write(dir.path().join("lib/luck.lua"), LUCK).unwrap();
    fs::write(dir.path().join("new.lua"), LUCKY.replace("state.luck / 7", "state.luck / 8")).unwrap();
    let output = printed(dir.path(), &["replay", "a", "1-0-0", "-q", "--script", "new.lua"]);
    assert!(output.starts_with("exit: 6\n--- stdout\n1-0-0: step 1, reward\n  recorded  "), "{output}");
    assert!(output.ends_with("1 of 1 trajectory not as recorded"), "{output}");
    fs::write(dir.path().join("lib/luck.lua"), "return { code = 'print(3)' }").unwrap();
    let received = events(dir.path(), &["replay", "a", "1-0-0", "--script", "new.lua"]);
    assert_eq!(received[0]["difference"]["field"], "the external calls of the script");
    assert_eq!(received[0]["difference"]["step"], 1);
    assert!(received[0]["difference"]["now"].as_str().unwrap().contains("print(3)"));
    fs::write(dir.path().join("new.lua"), LUCKY.replace("\"luck \"", "\"fate \"")).unwrap();
    fs::write(dir.path().join("lib/luck.lua"), LUCK).unwrap();
    let output = printed(dir.path(), &["replay", "a", "-q", "--script", "new.lua"]);
    assert!(output.contains("prompt") && output.contains("- luck") && output.contains("+ fate"), "{output}");
}

#[test]
fn rescore_compares_the_changed_reward_with_the_old_one() {
    let dir = lucky_run();
    // The same to the bit, then with the sign reversed.
    let same = events(dir.path(), &["rescore", "a", "--script", "a.lua"]);
    assert_eq!(same.len(), 9);
    assert!(same[..8].iter().all(|line| line["old"] == line["new"] && line["flips"] == false), "{same:?}");
    assert_eq!(same[8]["sign_flips"], 0);

    let turned = LUCKY.replace("luck = state.luck,", "luck = -state.luck,").replace("reward = state.luck / 7,", "");
    fs::write(dir.path().join("new.lua"), turned).unwrap();
    let received = events(dir.path(), &["rescore", "a", "--script", "new.lua", "--last", "2"]);
    let summary = received.last().unwrap();
    assert_eq!((&summary["trajectories"], &summary["steps"]), (&Value::from(8), &serde_json::json!([1, 2])));
    assert!(summary["rank_correlation"].as_f64().unwrap() < 0.0, "{summary}");
    let first = &received[0];
    assert_eq!(first["parts"]["old"]["luck"].as_f64(), first["parts"]["new"]["luck"].as_f64().map(|luck| -luck));
    let table = printed(dir.path(), &["rescore", "a", "--script", "new.lua", "--last", "1"]);
    assert!(table.starts_with("exit: 0\n--- stdout\na, step 2: 4 trajectories under new.lua"), "{table}");
    for part in ["mean of", "rank correlation", "change their sign", "changed most", "\"Say ", "luck"] {
        assert!(table.contains(part.trim_matches('"')), "{part}: {table}");
    }

    // Trajectories with calls that are not in the record are excluded with the reason, or the calls
    // run with --live.
    fs::write(dir.path().join("lib/luck.lua"), "return { code = 'print(3)' }").unwrap();
    let refused = printed(dir.path(), &["rescore", "a", "--script", "new.lua", "-q"]);
    assert!(refused.starts_with("exit: 6") && refused.contains("--live runs it"), "{refused}");
    let live = events(dir.path(), &["rescore", "a", "--script", "new.lua", "--live"]);
    assert_eq!(live.last().unwrap()["trajectories"], 8);
}
