//! The state of one trajectory: plain Lua data that the host keeps between steps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};

use super::connections::SessionConnections;
use super::convert::{self, NonJson};
use super::origin;
use super::record::Record;
use super::servers::SessionServers;
use super::shared_calls::{Cache, RunningCalls};
use crate::config::EnvSettings;
use crate::error::{Error, Kind, Result};
use crate::script::runtime::flow::Flow;
use crate::script::runtime::task_env::TaskEnv;
use crate::text::Renderer;
use crate::tools::python::{InputFile, PythonCall};
use crate::tools::{Output, Python};

/// A trajectory's state, in the VM of its worker.
///
/// `Clone` gives another handle to the same state; [`State::fork`] copies it.
#[derive(Clone)]
pub struct State {
    pub(crate) table: Table,
    /// The seed passed to `reset`.
    pub(crate) seed: u64,
    /// Number of steps done; part of the seed of each call.
    pub(crate) steps: Rc<Cell<u64>>,
    pub(crate) session: Rc<ToolSession>,
    pub(crate) record: Record,
    pub(crate) size: Rc<StateSize>,
    /// The environment of the task, with its tools.
    pub(crate) env: Rc<TaskEnv>,
    /// The running flow, if the environment is one.
    pub(crate) flow: Option<Rc<Flow>>,
    lua: Lua,
}

/// Total bytes of all states of a virtual machine.
#[derive(Clone, Default)]
pub(crate) struct StateBytes(pub(crate) Rc<Cell<usize>>);

/// Bytes of one state as last measured; part of the total while the state exists.
pub(crate) struct StateSize {
    bytes: Cell<usize>,
    all: StateBytes,
}

impl StateSize {
    fn new(lua: &Lua) -> Rc<Self> {
        Rc::new(Self {
            bytes: Cell::new(0),
            all: lua.app_data_ref::<StateBytes>().map(|all| all.clone()).unwrap_or_default(),
        })
    }

    pub(crate) fn get(&self) -> usize {
        self.bytes.get()
    }

    pub(crate) fn set(&self, bytes: usize) {
        self.all.0.set((self.all.0.get() + bytes).saturating_sub(self.bytes.replace(bytes)));
    }
}

impl Drop for StateSize {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl State {
    pub(crate) fn new(
        lua: &Lua,
        table: Table,
        seed: u64,
        record: Record,
        session: Rc<ToolSession>,
        env: Rc<TaskEnv>,
    ) -> Self {
        let (size, lua) = (StateSize::new(lua), lua.clone());
        Self { table, seed, steps: Rc::default(), session, record, size, env, flow: None, lua }
    }

    /// The schemas of the tools shown to the policy, in the OpenAI shape, for the chat template.
    pub fn tools(&self) -> Arc<[Json]> {
        let wanted = self.flow.as_ref().and_then(|flow| flow.wanted());
        Arc::clone(wanted.as_ref().map_or(&self.env.schemas, |wanted| &wanted.tools))
    }

    /// Whether the state belongs to a flow, which cannot be restored from a snapshot.
    pub fn is_flow(&self) -> bool {
        self.env.env.flow.is_some()
    }

    /// Limits that the flow set for the next response: maximum tokens, and stop texts.
    pub fn of_reply(&self) -> (Option<usize>, Vec<String>) {
        let wanted = self.flow.as_ref().and_then(|flow| flow.wanted());
        wanted.map(|wanted| (wanted.max_new_tokens, wanted.stop.clone())).unwrap_or_default()
    }

    pub fn settings(&self) -> &EnvSettings {
        &self.env.env.settings
    }

    /// Maximum steps of the trajectory.
    pub fn max_steps(&self) -> usize {
        self.env.max_steps
    }

    /// The environment's own renderer, if it differs from the recipe's.
    pub fn renderer(&self) -> Option<&Arc<Renderer>> {
        self.env.env.renderer.as_ref()
    }

    /// The record of external calls so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Number of steps done.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// The state as JSON, for a checkpoint, a replay or another worker.
    ///
    /// # Errors
    /// [`Kind::Script`] if it contains anything but plain data: functions, metatables, cycles, too
    /// deep tables.
    pub fn snapshot(&self) -> Result<Json> {
        let value = Value::Table(self.table.clone());
        let state = convert::to_json(&value, "state", NonJson::Tag).map_err(|not_plain| {
            Error::from(not_plain).hint("a state is plain data: text, numbers, booleans, tables")
        })?;
        let mut snapshot = json!({
            "state": state, "seed": self.seed, "steps": self.steps.get(),
        });
        let notes = origin::notes(&value).map_err(|error| Error::new(Kind::Script, error.to_string()))?;
        if !notes.is_null() {
            snapshot["notes"] = notes;
        }
        if !self.env.columns.is_null() {
            snapshot["env"] = self.env.columns.clone();
        }
        if self.env.eval {
            snapshot["split"] = "eval".into();
        }
        Ok(snapshot)
    }

    /// The state as JSON, to look at; `None` if it has more than about this number of bytes or
    /// anything but plain data.
    pub(crate) fn data(&self, most_bytes: usize) -> Option<Json> {
        if self.size.get() > most_bytes {
            return None;
        }
        convert::to_json(&Value::Table(self.table.clone()), "state", NonJson::Tag).ok()
    }

    /// The inverse of [`State::snapshot`].
    pub(crate) fn restore(lua: &Lua, snapshot: &Json, env: Rc<TaskEnv>) -> Result<Self> {
        let bad = || Error::new(Kind::Script, "not a snapshot of a state");
        let number = |name: &str| snapshot.get(name).and_then(Json::as_u64).ok_or_else(bad);
        let value = convert::from_snapshot(lua, snapshot.get("state").ok_or_else(bad)?).map_err(|_| bad())?;
        if let Some(notes) = snapshot.get("notes") {
            origin::restore_notes(lua, &value, notes).map_err(|_| bad())?;
        }
        let Value::Table(table) = value else { return Err(bad()) };
        let state = Self::new(lua, table, number("seed")?, Record::live(), Rc::default(), env);
        state.steps.set(number("steps")?);
        Ok(state)
    }

    /// An independent copy, including sessions of tools.
    pub fn fork(&self) -> Result<Self> {
        let copy = convert::deep_copy(&self.lua, &self.table);
        let table = copy.map_err(|error| Error::new(Kind::Script, error.to_string()))?;
        let size = StateSize::new(&self.lua);
        size.set(self.size.get());
        let (steps, record) = (Rc::new(Cell::new(self.steps.get())), self.record.fork());
        let flow = self.flow.as_ref().map(|flow| flow.fork());
        Ok(Self { table, steps, session: self.session.fork(), record, size, flow, ..self.clone() })
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("seed", &self.seed).field("steps", &self.steps.get()).finish_non_exhaustive()
    }
}

/// A trajectory's stateful tools; they end with it.
pub(crate) struct ToolSession {
    id: u64,
    pythons: RefCell<Vec<Arc<Python>>>,
    /// Programs that have run in it, in order, so that a fork can repeat them.
    programs: RefCell<Vec<ProgramLimits>>,
    /// Cached results of tools whose cache is per trajectory.
    pub(crate) cache: RefCell<Cache>,
    /// Running calls of these tools.
    pub(crate) running: RunningCalls,
    /// MCP servers with the scope of a trajectory.
    pub(crate) servers: SessionServers,
    /// Its connections.
    pub(crate) connections: SessionConnections,
    /// In a fork: programs that must run before any other.
    behind: tokio::sync::Mutex<Vec<ProgramLimits>>,
}

#[derive(Clone)]
struct ProgramLimits {
    python: Arc<Python>,
    code: String,
    prelude: String,
    files: Vec<InputFile>,
}

impl Default for ToolSession {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pythons: RefCell::default(),
            programs: RefCell::default(),
            cache: RefCell::default(),
            running: RunningCalls::default(),
            servers: SessionServers::default(),
            connections: SessionConnections::default(),
            behind: tokio::sync::Mutex::default(),
        }
    }
}

impl ToolSession {
    /// An independent session in the same state. Its programs run again when it is first used.
    pub(crate) fn fork(&self) -> Rc<Self> {
        let mut fork = Self::default();
        fork.programs.clone_from(&self.programs);
        fork.cache.clone_from(&self.cache);
        fork.behind = tokio::sync::Mutex::new(self.programs.borrow().clone());
        (fork.servers, fork.connections) = (self.servers.fork(), self.connections.fork());
        Rc::new(fork)
    }

    /// Runs a program after the earlier ones.
    ///
    /// # Errors
    /// As [`Python::run_in_session`].
    pub(crate) async fn run(&self, python: &Arc<Python>, call: PythonCall<'_>) -> Result<Output> {
        self.join(python);
        {
            // A concurrent call waits until the earlier programs have run.
            let mut behind = self.behind.lock().await;
            for program in std::mem::take(&mut *behind) {
                self.join(&program.python);
                let ProgramLimits { python, code, prelude, files } = &program;
                let again = PythonCall { code, prelude, files, session: Some(self.id), ..PythonCall::default() };
                drop(python.call(again).await?);
            }
        }
        let output = python.call(PythonCall { session: Some(self.id), ..call }).await?;
        let mut programs = self.programs.borrow_mut();
        if output.timed_out {
            // The interpreter was stopped and restarts.
            programs.retain(|program| !Arc::ptr_eq(&program.python, python));
        } else {
            let (code, prelude) = (call.code.to_owned(), call.prelude.to_owned());
            programs.push(ProgramLimits { python: python.clone(), code, prelude, files: call.files.to_vec() });
        }
        Ok(output)
    }

    /// Registers an interpreter, whose session ends with the trajectory.
    fn join(&self, python: &Arc<Python>) {
        let mut pythons = self.pythons.borrow_mut();
        if !pythons.iter().any(|joined| Arc::ptr_eq(joined, python)) {
            pythons.push(python.clone());
        }
    }
}

impl Drop for ToolSession {
    fn drop(&mut self) {
        for python in self.pythons.get_mut() {
            python.end_session(self.id);
        }
    }
}
