//! Runs one tool call: cache lookup, concurrency limit, retries.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use mlua::{ErrorContext, Function, Lua, Table, Value};
use serde_json::{Value as Json, json};
use tokio::sync::OwnedSemaphorePermit;

use super::args::raise;
use super::call::NAME;
use super::search_tool::{self, SearchResult};
use super::tool_files;

use crate::error::{Error, Kind, Subject};
use crate::mdp::InterpreterRequest;
use crate::script::runtime::convert::{self, NonJson, kind, to_json};
use crate::script::runtime::host::{Call, Host, misuse};
use crate::script::runtime::interpreters;
use crate::script::runtime::place::at_definition;
use crate::script::runtime::shared_calls::{CachedResult, FirstCall};
use crate::script::runtime::suspended::{Suspended, with_room};
use crate::script::runtime::tables::ToolTables;
use crate::script::runtime::tool::{CacheScope, Run, Tool};
use crate::tools::python::{InputFile, PythonCall};
use crate::tools::table::{TableOptions, Tables, show};
use crate::tools::thread::on_thread;
use crate::tools::{Output, Python, Rhai};

/// A validated call.
pub(super) struct ValidatedCall {
    pub(super) tool: Rc<Tool>,
    /// As the policy wrote them, and as the script passed them.
    pub(super) arguments: Json,
    pub(super) given: Value,
    pub(super) prelude: String,
    /// Files that the script passes to programs.
    pub(super) files: Rc<Vec<InputFile>>,
    /// The script's own call, whose result the policy does not see.
    pub(super) hidden: bool,
    /// Second argument of a tool in Lua.
    pub(super) options: Value,
    /// Arguments of the task for the tool.
    pub(super) kwargs: Option<Json>,
}

/// Result of a call.
pub(super) struct CallResult {
    pub(super) output: Output,
    /// The process reward, if the tool returned one.
    pub(super) reward: Option<f64>,
    pub(super) retries: u32,
    pub(super) cached: bool,
}

/// Result of one attempt.
struct AttemptResult {
    output: Output,
    reward: Option<f64>,
    /// The tool marked the error as retryable.
    retryable: bool,
}

impl ValidatedCall {
    pub(super) async fn run(&self, lua: &Lua, call: &Rc<Call>, host: &Host) -> mlua::Result<CallResult> {
        let limits = &self.tool.limits;
        let mut first = None;
        if let Some(scope) = limits.cache {
            first = self.first(scope, call, host).await;
            if let Some(cached) = self.cached(scope, call, host)? {
                return Ok(cached);
            }
        }
        let permit = self.permit(call, host).await?;
        let started = Instant::now();
        let mut retries = 0;
        let attempt = loop {
            let attempt = self.attempt_once(lua, call, host).await?;
            let AttemptResult { output, retryable, .. } = &attempt;
            if output.ok || retries == limits.retries || !(output.timed_out || *retryable) {
                break attempt;
            }
            // A replay does not wait.
            if !call.record.is_replay() {
                tokio::time::sleep(limits.backoff.saturating_mul(1 << retries.min(20))).await;
            }
            retries += 1;
        };
        drop(permit);
        let AttemptResult { mut output, reward, .. } = attempt;
        if retries > 0 {
            output.seconds = started.elapsed().as_secs_f64();
        }
        if let Some(scope) = limits.cache.filter(|_| output.ok && !call.record.is_replay()) {
            self.keep(scope, call, host, CachedResult { text: output.text.clone(), reward });
        }
        drop(first);
        Ok(CallResult { output, reward, retries, cached: false })
    }

    /// The inputs of the call: the request of the record, whose text is the key of the cache.
    fn request(&self) -> Json {
        let mut request = json!({ "tool": self.tool.name, "arguments": sorted(&self.arguments) });
        if !self.prelude.is_empty() {
            request["prelude"] = json!(self.prelude);
        }
        if !self.files.is_empty() {
            request["files"] = json!(tool_files::digests(&self.files));
        }
        if let Some(kwargs) = &self.kwargs {
            request["kwargs"] = sorted(kwargs);
        }
        request
    }

    /// A cached result. It may come from another trajectory, so it is recorded.
    fn cached(&self, scope: CacheScope, call: &Call, host: &Host) -> mlua::Result<Option<CallResult>> {
        let request = self.request();
        let key = request.to_string();
        let look = || {
            Ok(match (scope, &call.session) {
                (CacheScope::Run, _) => host.shared.borrow().cache().get(&key),
                (CacheScope::Trajectory, Some(session)) => session.cache.borrow().get(&key),
                (CacheScope::Trajectory, None) => None,
            })
        };
        let found: Option<CachedResult> = call.external_now("cache", request, look).map_err(raise)?;
        Ok(found.map(|CachedResult { text, reward }| {
            let output = Output { text, ok: true, ..Output::default() };
            CallResult { output, reward, retries: 0, cached: true }
        }))
    }

    fn keep(&self, scope: CacheScope, call: &Call, host: &Host, result: CachedResult) {
        let key = self.request().to_string();
        match (scope, &call.session) {
            (CacheScope::Run, _) => host.shared.borrow().cache().put(&key, result),
            (CacheScope::Trajectory, Some(session)) => session.cache.borrow_mut().put(&key, result),
            (CacheScope::Trajectory, None) => {}
        }
    }

    /// Waits while an equal call is running, so that equal calls run once. If that call fails, all
    /// that waited run at once.
    async fn first(&self, scope: CacheScope, call: &Call, host: &Host) -> Option<FirstCall> {
        // Calls of tools that call tools could wait for each other.
        if call.record.is_replay() || call.is_inside_another_tool() {
            return None;
        }
        let running = match (scope, &call.session) {
            (CacheScope::Run, _) => host.shared.borrow().running.clone(),
            (CacheScope::Trajectory, session) => session.as_ref()?.running.clone(),
        };
        running.first(&self.request().to_string()).await
    }

    /// Waits for the tool's concurrency limit. A tool that calls itself already holds a permit.
    async fn permit(&self, call: &Call, host: &Host) -> mlua::Result<Option<OwnedSemaphorePermit>> {
        let most = self.tool.limits.concurrency;
        if most == 0 || call.record.is_replay() || call.is_inside_tool(&self.tool.name) {
            return Ok(None);
        }
        let permits = host.shared.borrow().permits(&self.tool.name, most);
        let permit = permits.acquire_owned().await;
        permit.map(Some).map_err(|error| raise(Error::new(Kind::Internal, format!("a tool's turn: {error}"))))
    }

    async fn attempt_once(&self, lua: &Lua, call: &Rc<Call>, host: &Host) -> mlua::Result<AttemptResult> {
        let tool = &self.tool;
        let (arguments, prelude) = (&self.arguments, &self.prelude);
        let code = || arguments.get("code").and_then(Json::as_str).unwrap_or_default().to_owned();
        let output = match &tool.run {
            Run::Lua { run, timeout } => {
                let started = Instant::now();
                let options = match tool.limits.cache {
                    Some(_) => without_state(lua, &tool.name, &self.options)?,
                    None => self.options.clone(),
                };
                let arguments = (self.given.clone(), options);
                let mut future = Suspended::<(Value, Value, Value, Value)>::inner(lua, run, arguments);
                let called = |result: mlua::Result<_>| result.context(format!("{NAME}, tool `{}`", tool.name));
                let result = match timeout {
                    None => Some(called(future.await)?),
                    Some(limit) => {
                        let result = call.within(*limit, &mut future).await;
                        with_room(lua, || drop(future));
                        result.map(called).transpose()?
                    }
                };
                let timed_out = result.is_none();
                let returned = match (result, timeout) {
                    (Some(values), _) => read_result(&tool.name, run, &values)?,
                    (None, limit) => {
                        let seconds = limit.unwrap_or_default().as_secs_f64();
                        Returned { text: format!("Error: timed out after {seconds} s"), ..Returned::default() }
                    }
                };
                let Returned { text, ok, reward, retryable } = returned;
                let text = if timed_out { text } else { cut(text, call.result) };
                let seconds = started.elapsed().as_secs_f64();
                let output = Output { text, ok, timed_out, seconds, files: Vec::new() };
                return Ok(AttemptResult { output, reward, retryable });
            }
            Run::Python { options, session, files } => {
                let live = async {
                    let python: Arc<Python> = interpreters::python(options)?;
                    let mut given = Vec::new();
                    let columns = call.env.as_ref().map_or(&Json::Null, |env| &env.columns);
                    for file in files {
                        given.push(file.read(&tool.name, columns)?);
                    }
                    // Those of the call replace those of the tool.
                    given.retain(|file| self.files.iter().all(|own| own.name != file.name));
                    given.extend(self.files.iter().cloned());
                    if !self.files.is_empty() {
                        tool_files::check_together(&given)?;
                    }
                    let code = code();
                    // A grader compares the whole output.
                    let output_bytes = if self.hidden { call.result } else { 0 };
                    let program = PythonCall { code: &code, prelude, files: &given, session: None, output_bytes };
                    match call.session.as_ref().filter(|_| *session) {
                        Some(session) => session.run(&python, program).await,
                        None => python.call(program).await,
                    }
                };
                interpret(call, &tool.name, arguments, (prelude, &self.files), live).await?
            }
            Run::Rhai(options) => {
                let live = async {
                    let rhai: Arc<Rhai> = interpreters::rhai(options)?;
                    let (code, prelude) = (code(), prelude.clone());
                    // Other trajectories of this worker continue.
                    on_thread("rhai-call", move || rhai.run(&code, &prelude)).await
                };
                interpret(call, &tool.name, arguments, (prelude, &[]), live).await?
            }
            Run::Table(own) => {
                let tables = match &own.tables {
                    ToolTables::Fixed(tables) => Some(tables.clone()),
                    ToolTables::OfTask(_) => call.env.as_ref().and_then(|env| env.tables.get(&tool.name).cloned()),
                };
                let Some(tables) = tables else {
                    let why = format!("tool `{}` has the tables of a task, and there is no task", tool.name);
                    return Err(raise(misuse(lua, why)));
                };
                let sql = arguments.get("sql").and_then(Json::as_str).unwrap_or_default().to_owned();
                let options = own.options.clone();
                let live = query(&tables, sql, &options);
                // A prelude is for programs.
                interpret(call, &tool.name, arguments, ("", &[]), live).await?
            }
            Run::Mcp { server, tool: remote } => {
                let own = call.session.as_ref().map(|session| &session.servers);
                let most = call.result;
                let live = async {
                    let output = server.call(&host.grants, own, remote, arguments).await?;
                    // Cut before it is recorded: a server may answer with megabytes.
                    Ok(Output { text: cut(output.text, most), ..output })
                };
                interpret(call, &tool.name, arguments, ("", &[]), live).await?
            }
            Run::Search(search) => {
                let request = search_tool::request(&tool.name, search, arguments);
                let live = search_tool::attempt(search, arguments, host);
                let result: SearchResult = call.external("search", request, live).await.map_err(raise)?;
                let mut output = result.output();
                output.text = cut(output.text, call.result);
                return Ok(AttemptResult { output, reward: None, retryable: result.retryable });
            }
        };
        Ok(AttemptResult { output, reward: None, retryable: false })
    }
}

/// One query of the tool, as text for the policy.
async fn query(tables: &Arc<Tables>, sql: String, options: &TableOptions) -> Result<Output, Error> {
    let started = Instant::now();
    let result = tables.query(sql, options.limits()).await?;
    let (text, ok, timed_out) = match result {
        Ok(result) => (show(&result, options), true, false),
        Err(error) => (format!("Error: {error}"), false, error.timed_out()),
    };
    Ok(Output { text, ok, timed_out, seconds: started.elapsed().as_secs_f64(), files: Vec::new() })
}

/// JSON with sorted object keys, so that equal arguments are equal text.
fn sorted(value: &Json) -> Json {
    match value {
        Json::Object(fields) => {
            let fields: std::collections::BTreeMap<&String, Json> =
                fields.iter().map(|(name, value)| (name, sorted(value))).collect();
            Json::Object(fields.into_iter().map(|(name, value)| (name.clone(), value)).collect())
        }
        Json::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

/// Options for a tool with a cache: its results must only depend on the arguments.
fn without_state(lua: &Lua, name: &str, options: &Value) -> mlua::Result<Value> {
    let own = lua.create_table()?;
    if let Value::Table(options) = options {
        options
            .for_each(|name: String, value: Value| if name == "state" { Ok(()) } else { own.raw_set(name, value) })?;
    }
    let refused = format!("tool `{name}` has a cache and uses call.state: its results would depend on the trajectory");
    let meta = lua.create_table()?;
    let index = move |lua: &Lua, (_, key): (Table, Value)| -> mlua::Result<Value> {
        if key.as_string().is_some_and(|key| *key == "state") {
            let hint = "leave out `cache`, or pass what the tool needs as arguments";
            return Err(raise(misuse(lua, refused.clone()).hint(hint)));
        }
        Ok(Value::Nil)
    };
    meta.raw_set("__index", lua.create_function(index)?)?;
    own.set_metatable(Some(meta))?;
    Ok(Value::Table(own))
}

/// Runs a program, or takes its result from the record.
async fn interpret(
    call: &Call,
    tool: &str,
    arguments: &Json,
    (prelude, files): (&str, &[InputFile]),
    live: impl Future<Output = Result<Output, Error>>,
) -> mlua::Result<Output> {
    let request = InterpreterRequest {
        tool: tool.to_owned(),
        arguments: arguments.clone(),
        prelude: prelude.to_owned(),
        files: tool_files::digests(files),
    };
    call.external("tool", request, live).await.map_err(raise)
}

/// A result for the policy, truncated to `most` bytes with the number of omitted bytes.
fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = text.floor_char_boundary(most);
    format!("{}\n… ({} more bytes)", &text[..end], text.len() - end)
}

/// Result of a tool written in Lua.
#[derive(Default)]
struct Returned {
    text: String,
    ok: bool,
    reward: Option<f64>,
    retryable: bool,
}

/// Text and a process reward; or nil, an error message, a process reward, and whether a retry may
/// succeed.
fn read_result(name: &str, run: &Function, values: &(Value, Value, Value, Value)) -> mlua::Result<Returned> {
    let wrong = |field: &str, what: String| {
        let subject = Subject::Returned { function: format!("tool {name}"), field: Some(field.to_owned()) };
        raise(at_definition(run, format!("tool `{name}` {what}")).about(subject))
    };
    let reward_of = |value: &Value| match value {
        Value::Nil => Ok(None),
        Value::Integer(_) | Value::Number(_) => {
            let reward = convert::float(value).filter(|reward| reward.is_finite());
            let why = || wrong("reward", format!("returned the reward {}", convert::show(value)));
            reward.map(Some).ok_or_else(why)
        }
        other => Err(wrong("reward", format!("returned {} as its reward; it must be a number", kind(other)))),
    };
    let (first, second, third, fourth) = values;
    let text = match first {
        Value::String(text) => text.to_string_lossy(),
        Value::Integer(_) | Value::Number(_) | Value::Boolean(_) => first.to_string()?,
        Value::Table(_) => to_json(first, "the result", NonJson::Refuse)
            .map_err(|not_plain| wrong("result", not_plain.to_string()))?
            .to_string(),
        Value::Nil => {
            let Value::String(message) = second else {
                return Err(wrong("result", "returned nil; it must return text, or nil and a message".to_owned()));
            };
            let retryable = match fourth {
                Value::Nil => false,
                Value::Boolean(retryable) => *retryable,
                other => {
                    let why = "as fourth value; it must be true or false: whether a retry may succeed";
                    return Err(wrong("retryable", format!("returned {} {why}", kind(other))));
                }
            };
            let reward = reward_of(third)?;
            return Ok(Returned { text: message.to_string_lossy(), ok: false, reward, retryable });
        }
        other => return Err(wrong("result", format!("returned {}; it must return text", kind(other)))),
    };
    Ok(Returned { text, ok: true, reward: reward_of(second)?, retryable: false })
}
