//! What a script's author sees: recipes that work and the one message for each that does not.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use insta::assert_snapshot;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::*;
use crate::config::{Source, Trainer};
use crate::error::{Error, Kind};
use crate::mdp::{Action, FinishReason, Observation, Role, Status, ToolCall};

/// A script in a directory of its own.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(source: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        bench.file("x.lua", source);
        bench
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn load(&self, overrides: &[&str]) -> Result<Script, Error> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Script::load(&self.dir.path().join("x.lua"), &overrides)
    }

    fn worker(&self) -> Worker {
        Worker::new(&self.load(&[]).unwrap(), None).unwrap()
    }

    /// A message without the name of the temporary directory.
    fn show(&self, error: impl std::fmt::Display) -> String {
        error.to_string().replace(&format!("{}/", self.dir.path().display()), "")
    }

    fn refusal(&self) -> String {
        self.show(self.load(&[]).expect_err("this script must be refused"))
    }
}

/// The message for a script that must be refused.
fn refused(source: &str) -> String {
    Bench::new(source).refusal()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn action(text: &str) -> Action {
    Action {
        text: text.to_owned(),
        token_ids: vec![1, 2, 3],
        tool_calls: Vec::new(),
        errors: Vec::new(),
        finish_reason: FinishReason::Stop,
    }
}

fn call(name: &str, arguments: Json) -> ToolCall {
    ToolCall { id: Some("c1".to_owned()), name: name.to_owned(), arguments }
}

fn outcome(text: &str) -> Outcome {
    Outcome { text: text.to_owned(), steps: 1, terminated: true, truncated: false }
}

const DESIGN: &str = include_str!("../../tests/lua/retool_design.lua");

#[test]
fn the_example_recipe_works_as_written() {
    let bench = Bench::new(DESIGN);
    bench.file("train.jsonl", "{\"problem\": \"6*7?\", \"answer\": \"42\"}\n");
    let script = bench.load(&[]).unwrap();
    let Trainer::Grpo(grpo) = &script.settings.trainer else { panic!() };
    assert_eq!((grpo.group_size, grpo.clip, grpo.lr), (8, (0.2, 0.28), 1e-6));
    assert_eq!(script.settings.env.format, "retool");
    let worker = Worker::new(&script, None).unwrap();
    assert_eq!(worker.tools()[0]["function"]["name"], "python");
    let task = worker.row(Split::Train, 0).unwrap();
    run(async {
        let state = worker.reset(&task, 7).await.unwrap();
        let mut act = action("<code>print(6*7)</code>");
        act.tool_calls.push(call("python", json!({"code": "print(6*7)"})));
        let result = worker.step(&state, &act).await.unwrap();
        assert!(!result.done);
        assert_eq!(result.tools.len(), 1);
        let roles: Vec<Role> = worker.messages(&state).iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool]);
        let done = worker.step(&state, &action("<answer>\\boxed{42}</answer>")).await.unwrap();
        assert!(done.done);
        let reward = worker.reward(&state, &outcome("<answer>\\boxed{42}</answer>")).await.unwrap();
        assert_eq!(reward.total, 1.0);
        assert_eq!(reward.parts, [("calls".to_owned(), 1.0), ("outcome".to_owned(), 1.0)].into());
    });
}
