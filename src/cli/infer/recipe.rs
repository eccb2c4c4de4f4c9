//! A recipe's env in a conversation: the user's question replaces the task of a dataset row.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::error::{Error, Kind, Result};
use crate::mdp::Role;
use crate::script::{Failure, Split, State, Worker};
use crate::telemetry::Interrupt;

/// A recipe with its env.
pub(super) struct Recipe {
    pub(super) worker: Worker,
    pub(super) runtime: Runtime,
    pub(super) state: Option<State>,
}

impl Recipe {
    pub(super) fn new(worker: Worker) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::new(Kind::Internal, format!("can't start the runtime of the tools: {e}")))?;
        Ok(Self { worker, runtime, state: None })
    }
}

/// The env's initial state for `question`.
///
/// A recipe's `reset` needs a task of its dataset. The first row is used, with the question in the
/// column whose text the env shows to the policy; if no column is shown, the question replaces the
/// user's message.
pub(super) async fn begin(worker: &Worker, question: &str, system: Option<&str>, seed: u64) -> Result<State> {
    // Without a dataset: the columns that an env's own `reset` may read.
    let mut task = json!({ "prompt": question, "problem": question, "question": question });
    if let Some(env) = worker.first_env() {
        task["env"] = env.into();
    }
    for split in [Split::Eval, Split::Train] {
        if worker.rows(split)?.is_some_and(|rows| rows > 0) {
            task = worker.row(split, 0)?;
            break;
        }
    }
    let mut state = worker.reset(&task, seed).await.map_err(failed)?;
    if state.is_flow() {
        let message = "this recipe's env can't be chatted with: it is a flow, which drives its own conversations";
        return Err(Error::new(Kind::Script, message)
            .hint("leave out --script to chat without tools; r1 repl steps through the flow"));
    }
    let messages = worker.messages(&state);
    let shown = messages.iter().rev().find(|message| message.role == Role::User).map(|message| message.content.text());
    let shown = shown.ok_or_else(|| {
        Error::new(Kind::Script, "this recipe's env can't be chatted with: it shows the policy no user message")
            .hint("leave out --script to chat without tools")
    })?;
    let column = task.as_object_mut().and_then(|columns| {
        columns
            .values_mut()
            .filter(|value| value.as_str().is_some_and(|text| !text.is_empty() && shown.contains(text)))
            .max_by_key(|value| value.as_str().map(str::len))
    });
    let replaced = column.is_some();
    if let Some(column) = column {
        *column = Value::from(question);
        state = worker.reset(&task, seed).await.map_err(failed)?;
    }
    if replaced && system.is_none() {
        return Ok(state);
    }
    let mut snapshot = state.snapshot()?;
    let messages = messages_of(&mut snapshot)?;
    if !replaced && let Some(message) = messages.iter_mut().rev().find(|message| message["role"] == "user") {
        message["content"] = Value::from(question);
    }
    if let Some(system) = system {
        replace_system(messages, system);
    }
    worker.restore(&snapshot)
}

pub(super) fn replace_system(messages: &mut Vec<Value>, system: &str) {
    messages.retain(|message| message["role"] != "system");
    messages.insert(0, json!({ "role": "system", "content": system }));
}

/// `state.messages` in a snapshot.
pub(super) fn messages_of(snapshot: &mut Value) -> Result<&mut Vec<Value>> {
    snapshot["state"]["messages"].as_array_mut().ok_or_else(|| {
        Error::new(Kind::Script, "this recipe's env can't be chatted with: its state has no `messages`")
            .hint("leave out --script to chat without tools")
    })
}

pub(super) fn failed(failure: Failure) -> Error {
    failure.error
}

/// Waits for the script until Ctrl-C.
pub(in crate::cli) fn wait<T>(runtime: &Runtime, interrupt: Interrupt, future: impl Future<Output = T>) -> Result<T> {
    runtime.block_on(async {
        let stopped = async {
            while !interrupt.is_set() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            done = future => Ok(done),
            () = stopped => {
                interrupt.clear();
                Err(Error::new(Kind::Interrupted, "stopped"))
            }
        }
    })
}
