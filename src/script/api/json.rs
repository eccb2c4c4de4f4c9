//! `r1.json.encode`, `r1.json.decode`, `r1.json.null`.

use mlua::{Lua, Table, Value};

use super::args::{fail, in_time, plain, text};
use super::outcome::NilReason;
use crate::json;
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::from_json;

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let functions = lua.create_table()?;
    functions.raw_set("null", Value::NULL)?;
    bind(lua, &functions, "encode", |lua, (value, more): (Value, Value)| {
        if !more.is_nil() {
            return Err(fail(lua, "r1.json.encode", "takes one value; there are no options"));
        }
        Ok(plain(lua, "r1.json.encode", "value", &value)?.to_string())
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
    super::namespace(lua, r1, "r1.json", functions)
}
