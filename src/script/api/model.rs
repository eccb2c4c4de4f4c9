//! `r1.model(dir_or_id, options)`: direct use of a model. Its tensors stay with the host's
//! [`Services`].

use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Lua, Table, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::args::{Fields, FromField, fail, raise, text};
use super::arguments::{Arguments, arguments};
use super::service::{Held, call};
use super::tokenizer::ids;
use crate::config::PolicySettings;
use crate::error::{Error, Kind};
use crate::schema::Section;
use crate::script::Services;
use crate::script::runtime::convert::{NonJson, from_answer, kind, to_json};
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::services::model::{
    CloseModel, Generate, Logits, Logprobs, ModelConfig, OpenModel, Prompt, ResponseOptions,
};
use crate::script::settings::section;

arguments! {
    /// Options of `r1.model`.
    pub(super) struct OpenOptions {
        format: Option<String>;
        ..policy: ["base", "device", "dtype", "max_context"];
    }

    /// Options of `Model:logprobs`.
    pub(super) struct LogprobsOptions {
        top: usize = 0;
        temperature: f64 = 1.0;
    }

    /// Options of `Model:generate`: those of sampling, and those of the response.
    pub(super) struct SampleOptions {
        logit_bias: Option<LogitBias>;
        ..others: [
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "top_logprobs",
            "max_new_tokens",
            "max_seconds",
            "stop",
            "seed",
            "stop_ids",
            "tools",
            "ignore_eos",
        ];
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let meta = lua.create_table()?;
    meta.raw_set("__index", methods(lua)?)?;
    meta.raw_set("__metatable", false)?;
    meta.set_readonly(true);
    let host = host.clone();
    let open = lua.create_async_function(move |lua, (name, options): (Value, Value)| {
        let (services, meta) = (host.services.clone(), meta.clone());
        async move {
            const NAME: &str = "r1.model";
            let name = text(&lua, NAME, "model", &name)?;
            let Some(services) = services else {
                return Err(fail(&lua, NAME, "is for programs (`r1 lua`); a recipe names its model in `policy`"));
            };
            let OpenOptions { format, policy } = OpenOptions::read_optional(&lua, NAME, &options)?;
            let policy = section("policy", &Json::Object(policy));
            let policy: PolicySettings = policy.map_err(|error| at_caller(&lua, error))?;
            let policy = Box::new(PolicySettings { model: name, ..policy });
            let request = OpenModel { policy, format };
            let number = call(&lua, &services, request).await?;
            let model = lua.create_table()?;
            model.raw_set(HANDLE, lua.create_userdata(Held::new(&services, number, close))?)?;
            model.set_metatable(Some(meta))?;
            model.set_readonly(true);
            Ok(model)
        }
    })?;
    r1.raw_set("model", open)
}

/// The field of an open model with the host's handle.
const HANDLE: &str = "handle";

fn close(services: &dyn Services, model: u64) {
    drop(services.call(CloseModel { model }));
}

/// The handle of an open model; `None` for other values.
pub(super) fn handle(value: &Value) -> Option<u64> {
    let held: Option<AnyUserData> = value.as_table()?.raw_get(HANDLE).ok()?;
    held?.borrow::<Held>().ok().map(|model| model.number)
}

/// The model of `self`.
fn parts(lua: &Lua, function: &str, this: &Value) -> mlua::Result<(Arc<dyn Services>, u64)> {
    let handle = match this {
        Value::Table(table) => table.raw_get::<Option<AnyUserData>>(HANDLE)?,
        _ => None,
    };
    let Some(handle) = handle else { return Err(fail(lua, function, format!("call it as model:{function}(…)"))) };
    let model = handle.borrow::<Held>()?;
    Ok((model.services.clone(), model.number))
}

/// The methods. Created while the VM still has the globals needed to build async functions.
fn methods(lua: &Lua) -> mlua::Result<Table> {
    let methods = lua.create_table()?;
    methods.raw_set(
        "logprobs",
        lua.create_async_function(|lua, (this, list, options): (Value, Value, Value)| async move {
            let (services, model) = parts(&lua, "logprobs", &this)?;
            let ids = ids(&lua, "logprobs", &list)?;
            let LogprobsOptions { top, temperature } = LogprobsOptions::read_optional(&lua, "logprobs", &options)?;
            let scored = call(&lua, &services, Logprobs { model, ids, top, temperature }).await?;
            Ok((answer(&lua, &scored.logprobs)?, answer(&lua, &scored.top)?))
        })?,
    )?;
    methods.raw_set(
        "logits",
        lua.create_async_function(|lua, (this, list): (Value, Value)| async move {
            let (services, model) = parts(&lua, "logits", &this)?;
            let ids = ids(&lua, "logits", &list)?;
            answer(&lua, &call(&lua, &services, Logits { model, ids }).await?)
        })?,
    )?;
    methods.raw_set(
        "generate",
        lua.create_async_function(|lua, (this, prompt, options): (Value, Value, Value)| async move {
            const NAME: &str = "generate";
            let (services, model) = parts(&lua, NAME, &this)?;
            if !matches!(options, Value::Nil | Value::Table(_)) {
                return Err(fail(&lua, NAME, format!("options must be a table, got {}", kind(&options))));
            }
            let SampleOptions { logit_bias, others } = SampleOptions::read_optional(&lua, NAME, &options)?;
            let of_response = |(name, _): &(String, _)| ResponseOptions::FIELDS.contains(&name.as_str());
            let (own, mut sampling): (Map<_, _>, Map<_, _>) = others.into_iter().partition(of_response);
            sampling.extend(logit_bias.map(|bias| ("logit_bias".to_owned(), Json::Object(bias.0))));
            let options: ResponseOptions =
                section("sampling", &Json::Object(own)).map_err(|error| at_caller(&lua, error))?;
            let prompt = to_json(&prompt, "prompt", NonJson::Refuse).map_err(|why| fail(&lua, NAME, why))?;
            let prompt = Prompt::try_from(prompt).map_err(|error| at_caller(&lua, error))?;
            let request = Generate { model, prompt, options, sampling: sampling.into() };
            answer(&lua, &call(&lua, &services, request).await?)
        })?,
    )?;
    methods.raw_set(
        "config",
        lua.create_async_function(|lua, this: Value| async move {
            let (services, model) = parts(&lua, "config", &this)?;
            answer(&lua, &call(&lua, &services, ModelConfig { model }).await?)
        })?,
    )?;
    super::seal(lua, "model", &methods)?;
    Ok(methods)
}

/// An error of an argument, at the line of the caller.
fn at_caller(lua: &Lua, error: Error) -> mlua::Error {
    raise(Error { place: misuse(lua, "").place, ..error })
}

/// A result of the host.
pub(super) fn answer(lua: &Lua, reply: &impl Serialize) -> mlua::Result<Value> {
    from_answer(lua, &serde_json::to_value(reply).map_err(mlua::Error::external)?)
}

/// Numbers by token id, with the ids as text. A script writes them as numbers or as text.
pub(super) struct LogitBias(Map<String, Json>);

impl FromField for LogitBias {
    fn from_field(fields: &Fields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        const WANTED: &str = "numbers by token id";
        let Value::Table(given) = value else { return Err(fields.refuse(name, WANTED, value)) };
        let mut bias = Map::new();
        given.for_each(|id: Value, by: Value| {
            let id = match &id {
                Value::Integer(id) => id.to_string(),
                Value::String(id) => id.to_string_lossy(),
                other => return Err(fields.refuse(name, WANTED, other)),
            };
            let by = match by {
                Value::Integer(by) => json!(by),
                Value::Number(by) if by.is_finite() => json!(by),
                other => return Err(fields.refuse(&format!("{name}[{id}]"), "a number", &other)),
            };
            if bias.insert(id.clone(), by).is_none() {
                return Ok(());
            }
            let why = format!("`{name}` has two values for id {id}");
            Err(fields.refused(name, Error::new(Kind::Script, why)))
        })?;
        Ok(Self(bias))
    }
}
