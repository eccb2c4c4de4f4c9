//! `r1 infer --input FILE --output FILE`.

use std::path::Path;

use serde_json::Value;

use super::run_files::json_lines;
use super::{directory, fail, r1, shown, succeed};

const ROWS: &str = "{\"prompt\": \"one\", \"id\": 7}\n{\"prompt\": \"two\"}\n{\"prompt\": \"three\"}\n";
/// Its env shows the column `problem`; the second row fails.
const RECIPE: &str = r#"
    return r1.recipe {
      env = r1.env {
        reset = function(task)
          if task.problem == "bad" then error("a bad row") end
          return { task = task, messages = { r1.user(task.problem) } }
        end,
        step = function(state, action) return { done = true } end,
      },
      reward = function() error("no reward is needed") end,
      policy = { model = "r1-nano" },
      data = { train = { { problem = "q", answer = "a" } } },
      sampling = { max_new_tokens = 4 },
      trainer = r1.grpo {},
    }"#;

fn lines(path: &Path) -> Vec<Value> {
    json_lines(&std::fs::read_to_string(path).unwrap())
}

#[test]
fn rows_have_replies_in_their_order_and_a_stopped_file_continues() {
    let dir = directory(&[("in.jsonl", ROWS)], false);
    let at = dir.path();
    let args = [
        "infer",
        "--model",
        "r1-nano",
        "--input",
        "in.jsonl",
        "--output",
        "out.jsonl",
        "--temperature",
        "1",
        "--max-new-tokens",
        "6",
        "-q",
    ];
    succeed(at, &args);
    let out = at.join("out.jsonl");
    let whole = std::fs::read(&out).unwrap();
    let rows = lines(&out);
    assert_eq!(rows.len(), 3);
    for (index, line) in rows.iter().enumerate() {
        assert_eq!(line["index"], index);
        assert!(line["reply"].is_string() && line["finish_reason"].is_string(), "{line}");
    }
    assert_eq!((&rows[0]["row"]["id"], &rows[2]["row"]["prompt"]), (&7.into(), &"three".into()));
    // Killed within the second line.
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(&out, &whole[..first + 9]).unwrap();
    succeed(at, &args);
    assert_eq!(std::fs::read(&out).unwrap(), whole);
    succeed(at, &args);
    assert_eq!(std::fs::read(&out).unwrap(), whole);
    // Replies to other rows are not continued.
    std::fs::write(at.join("in.jsonl"), ROWS.replace("three", "four")).unwrap();
    assert!(fail(at, &args).contains("not the replies to the first rows of --input"));
}

/// Replies of another model do not pass for replies of this one, and a file of something else is
/// left as it is.
#[test]
fn a_file_of_other_replies_is_not_continued() {
    let dir = directory(&[("in.jsonl", ROWS)], false);
    let (at, out) = (dir.path(), dir.path().join("out.jsonl"));
    let base = ["infer", "--model", "r1-nano", "--input", "in.jsonl", "--output", "out.jsonl", "-q"];
    let args = |more: &[&'static str]| [&base[..], &["--max-new-tokens", "3"], more].concat();
    succeed(at, &args(&[]));
    let whole = std::fs::read(&out).unwrap();
    for other in [["--seed", "5"], ["--temperature", "1"], ["--system", "Be brief."]] {
        let refused = fail(at, &args(&other));
        assert!(refused.contains("has replies of another model, script or seed, or with other flags"), "{refused}");
    }
    assert_eq!(std::fs::read(&out).unwrap(), whole);
    for text in ["my only line", "one\ntwo", "{\"index\":1,"] {
        std::fs::write(&out, text).unwrap();
        let refused = fail(at, &args(&[]));
        assert!(refused.contains("not the replies to the first rows of --input"), "{refused}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), text);
    }
    // Killed in the first line.
    std::fs::write(&out, &whole[..5]).unwrap();
    succeed(at, &args(&[]));
    assert_eq!(std::fs::read(&out).unwrap(), whole);
}

#[test]
fn rows_are_tasks_of_a_recipe_that_shows_them() {
    let rows = "{\"problem\": \"one\"}\n{\"problem\": \"bad\"}\n{\"problem\": \"two\"}\n";
    let dir = directory(&[("in.jsonl", rows), ("a.lua", RECIPE), ("other.jsonl", "{\"text\": \"x\"}\n")], false);
    let at = dir.path();
    let args = ["infer", "--script", "a.lua", "--input", "in.jsonl", "--output", "out.jsonl"];
    let output = r1(at, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", shown(at, &output));
    let replies = lines(&at.join("out.jsonl"));
    assert!(
        replies[1]["error"].as_str().unwrap().contains("a bad row") && replies[1].get("reply").is_none(),
        "{replies:?}"
    );
    assert!(replies[0]["reply"].is_string() && replies[2]["row"]["problem"] == "two", "{replies:?}");
    let refused = fail(at, &["infer", "--model", "r1-nano", "--input", "other.jsonl", "--output", "o.jsonl"]);
    assert!(refused.contains("neither a column `prompt` nor `messages`"), "{refused}");
}
