//! A recipe's env in a conversation: the user's question replaces the task of a dataset row.

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::cli::interrupted;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Observation, Role};
use crate::script::{Failure, Record, Split, State, Worker};
use crate::telemetry::Interrupt;

/// The env's state at the beginning of a conversation.
pub(super) struct Begun {
    pub(super) state: State,
    /// Later questions continue the conversation. Otherwise each question begins a new task.
    pub(super) continues: bool,
    /// The env shows its own task and not the question.
    pub(super) own_task: bool,
}

/// What begins a conversation.
pub(super) struct Beginning<'a> {
    pub(super) question: &'a str,
    pub(super) system: Option<&'a str>,
    pub(super) seed: u64,
    /// Maximum prompt tokens of the context policy.
    pub(super) budget: usize,
    /// Number of earlier questions: a recipe that shows its own task has another one each time.
    pub(super) earlier: usize,
    /// The task of a stored trajectory, for a machine without the dataset.
    pub(super) recorded: Option<&'a Value>,
}

/// Usual names of columns with the answer to a row's question.
const ANSWERS: [&str; 9] =
    ["answer", "answers", "solution", "target", "label", "expected", "ground_truth", "gold", "reward_model"];

/// The env's initial state for a question.
///
/// A recipe's `reset` needs a task of its dataset. The first row is used, with the question in the
/// column whose text the env shows to the policy. If no column is shown, the question replaces the
/// user's message, unless the env is a game: without a user message, or with several steps and no
/// tools, so that its messages are the answers to the policy's moves. A game is played as it is.
/// The row's answer does not belong to the question, and is left out where the env allows it.
pub(super) async fn begin(worker: &Worker, beginning: &Beginning<'_>, record: &Record) -> Result<Begun> {
    let Beginning { question, system, seed, budget, earlier, recorded } = *beginning;
    let mut task = row(worker, recorded, 0, question)?;
    let mut state = worker.reset_within(Split::Train, &task, seed, record, budget).await.map_err(failed)?;
    let shown = shown(&worker.observe(&state, budget).await.map_err(failed)?);
    let column = task.as_object_mut().and_then(|columns| {
        columns
            .values_mut()
            .filter(|value| value.as_str().is_some_and(|text| !text.is_empty() && shown.contains(text)))
            .max_by_key(|value| value.as_str().map(str::len))
    });
    let replaced = column.is_some();
    if let Some(column) = column {
        *column = Value::from(question);
        state = worker.reset_within(Split::Train, &task, seed, record, budget).await.map_err(failed)?;
    }
    let mut unanswered = task.clone();
    if let Some(columns) = unanswered.as_object_mut() {
        columns.retain(|name, _| !ANSWERS.contains(&name.as_str()));
    }
    if replaced && unanswered != task {
        // An env that needs the column fails, or shows something else.
        let before = worker.observe(&state, budget).await.map_err(failed)?;
        if let Ok(other) = worker.reset_within(Split::Train, &unanswered, seed, record, budget).await
            && worker.observe(&other, budget).await.is_ok_and(|now| now == before)
        {
            state = other;
        }
    }
    let is_flow = state.is_flow();
    let mut snapshot = if is_flow { Value::Null } else { state.snapshot()? };
    let messages = list_of_messages(&mut snapshot);
    let user = messages.as_ref().is_some_and(|messages| messages.iter().any(|message| message["role"] == "user"));
    let is_game = !user || (state.max_steps() > 1 && worker.tools().is_empty());
    let Some(messages) = messages.filter(|_| replaced || !is_game) else {
        if system.is_some() {
            return Err(Error::new(
                Kind::Usage,
                "this recipe's env has its own conversations: --system can't change them",
            )
            .hint("leave out --system"));
        }
        if !replaced && earlier > 0 {
            task = row(worker, recorded, earlier as u64, question)?;
            state = worker.reset_within(Split::Train, &task, seed, record, budget).await.map_err(failed)?;
        }
        return Ok(Begun { state, continues: false, own_task: !replaced });
    };
    if replaced && system.is_none() {
        return Ok(Begun { state, continues: true, own_task: false });
    }
    if !replaced && let Some(message) = messages.iter_mut().rev().find(|message| message["role"] == "user") {
        message["content"] = Value::from(question);
    }
    if let Some(system) = system {
        replace_system(messages, system);
    }
    Ok(Begun { state: worker.restore(&snapshot)?, continues: true, own_task: false })
}

/// A row of the dataset, or the task of a stored trajectory if the dataset can't be read; without
/// either, the columns that an env's own `reset` may read.
fn row(worker: &Worker, recorded: Option<&Value>, index: u64, question: &str) -> Result<Value> {
    for split in [Split::Eval, Split::Train] {
        let read = |rows: Option<u64>| {
            let rows = rows.filter(|rows| *rows > 0);
            rows.map(|rows| worker.row(split, index % rows)).transpose()
        };
        match (worker.rows(split).and_then(read), recorded) {
            (Ok(Some(task)), _) => return Ok(task),
            (Ok(None), _) => {}
            (Err(error), Some(task)) if error.kind == Kind::Data => return Ok(task.clone()),
            (Err(error), _) => return Err(error),
        }
    }
    let mut task = json!({ "prompt": question, "problem": question, "question": question });
    if let Some(env) = worker.envs.first_named(Split::Train) {
        task["env"] = env.into();
    }
    Ok(task)
}

/// The last text that is not the policy's.
pub(super) fn shown(observation: &Observation) -> String {
    match observation {
        Observation::Messages(messages) => {
            let last = messages.iter().rev().find(|message| message.role == Role::User);
            last.map(|message| message.content.text()).unwrap_or_default()
        }
        Observation::Text(text) => text.clone(),
        Observation::TokenIds(_) => String::new(),
    }
}

pub(super) fn replace_system(messages: &mut Vec<Value>, system: &str) {
    messages.retain(|message| message["role"] != "system");
    messages.insert(0, json!({ "role": "system", "content": system }));
}

/// `state.messages` in a snapshot.
pub(super) fn messages_of(snapshot: &mut Value) -> Result<&mut Vec<Value>> {
    list_of_messages(snapshot).ok_or_else(|| {
        Error::new(
            Kind::Script,
            "the conversation can't be continued: the state of this recipe's env has no `messages`",
        )
        .hint("leave out --script to chat without tools")
    })
}

fn list_of_messages(snapshot: &mut Value) -> Option<&mut Vec<Value>> {
    snapshot.get_mut("state")?.get_mut("messages")?.as_array_mut()
}

pub(super) fn failed(failure: Failure) -> Error {
    failure.error
}

/// Waits for the script until Ctrl-C.
pub(in crate::cli) fn wait<T>(runtime: &Runtime, interrupt: Interrupt, future: impl Future<Output = T>) -> Result<T> {
    runtime.block_on(until_stopped(interrupt, future))
}

/// Waits until Ctrl-C.
pub(in crate::cli) async fn until_stopped<T>(interrupt: Interrupt, future: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = future => Ok(done),
        () = interrupted(interrupt) => {
            interrupt.clear();
            Err(Error::new(Kind::Interrupted, "stopped"))
        }
    }
}
