//! `r1.model(dir_or_id, options)`: direct use of a model. Its tensors stay with the host's
//! [`Services`].

use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Lua, Table, UserData, Value};
use serde_json::{Value as Json, json};

use super::args::{Fields, fail, raise, text};
use super::text::ids;
use crate::script::Services;
use crate::script::runtime::convert::{Odd, from_answer, kind, to_json};
use crate::script::runtime::host::{Host, misuse};

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
            let options = match options {
                Value::Nil => json!({}),
                options => Json::Object(
                    Fields::new(&lua, NAME, &options, &["base", "device", "dtype", "format", "max_context"])?
                        .rest(&[])?,
                ),
            };
            let handle = ask(&lua, &services, "model.open", json!({ "model": name, "options": options })).await?;
            let model = lua.create_table()?;
            model.raw_set(HANDLE, lua.create_userdata(Model { services, handle })?)?;
            model.set_metatable(Some(meta))?;
            model.set_readonly(true);
            Ok(model)
        }
    })?;
    r1.raw_set("model", open)
}

/// The field of an open model with the host's handle.
const HANDLE: &str = "handle";

/// Calls the services; their errors are raised at the caller's line.
pub(super) async fn ask(
    lua: &Lua,
    services: &Arc<dyn Services>,
    function: &str,
    arguments: Json,
) -> mlua::Result<Json> {
    let place = misuse(lua, "").place;
    services.call(function, arguments).await.map_err(|error| match place {
        Some(place) if error.place.is_none() => raise(error.at(place)),
        _ => raise(error),
    })
}

/// An open model; closed when Lua collects it.
struct Model {
    services: Arc<dyn Services>,
    handle: Json,
}

impl UserData for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        drop(self.services.call("model.close", json!({ "model": self.handle })));
    }
}

/// The handle of an open model; `None` for other values.
pub(super) fn handle(value: &Value) -> Option<Json> {
    let held: Option<AnyUserData> = value.as_table()?.raw_get(HANDLE).ok()?;
    held?.borrow::<Model>().ok().map(|model| model.handle.clone())
}

/// The model of `self`.
fn parts(lua: &Lua, function: &str, this: &Value) -> mlua::Result<(Arc<dyn Services>, Json)> {
    let handle = match this {
        Value::Table(table) => table.raw_get::<Option<AnyUserData>>(HANDLE)?,
        _ => None,
    };
    let Some(handle) = handle else { return Err(fail(lua, function, format!("call it as model:{function}(…)"))) };
    let model = handle.borrow::<Model>()?;
    Ok((model.services.clone(), model.handle.clone()))
}

/// The methods. Created while the VM still has the globals needed to build async functions.
fn methods(lua: &Lua) -> mlua::Result<Table> {
    let methods = lua.create_table()?;
    methods.raw_set(
        "logprobs",
        lua.create_async_function(|lua, (this, list, options): (Value, Value, Value)| async move {
            let (services, model) = parts(&lua, "logprobs", &this)?;
            let list = ids(&lua, "logprobs", &list)?;
            let options = plain(&lua, "logprobs", &options, &["top", "temperature"])?;
            let request = json!({ "model": model, "ids": list, "options": options });
            let result = ask(&lua, &services, "model.logprobs", request).await?;
            Ok((from_answer(&lua, &result["logprobs"])?, from_answer(&lua, &result["top"])?))
        })?,
    )?;
    methods.raw_set(
        "logits",
        lua.create_async_function(|lua, (this, list): (Value, Value)| async move {
            let (services, model) = parts(&lua, "logits", &this)?;
            let list = ids(&lua, "logits", &list)?;
            from_answer(&lua, &ask(&lua, &services, "model.logits", json!({ "model": model, "ids": list })).await?)
        })?,
    )?;
    methods.raw_set(
        "generate",
        lua.create_async_function(|lua, (this, prompt, sampling): (Value, Value, Value)| async move {
            let (services, model) = parts(&lua, "generate", &this)?;
            let sampling = request(&lua, &sampling)?;
            let prompt = to_json(&prompt, "prompt", Odd::Refuse).map_err(|why| fail(&lua, "generate", why))?;
            let request = json!({ "model": model, "prompt": prompt, "sampling": sampling });
            from_answer(&lua, &ask(&lua, &services, "model.generate", request).await?)
        })?,
    )?;
    methods.raw_set(
        "config",
        lua.create_async_function(|lua, this: Value| async move {
            let (services, model) = parts(&lua, "config", &this)?;
            from_answer(&lua, &ask(&lua, &services, "model.config", json!({ "model": model })).await?)
        })?,
    )?;
    super::seal(lua, "model", &methods)?;
    Ok(methods)
}

/// Options of `:generate`.
const SAMPLING: [&str; 14] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "logit_bias",
    "top_logprobs",
    "max_new_tokens",
    "max_seconds",
    "stop",
    "seed",
    "stop_ids",
    "tools",
    "ignore_eos",
];

/// The options of `:generate` as an object; keys of `logit_bias` are ids, as numbers or text.
fn request(lua: &Lua, options: &Value) -> mlua::Result<Json> {
    const BIAS: &str = "logit_bias";
    if !matches!(options, Value::Table(_)) {
        return plain(lua, "generate", options, &SAMPLING);
    }
    let fields = Fields::new(lua, "generate", options, &SAMPLING)?;
    let mut object = fields.rest(&[BIAS])?;
    match fields.get(BIAS)? {
        Value::Nil => {}
        Value::Table(given) => {
            let mut bias = serde_json::Map::new();
            given.for_each(|id: Value, by: Value| {
                let name = match &id {
                    Value::Integer(id) => id.to_string(),
                    Value::String(id) => id.to_string_lossy(),
                    other => return Err(fields.refuse(BIAS, "numbers by token id", other)),
                };
                let by = match by {
                    Value::Integer(by) => json!(by),
                    Value::Number(by) if by.is_finite() => json!(by),
                    other => return Err(fields.refuse(&format!("{BIAS}[{name}]"), "a number", &other)),
                };
                match bias.insert(name.clone(), by) {
                    Some(_) => Err(fail(lua, "generate", format!("`{BIAS}` has two values for id {name}"))),
                    None => Ok(()),
                }
            })?;
            object.insert(BIAS.to_owned(), Json::Object(bias));
        }
        other => return Err(fields.refuse(BIAS, "numbers by token id", &other)),
    }
    Ok(Json::Object(object))
}

/// A table of known options as an object; nil is an empty one.
fn plain(lua: &Lua, function: &'static str, options: &Value, known: &[&str]) -> mlua::Result<Json> {
    match options {
        Value::Nil => Ok(json!({})),
        Value::Table(_) => Ok(Json::Object(Fields::new(lua, function, options, known)?.rest(&[])?)),
        other => Err(fail(lua, function, format!("options must be a table, got {}", kind(other)))),
    }
}
