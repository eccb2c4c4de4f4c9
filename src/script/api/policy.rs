//! `policy`, the second argument of a flow: responses of the policy, and rewards for them.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value};
use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::args::{check_text, fail, fail_with, raise, refused, text};
use super::argument::{ANY, TextArguments, Whole};
use super::arguments::{Arguments, arguments};
use super::{context, image};
use crate::error::{Error, Kind, suggest};
use crate::mdp::{Action, Observation};
use crate::script::runtime::convert::{self, kind, show};
use crate::script::runtime::flow::{Channel, FlowAnswer, GenerateArguments};
use crate::script::runtime::host::{Call, EntryPoint, Host, misuse};
use crate::script::runtime::messages::{self, messages};
use crate::script::runtime::origin::is_plain;

const GENERATE: &str = "policy:generate";
const REWARD: &str = "policy:reward";

arguments! {
    /// Options of `policy:generate`.
    pub(super) struct ReplyOptions {
        max_new_tokens: Option<Whole<1, ANY>>;
        stop: TextArguments = TextArguments::default();
        /// Names of the tools that the prompt describes.
        tools: Option<TextArguments>;
    }
}

/// Options of `r1.generate` that are not available here.
const SAMPLING: [&str; 4] = ["temperature", "top_k", "top_p", "min_p"];

const MEMBERS: [&str; 5] = ["generate", "reward", "state", "budget", "steps"];

/// The policy as seen by a flow.
pub(crate) struct FlowPolicy {
    pub(crate) channel: Rc<Channel>,
    pub(crate) host: Rc<Host>,
    pub(crate) state: Table,
    /// Schemas of all tools of the task.
    pub(crate) schemas: Arc<[Json]>,
    pub(crate) budget: usize,
}

/// Stores `policy:generate` for the flows of a virtual machine. Async functions must be created
/// before the globals needed to build them are removed.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let generate = lua.create_async_function(|lua, (policy, shown, options): (Value, Value, Value)| {
        let waiting = match policy.as_userdata().and_then(|data| data.borrow::<FlowPolicy>().ok()) {
            Some(policy) => policy.request(&lua, &shown, &options).map(|waiting| (waiting, Rc::clone(&policy.channel))),
            None => Err(fail(&lua, GENERATE, "is called with a colon: policy:generate(messages)")),
        };
        async move {
            let (waiting, channel) = waiting?;
            match waiting.await {
                Ok(FlowAnswer::Reply(action)) => self::action(&lua, &action),
                Ok(FlowAnswer::Over) => Err(over(&channel)),
                Err(_) => Err(raise(Error::new(Kind::Interrupted, format!("{GENERATE}: the flow was stopped")))),
            }
        }
    })?;
    lua.set_named_registry_value(GENERATE, generate)
}

/// The error of a trajectory that a limit has ended.
fn over(channel: &Channel) -> mlua::Error {
    let over = channel.over.borrow().clone();
    raise(over.unwrap_or_else(|| Error::new(Kind::Script, format!("{GENERATE}: the trajectory is over"))))
}

impl UserData for FlowPolicy {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("state", |_, this| Ok(this.state.clone()));
        fields.add_field_method_get("generate", |lua, _| lua.named_registry_value::<Function>(GENERATE));
        fields.add_field_method_get("steps", |_, this| Ok(this.channel.steps.get()));
        fields.add_field_method_get("budget", |lua, this| {
            let budget = lua.create_table_with_capacity(0, 1)?;
            budget.raw_set("tokens", this.budget)?;
            Ok(budget)
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("reward", |lua, this, (value, step): (Value, Value)| this.reward(lua, &value, &step));
        methods.add_meta_method(MetaMethod::Index, |lua, _, name: Value| -> mlua::Result<Value> {
            let name = name.to_string()?;
            Err(fail_hint(lua, &format!("`policy.{name}` does not exist"), suggest(&name, MEMBERS)))
        });
    }
}

impl FlowPolicy {
    /// Whether the flow of this policy runs in a call.
    fn is_of(&self, call: &Call) -> bool {
        call.flow.borrow().as_ref().is_some_and(|channel| Rc::ptr_eq(channel, &self.channel))
    }

    /// Stores the request; the answer arrives when the host resumes the flow.
    fn request(&self, lua: &Lua, shown: &Value, options: &Value) -> mlua::Result<oneshot::Receiver<FlowAnswer>> {
        if self.channel.over.borrow().is_some() {
            return Err(over(&self.channel));
        }
        let call = self.host.current();
        // Nobody would answer a request to the policy of another trajectory.
        if !self.is_of(&call) || !matches!(call.entry, EntryPoint::Reset | EntryPoint::Step) {
            return Err(fail(lua, GENERATE, "can only be called by the flow that received this `policy`"));
        }
        if call.in_branch() {
            let why =
                format!("{GENERATE}: responses of a flow are sequential; it can't be called in r1.join or in a tool");
            let hint = "call it sequentially; r1.generate(messages, { train = true }) can run concurrently";
            return Err(fail_hint(lua, &why, hint));
        }
        let wanted = self.wanted(lua, shown, options)?;
        let (reply, waiting) = oneshot::channel();
        self.channel.wanted.replace(Some(Rc::new(wanted)));
        self.channel.reply.replace(Some(reply));
        Ok(waiting)
    }

    fn wanted(&self, lua: &Lua, shown: &Value, options: &Value) -> mlua::Result<GenerateArguments> {
        let observation = self.observation(lua, shown)?;
        if let Value::Table(table) = options {
            for name in SAMPLING {
                if !table.raw_get::<Value>(name)?.is_nil() {
                    let why = format!("{GENERATE}: `{name}` is a setting of the whole run, which the loss depends on");
                    return Err(fail_hint(lua, &why, format!("set sampling = {{ {name} = … }} in the recipe")));
                }
            }
        }
        let ReplyOptions { max_new_tokens, stop, tools } = ReplyOptions::read_optional(lua, GENERATE, options)?;
        check_stop(lua, GENERATE, &stop)?;
        let tools = match tools {
            None => Arc::clone(&self.schemas),
            Some(TextArguments(names)) => self.tools(lua, &names)?,
        };
        Ok(GenerateArguments { observation, tools, max_new_tokens: max_new_tokens.map(usize::from), stop: stop.0 })
    }

    /// The schemas of the named tools, in the environment's order.
    fn tools(&self, lua: &Lua, names: &[String]) -> mlua::Result<Arc<[Json]>> {
        let name_of = |schema: &Json| schema["function"]["name"].as_str().unwrap_or_default().to_owned();
        let tool_names: Vec<String> = self.schemas.iter().map(name_of).collect();
        if let Some(name) = names.iter().find(|name| !tool_names.contains(name)) {
            let why = format!("{GENERATE}: `tools` names `{name}`, which is not a tool of the environment");
            return Err(fail_hint(lua, &why, suggest(name, tool_names.iter().map(String::as_str))));
        }
        Ok(self.schemas.iter().filter(|schema| names.contains(&name_of(schema))).cloned().collect())
    }

    /// Messages, a context, text or token ids, as a `context` function returns them.
    fn observation(&self, lua: &Lua, shown: &Value) -> mlua::Result<Observation> {
        const TAKES: &str = "takes messages, text or { token_ids = { … } }";
        let table = match shown {
            Value::String(_) => return Ok(Observation::Text(text(lua, GENERATE, "messages", shown)?)),
            Value::Table(table) => table,
            Value::Nil => return Err(fail(lua, GENERATE, format!("{TAKES}, got nothing"))),
            other => return Err(fail(lua, GENERATE, format!("{TAKES}, got {}", kind(other)))),
        };
        let ids = if is_plain(table) { table.raw_get("token_ids")? } else { Value::Nil };
        if let Value::Table(ids) = ids {
            let ids = ids.sequence_values::<u32>().collect::<mlua::Result<Vec<u32>>>();
            let ids = ids.map_err(|_| fail(lua, GENERATE, "`token_ids` must be a list of whole numbers"))?;
            return Ok(Observation::TokenIds(ids));
        }
        let list = context::messages_of(lua, table)?.map_or_else(|| table.clone(), |(list, _)| list);
        let list: Table = match self.channel.steps.get() {
            0 => image::function(lua, "place")?.call((list, "messages", self.state.raw_get::<Value>("task")?))?,
            _ => image::stored(lua, &list, "messages")?,
        };
        let shown = messages(&list, "messages").map_err(|invalid| fail_with(lua, GENERATE, invalid.of_script()))?;
        check_text(lua, GENERATE, &shown)?;
        // The record contains the conversation as it is at the end.
        self.state.raw_set("messages", list)?;
        Ok(Observation::Messages(shown))
    }

    fn reward(&self, lua: &Lua, value: &Value, step: &Value) -> mlua::Result<()> {
        if !self.is_of(&self.host.current()) {
            return Err(fail(lua, REWARD, "can only be called by the flow that received this `policy`"));
        }
        let steps = self.channel.steps.get();
        if steps == 0 {
            return Err(fail(lua, REWARD, "there is no response yet to reward"));
        }
        let number = match value {
            Value::Integer(_) | Value::Number(_) => convert::float(value).filter(|number| number.is_finite()),
            _ => None,
        };
        let Some(number) = number else {
            return Err(fail(lua, REWARD, format!("takes a finite number, got {}", show(value))));
        };
        let at = match step {
            Value::Nil => steps,
            other => match convert::float(other) {
                Some(step) if step >= 1.0 && step <= steps as f64 && step.fract() == 0.0 => step as usize,
                _ => return Err(fail(lua, REWARD, format!("`step` is one of 1 to {steps}, got {}", show(other)))),
            },
        };
        let mut earned = self.channel.earned.borrow_mut();
        if at == steps {
            earned.reward += number;
        } else {
            earned.earlier.push((at - 1, number));
        }
        Ok(())
    }
}

/// Refuses stop texts that every response begins with.
pub(super) fn check_stop(lua: &Lua, function: &'static str, stop: &TextArguments) -> mlua::Result<()> {
    if stop.0.iter().all(|text| !text.is_empty()) {
        return Ok(());
    }
    Err(refused(lua, function, "stop", "`stop` has an empty text"))
}

fn fail_hint(lua: &Lua, why: &str, hint: impl Into<String>) -> mlua::Error {
    raise(misuse(lua, why).hint(hint))
}

/// A response, in the form passed to `step`.
fn action(lua: &Lua, action: &Action) -> mlua::Result<Table> {
    let (text, ids, reason, calls) = messages::action(lua, action)?;
    let table = lua.create_table_with_capacity(0, 4)?;
    table.raw_set("text", text)?;
    table.raw_set("token_ids", ids.map_or_else(|| lua.create_table(), Ok)?)?;
    table.raw_set("finish_reason", reason)?;
    table.raw_set("tool_calls", calls.map_or_else(|| lua.create_table(), Ok)?)?;
    Ok(table)
}
