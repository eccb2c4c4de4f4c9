//! `r1.rl`: estimators and losses of training, over plain tables. The tensors stay with the host's
//! [`Services`](crate::script::Services).

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};

use super::args::{fail, text};
use super::model::ask;
use super::seal;
use crate::config::CUSTOM;
use crate::script::runtime::convert::{Odd, from_answer, to_json};
use crate::script::runtime::host::Host;

/// Options of a loss that the host applies to any loss.
const OF_HOST: [&str; 4] = ["loss_agg", "importance", "rejection", "correction_over"];

/// Splits the options of a loss function from those of the host.
fn own_options(options: &mut Json) -> Json {
    let Some(fields) = options.as_object_mut() else { return Json::Null };
    let (hosts, own) = std::mem::take(fields).into_iter().partition(|(name, _)| OF_HOST.contains(&name.as_str()));
    *fields = hosts;
    Json::Object(own)
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let rl = lua.create_table()?;
    for (name, function) in [("advantages", "r1.rl.advantages"), ("loss", "r1.rl.loss")] {
        let host = host.clone();
        let call = move |lua: Lua, (chosen, rows, options): (Value, Value, Value)| {
            let host = host.clone();
            async move {
                let own = match &chosen {
                    Value::Function(own) if name == "loss" => Some(own.clone()),
                    _ => None,
                };
                let chosen = if own.is_some() { CUSTOM.to_owned() } else { text(&lua, function, "name", &chosen)? };
                let Some(services) = host.services.clone() else {
                    return Err(fail(
                        &lua,
                        function,
                        "is for programs (`r1 lua`); a recipe names its estimator in `trainer`",
                    ));
                };
                let plain = |what: &str, value: &Value| -> mlua::Result<Json> {
                    match value {
                        Value::Nil => Ok(Json::Null),
                        value => to_json(value, what, Odd::Refuse).map_err(|why| fail(&lua, function, why)),
                    }
                };
                let (rows, mut options) = (plain("rows", &rows)?, plain("options", &options)?);
                // Options unknown to the host are those of the function.
                let graph = own.map(|own| super::loss::trace(&lua, &own, &own_options(&mut options))).transpose()?;
                let request = json!({ "name": chosen, "rows": rows, "options": options, "graph": graph });
                let result = ask(&lua, &services, &function[3..], request).await?;
                from_answer(&lua, &result)
            }
        };
        rl.raw_set(name, lua.create_async_function(call)?)?;
    }
    let lists: [(&str, &'static str, &[&str]); 2] = [
        ("value_loss", "r1.rl.value_loss", &["values", "values_old", "returns", "options"]),
        ("entropy", "r1.rl.entropy", &["logits", "temperature"]),
    ];
    for (name, function, arguments) in lists {
        let host = host.clone();
        let call = move |lua: Lua, given: mlua::Variadic<Value>| {
            let host = host.clone();
            async move {
                let Some(services) = host.services.clone() else {
                    return Err(fail(&lua, function, "is for programs (`r1 lua`)"));
                };
                let mut request = serde_json::Map::new();
                for (name, value) in arguments.iter().zip(given.iter()).filter(|(_, value)| !value.is_nil()) {
                    let plain = to_json(value, name, Odd::Refuse).map_err(|why| fail(&lua, function, why))?;
                    request.insert((*name).to_owned(), plain);
                }
                let result = ask(&lua, &services, &function[3..], Json::Object(request)).await?;
                from_answer(&lua, &result)
            }
        };
        rl.raw_set(name, lua.create_async_function(call)?)?;
    }
    seal(lua, "r1.rl", &rl)?;
    r1.raw_set("rl", rl)
}
