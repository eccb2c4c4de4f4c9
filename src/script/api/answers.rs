//! `r1.last_boxed`, `r1.answer`, `r1.math_equal`, `r1.clip`: extract, compare and shorten text.

use mlua::{Lua, Table, Value};

use super::args::{fail, optional, required, text};
use crate::answers;
use crate::script::runtime::convert::kind;

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
        lua.create_function(|lua, (given, reference): (Value, Value)| {
            let (given, reference) = (answer(lua, &given)?, answer(lua, &reference)?);
            // A missing answer equals no answer, not even another missing one.
            Ok(given.zip(reference).is_some_and(|(given, reference)| answers::math_equal(&given, &reference)))
        })?,
    )?;
    r1.raw_set(
        "clip",
        lua.create_function(|lua, (long, head, tail): (Value, Value, Value)| {
            let long = text(lua, "r1.clip", "text", &long)?;
            let head = required(lua, "r1.clip", "head", &head)?;
            let tail: Option<usize> = optional(lua, "r1.clip", "tail", &tail)?;
            Ok(clip(&long, head, tail.unwrap_or(0)).unwrap_or(long))
        })?,
    )
}

/// The first `head` and the last `tail` characters, with a line between them that counts the
/// omitted ones; `None` if nothing is omitted.
fn clip(long: &str, head: usize, tail: usize) -> Option<String> {
    let (end, _) = long.char_indices().nth(head)?;
    let rest = &long[end..];
    let left = rest.chars().count().checked_sub(tail).filter(|left| *left > 0)?;
    let start = rest.char_indices().nth(left).map_or(rest.len(), |(start, _)| start);
    let behind = if tail == 0 { String::new() } else { format!("\n{}", &rest[start..]) };
    Some(format!("{}\n… ({left} more characters){behind}", &long[..end]))
}

/// An operand of `r1.math_equal`: text, a number, or nil for a missing answer.
fn answer(lua: &Lua, value: &Value) -> mlua::Result<Option<String>> {
    match value {
        Value::Nil => Ok(None),
        Value::String(_) => text(lua, "r1.math_equal", "answer", value).map(Some),
        Value::Integer(whole) => Ok(Some(whole.to_string())),
        Value::Number(number) => Ok(Some(number.to_string())),
        other => Err(fail(lua, "r1.math_equal", format!("compares text and numbers, got {}", kind(other)))),
    }
}
