//! `r1.params { name = default }`: values of a recipe that the command line can change
//! (`params.name=value`).

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Value as Json};

use super::args::{fail, raise};
use crate::error::{Error, Kind};
use crate::script::runtime::convert::{NonJson, from_json, kind, show, to_json};
use crate::script::runtime::host::Host;

const NAME: &str = "r1.params";

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = Rc::clone(host);
    r1.raw_set("params", lua.create_function(move |lua, value: Value| params(lua, &host, &value))?)
}

/// Returns the defaults with the values of the command line, and keeps both for the recipe.
fn params(lua: &Lua, host: &Host, value: &Value) -> mlua::Result<Table> {
    let Value::Table(defaults) = value else {
        return Err(fail(lua, NAME, format!("takes a table of defaults, got {}", kind(value))));
    };
    if host.params.borrow().declared.is_some() {
        return Err(fail(lua, NAME, "is called once in a script: put all parameters into one table"));
    }
    let mut declared = Map::new();
    defaults.for_each(|name: Value, default: Value| {
        let Value::String(name) = &name else {
            return Err(fail(lua, NAME, format!("parameters have names, got {}", show(&name))));
        };
        let name = name.to_string_lossy();
        let is_name = name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) && !name.is_empty();
        if !is_name {
            return Err(fail(lua, NAME, format!("`{name}` is not a name of letters, digits and _")));
        }
        let json = match default {
            Value::String(_) | Value::Number(_) | Value::Integer(_) | Value::Boolean(_) => {
                to_json(&default, &name, NonJson::Refuse).map_err(|error| raise(error.into()))?
            }
            other => {
                let why = format!("`{name}` must be text, a number, true or false, got {}", kind(&other));
                return Err(fail(lua, NAME, why));
            }
        };
        declared.insert(name, json);
        Ok(())
    })?;
    let result = lua.create_table()?;
    for (name, default) in &declared {
        let params = host.params.borrow();
        let value = params.values.get(name).map(|value| typed(name, default, value)).transpose().map_err(raise)?;
        result.raw_set(name.as_str(), from_json(lua, value.as_ref().unwrap_or(default))?)?;
    }
    host.params.borrow_mut().declared = Some(declared);
    Ok(result)
}

/// A value of the command line with the type of its default.
fn typed(name: &str, default: &Json, value: &Json) -> Result<Json, Error> {
    let wanted = match (default, value) {
        (Json::String(_), Json::String(_)) | (Json::Number(_), Json::Number(_)) | (Json::Bool(_), Json::Bool(_)) => {
            return Ok(value.clone());
        }
        // Text that reads as JSON: `params.index=18`.
        (Json::String(_), _) => return Ok(value.to_string().into()),
        (Json::Number(_), _) => "a number",
        _ => "true or false",
    };
    let message = format!("`params.{name}` must be {wanted}, got {value}");
    Err(Error::new(Kind::Usage, message).about_setting(format!("params.{name}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_the_types_of_their_defaults() {
        assert_eq!(typed("k", &json!(3), &json!(5)).unwrap(), json!(5));
        assert_eq!(typed("index", &json!(""), &json!(18)).unwrap(), json!("18"));
        assert_eq!(typed("k", &json!(3), &json!("x")).unwrap_err().message, "`params.k` must be a number, got \"x\"");
        assert_eq!(
            typed("on", &json!(true), &json!(1)).unwrap_err().message,
            "`params.on` must be true or false, got 1"
        );
    }
}
