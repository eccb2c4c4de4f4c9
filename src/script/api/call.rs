//! `r1.call_tools`: runs the tool calls of a response concurrently.

use std::rc::Rc;

use futures_util::future::try_join_all;
use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};

use super::args::{fail, plain, raise};
use super::arguments::{Arguments, arguments};
use super::tools::files;
use super::tools::host_tool::ValidatedCall;
use super::tools::run::CallResult;
use crate::config::{EnvSettings, ExcessCalls};
use crate::error::Error;
use crate::mdp::{CallKind, OutputFile, ToolRecord};
use crate::script::runtime::convert::{from_json, kind};
use crate::script::runtime::host::{Call, EntryPoint, Host};
use crate::script::runtime::suspended::with_room;
use crate::text::{Renderer, schema};
use crate::tools::Output;

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    let call_tools = lua.create_async_function(move |lua, (calls, options): (Value, Value)| {
        let call = host.current();
        let nesting = Nesting::deeper(&call);
        let jobs = nesting
            .ok_or_else(|| fail(&lua, NAME, format!("tools call tools more than {NESTED} deep or wide")))
            .and_then(|nesting| Ok((nesting, jobs(&lua, &host, &call, &calls, &options)?)));
        let (in_tool, host) = (call.in_tool(), host.clone());
        async move {
            let (_nesting, (jobs, hidden)) = jobs?;
            let run = |job: ReadyCall| {
                let tool = job.tool();
                call.branch(job.run(lua.clone(), call.clone(), &host), Some(tool))
            };
            let mut running: Vec<_> = jobs.into_iter().map(|job| Box::pin(run(job))).collect();
            let answers = try_join_all(running.iter_mut()).await;
            // After an error the others are still suspended.
            with_room(&lua, || drop(running));
            let answers = answers?;
            let list = lua.create_table_with_capacity(answers.len(), 0)?;
            for mut answer in answers {
                // The policy earns nothing by a call of the script.
                if hidden {
                    (answer.record.hidden, answer.record.reward) = (true, 0.0);
                }
                list.raw_push(answer.to_lua(&lua)?)?;
                // Calls made by a tool are not recorded: the policy made one call.
                if !in_tool {
                    call.tools.borrow_mut().push(answer.record);
                }
            }
            Ok(list)
        }
    })?;
    r1.raw_set("call_tools", call_tools)
}

pub(super) const NAME: &str = "r1.call_tools";
/// Maximum concurrent calls of `r1.call_tools` in one call of the script: each uses the thread's
/// stack.
const NESTED: usize = 16;
/// Maximum length of a list of calls.
const CALLS: usize = 1024;

arguments! {
    /// Options of `r1.call_tools`; tools in Lua get them as their second argument.
    pub(super) struct CallOptions {
        /// The calls are the script's own, not the policy's.
        hidden: bool = false;
        /// Source code that runs before each program.
        prelude: String = String::new();
        /// Files in the directory of each program, by name.
        files: Value;
        #[expect(dead_code, reason = "tools in Lua read it from the table")]
        state: Value;
    }
}

/// A running call of `r1.call_tools`.
struct Nesting(Rc<Call>);

impl Nesting {
    fn deeper(call: &Rc<Call>) -> Option<Self> {
        let under_way = call.nested.get();
        (under_way < NESTED).then(|| {
            call.nested.set(under_way + 1);
            Self(call.clone())
        })
    }
}

impl Drop for Nesting {
    fn drop(&mut self) {
        self.0.nested.set(self.0.nested.get() - 1);
    }
}

/// The result of a call.
struct ToolAnswer {
    call_id: Option<String>,
    record: ToolRecord,
    files: Vec<OutputFile>,
    /// Hashes of images.
    images: Vec<String>,
}

impl ToolAnswer {
    fn to_lua(&self, lua: &Lua) -> mlua::Result<Table> {
        let table = lua.create_table_with_capacity(0, 6)?;
        table.raw_set("name", self.record.name.as_str())?;
        table.raw_set("content", self.record.output.as_str())?;
        table.raw_set("ok", self.record.ok)?;
        if !self.record.kind.has_run() {
            table.raw_set("kind", self.record.kind.name())?;
        }
        table.raw_set("reward", self.record.reward)?;
        table.raw_set("call_id", self.call_id.as_deref())?;
        if !self.files.is_empty() {
            let files = lua.create_table_with_capacity(self.files.len(), 0)?;
            for file in &self.files {
                let entry = lua.create_table_with_capacity(0, 3)?;
                entry.raw_set("name", file.name.as_str())?;
                entry.raw_set("size", file.size)?;
                if let Some(content) = file.content() {
                    entry.raw_set("content", lua.create_string(content)?)?;
                }
                files.raw_push(entry)?;
            }
            table.raw_set("files", files)?;
        }
        if !self.images.is_empty() {
            let part = |hash: &String| lua.create_table_from([("type", "image"), ("hash", hash)]);
            let parts: Vec<Table> = self.images.iter().map(part).collect::<mlua::Result<_>>()?;
            table.raw_set("images", parts)?;
        }
        Ok(table)
    }
}

enum ReadyCall {
    Refused(ToolAnswer),
    Run { call: ValidatedCall, call_id: Option<String> },
}

/// A call that is not run; the policy sees the reason.
fn refused(id: Option<String>, kind: CallKind, name: &str, arguments: Json, why: String, reward: f64) -> ReadyCall {
    let name = name.to_owned();
    let record = ToolRecord { name, arguments, kind, output: why, reward, ..ToolRecord::default() };
    ReadyCall::Refused(ToolAnswer { call_id: id, record, files: Vec::new(), images: Vec::new() })
}

/// Parses and validates calls, and tells whether they are the script's own. An error of the policy
/// becomes a result; an error of the script is raised.
fn jobs(lua: &Lua, host: &Host, call: &Call, calls: &Value, options: &Value) -> mlua::Result<(Vec<ReadyCall>, bool)> {
    let Value::Table(calls) = calls else {
        return Err(fail(lua, NAME, format!("takes a list of calls such as action.tool_calls, got {}", kind(calls))));
    };
    let CallOptions { hidden, prelude, files, .. } = CallOptions::read_optional(lua, NAME, options)?;
    let files = Rc::new(files::of_call(lua, NAME, &files)?);
    if calls.raw_len() > CALLS {
        return Err(fail(lua, NAME, format!("{} calls are more than {CALLS}", calls.raw_len())));
    }
    let mut tools = host.tools();
    tools.retain(|tool| hidden || !tool.hidden);
    let env = host.current().env.clone();
    let defaults = EnvSettings::default();
    let settings = settings_of(call, &defaults);
    let rewards = &settings.call_rewards;
    let mut quota = Quota::new(call, settings, calls, hidden)?;
    let mut jobs = Vec::with_capacity(calls.raw_len());
    for index in 1..=calls.raw_len() {
        let Value::Table(given_call) = calls.raw_get(index)? else {
            return Err(fail(lua, NAME, format!("call {index} is not a table")));
        };
        let text = |name: &str| match given_call.raw_get(name) {
            Ok(Value::String(text)) => Some(text.to_string_lossy()),
            _ => None,
        };
        let call_id = text("id");
        if let Some(error) = text("error") {
            jobs.push(refused(call_id, CallKind::Malformed, "malformed", Json::Null, error, rewards.malformed));
            continue;
        }
        let Some(name) = text("name") else { return Err(fail(lua, NAME, format!("call {index} has no `name`"))) };
        let given_arguments: Value = given_call.raw_get("arguments")?;
        let mut arguments = plain(lua, NAME, "arguments", &given_arguments)?;
        if given_arguments.is_nil() || arguments.as_array().is_some_and(Vec::is_empty) {
            arguments = json!({});
        }
        // A code block names no tool: it is for the only tool that takes code.
        let mut takers = tools.iter().filter(|tool| tool.takes_code());
        let only_taker = takers.next().filter(|_| takers.next().is_none() && arguments.get("code").is_some());
        let Some(tool) = tools.iter().find(|tool| tool.name == name).or(only_taker) else {
            let names: Vec<String> = tools.iter().map(|tool| format!("`{}`", tool.name)).collect();
            let have =
                if names.is_empty() { "there are no tools".to_owned() } else { format!("tools: {}", names.join(", ")) };
            let why = format!("Error: no tool `{name}`; {have}");
            jobs.push(refused(call_id, CallKind::Unknown, &name, arguments, why, rewards.refused));
            continue;
        };
        let fits = schema::check(&tool.parameters, &arguments);
        let fits = fits.map_err(|why| (CallKind::BadArguments, why.to_string()));
        if fits.is_ok() && quota.ignores() {
            continue;
        }
        if let Err((kind, why)) = fits.and_then(|()| quota.take().map_err(|why| (CallKind::Excess, why.to_string()))) {
            let why = format!("Error: {why}");
            let reward = tool.rewards.refused.unwrap_or(rewards.refused);
            jobs.push(refused(call_id, kind, &tool.name, arguments, why, reward));
            continue;
        }
        let lua_arguments = if given_arguments.is_nil() { Value::Table(lua.create_table()?) } else { given_arguments };
        let kwargs = env.as_ref().and_then(|env| env.tool_kwargs.get(&tool.name)).cloned();
        let options = match &kwargs {
            Some(kwargs) => with_kwargs(lua, options, kwargs)?,
            None => options.clone(),
        };
        let (tool, prelude, files) = (tool.clone(), prelude.clone(), files.clone());
        let call = ValidatedCall { tool, arguments, lua_arguments, prelude, files, hidden, options, kwargs };
        jobs.push(ReadyCall::Run { call, call_id });
    }
    Ok((jobs, hidden))
}

/// The options of a tool's call, with the task's arguments for the tool.
fn with_kwargs(lua: &Lua, options: &Value, kwargs: &Json) -> mlua::Result<Value> {
    let merged = lua.create_table()?;
    if let Value::Table(options) = options {
        options.for_each(|name: Value, value: Value| merged.raw_set(name, value))?;
    }
    merged.raw_set("kwargs", from_json(lua, kwargs)?)?;
    Ok(Value::Table(merged))
}

/// The settings of the call's environment.
fn settings_of<'a>(call: &'a Call, defaults: &'a EnvSettings) -> &'a EnvSettings {
    call.env.as_ref().map_or(defaults, |env| &env.env.settings)
}

/// Limit on the number of calls of one response.
struct Quota<'a> {
    call: &'a Call,
    /// `env.max_calls`; `None` without a limit.
    limit: Option<usize>,
    /// Number of calls of the response, if more than `limit` refuse all.
    too_many: Option<usize>,
    /// Calls beyond the limit get no result.
    ignored: bool,
}

/// A call beyond `env.max_calls`.
#[derive(Debug)]
struct TooManyCalls {
    limit: usize,
    /// Number of calls of the response, if none of them is run.
    all: Option<usize>,
}

impl std::fmt::Display for TooManyCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls = if self.limit == 1 { "1 call".to_owned() } else { format!("{} calls", self.limit) };
        match self.all {
            Some(all) => write!(f, "a reply may have {calls}, this one has {all}: none was run"),
            None => write!(f, "a reply may have {calls}: this one was not run"),
        }
    }
}

impl<'a> Quota<'a> {
    /// The limit applies to the calls of a response: not to calls in `reset` or `reward`, nor to
    /// calls by a tool or by the script itself.
    fn new(call: &'a Call, env: &EnvSettings, calls: &Table, hidden: bool) -> mlua::Result<Self> {
        let limited = env.max_calls > 0 && call.entry == EntryPoint::Step && !call.in_tool() && !hidden;
        let limit = limited.then_some(env.max_calls);
        let mut well_formed = call.calls_run.get();
        for index in 1..=calls.raw_len() {
            if let Value::Table(item) = calls.raw_get(index)? {
                well_formed += usize::from(item.raw_get::<Value>("error")?.is_nil());
            }
        }
        let refuses_all = env.excess_calls == ExcessCalls::RefuseAll;
        let too_many = limit.filter(|limit| refuses_all && well_formed > *limit).map(|_| well_formed);
        Ok(Self { call, limit, too_many, ignored: env.excess_calls == ExcessCalls::Ignore })
    }

    /// Whether the limit is reached and further calls get no result.
    fn ignores(&self) -> bool {
        self.ignored && self.limit.is_some_and(|limit| self.call.calls_run.get() >= limit)
    }

    /// Counts one more call, or returns why it is not run.
    fn take(&mut self) -> Result<(), TooManyCalls> {
        let Some(limit) = self.limit else { return Ok(()) };
        let all = self.too_many;
        let so_far = self.call.calls_run.get();
        if all.is_some() || so_far == limit {
            return Err(TooManyCalls { limit, all });
        }
        self.call.calls_run.set(so_far + 1);
        Ok(())
    }
}

impl ReadyCall {
    /// The name of the tool, for the branch of the call.
    fn tool(&self) -> Rc<str> {
        match self {
            Self::Refused(answer) => answer.record.name.as_str().into(),
            Self::Run { call, .. } => call.tool.name.as_str().into(),
        }
    }

    async fn run(self, lua: Lua, call: Rc<Call>, host: &Host) -> mlua::Result<ToolAnswer> {
        let (validated, call_id) = match self {
            Self::Refused(answer) => return Ok(answer),
            Self::Run { call, call_id } => (call, call_id),
        };
        let CallResult { output, reward, retries, cached } = validated.run(&lua, &call, host).await?;
        let (tool, arguments, hidden) = (validated.tool, validated.arguments, validated.hidden);
        let Output { text, ok, seconds, files, images, .. } = output;
        let defaults = EnvSettings::default();
        let env = settings_of(&call, &defaults);
        let (of_tool, of_env) = (&tool.rewards, &env.call_rewards);
        let (of_tool, of_env) = if ok { (of_tool.ok, of_env.ok) } else { (of_tool.failed, of_env.failed) };
        let reward = reward.or(of_tool).unwrap_or(of_env);
        let limit = tool.max_result_tokens.unwrap_or(env.max_result_tokens);
        let text = match &host.renderer() {
            Some(renderer) if limit > 0 && !hidden => cut_to_tokens(renderer, text, limit).map_err(raise)?,
            _ => text,
        };
        let (name, kind) = (tool.name.clone(), CallKind::Ran);
        let record =
            ToolRecord { name, arguments, kind, output: text, ok, reward, seconds, retries, cached, hidden: false };
        Ok(ToolAnswer { call_id, record, files, images })
    }
}

/// A result truncated to `limit` tokens, and the number of omitted tokens.
fn cut_to_tokens(renderer: &Renderer, text: String, limit: usize) -> Result<String, Error> {
    // A token has at least one byte.
    if text.len() <= limit {
        return Ok(text);
    }
    let tokenizer = renderer.tokenizer();
    let ids = tokenizer.encode(&text)?;
    if ids.len() <= limit {
        return Ok(text);
    }
    let shown = tokenizer.decode(&ids[..limit], false);
    // A character may span several tokens.
    let shown = shown.trim_end_matches(char::REPLACEMENT_CHARACTER);
    Ok(format!("{shown}\n… ({} more tokens)", ids.len() - limit))
}
