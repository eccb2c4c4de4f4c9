//! `r1 traj`: stored trajectories listed, shown, searched, compared, exported and checked.

use std::fs;
use std::path::{Path, PathBuf};

use r1::mdp::{Message, Status, Step, ToolCall, ToolRecord, TrainedTokens, Trajectory, testing};
use r1::store::{Configuration, RunDir, ScriptVersion, read_trajectories};
use serde_json::{Value, json};

use super::run_files::json_lines;
use super::{cli_snapshot, directory, fail, printed, r1, succeed};

/// A trajectory with a reward, whose policy called a tool.
fn trajectory(step: u64, group: u64, sample: u32, reward: f64) -> Trajectory {
    let call = ToolCall { id: None, name: "add".to_owned(), arguments: json!({ "a": sample }) };
    let tool = ToolRecord {
        name: "add".to_owned(),
        arguments: json!({ "a": sample }),
        output: "sum \u{1b}[31m2".to_owned(),
        ok: true,
        seconds: 0.5,
        ..ToolRecord::default()
    };
    let trained = |tokens: usize| TrainedTokens { advantages: vec![reward; tokens], ..TrainedTokens::default() };
    let first =
        Step { text: "add".to_owned(), tools: vec![tool], trained: trained(2), ..testing::step(&[1, 2], &[3, 4]) };
    let reply = format!("the answer is {reward}");
    let last = Step {
        text: reply.clone(),
        reward,
        terminated: true,
        trained: trained(1),
        ..testing::step(&[1, 2, 3, 4, 5], &[6])
    };
    Trajectory {
        id: format!("{step}-{group}-{sample}"),
        group,
        sample,
        task_index: group,
        task: json!({ "question": "1+1?", "level": group }),
        script_hash: "aaaa".to_owned(),
        outcome_reward: reward,
        reward_parts: [("accuracy".to_owned(), reward)].into(),
        seconds: 2.0,
        messages: vec![
            Message::system("Be brief."),
            Message::user("1+1?"),
            Message { tool_calls: vec![call], ..Message::assistant("") },
            Message::tool("sum \u{1b}[31m2"),
            Message::assistant(reply),
        ],
        ..testing::trajectory(vec![first, last])
    }
}

/// A directory with the run `demo` of three steps, whose last trajectory failed.
fn run_of_three_steps() -> tempfile::TempDir {
    let dir = directory(&[], false);
    let run = RunDir::create(&dir.path().join("runs"), "demo").unwrap();
    let script = ScriptVersion { path: "a.lua".into(), hash: "aaaa".to_owned(), ..ScriptVersion::default() };
    let configuration = Configuration { script, max_context: 64, settings: json!({}), ..Configuration::default() };
    run.write_recipe(configuration, "return r1.recipe {}", &[]).unwrap();
    for step in 1..=3 {
        let rewards = [(0, 0, 1.0), (0, 1, -1.0), (1, 0, 0.25), (1, 1, 0.25 * step as f64)];
        let mut all = rewards.map(|(group, sample, reward)| trajectory(step, group, sample, reward)).to_vec();
        if step == 3 {
            all[3] = Trajectory { status: Status::EnvError, steps: Vec::new(), ..all[3].clone() };
        }
        run.write_trajectories(step, step - 1, None, &all).unwrap();
    }
    dir
}

fn events(dir: &Path, args: &[&str]) -> Vec<Value> {
    json_lines(&succeed(dir, &[args, &["--json"]].concat()))
}

/// The ids of the trajectories that a command prints.
fn ids(dir: &Path, args: &[&str]) -> Vec<String> {
    let events = events(dir, args);
    let listed = events.iter().filter(|event| event["event"] == "trajectory");
    listed.map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

fn file(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("runs/demo/trajectories/step-{step:06}.parquet"))
}

#[test]
fn trajectories_are_listed_by_step_by_number_and_by_expression() {
    let dir = run_of_three_steps();
    let at = dir.path();
    assert_eq!(ids(at, &["traj", "ls", "demo"]).len(), 12);
    assert_eq!(ids(at, &["traj", "ls", "runs/demo", "-n", "5"]), ["2-1-1", "3-0-0", "3-0-1", "3-1-0", "3-1-1"]);
    assert_eq!(ids(at, &["traj", "ls", "demo", "--steps", "..2", "-n", "0"]).len(), 8);
    assert_eq!(ids(at, &["traj", "ls", "demo", "--last", "1"]), ["3-0-0", "3-0-1", "3-1-0", "3-1-1"]);
    let negative = ["traj", "where", "demo", "reward < 0 and steps > 1 and task.level == 0"];
    assert_eq!(ids(at, &negative), ["1-0-1", "2-0-1", "3-0-1"]);
    assert_eq!(events(at, &negative).last().unwrap()["total"], 12);
    assert_eq!(ids(at, &["traj", "top", "demo", "--by", "reward", "-n", "2"]), ["1-0-0", "2-0-0"]);
    let lowest = ["traj", "top", "demo", "--by", "length", "--lowest", "-n", "1"];
    assert_eq!(ids(at, &lowest), ["3-1-1"]);
    let selected = ["traj", "top", "demo", "--by", "advantage", "--where", "reward < 1", "-n", "1"];
    assert_eq!(ids(at, &selected), ["2-1-1"]);
    let row = &events(at, &["traj", "top", "demo", "-n", "1"])[0];
    assert_eq!(
        *row,
        json!({
            "event": "trajectory", "id": "1-0-0", "status": "terminated", "reward": 1, "advantage": 1, "steps": 2,
            "tokens": 3, "tool_calls": 1, "seconds": 2
        })
    );
    cli_snapshot!(in &dir, ["traj", "where", "demo", "reward < 0.5 and group == 1", "-n", "2"], @r#"
    exit: 0
    --- stdout
      id         status  reward  advantage  steps  tokens  calls  seconds  group
      1-1-0  terminated   +0.25     +0.250      2       3      1    [time]      1
      1-1-1  terminated   +0.25     +0.250      2       3      1    [time]      1

    5 of 12 trajectories in steps 1 to 3 of demo; the first 2 are shown, -n sets how many
    "#);
    let listed = succeed(at, &["traj", "ls", "demo", "--last", "1"]);
    assert!(listed.ends_with("the last 4 trajectories of demo, which has step 3; -n 0 lists all\n"), "{listed}");
}

#[test]
fn names_and_ranges_that_do_not_exist_are_refused() {
    let dir = run_of_three_steps();
    for (args, part) in [
        (&["traj", "ls", "dmeo"][..], "did you mean `demo`?"),
        (&["traj", "ls", "demo", "--eval"], "leave out --eval"),
        (&["traj", "ls", "demo", "--steps", "7.."], "it has the steps 1 to 3"),
        (&["traj", "ls", "demo", "--steps", "3..1"], "must be a step or a range"),
        (&["traj", "where", "demo", "rewrad < 0"], "did you mean `reward`"),
        (&["traj", "where", "demo", "reward <"], "is refused"),
        (&["traj", "where", "demo", "error:find('x')"], "`error and error:find"),
        (&["traj", "top", "demo", "--by", "advantages"], "did you mean `advantage`?"),
        (&["traj", "top", "demo", "--by", "entropy"], "no trajectory has a number `entropy`"),
        (&["traj", "show", "demo", "1-0-7"], "did you mean `1-0-"),
        (&["traj", "diff", "demo", "1-0", "1-0-0"], "names 2 trajectories"),
        (&["traj", "grep", "demo", "("], "is not a regular expression"),
        (&["traj", "export", "demo", "--parquet"], "--out"),
        (&["traj", "export", "demo"], "--sft"),
    ] {
        let refused = fail(dir.path(), args);
        assert!(refused.contains(part), "{args:?}: {refused}");
    }
}

#[test]
fn a_trajectory_is_shown_with_its_conversation_and_steps() {
    let dir = run_of_three_steps();
    cli_snapshot!(in &dir, ["traj", "show", "demo", "2-0-1"], @r#"
    exit: 0
    --- stdout
    trajectory 2-0-1: terminated, reward -1
      2 steps, 3 sampled tokens, 1 tool call, [time], task 0, seed 0, policy version 1
      accuracy -1

      task      level: 0
                question: 1+1?

      system    Be brief.
      user      1+1?
      assistant → add { a = 1 }
      tool      sum ␛[31m2
      assistant the answer is -1

      step  reward  advantage  prompt  tokens  calls            finish
      0         +0     -1.000       2       2      1              stop
      1         -1     -1.000       5       1      0  stop, terminated

      step 0: add ok, [time]
                { a = 1 }
      →       sum ␛[31m2
    "#);
    let shown = &events(dir.path(), &["traj", "show", "demo", "2-0-1"])[0];
    assert_eq!((&shown["advantages"], &shown["policy_version"]), (&json!([-1.0, -1.0]), &json!(1)));
    assert_eq!(shown["messages"].as_array().unwrap().len(), 5);
    assert_eq!(ids(dir.path(), &["traj", "show", "demo", "2-0", "3-1-1"]), ["2-0-0", "2-0-1", "3-1-1"]);
}

#[test]
fn messages_are_searched_and_escapes_do_nothing() {
    let dir = run_of_three_steps();
    let matches = succeed(dir.path(), &["traj", "grep", "demo", "answer is -", "--role", "assistant", "--steps", "2"]);
    assert_eq!(matches, "2-0-1 4 assistant  the answer is -1\n\n1 line in 1 of 4 trajectories\n");
    let calls = events(dir.path(), &["traj", "grep", "demo", "ADD .*1", "-i", "--steps", "1"]);
    assert_eq!((calls.len(), &calls[0]["id"], &calls[0]["match"]), (3, &json!("1-0-1"), &json!("add {\"a\":1")));
    let escaped = succeed(dir.path(), &["traj", "grep", "demo", "sum", "-n", "1"]);
    assert!(escaped.contains("sum ␛[31m2") && escaped.contains("12 lines in 12 of 12 trajectories"), "{escaped}");
}

#[test]
fn two_trajectories_are_compared() {
    let dir = run_of_three_steps();
    cli_snapshot!(in &dir, ["traj", "diff", "demo", "1-0-0", "1-0-1"], @r#"
    exit: 0
    --- stdout
                             1-0-0  1-0-1
      reward                     1     -1
      reward_parts.accuracy      1     -1

    every prompt and every reply has the same tokens
        [user] 1+1?
        [assistant]
      - → add {"a":0}
      + → add {"a":1}
        [tool] sum ␛[31m2
      - [assistant] the answer is 1
      + [assistant] the answer is -1
    "#);
    let same = succeed(dir.path(), &["traj", "diff", "demo", "1-0-0", "runs/demo:2-0-0"]);
    assert!(same.contains("every prompt and every reply has the same tokens"), "{same}");
    let itself = succeed(dir.path(), &["traj", "diff", "demo", "1-0-0", "1-0-0"]);
    assert!(itself.starts_with("1-0-0 and 1-0-0 have equal values in every field\n"), "{itself}");
    let event = &events(dir.path(), &["traj", "diff", "demo", "1-0-0", "3-1-1"])[0];
    assert_eq!(event["fields"]["steps"], json!([2, 0]));
    assert_eq!(event["first_token"], json!({ "step": 0 }));
}

#[test]
fn distributions_are_those_of_the_selected_trajectories() {
    let dir = run_of_three_steps();
    cli_snapshot!(in &dir, ["traj", "stats", "demo"], @r#"
    exit: 0
    --- stdout
    demo, steps 1 to 3: 12 trajectories, 33 sampled tokens

                              mean    std  lowest    p10    p50    p90  highest
      reward                 0.125  0.725      -1     -1  0.250      1        1
      advantage              0.136  0.757      -1     -1  0.250      1        1
      steps                  1.833  0.553       0      2      2      2        2
      tokens                 2.750  0.829       0      3      3      3        3
      tool_calls             0.917  0.276       0      1      1      1        1
      seconds                [time]  [time]   [time]  [time]  [time]  [time]    [time]
      reward_parts.accuracy  0.188  0.744      -1     -1  0.250      1        1

    status: terminated 11 (91.7%), env_error 1 (8.3%)
    finish_reason: stop 11 (91.7%)
    "#);
    let stats = &events(dir.path(), &["traj", "stats", "demo", "--where", "reward < 0", "--steps", "2.."])[0];
    assert_eq!((&stats["trajectories"], &stats["total"], &stats["tokens"]), (&json!(2), &json!(8), &json!(6.0)));
    assert_eq!(stats["numbers"]["reward"]["mean"], -1.0);
    assert_eq!(stats["counts"]["status"], json!({ "terminated": 2 }));
}

#[test]
fn selected_trajectories_are_exported() {
    let dir = run_of_three_steps();
    let at = dir.path();
    succeed(at, &["traj", "export", "demo", "--parquet", "--where", "reward > 0.2", "-o", "good.parquet"]);
    let good = read_trajectories(&at.join("good.parquet")).unwrap();
    let stored: Vec<Trajectory> = (1..=3).flat_map(|step| read_trajectories(&file(at, step)).unwrap()).collect();
    assert_eq!(good, stored.into_iter().filter(|one| one.total_reward() > 0.2).collect::<Vec<_>>());
    // The versions are those of the steps.
    fs::create_dir_all(at.join("runs/copy/trajectories")).unwrap();
    for part in ["config.json", "recipe.lua"] {
        fs::copy(at.join("runs/demo").join(part), at.join("runs/copy").join(part)).unwrap();
    }
    fs::rename(at.join("good.parquet"), at.join("runs/copy/trajectories/step-000001.parquet")).unwrap();
    assert_eq!(ids(at, &["traj", "where", "copy", "policy_version == 1"]), ["2-0-0", "2-1-0", "2-1-1"]);

    let lines = json_lines(&succeed(at, &["traj", "export", "demo", "--jsonl", "--steps", "1"]));
    assert_eq!((lines.len(), &lines[0]["steps"][0]["response_ids"]), (4, &json!([3, 4])));
    let message = printed(at, &["traj", "export", "demo", "--openai", "-o", "tuning.jsonl"]);
    assert!(message.contains("11 trajectories in tuning.jsonl; 1 left out: failed"), "{message}");
    assert_eq!(json_lines(&fs::read_to_string(at.join("tuning.jsonl")).unwrap()).len(), 11);
}

#[test]
fn files_are_checked_and_readable_ones_stay_readable() {
    let dir = run_of_three_steps();
    let at = dir.path();
    let right = succeed(at, &["traj", "verify", "demo"]);
    assert_eq!(right, "demo: 3 files right, with 12 trajectories, 22 steps, 33 sampled tokens\n");

    let whole = fs::read(file(at, 2)).unwrap();
    let mut bytes = whole.clone();
    // A page; the footer is longer than all pages.
    bytes[100] ^= 1;
    fs::write(file(at, 2), &bytes).unwrap();
    cli_snapshot!(in &dir, ["traj", "verify", "demo"], @r#"
    exit: 8
    --- stdout
    runs/demo/trajectories/step-000002.parquet
      damaged file of trajectories: checksum mismatch
      nothing in it can be read safely

    demo: 2 of 3 files right; 8 trajectories, 14 steps, 21 sampled tokens can be read
    "#);
    fs::write(file(at, 2), &whole[..whole.len() / 2]).unwrap();
    let listed = printed(at, &["traj", "ls", "demo"]);
    assert!(listed.starts_with("exit: 0") && listed.contains("warning") && listed.contains("step-000002"), "{listed}");
    assert!(listed.contains("1-1-1") && listed.contains("3-1-1"), "{listed}");
    let only = fail(at, &["traj", "ls", "demo", "--steps", "2"]);
    assert!(only.contains("r1 traj verify RUN"), "{only}");

    fs::remove_file(file(at, 2)).unwrap();
    let missing = r1(at, &["traj", "verify", "demo", "--json"]).output().unwrap();
    let summary = json_lines(std::str::from_utf8(&missing.stdout).unwrap()).pop().unwrap();
    assert_eq!((missing.status.code(), &summary["missing"], &summary["right"]), (Some(8), &json!([2]), &json!(false)));
    // Rows that are there twice.
    fs::copy(file(at, 1), file(at, 2)).unwrap();
    let repeated = printed(at, &["traj", "verify", "demo"]);
    assert!(repeated.contains("1-0-0 is there twice: also in step 1"), "{repeated}");
    assert!(
        repeated.contains("2 of 3 files right") && repeated.contains("its 4 trajectories can be read"),
        "{repeated}"
    );
}

/// A run of the tiny model: tokens need its tokenizer, and tools its script.
#[test]
fn a_real_run_is_shown_by_token_and_becomes_training_data() {
    let recipe = r#"
local add = r1.tool { name = "add", description = "Adds.", parameters = { type = "object", properties = {} },
  run = function() return "2" end }
return r1.recipe {
  env = r1.env { format = "retool", tools = { add }, max_steps = 2 },
  reward = function(state, outcome) return #outcome.text % 2 end,
  policy = { model = "model" },
  data = { train = r1.data.generate { count = 4, row = function(n) return { prompt = "Say " .. n, problem = "Say " .. n } end } },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 2, groups_per_step = 2, lr = 1e-3 },
}"#;
    let sft = r#"
return r1.recipe {
  env = r1.env { format = "retool" },
  policy = { model = "model" },
  data = { train = "rows.jsonl" },
  trainer = r1.sft { steps = 1, batch_size = 2 },
}"#;
    let dir = directory(&[("a.lua", recipe), ("sft.lua", sft)], true);
    let at = dir.path();
    succeed(at, &["run", "a.lua", "-q"]);
    let tokens = succeed(at, &["traj", "show", "a", "2-0-0", "--tokens"]);
    assert!(tokens.contains("Say") && tokens.contains(']') && tokens.contains("below: advantage"), "{tokens}");
    let shown = &events(at, &["traj", "show", "a", "2-0-0", "--tokens"])[0];
    let all: Vec<&Value> = shown["rows"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap()).collect();
    let sampled: Vec<&&Value> = all.iter().filter(|token| token["sampled"] == true).collect();
    assert_eq!(sampled.len() as u64, shown["tokens"].as_u64().unwrap());
    assert!(sampled.iter().all(|token| token["logprob"].as_f64().unwrap() < 0.0), "{sampled:?}");
    assert!(sampled[0]["advantage"].is_f64(), "{}", sampled[0]);

    succeed(at, &["traj", "export", "a", "--sft", "-o", "rows.jsonl"]);
    let rows = json_lines(&fs::read_to_string(at.join("rows.jsonl")).unwrap());
    assert_eq!((rows.len(), &rows[0]["tools"][0]["function"]["name"]), (8, &json!("add")));
    succeed(at, &["sft", "sft.lua", "-q"]);
    succeed(at, &["traj", "verify", "a"]);
}

#[test]
fn an_export_leaves_out_what_a_note_excludes() {
    let dir = run_of_three_steps();
    let at = dir.path();
    let all: Vec<String> = succeed(at, &["traj", "export", "demo", "--jsonl"]).lines().map(str::to_owned).collect();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    let (first, second) = (id(&all[0]), id(&all[1]));
    let notes =
        format!("{{\"id\":\"{first}\",\"exclude\":true}}\n{{\"id\":\"{second}\",\"note\":\"odd\",\"quality\":2}}\n");
    fs::write(at.join("runs/demo/curation.jsonl"), notes).unwrap();
    let rest = succeed(at, &["traj", "export", "demo", "--jsonl"]);
    assert_eq!(rest.lines().count(), all.len() - 1);
    let noted: Value = serde_json::from_str(rest.lines().next().unwrap()).unwrap();
    assert_eq!((noted["id"].as_str(), &noted["notes"]["quality"]), (Some(second.as_str()), &json!(2)));
    let told = succeed(at, &["traj", "export", "demo", "--parquet", "-o", "some.parquet", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["left_out"], json!({ "by a note": 1 }));
}
