//! Tests of recipes: valid ones, and the error message of each invalid one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::print_stderr,
    clippy::format_push_string,
    clippy::needless_raw_string_hashes
)]

mod api;
mod calls;
mod connections;
mod context;
mod data;
mod docs;
mod env;
mod env_gym;
mod env_http;
mod every_tool;
mod format;
mod games;
mod hidden_tools;
mod images;
mod limits;
mod loss;
mod mcp;
mod mcp_http;
mod memory;
mod misplaced;
mod origin;
mod outside;
mod params;
mod passages;
mod python;
mod re;
mod record;
mod refusals;
mod reload;
mod repl;
mod resources;
mod rewards;
mod secrets;
mod settings;
mod sources;
mod state;
mod stored_runs;
mod tables;
mod videos;

use serde_json::Value as Json;
use tempfile::TempDir;

use super::*;
use crate::error::Error;
use crate::mdp::{Action, FinishReason, ToolCall};

/// A script in a new directory.
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

fn outcome(text: &str) -> TrajectoryOutcome {
    TrajectoryOutcome { text: text.to_owned(), steps: 1, terminated: true, ..TrajectoryOutcome::default() }
}

/// A minimal recipe that uses `env`.
fn recipe(env: &str) -> String {
    format!("{env}\nreturn r1.recipe {{ env = env, reward = function() return 0 end, trainer = r1.grpo {{}} }}")
}

/// The value of `expression` inside the VM.
fn eval(expression: &str) -> Json {
    let bench = Bench::new(&format!(
        "return r1.recipe {{ env = r1.env {{ reset = function() return {{ it = {expression} }} end }},\n\
         reward = function() return 0 end }}"
    ));
    let state = run(bench.worker().reset(&Json::Null, 0)).map_err(|failure| bench.show(failure)).unwrap();
    state.snapshot().unwrap()["state"]["it"].clone()
}
