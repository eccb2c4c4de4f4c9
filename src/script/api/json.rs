//! `r1.json.encode`, `r1.json.decode`, `r1.json.null`.

use mlua::{Lua, Table, Value};

use super::args::{fail, fail_with, in_time, text};
use super::outcome::NilReason;
use crate::json;
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::{NonJson, from_json, to_json};

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let functions = lua.create_table()?;
    functions.raw_set("null", Value::NULL)?;
    bind(lua, &functions, "encode", |lua, (value, more): (Value, Value)| {
        if !more.is_nil() {
            return Err(fail(lua, "r1.json.encode", "takes one value; there are no options"));
        }
        let json = to_json(&value, "value", NonJson::Refuse).map_err(|why| fail_with(lua, "r1.json.encode", why))?;
        Ok(json.to_string())
    })?;
    // Text that is not JSON is an expected failure: nil and the reason.
    bind(lua, &functions, "decode", |lua, value: Value| {
        let text = text(lua, "r1.json.decode", "text", &value)?;
        let read = json::read_foreign(text.as_bytes());
        in_time(lua)?;
        match read {
            Ok(json) => from_json(lua, &json).map(Ok),
            Err(error) => Ok(Err(NilReason(error.to_string()))),
        }
    })?;
    super::seal(lua, "r1.json", &functions)?;
    r1.raw_set("json", functions)
}
