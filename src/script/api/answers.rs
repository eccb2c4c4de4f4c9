//! `r1.last_boxed`, `r1.answer`, `r1.math_equal`, `r1.clip`: reading and comparing text.

use mlua::{Lua, Table, Value};

use super::args::{count, fail, text};
use crate::script::answers;
use crate::script::convert::kind;

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    r1.raw_set(
        "last_boxed",
        lua.create_function(|lua, reply: Value| {
            let reply = text(lua, "r1.last_boxed", "text", &reply)?;
            Ok(answers::last_boxed(&reply).map(str::to_owned))
        })?,
    )?;
    r1.raw_set(
        "answer",
        lua.create_function(|lua, reply: Value| {
            let reply = text(lua, "r1.answer", "text", &reply)?;
            Ok(answers::tagged_answer(&reply).map(str::to_owned))
        })?,
    )?;
    r1.raw_set(
        "math_equal",
        lua.create_function(|lua, (a, b): (Value, Value)| {
            let (a, b) = (answer(lua, &a)?, answer(lua, &b)?);
            // No answer equals nothing, not even no answer.
            Ok(a.zip(b).is_some_and(|(a, b)| answers::math_equal(&a, &b)))
        })?,
    )?;
    r1.raw_set(
        "clip",
        lua.create_function(|lua, (long, most): (Value, Value)| {
            let long = text(lua, "r1.clip", "text", &long)?;
            let most = count(lua, "r1.clip", "length", &most)?;
            Ok(match long.char_indices().nth(most) {
                None => long,
                Some((end, _)) => {
                    let more = long[end..].chars().count();
                    format!("{}\n… ({more} more characters)", &long[..end])
                }
            })
        })?,
    )
}

/// What `r1.math_equal` compares: text, numbers, or nil for no answer.
fn answer(lua: &Lua, value: &Value) -> mlua::Result<Option<String>> {
    match value {
        Value::Nil => Ok(None),
        Value::String(text) => Ok(Some(text.to_string_lossy())),
        Value::Integer(whole) => Ok(Some(whole.to_string())),
        Value::Number(number) => Ok(Some(number.to_string())),
        other => Err(fail(lua, "r1.math_equal", format!("compares text and numbers, got {}", kind(other)))),
    }
}
