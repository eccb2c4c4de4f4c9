//! `r1.script` and `r1.rollout`: other scripts and their trajectories, for programs. The functions
//! are in `lua/rollout.lua`; this file calls the host's [`Services`].

use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Function, Lua, Table, UserData, Value};
use serde_json::{Value as Json, json};

use super::args::fail;
use super::model;
use crate::script::Services;
use crate::script::runtime::convert::{Odd, from_json, to_json};
use crate::script::runtime::host::{Host, misuse, place};

/// A script or trajectory that the host keeps for the program; closed when Lua collects it.
struct Held {
    services: Arc<dyn Services>,
    number: Json,
    /// The service function that closes it, and its name for the handle.
    close: (&'static str, &'static str),
}

impl UserData for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.services.call(self.close.0, json!({ (self.close.1): self.number })));
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let own = host.clone();
    let ask = lua.create_async_function(move |lua, (function, arguments): (String, Value)| {
        let (services, host) = (own.services.clone(), own.clone());
        let beside = directory(&lua);
        async move {
            let Some(services) = services else {
                return Err(fail(&lua, "r1.script", "is for programs (`r1 lua`) and tests (`r1 test`)"));
            };
            let mut request = to_json(&arguments, "it", Odd::Refuse).map_err(|why| fail(&lua, &function, why))?;
            if function == "env.open" {
                request["beside"] = json!(beside);
                request["overrides"] = overrides(&request["overrides"]);
            }
            let returned = model::ask(&lua, &services, &function, request).await?;
            // The log lines of the script come with the result.
            let logged = returned.get("log").and_then(Json::as_array).filter(|_| returned.get("result").is_some());
            for line in logged.into_iter().flatten() {
                let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
                host.log(text("place"), text("text"));
            }
            let returned = if logged.is_some() { &returned["result"] } else { &returned };
            let close = match function.as_str() {
                "env.open" => Some(("env.close", "script")),
                "env.reset" | "env.fork" => Some(("env.drop", "attempt")),
                _ => None,
            };
            match close {
                Some(close) => {
                    let held = Held { services, number: returned[close.1].clone(), close };
                    Ok((Value::UserData(lua.create_userdata(held)?), from_json(&lua, &returned["about"])?))
                }
                None => Ok((from_json(&lua, returned)?, Value::Nil)),
            }
        }
    })?;
    let handle_of = lua.create_function(|lua, held: AnyUserData| match held.borrow::<Held>() {
        Ok(held) => from_json(lua, &held.number),
        Err(_) => Err(mlua::Error::external(misuse(lua, "this is neither a script nor a trajectory"))),
    })?;
    let model_of = lua.create_function(|lua, value: Value| match model::handle(&value) {
        Some(handle) => from_json(lua, &handle),
        None => Ok(Value::Nil),
    })?;
    let source = include_str!("../../../lua/rollout.lua");
    let (open, rollout, script, attempt): (Function, Function, Table, Table) =
        lua.load(source).set_name("=[r1]").call((ask, handle_of, model_of))?;
    for methods in [script, attempt] {
        methods.set_readonly(true);
    }
    r1.raw_set("script", open)?;
    r1.raw_set("rollout", rollout)
}

/// The directory of the running program.
pub(super) fn directory(lua: &Lua) -> String {
    let place = place(lua).unwrap_or_default();
    let path = place.rsplit_once(':').map_or("", |(path, _)| path);
    std::path::Path::new(path).parent().unwrap_or(std::path::Path::new("")).display().to_string()
}

/// `{ { name, value }, … }` as `name=value`, the form of the command line.
pub(super) fn overrides(pairs: &Json) -> Json {
    let pairs = pairs.as_array().cloned().unwrap_or_default();
    let text = |pair: &Json| match &pair[1] {
        Json::String(text) => format!("{}={text}", pair[0].as_str().unwrap_or_default()),
        other => format!("{}={other}", pair[0].as_str().unwrap_or_default()),
    };
    pairs.iter().map(|pair| json!(text(pair))).collect()
}
