//! `r1.training`: training loops for programs. The loop is in `lua/training.lua`; this file calls
//! the host's [`Services`].

use std::rc::Rc;
use std::sync::Arc;

use mlua::{AnyUserData, Function, Lua, Table, UserData, Value};
use serde_json::{Value as Json, json};

use super::args::fail;
use super::trajectory::{directory, overrides};
use super::{loss, model, recipe};
use crate::script::Services;
use crate::script::runtime::convert::{Odd, from_json, to_json};
use crate::script::runtime::host::{Host, place};

const NAME: &str = "r1.training";

/// A run that the host keeps for the program; closed when Lua collects it.
struct Held {
    services: Arc<dyn Services>,
    number: Json,
}

impl UserData for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.services.call("training.close", json!({ "training": self.number })));
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let own = host.clone();
    let open = lua.create_async_function(move |lua, arguments: Value| {
        let services = own.services.clone();
        let beside = directory(&lua);
        async move {
            let Some(services) = services else {
                return Err(fail(&lua, NAME, "is for programs (`r1 lua`)"));
            };
            let mut request = plain(&lua, &arguments)?;
            request["beside"] = json!(beside);
            request["overrides"] = overrides(&request["overrides"]);
            let returned = model::ask(&lua, &services, "training.open", request).await?;
            let held = Held { services, number: returned["training"].clone() };
            Ok((lua.create_userdata(held)?, from_json(&lua, &returned["about"])?))
        }
    })?;
    let own = host.clone();
    // A recipe inside the program: its path and settings. A script worker runs the file up to here
    // to load it.
    let here = lua.create_function(move |lua, value: Value| {
        let recipe = recipe::of(lua, &value)?;
        if own.services.is_none() {
            own.recipe.replace(Some(recipe));
            return Err(fail(lua, NAME, "the file is loaded only for its recipe"));
        }
        let place = place(lua).unwrap_or_default();
        let path = place.rsplit_once(':').map_or(place.as_str(), |(path, _)| path).to_owned();
        let settings = serde_json::to_string(&recipe.settings);
        Ok((path, settings.map_err(|error| fail(lua, NAME, format!("the recipe: {error}")))?))
    })?;
    let ask =
        lua.create_async_function(|lua, (held, function, arguments): (AnyUserData, String, Value)| async move {
            let (services, number) = {
                let held = held.borrow::<Held>()?;
                (held.services.clone(), held.number.clone())
            };
            let mut request = plain(&lua, &arguments)?;
            request["training"] = number;
            // A graph is passed as text, since Lua tables have no null and no empty list.
            if let Some(text) = request["options"]["graph"].as_str() {
                request["options"]["graph"] =
                    serde_json::from_str(text).map_err(|error| fail(&lua, NAME, format!("the loss: {error}")))?;
            }
            let returned = model::ask(&lua, &services, &format!("training.{function}"), request).await?;
            Ok((from_json(&lua, &returned["result"])?, from_json(&lua, &returned["about"])?))
        })?;
    let trace = lua.create_function(|lua, (function, options): (Function, Value)| {
        let options = if options.is_nil() { Json::Null } else { plain(lua, &options)? };
        let graph = loss::trace(lua, &function, &options)?;
        serde_json::to_string(&graph).map_err(|error| fail(lua, NAME, format!("the loss: {error}")))
    })?;
    let source = include_str!("../../../lua/training.lua");
    let (training, methods): (Function, Table) = lua.load(source).set_name("=[r1]").call((open, here, ask, trace))?;
    methods.set_readonly(true);
    r1.raw_set("training", training)
}

fn plain(lua: &Lua, value: &Value) -> mlua::Result<Json> {
    to_json(value, "it", Odd::Refuse).map_err(|why| fail(lua, NAME, why))
}
