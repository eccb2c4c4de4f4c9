//! A script worker: one virtual machine on one thread that runs many trajectories.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Table, Value};
use serde_json::Value as Json;
use tokio::runtime::{Builder, Runtime};

use super::envs::{Envs, shown};
use super::load::Script;
use super::rows::{Split, columns_of};
use crate::algorithms::{self, Caller, Estimated, GroupInput};
use crate::config::ToolChoice;
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Action, ErrorRecord, Invalid, Limit, Message, Observation, Status};
use crate::script::api::{self, context};
use crate::script::runtime::budget;
use crate::script::runtime::convert::{self, kind};
use crate::script::runtime::definitions::Recipe;
use crate::script::runtime::failure::Failure;
use crate::script::runtime::host::{Call, EntryPoint, TrajectoryContext};
use crate::script::runtime::log::LogLine;
use crate::script::runtime::messages;
use crate::script::runtime::not_plain::short;
use crate::script::runtime::place::{at_definition, at_function, definition};
use crate::script::runtime::record::Record;
use crate::script::runtime::results::{Reward, StepResult, TrajectoryOutcome};
use crate::script::runtime::size::Size;
use crate::script::runtime::state::State;
use crate::script::runtime::vm::Vm;
use crate::text::{FormatChoice, Renderer};

/// The result of a step as a value, or its finite reward and `done` if it has nothing else, and the
/// size of the state.
type StepValue = (Value, Option<f64>, bool, Size);

/// One virtual machine with a loaded script. It stays on its thread; calls may interleave.
///
/// Calls that wait for tools need a tokio runtime with time and I/O enabled.
pub struct Worker {
    pub(crate) script: Script,
    pub(crate) vm: Rc<Vm>,
    pub(crate) recipe: Recipe,
    pub(crate) envs: Envs,
    schemas: Vec<Json>,
    /// The declared programs were found.
    pub(super) has_programs: Cell<bool>,
}

impl Worker {
    /// A runtime for the calls of workers on this thread.
    ///
    /// # Errors
    /// [`Kind::Internal`] if the system refuses it.
    pub fn runtime() -> Result<Runtime> {
        let failed = |error| Error::new(Kind::Internal, format!("can't start a runtime: {error}"));
        Builder::new_current_thread().enable_all().build().map_err(failed)
    }

    /// Loads the script again, from its stored text. The renderer counts tokens for context
    /// policies; without it, a script that counts tokens fails.
    pub fn new(script: &Script, renderer: Option<Arc<Renderer>>) -> Result<Self> {
        let vm = api::vm(script.settings.limits.clone(), script.sources(), renderer)?;
        vm.host.params.borrow_mut().values.clone_from(&script.settings.params);
        vm.host.search_models.set(script.search_models);
        vm.host.policy_device.set(script.settings.policy.device);
        let recipe = script.recipe(&vm)?;
        let envs = Envs::new(&vm, &recipe, script)?;
        let tools = envs.tools();
        let schemas: Vec<Json> = shown(&tools).map(|tool| tool.schema()).collect();
        vm.host.schemas.replace(schemas.clone().into());
        let grants = script.grants();
        envs.check_tools(&grants).map_err(|error| error.at_path(&script.path))?;
        vm.host.grants.replace(grants);
        vm.host.tools.replace(tools);
        vm.host.shared.replace(script.shared.clone());
        vm.host.listen(script.sink.clone());
        Ok(Self { script: script.clone(), envs, vm: Rc::new(vm), recipe, schemas, has_programs: Cell::default() })
    }

    /// SHA-256 of the script and its modules.
    pub fn hash(&self) -> &str {
        &self.script.hash
    }

    /// The OpenAI schemas of all environments' tools. [`State::tools`] has the tools of one task.
    pub fn tools(&self) -> &[Json] {
        &self.schemas
    }

    /// Starts a trajectory. In every call `math.random` draws from a stream of (seed, step, entry
    /// point).
    pub async fn reset(&self, task: &Json, seed: u64) -> Result<State, Failure> {
        self.reset_as(Split::Train, task, seed, &Record::live()).await
    }

    /// As [`Worker::reset`], for a task of a split, with a record that the caller keeps or replays.
    pub async fn reset_as(&self, split: Split, task: &Json, seed: u64, record: &Record) -> Result<State, Failure> {
        self.reset_within(split, task, seed, record, usize::MAX).await
    }

    /// As [`Worker::reset_as`], with the maximum prompt tokens, which a flow can read.
    pub async fn reset_within(
        &self,
        split: Split,
        task: &Json,
        seed: u64,
        record: &Record,
        budget: usize,
    ) -> Result<State, Failure> {
        if !record.is_replay() {
            self.prepare()?;
        }
        let env = self.envs.of(split, task)?;
        let loaded = env.env.clone();
        let reset = &loaded.reset;
        let session = Rc::default();
        let context = TrajectoryContext { record: record.clone(), session: Rc::clone(&session), env: env.clone() };
        if loaded.flow.is_some() {
            return self.begin_flow(task, seed, budget, context).await.map_err(|failure| with_columns(failure, task));
        }
        let call = Call::of_trajectory(EntryPoint::Reset, (seed, 0), &self.vm.limits, context);
        let lua = &self.vm.lua;
        let row = convert::from_row(lua, task)?;
        let kwargs = convert::from_row(lua, &Json::Object(env.kwargs.clone()))?;
        let (value, size): (Value, Size) = self
            .vm
            .call(&call, &reset.measured, (&row, kwargs))
            .await
            .map_err(|failure| with_columns(failure, task))?;
        let Value::Table(table) = value else {
            let message = format!("reset returned {}; it must return the state, a table", kind(&value));
            return Err(broken(&reset.function, message));
        };
        let bytes = self.sized(size, &call, &reset.function)?;
        self.store_images((&call, &reset.function), &table, Some((&row, !loaded.own_reset)))?;
        let state = State::new(lua, table, seed, record.clone(), session, env);
        state.size.set(bytes);
        Ok(state)
    }

    /// The size of the state after a call.
    ///
    /// # Errors
    /// A state that is not plain data, or larger than `limits.trajectory`.
    pub(crate) fn sized(&self, size: Size, call: &Call, function: &Function) -> Result<usize, Failure> {
        let location = at_definition(function, "");
        match size {
            Size::Bytes(bytes) => Ok(bytes),
            Size::TooLarge => {
                let error = self.vm.over_trajectory(&format!("the state after {} is more", call.function()));
                Err(Failure::new(Status::ScriptLimit, Error { place: location.place, ..error }))
            }
            Size::NotPlain { what, path } => {
                let message = format!("state{} {what}", short(&path));
                Err(Error { message, ..location }.hint("a state is plain data: text, numbers, booleans, tables").into())
            }
        }
    }

    /// The observation: the result of the context policy, or `state.messages`.
    pub async fn observe(&self, state: &State, budget: usize) -> Result<Observation, Failure> {
        let env = &state.env.env;
        if let Some(flow) = &state.flow {
            let ended = || broken(&env.reset.function, "the flow has returned, and shows nothing more".to_owned());
            return flow.wanted().map(|wanted| wanted.observation.clone()).ok_or_else(ended);
        }
        let Some(context) = &env.context else {
            let Ok(Value::Table(list)) = state.table.raw_get("messages") else {
                let why = "the state has no `messages`; keep them there, or give the recipe a `context` function";
                return Err(broken(&env.reset.function, why.to_owned()));
            };
            // Most states are smaller than the limit of an observation.
            if state.size.get() > self.vm.limits.text << 20 {
                let call = self.call_of(EntryPoint::Observe, state);
                let size = self.vm.size(&call, &list, self.vm.limits.text << 20)?;
                self.shown(size, &env.reset.function)?;
            }
            return messages::messages(&list, "state.messages")
                .map(Observation::Messages)
                .map_err(|invalid| at_function(&env.reset.function, invalid.of_script()).into());
        };
        let call = self.call_of(EntryPoint::Observe, state);
        let (value, size): (Value, Size) = self.vm.call(&call, &context.measured, (&state.table, budget)).await?;
        self.shown(size, &context.function)?;
        let (observation, least) =
            self.observation(&call, &value).map_err(|error| at_function(&context.function, error))?;
        if least && let Some(renderer) = env.renderer.as_ref().or(self.vm.host.renderer.as_ref()) {
            budget::check(renderer, &state.env.schemas, &observation, budget, true)
                .map_err(|error| Failure::new(Status::ContextOverflow, at_function(&context.function, error)))?;
        }
        Ok(observation)
    }

    /// Refuses an observation that is too large to be read.
    fn shown(&self, size: Size, function: &Function) -> Result<(), Failure> {
        let limit = self.vm.limits.text;
        match size {
            Size::Bytes(bytes) if bytes <= limit << 20 => Ok(()),
            Size::NotPlain { what, path } => Err(broken(function, format!("the observation{} {what}", short(&path)))),
            Size::Bytes(_) | Size::TooLarge => {
                let message = format!("the observation has more text than limits.text = {limit} MiB");
                let hint = "show less, with a `context` function; limits.text sets the limit";
                Err(Failure::new(Status::ScriptLimit, at_definition(function, message).hint(hint)))
            }
        }
    }

    /// Whether a context function makes the trajectory's observations; it must respect its budget.
    pub fn has_context(&self, state: &State) -> bool {
        state.env.env.context.is_some()
    }

    /// The failure of a context function that exceeded its budget.
    pub fn over_budget(&self, state: &State, error: Error) -> Failure {
        match &state.env.env.context {
            Some(context) => at_function(&context.function, error).into(),
            None => error.into(),
        }
    }

    /// Parses the result of a context function: the observation, and whether it could not be
    /// shortened further.
    fn observation(&self, call: &Rc<Call>, value: &Value) -> Result<(Observation, bool)> {
        let wrong = |field: Option<String>, message: String| {
            Error::new(Kind::Script, message).about(Subject::Returned { function: "context".to_owned(), field })
        };
        let of_messages = |invalid: Invalid| wrong(Some(invalid.path.clone()), invalid.to_string());
        let read = |list: &Table| {
            let list = self.stored(call, list)?;
            messages::messages(&list, "messages").map_err(of_messages)
        };
        let of_ids = |message: String| Err(wrong(Some("token_ids".to_owned()), message));
        let wanted = "context must return messages, text or { token_ids = { … } }";
        let table = match value {
            Value::String(text) => return Ok((Observation::Text(text.to_string_lossy()), false)),
            Value::Table(table) => table,
            other => return Err(wrong(None, format!("context returned {}; {wanted}", kind(other)))),
        };
        let lua_error = |error: mlua::Error| wrong(None, error.to_string());
        if let Some((messages, least)) = context::messages_of(&self.vm.lua, table).map_err(lua_error)? {
            return Ok((Observation::Messages(read(&messages)?), least));
        }
        let observation = match table.raw_get("token_ids").map_err(lua_error)? {
            Value::Nil if table.raw_len() == 0 => {
                Err(wrong(None, format!("context returned an empty table; {wanted}")))
            }
            Value::Nil => read(table).map(Observation::Messages),
            Value::Table(ids) => ids
                .sequence_values::<u32>()
                .collect::<mlua::Result<Vec<u32>>>()
                .map(Observation::TokenIds)
                .or_else(|_| of_ids("token_ids must be a list of whole numbers".to_owned())),
            other => of_ids(format!("token_ids is {}; {wanted}", kind(&other))),
        };
        observation.map(|observation| (observation, false))
    }

    /// Passes an action to the environment.
    pub async fn step(&self, state: &State, action: &Action) -> Result<StepResult, Failure> {
        let lacking = lacking_call(state, action);
        let action = lacking.as_ref().unwrap_or(action);
        if let Some(flow) = &state.flow {
            return self.step_flow(state, flow, action).await;
        }
        let env = &state.env.env;
        let call = self.call_of(EntryPoint::Step, state);
        let (text, ids, reason, calls) = messages::action(&self.vm.lua, action)?;
        let (value, reward, done, size): StepValue =
            self.vm.call(&call, &env.step.measured, (&state.table, text, ids, reason, calls)).await?;
        let mut result = match reward {
            Some(reward) => StepResult { reward, done, ..StepResult::default() },
            None => self.vm.read_result(("step", &env.step.function), &value)?,
        };
        state.size.set(self.sized(size, &call, &env.step.function)?);
        self.store_images((&call, &env.step.function), &state.table, None)?;
        Self::close_step(state, &call, &mut result);
        Ok(result)
    }

    /// Adds the tool records and rewards of a step to its result, and counts the step.
    pub(crate) fn close_step(state: &State, call: &Call, result: &mut StepResult) {
        result.tools = call.tools.take();
        result.reward += result.tools.iter().map(|tool| tool.reward).sum::<f64>();
        state.steps.set(state.steps.get() + 1);
    }

    /// The outcome reward; 0 if the recipe has no reward function.
    pub async fn reward(&self, state: &State, outcome: &TrajectoryOutcome) -> Result<Reward, Failure> {
        let Some(function) = &state.env.env.reward else { return Ok(Reward::default()) };
        let call = self.call_of(EntryPoint::Reward, state);
        let input = self.outcome(outcome)?;
        let value: Value = self.vm.call(&call, function, (&state.table, input)).await?;
        self.vm.read_result(("reward", function), &value)
    }

    /// The result of the recipe's function `privileged`; `None` without one.
    pub async fn privileged(&self, state: &State, task: &Json) -> Result<Option<String>, Failure> {
        let Some(function) = &self.recipe.privileged else { return Ok(None) };
        let call = self.call_of(EntryPoint::Privileged, state);
        let task = convert::from_row(&self.vm.lua, task)?;
        let value: Value = self.vm.call(&call, function, (&state.table, task)).await?;
        match &value {
            Value::String(text) => Ok(Some(text.to_string_lossy())),
            Value::Nil => Ok(Some(String::new())),
            other => Err(broken(function, format!("privileged returned {}; it must return text", kind(other)))),
        }
    }

    /// The failure of a recipe whose `step` and `reward` return parts of the same name.
    pub fn part_of_both(&self, name: &str) -> Failure {
        let message = format!("reward and step both return the part `{name}`");
        let mut error = Error::new(Kind::Script, message).hint("give the parts different names");
        error.place = self.place_of("reward");
        Failure { lasting: true, ..error.into() }
    }

    fn outcome(&self, outcome: &TrajectoryOutcome) -> mlua::Result<Table> {
        let table = self.vm.lua.create_table_with_capacity(0, 7)?;
        table.raw_set("text", outcome.text.as_str())?;
        table.raw_set("token_ids", outcome.token_ids.as_slice())?;
        table.raw_set("steps", outcome.steps)?;
        table.raw_set("calls", outcome.calls)?;
        table.raw_set("terminated", outcome.terminated)?;
        table.raw_set("truncated", outcome.truncated)?;
        table.raw_set("truncated_by", outcome.truncated_by.map(Limit::name))?;
        Ok(table)
    }

    /// The results of the recipe's own estimator for the first `count` groups of a batch.
    ///
    /// # Errors
    /// [`Kind::Script`] with its place, where it fails or returns something else than it must.
    pub fn advantages(&self, batch: &[GroupInput], count: usize) -> Result<Vec<Estimated>> {
        let Some(function) = &self.recipe.advantage else {
            let message = "trainer.estimator is the recipe's function, and the recipe has no `advantage`";
            return Err(Error::new(Kind::Script, message).at_path(&self.script.path));
        };
        let call = |arguments: (&Table, &Value)| {
            let call = Call::new(EntryPoint::Advantage, (0, 0), &self.vm.limits);
            self.vm.call_now(&call, function, arguments).map_err(|failure| failure.error)
        };
        let caller = Caller { call: &call, task: convert::from_json, show: convert::show };
        algorithms::advantages(&self.vm.lua, function, (batch, count), &self.script.advantage_options, &caller)
    }

    /// The error for an invalid result of `advantage`.
    pub fn broken_advantage(&self, message: &str) -> Error {
        match &self.recipe.advantage {
            Some(function) => at_definition(function, message.to_owned()),
            None => Error::new(Kind::Script, message),
        }
    }

    /// The conversation so far, for the record: `state.messages`, if it is a list of messages.
    pub fn messages(&self, state: &State) -> Vec<Message> {
        let list = state.table.raw_get::<Option<Table>>("messages").ok().flatten();
        list.and_then(|list| messages::messages(&list, "state.messages").ok()).unwrap_or_default()
    }

    pub fn restore(&self, snapshot: &Json) -> Result<State> {
        let eval = snapshot.get("split").is_some_and(|split| split == "eval");
        let split = if eval { Split::Eval } else { Split::Train };
        let env = self.envs.of(split, snapshot.get("env").unwrap_or(&Json::Null))?;
        State::restore(&self.vm.lua, snapshot, env)
    }

    /// A state from a snapshot that was changed outside of the script; it keeps the stateful tools
    /// of `state`.
    pub fn resume(&self, state: &State, snapshot: &Json) -> Result<State> {
        let mut resumed = self.restore(snapshot)?;
        resumed.session = state.session.clone();
        resumed.record = state.record.clone();
        Ok(resumed)
    }

    /// A failure as it is stored, with the text of the line that it names.
    pub fn error_record(&self, failure: &Failure) -> ErrorRecord {
        failure.record(failure.error.place.as_deref().and_then(|location| self.vm.line(location)))
    }

    /// Whether functions of the script keep so much memory that the virtual machine should be
    /// replaced.
    pub fn needs_replacement(&self) -> bool {
        self.vm.needs_replacement()
    }

    /// Bytes in use by the virtual machine, including uncollected garbage.
    pub fn memory(&self) -> usize {
        self.vm.lua.used_memory()
    }

    /// The line where a function called by the host is defined: `reset`, `step`, `context`,
    /// `reward`; the flow if it replaces them.
    pub fn place_of(&self, function: &str) -> Option<String> {
        let all = self.functions();
        let named = |wanted: &str| all.iter().find(|(name, _)| *name == wanted);
        named(function).or_else(|| named("flow")).and_then(|(_, function)| definition(function))
    }

    /// The functions called by the host, by their names in a recipe.
    pub(crate) fn functions(&self) -> Vec<(&'static str, Function)> {
        let mut all = Vec::new();
        for loaded in self.envs.all() {
            let env = &loaded.env;
            match &env.flow {
                Some(flow) => all.push(("flow", flow.clone())),
                None => all.extend([("reset", env.reset.function.clone()), ("step", env.step.function.clone())]),
            }
            all.extend(env.context.as_ref().map(|context| ("context", context.function.clone())));
            all.extend(env.reward.as_ref().map(|reward| ("reward", reward.clone())));
            all.extend(env.close.as_ref().map(|close| ("close", close.clone())));
        }
        all
    }

    /// Lines that the script logged since the last call.
    pub fn take_log(&self) -> Vec<LogLine> {
        let mut lines = self.vm.host.take_log();
        lines.extend(super::own_format::take_log());
        lines
    }

    /// The tool-call format with a name: `auto`, a built-in one, or one that the script defines.
    ///
    /// # Errors
    /// [`Kind::Script`] with the nearest names.
    pub fn format(&self, name: &str) -> Result<FormatChoice> {
        self.script.formats.choose(name)
    }

    pub(crate) fn call_of(&self, entry: EntryPoint, state: &State) -> Rc<Call> {
        self.call_at(entry, state, &state.record, state.steps.get())
    }

    /// As [`Worker::call_of`], with another record or step.
    pub(super) fn call_at(&self, entry: EntryPoint, state: &State, record: &Record, step: u64) -> Rc<Call> {
        let (record, session, env) = (record.clone(), state.session.clone(), state.env.clone());
        let context = TrajectoryContext { record, session, env };
        Call::of_trajectory(entry, (state.seed, step), &self.vm.limits, context)
    }
}

/// A failure of a function that reads a task, with the columns as a hint: a missing column is the
/// most common cause.
fn with_columns(mut failure: Failure, task: &Json) -> Failure {
    if failure.status == Status::EnvError && failure.of_nil {
        failure.error = failure.error.hint(format!("the task's columns: {}", columns_of(task)));
    }
    failure
}

/// A response without the tool call that `env.tool_choice` requires, with an error in place of the
/// call. Truncated responses are accepted, since the call may have followed.
fn lacking_call(state: &State, action: &Action) -> Option<Action> {
    let required = match state.settings().tool_choice {
        ToolChoice::Auto => false,
        ToolChoice::First => state.steps() == 0,
        ToolChoice::Required => true,
    };
    let tools = state.tools();
    if !required || tools.is_empty() || action.finish_reason.is_cut() {
        return None;
    }
    if !action.tool_calls.is_empty() || !action.errors.is_empty() {
        return None;
    }
    let name = |tool: &Json| format!("`{}`", tool["function"]["name"].as_str().unwrap_or_default());
    let names: Vec<String> = tools.iter().map(name).collect();
    let which = if state.settings().tool_choice == ToolChoice::First { "the first" } else { "every" };
    let error = format!("{which} reply must call a tool: {}", names.join(", "));
    Some(Action { errors: vec![error], ..action.clone() })
}

/// An invalid result of a function of the script.
pub(crate) fn broken(function: &Function, message: String) -> Failure {
    at_definition(function, message).into()
}
