//! `r1.tool`, `r1.tools.python`, `r1.tools.rhai` and `r1.call_tools`: what a policy can call, and calling it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use mlua::{Function, Lua, Table, UserData, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};

use super::args::{Fields, fail, fail_with, raise};
use crate::error::{Error, Kind, Result};
use crate::mdp::ToolRecord;
use crate::script::convert::{self, Odd, kind, to_json};
use crate::script::host::{Call, Host};
use crate::script::vm::definition;
use crate::script::{interpreters, schema, settings};
use crate::tools::{Output, Python, PythonOptions, Rhai, RhaiOptions};

/// A tool of an env.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of the arguments.
    pub(crate) parameters: Json,
    pub(crate) run: Run,
}

/// How a call is carried out.
pub(crate) enum Run {
    /// `run(arguments, options) -> text [, reward]`, or `nil, message`; waits at most `timeout`.
    Lua {
        run: Function,
        timeout: Option<Duration>,
    },
    /// `session` keeps names and files from call to call of one trajectory.
    Python {
        options: PythonOptions,
        session: bool,
    },
    Rhai(RhaiOptions),
}

/// A tool as a Lua value.
pub(crate) struct ToolHandle(pub(crate) Rc<Tool>);

impl UserData for ToolHandle {}

impl Tool {
    /// The OpenAI schema, for chat templates.
    pub(crate) fn schema(&self) -> Json {
        json!({
            "type": "function",
            "function": { "name": self.name, "description": self.description, "parameters": self.parameters },
        })
    }

    /// Starts what the tool needs; done before the first trajectory, so that a missing sandbox is one clear error.
    pub(crate) fn prepare(&self) -> Result<()> {
        match &self.run {
            Run::Lua { .. } => Ok(()),
            Run::Python { options, .. } => interpreters::python(options).map(drop),
            Run::Rhai(options) => interpreters::rhai(options).map(drop),
        }
    }

    fn takes_code(&self) -> bool {
        self.parameters.pointer("/properties/code").is_some()
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    r1.raw_set("tool", lua.create_function(tool)?)?;
    let tools = lua.create_table()?;
    tools.raw_set("python", lua.create_function(python)?)?;
    tools.raw_set("rhai", lua.create_function(rhai)?)?;
    super::seal(lua, "r1.tools", &tools)?;
    r1.raw_set("tools", tools)?;
    let host = host.clone();
    let call_tools = lua.create_async_function(move |lua, (calls, options): (Value, Value)| {
        let call = host.current();
        let jobs = jobs(&lua, &host, &calls, &options);
        async move {
            let jobs = jobs?;
            let answers = try_join_all(jobs.into_iter().map(|job| job.run(&lua, &call))).await?;
            let list = lua.create_table_with_capacity(answers.len(), 0)?;
            for answer in answers {
                list.raw_push(answer.to_lua(&lua)?)?;
                call.tools.borrow_mut().push(answer.record);
            }
            Ok(list)
        }
    })?;
    r1.raw_set("call_tools", call_tools)
}

/// `r1.tool { name =, description =, parameters =, timeout =, run = function(arguments) … end }`.
fn tool(lua: &Lua, value: Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tool";
    let fields = Fields::new(lua, NAME, &value, &["name", "description", "parameters", "timeout", "run"])?;
    let name = fields.text("name")?.ok_or_else(|| fail(lua, NAME, "needs `name`"))?;
    let run = fields.function("run")?.ok_or_else(|| fail(lua, NAME, "needs `run`, a function of the arguments"))?;
    let timeout = match fields.get("timeout")? {
        Value::Nil => None,
        value => Some(
            Duration::try_from_secs_f64(seconds(&value).ok_or_else(|| fields.refuse("timeout", SECONDS, &value))?)
                .map_err(|_| fields.refuse("timeout", SECONDS, &value))?,
        ),
    };
    let description = fields.text("description")?.unwrap_or_default();
    let parameters = parameters(fields.json("parameters")?).map_err(|why| fail(lua, NAME, why))?;
    Ok(ToolHandle(Rc::new(Tool { name, description, parameters, run: Run::Lua { run, timeout } })))
}

/// A JSON Schema, or the short form `{ city = { type = "string" }, days = "integer" }` where all are required unless
/// they say `optional = true`.
fn parameters(given: Json) -> Result<Json, String> {
    let mut given = match given {
        Json::Null => Map::new(),
        Json::Object(given) => given,
        _ => return Err("`parameters` must be a table of named parameters".to_owned()),
    };
    if given.get("type").and_then(Json::as_str) == Some("object") {
        given.entry("properties").or_insert_with(|| json!({}));
        // An empty Lua table says neither list nor object.
        if given.get("required").is_some_and(|required| required.as_object().is_some_and(Map::is_empty)) {
            given.remove("required");
        }
        return Ok(Json::Object(given));
    }
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, schema) in given {
        let mut schema = match schema {
            Json::String(kind) => Map::from_iter([("type".to_owned(), Json::String(kind))]),
            Json::Object(schema) => schema,
            _ => return Err(format!("parameter `{name}` must be a type such as \"string\", or a schema")),
        };
        if schema.remove("optional") != Some(Json::Bool(true)) {
            required.push(name.clone());
        }
        properties.insert(name, Json::Object(schema));
    }
    // A table has no order of its own; the same script must give the same prompt every time.
    required.sort_unstable();
    properties.sort_keys();
    Ok(json!({ "type": "object", "properties": properties, "required": required }))
}

/// The parameters of a code interpreter.
fn code_parameters() -> Json {
    json!({
        "type": "object",
        "properties": { "code": { "type": "string", "description": "The program" } },
        "required": ["code"],
    })
}

const OWN_FIELDS: [&str; 5] = ["name", "description", "memory", "disk", "session"];

/// `r1.tools.python { timeout = 5, memory = "512MiB", session = false, … }`.
fn python(lua: &Lua, value: Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.python";
    let (fields, options) = interpreter::<PythonOptions>(lua, NAME, &value, &OWN_FIELDS)?;
    let session = match fields.get("session")? {
        Value::Nil => false,
        Value::Boolean(session) => session,
        other => return Err(fields.refuse("session", "true or false", &other)),
    };
    let description = if session {
        "Runs a Python program and gives what it prints. Names and files stay for the next call."
    } else {
        "Runs a Python program and gives what it prints. Each call starts afresh."
    };
    Ok(ToolHandle(Rc::new(Tool {
        name: fields.text("name")?.unwrap_or_else(|| "python".to_owned()),
        description: fields.text("description")?.unwrap_or_else(|| description.to_owned()),
        parameters: code_parameters(),
        run: Run::Python { options, session },
    })))
}

/// `r1.tools.rhai { … }`.
fn rhai(lua: &Lua, value: Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.rhai";
    let (fields, options) = interpreter::<RhaiOptions>(lua, NAME, &value, &["name", "description"])?;
    Ok(ToolHandle(Rc::new(Tool {
        name: fields.text("name")?.unwrap_or_else(|| "rhai".to_owned()),
        description: fields
            .text("description")?
            .unwrap_or_else(|| "Runs a Rhai program and gives what it prints.".to_owned()),
        parameters: code_parameters(),
        run: Run::Rhai(options),
    })))
}

/// The options of an interpreter, sizes and times with units.
fn interpreter<'a, O: Serialize + DeserializeOwned + Default>(
    lua: &'a Lua,
    function: &'static str,
    value: &Value,
    own: &[&str],
) -> mlua::Result<(Fields<'a>, O)> {
    let names = settings::names_of::<O>();
    let known: Vec<&str> = own.iter().copied().chain(names.iter().map(String::as_str)).collect();
    let empty = Value::Table(lua.create_table()?);
    let fields = Fields::new(lua, function, if value.is_nil() { &empty } else { value }, &known)?;
    let mut options = fields.rest(own)?;
    for (name, stored) in [("memory", "memory_mb"), ("disk", "disk_mb")] {
        let value = if own.contains(&name) { fields.get(name)? } else { Value::Nil };
        if !value.is_nil() {
            let size = mebibytes(&value).ok_or_else(|| fields.refuse(name, "a size such as \"512MiB\"", &value))?;
            options.insert(stored.to_owned(), Json::from(size));
        }
    }
    let timeout = if names.iter().any(|name| name == "timeout") { fields.get("timeout")? } else { Value::Nil };
    if !timeout.is_nil() {
        let time = seconds(&timeout).ok_or_else(|| fields.refuse("timeout", SECONDS, &timeout))?;
        options.insert("timeout".to_owned(), Json::from(time));
    }
    let options = settings::section(function, &Json::Object(options)).map_err(|error| fail_with(lua, "tool", error))?;
    Ok((fields, options))
}

const SECONDS: &str = "a number of seconds, or text such as \"5s\"";

/// `5`, `"5s"`, `"500ms"`, `"2m"`.
fn seconds(value: &Value) -> Option<f64> {
    let seconds = match value {
        Value::Integer(_) | Value::Number(_) => convert::float(value)?,
        Value::String(text) => {
            let text = text.to_string_lossy();
            let (number, unit) = split_unit(&text)?;
            number
                * match unit {
                    "" | "s" => 1.0,
                    "ms" => 1e-3,
                    "m" | "min" => 60.0,
                    _ => return None,
                }
        }
        _ => return None,
    };
    (seconds > 0.0 && seconds.is_finite()).then_some(seconds)
}

/// `512` (MiB), `"512MiB"`, `"1GiB"`; `MB` and `GB` are taken for the same.
fn mebibytes(value: &Value) -> Option<u64> {
    let size = match value {
        Value::Integer(_) | Value::Number(_) => convert::float(value)?,
        Value::String(text) => {
            let text = text.to_string_lossy();
            let (number, unit) = split_unit(&text)?;
            number
                * match unit.to_ascii_lowercase().as_str() {
                    "" | "m" | "mb" | "mib" => 1.0,
                    "g" | "gb" | "gib" => 1024.0,
                    "k" | "kb" | "kib" => 1.0 / 1024.0,
                    _ => return None,
                }
        }
        _ => return None,
    };
    (size >= 0.0 && size.is_finite()).then_some(size.ceil() as u64)
}

fn split_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

/// What a call came to.
struct Answer {
    call_id: Option<String>,
    record: ToolRecord,
}

impl Answer {
    /// A call that could not be carried out: the policy is told why.
    fn refused(call_id: Option<String>, name: &str, arguments: Json, why: String) -> Self {
        let record = ToolRecord { name: name.to_owned(), arguments, output: why, ok: false, reward: 0.0, seconds: 0.0 };
        Self { call_id, record }
    }

    fn to_lua(&self, lua: &Lua) -> mlua::Result<Table> {
        let table = lua.create_table_with_capacity(0, 5)?;
        table.raw_set("name", self.record.name.as_str())?;
        table.raw_set("content", self.record.output.as_str())?;
        table.raw_set("ok", self.record.ok)?;
        table.raw_set("reward", self.record.reward)?;
        table.raw_set("call_id", self.call_id.as_deref())?;
        Ok(table)
    }
}

/// A call ready to be carried out.
enum Job {
    Refused(Answer),
    Ready { tool: Rc<Tool>, call_id: Option<String>, arguments: Json, given: Value, prelude: String, options: Value },
}

/// Reads and checks calls. What the policy did wrong becomes an answer; what the script did wrong is raised.
fn jobs(lua: &Lua, host: &Host, calls: &Value, options: &Value) -> mlua::Result<Vec<Job>> {
    const NAME: &str = "r1.call_tools";
    let Value::Table(calls) = calls else {
        return Err(fail(lua, NAME, format!("takes a list of calls such as action.tool_calls, got {}", kind(calls))));
    };
    let prelude = match options {
        Value::Nil => String::new(),
        options => Fields::new(lua, NAME, options, &["prelude"])?.text("prelude")?.unwrap_or_default(),
    };
    let tools = host.tools.borrow();
    let mut jobs = Vec::with_capacity(calls.raw_len());
    for index in 1..=calls.raw_len() {
        let Value::Table(call) = calls.raw_get(index)? else {
            return Err(fail(lua, NAME, format!("call {index} is not a table")));
        };
        let text = |name: &str| match call.raw_get(name) {
            Ok(Value::String(text)) => Some(text.to_string_lossy()),
            _ => None,
        };
        let call_id = text("id");
        if let Some(error) = text("error") {
            jobs.push(Job::Refused(Answer::refused(call_id, "malformed", Json::Null, error)));
            continue;
        }
        let Some(name) = text("name") else { return Err(fail(lua, NAME, format!("call {index} has no `name`"))) };
        let given: Value = call.raw_get("arguments")?;
        let mut arguments = to_json(&given, "arguments", Odd::Refuse).map_err(|why| fail(lua, NAME, why))?;
        if given.is_nil() || arguments.as_array().is_some_and(Vec::is_empty) {
            arguments = json!({});
        }
        // A code block names no tool: it means the only one that takes code.
        let mut takers = tools.iter().filter(|tool| tool.takes_code());
        let only_taker = takers.next().filter(|_| takers.next().is_none() && arguments.get("code").is_some());
        let Some(tool) = tools.iter().find(|tool| tool.name == name).or(only_taker) else {
            let names: Vec<String> = tools.iter().map(|tool| format!("`{}`", tool.name)).collect();
            let have =
                if names.is_empty() { "there are no tools".to_owned() } else { format!("tools: {}", names.join(", ")) };
            jobs.push(Job::Refused(Answer::refused(
                call_id,
                &name,
                arguments,
                format!("Error: no tool `{name}`; {have}"),
            )));
            continue;
        };
        if let Err(why) = schema::check(&tool.parameters, &arguments) {
            jobs.push(Job::Refused(Answer::refused(call_id, &tool.name, arguments, format!("Error: {why}"))));
            continue;
        }
        let given = if given.is_nil() { Value::Table(lua.create_table()?) } else { given };
        let (prelude, options) = (prelude.clone(), options.clone());
        jobs.push(Job::Ready { tool: tool.clone(), call_id, arguments, given, prelude, options });
    }
    Ok(jobs)
}

impl Job {
    async fn run(self, lua: &Lua, call: &Rc<Call>) -> mlua::Result<Answer> {
        let (tool, call_id, arguments, given, prelude, options) = match self {
            Self::Refused(answer) => return Ok(answer),
            Self::Ready { tool, call_id, arguments, given, prelude, options } => {
                (tool, call_id, arguments, given, prelude, options)
            }
        };
        let code = || arguments.get("code").and_then(Json::as_str).unwrap_or_default().to_owned();
        let started = Instant::now();
        let (output, reward) = match &tool.run {
            Run::Lua { run, timeout } => {
                let future = run.call_async::<(Value, Value)>((given, options));
                let result = match timeout {
                    None => Ok(future.await?),
                    Some(limit) => match tokio::time::timeout(*limit, future).await {
                        Ok(result) => Ok(result?),
                        Err(_) => Err(format!("Error: timed out after {} s", limit.as_secs_f64())),
                    },
                };
                let (text, ok, reward) = match result {
                    Ok((text, second)) => read_result(lua, &tool.name, run, &text, &second)?,
                    Err(text) => (text, false, 0.0),
                };
                let seconds = started.elapsed().as_secs_f64();
                (Output { text, ok, timed_out: false, seconds }, reward)
            }
            Run::Python { options, session } => {
                let python: Arc<Python> = interpreters::python(options).map_err(raise)?;
                let output = match call.session.as_ref().filter(|_| *session) {
                    Some(session) => python.run_in_session(session.join(&python), &code(), &prelude).await,
                    None => python.run(&code(), &prelude).await,
                };
                (output, 0.0)
            }
            Run::Rhai(options) => {
                let rhai: Arc<Rhai> = interpreters::rhai(options).map_err(raise)?;
                let code = code();
                // Busy for as long as its limits allow: other trajectories of this worker go on meanwhile.
                let output = tokio::task::spawn_blocking(move || rhai.run(&code, &prelude)).await;
                (output.map_err(|error| raise(Error::new(Kind::Internal, format!("rhai stopped: {error}"))))?, 0.0)
            }
        };
        let Output { text, ok, seconds, .. } = output;
        let record = ToolRecord { name: tool.name.clone(), arguments, output: text, ok, reward, seconds };
        Ok(Answer { call_id, record })
    }
}

/// What a Lua tool returned: text and a process reward, or nil and why not.
fn read_result(
    lua: &Lua,
    name: &str,
    run: &Function,
    first: &Value,
    second: &Value,
) -> mlua::Result<(String, bool, f64)> {
    let wrong = |what: String| {
        let error = Error::new(Kind::Script, format!("tool `{name}` {what}"));
        raise(match definition(run) {
            Some(place) => error.at(place),
            None => error,
        })
    };
    let text = match first {
        Value::String(text) => text.to_string_lossy(),
        Value::Integer(_) | Value::Number(_) | Value::Boolean(_) => first.to_string()?,
        Value::Table(_) => to_json(first, "the result", Odd::Refuse).map_err(wrong)?.to_string(),
        Value::Nil => {
            return match second {
                Value::String(message) => Ok((message.to_string_lossy(), false, 0.0)),
                _ => Err(wrong("returned nil; it must return text, or nil and a message".to_owned())),
            };
        }
        other => return Err(wrong(format!("returned {}; it must return text", kind(other)))),
    };
    let reward = match second {
        Value::Nil => 0.0,
        Value::Integer(_) | Value::Number(_) => convert::float(second)
            .filter(|reward| reward.is_finite())
            .ok_or_else(|| wrong(format!("returned the reward {}", convert::show(second))))?,
        other => return Err(wrong(format!("returned {} as its reward; it must be a number", kind(other)))),
    };
    let _ = lua;
    Ok((text, true, reward))
}
