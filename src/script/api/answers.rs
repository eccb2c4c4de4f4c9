//! `r1.last_boxed`, `r1.answer`, `r1.math_equal`, `r1.reference`, `r1.clip`: extract, compare and
//! shorten text.

use mlua::{Lua, Table, Value};

use super::args::{fail, optional, raise, required, text};
use super::arguments::{Arguments, arguments};
use crate::answers;
use crate::error::{Error, Kind, Subject};
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::kind;
use crate::script::runtime::host::place_of_recipe;

arguments! {
    /// Options of `r1.reference`.
    pub(super) struct ReferenceOptions {
        empty: bool = false;
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    bind(lua, r1, "last_boxed", |lua, reply: Value| {
        let reply = text(lua, "r1.last_boxed", "text", &reply)?;
        Ok(answers::last_boxed(&reply).map(str::to_owned))
    })?;
    bind(lua, r1, "answer", |lua, reply: Value| {
        let reply = text(lua, "r1.answer", "text", &reply)?;
        Ok(answers::tagged_answer(&reply).map(str::to_owned))
    })?;
    bind(lua, r1, "math_equal", |lua, (given_answer, reference): (Value, Value)| {
        refuse_missing(lua, "r1.math_equal", &reference, false)?;
        let (given_answer, reference) = (answer(lua, &given_answer)?, answer(lua, &reference)?);
        Ok(given_answer
            .zip(reference)
            .is_some_and(|(given_answer, reference)| answers::math_equal(&given_answer, &reference)))
    })?;
    bind(lua, r1, "reference", |lua, (reference, name, options): (Value, Value, Value)| {
        let name: Option<String> = optional(lua, "r1.reference", "name", &name)?;
        let ReferenceOptions { empty } = ReferenceOptions::read_optional(lua, "r1.reference", &options)?;
        refuse_missing(lua, name.as_deref().unwrap_or("r1.reference"), &reference, empty)?;
        Ok(reference)
    })?;
    bind(lua, r1, "clip", |lua, (long, head, tail): (Value, Value, Value)| {
        let long = text(lua, "r1.clip", "text", &long)?;
        let head = required(lua, "r1.clip", "head", &head)?;
        let tail: Option<usize> = optional(lua, "r1.clip", "tail", &tail)?;
        Ok(clip(&long, head, tail.unwrap_or(0)).unwrap_or(long))
    })
}

/// A missing reference would count every answer of its row as wrong, so it is an error of the
/// dataset.
fn refuse_missing(lua: &Lua, function: &str, reference: &Value, may_be_empty: bool) -> mlua::Result<()> {
    let blank = |value: &Value| match value {
        Value::Nil => true,
        Value::String(text) => text.to_string_lossy().trim().is_empty(),
        other => other.is_null(),
    };
    let what = match reference {
        Value::Nil => "is nil",
        other if other.is_null() => "is null",
        _ if may_be_empty => return Ok(()),
        Value::Table(list) => {
            let full = list.pairs::<Value, Value>().any(|pair| pair.is_ok_and(|(_, value)| !blank(&value)));
            if full {
                return Ok(());
            }
            "is empty"
        }
        other if blank(other) => "is empty",
        _ => return Ok(()),
    };
    let error = Error::new(Kind::Data, format!("{function}: the reference {what}")).about(Subject::Reference);
    Err(raise(Error { place: place_of_recipe(lua), ..error }))
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
