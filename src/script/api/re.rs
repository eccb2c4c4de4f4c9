//! `r1.re`: regular expressions whose cost is linear in the text (the `regex` crate), over bytes as Lua's strings are.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};
use regex::bytes::{Captures, Regex, RegexBuilder};

use super::args::{count, fail};
use crate::config::Limits;
use crate::script::convert::kind;

/// Largest compiled pattern, bytes.
const COMPILED: usize = 1 << 20;
/// Longest pattern and longest text, bytes.
const PATTERN: usize = 16 << 10;
const TEXT: usize = 16 << 20;
/// Compiled patterns that are kept.
const KEPT: usize = 64;

/// Patterns compiled before, the latest last.
#[derive(Default)]
struct Cache(RefCell<VecDeque<(Vec<u8>, Regex)>>);

impl Cache {
    fn get(&self, lua: &Lua, function: &str, pattern: &Value) -> mlua::Result<Regex> {
        let Value::String(text) = pattern else {
            return Err(fail(lua, function, format!("`pattern` must be text, got {}", kind(pattern))));
        };
        let bytes = text.as_bytes();
        let mut kept = self.0.borrow_mut();
        if let Some(at) = kept.iter().position(|(own, _)| **own == *bytes) {
            let found = kept.remove(at).map(|(own, regex)| (own, regex.clone()));
            if let Some((own, regex)) = found {
                kept.push_back((own, regex.clone()));
                return Ok(regex);
            }
        }
        let refuse =
            |why: &str| fail(lua, function, format!("the pattern {}: {why}", crate::script::convert::show(pattern)));
        if bytes.len() > PATTERN {
            return Err(fail(lua, function, format!("the pattern has {} bytes; {PATTERN} are the most", bytes.len())));
        }
        let pattern = std::str::from_utf8(&bytes).map_err(|_| refuse("not valid UTF-8"))?;
        let regex = RegexBuilder::new(pattern).size_limit(COMPILED).dfa_size_limit(COMPILED).build();
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => refuse("too large: its repetitions take more than 1 MiB"),
            other => {
                let text = other.to_string();
                refuse(text.lines().last().unwrap_or_default().trim_start_matches("error: "))
            }
        })?;
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((bytes.to_vec(), regex.clone()));
        Ok(regex)
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let re = lua.create_table()?;
    let cache = Rc::new(Cache::default());
    let own = cache.clone();
    re.raw_set(
        "find",
        lua.create_function(move |lua, (text, pattern, from)| find(lua, &own, &text, &pattern, &from))?,
    )?;
    let own = cache.clone();
    re.raw_set(
        "match",
        lua.create_function(move |lua, (text, pattern, from): (Value, Value, Value)| {
            let (text, regex) = asked(lua, &own, "r1.re.match", &text, &pattern)?;
            let from = start(lua, "r1.re.match", &from)?;
            let bytes = text.as_bytes();
            match regex.captures_at(&bytes, from.min(bytes.len())).filter(|_| from <= bytes.len()) {
                Some(captures) => groups(lua, &captures),
                None => Ok(MultiValue::from_iter([Value::Nil])),
            }
        })?,
    )?;
    let own = cache.clone();
    re.raw_set(
        "captures",
        lua.create_function(move |lua, (text, pattern): (Value, Value)| {
            let (text, regex) = asked(lua, &own, "r1.re.captures", &text, &pattern)?;
            regex.captures(&text.as_bytes()).map(|captures| table(lua, &regex, &captures)).transpose()
        })?,
    )?;
    let own = cache.clone();
    re.raw_set(
        "find_all",
        lua.create_function(move |lua, (text, pattern, most): (Value, Value, Value)| {
            let (text, regex) = asked(lua, &own, "r1.re.find_all", &text, &pattern)?;
            let most = at_most(lua, "r1.re.find_all", &most)?;
            let list = lua.create_table()?;
            for captures in regex.captures_iter(&text.as_bytes()).take(most) {
                list.raw_push(table(lua, &regex, &captures)?)?;
            }
            Ok(list)
        })?,
    )?;
    let own = cache.clone();
    re.raw_set("gmatch", lua.create_function(move |lua, (text, pattern)| gmatch(lua, &own, &text, &pattern))?)?;
    let own = cache.clone();
    re.raw_set(
        "replace",
        lua.create_function(move |lua, (text, pattern, with, most): (Value, Value, Value, Value)| {
            replace(lua, &own, &text, &pattern, &with, &most)
        })?,
    )?;
    let own = cache;
    re.raw_set(
        "split",
        lua.create_function(move |lua, (text, pattern, most): (Value, Value, Value)| {
            let (text, regex) = asked(lua, &own, "r1.re.split", &text, &pattern)?;
            let most = at_most(lua, "r1.re.split", &most)?;
            let list = lua.create_table()?;
            for part in regex.splitn(&text.as_bytes(), most) {
                list.raw_push(lua.create_string(part)?)?;
            }
            Ok(list)
        })?,
    )?;
    re.raw_set(
        "escape",
        lua.create_function(|lua, text: Value| {
            Ok(regex::escape(&super::args::text(lua, "r1.re.escape", "text", &text)?))
        })?,
    )?;
    super::seal(lua, "r1.re", &re)?;
    r1.raw_set("re", re)
}

/// The text and the compiled pattern that a function was given.
fn asked(lua: &Lua, cache: &Cache, function: &str, text: &Value, pattern: &Value) -> mlua::Result<(LuaString, Regex)> {
    let Value::String(text) = text else {
        return Err(fail(lua, function, format!("`text` must be text, got {}", kind(text))));
    };
    let length = text.as_bytes().len();
    let most = lua.app_data_ref::<Limits>().map_or(TEXT, |limits| TEXT.min(limits.text.saturating_mul(1 << 20)));
    if length > most {
        return Err(fail(lua, function, format!("the text has {length} bytes; {most} are the most (limits.text)")));
    }
    Ok((text.clone(), cache.get(lua, function, pattern)?))
}

fn start(lua: &Lua, function: &str, from: &Value) -> mlua::Result<usize> {
    match from {
        Value::Nil => Ok(0),
        Value::Integer(1..) => Ok(count(lua, function, "from", from)? - 1),
        other => {
            Err(fail(lua, function, format!("`from` must be a place in the text, 1 or more, got {}", kind(other))))
        }
    }
}

fn at_most(lua: &Lua, function: &str, most: &Value) -> mlua::Result<usize> {
    if most.is_nil() { Ok(usize::MAX) } else { count(lua, function, "most", most) }
}

/// First and last place of the first match, and its groups, as `string.find` gives them.
fn find(lua: &Lua, cache: &Cache, text: &Value, pattern: &Value, from: &Value) -> mlua::Result<MultiValue> {
    let (text, regex) = asked(lua, cache, "r1.re.find", text, pattern)?;
    let from = start(lua, "r1.re.find", from)?;
    let bytes = text.as_bytes();
    let captures = if from <= bytes.len() { regex.captures_at(&bytes, from) } else { None };
    let Some(captures) = captures else { return Ok(MultiValue::from_iter([Value::Nil])) };
    let mut values = match captures.get(0) {
        Some(whole) => vec![Value::Integer(whole.start() as i64 + 1), Value::Integer(whole.end() as i64)],
        None => Vec::new(),
    };
    if captures.len() > 1 {
        values.extend(groups(lua, &captures)?);
    }
    Ok(MultiValue::from_iter(values))
}

/// The groups of a match, or all of it where there are none.
fn groups(lua: &Lua, captures: &Captures<'_>) -> mlua::Result<MultiValue> {
    let first = usize::from(captures.len() > 1);
    (first..captures.len())
        .map(|index| captures.get(index).map_or(Ok(Value::Nil), |group| string(lua, group.as_bytes())))
        .collect()
}

fn string(lua: &Lua, bytes: &[u8]) -> mlua::Result<Value> {
    lua.create_string(bytes).map(Value::String)
}

/// `{ text =, first =, last =, [1] =, …, NAME = }`
fn table(lua: &Lua, regex: &Regex, captures: &Captures<'_>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (index, name) in regex.capture_names().enumerate().skip(1) {
        if let Some(group) = captures.get(index) {
            let value = string(lua, group.as_bytes())?;
            if let Some(name) = name {
                table.raw_set(name, &value)?;
            }
            table.raw_set(index, value)?;
        }
    }
    if let Some(whole) = captures.get(0) {
        table.raw_set("text", string(lua, whole.as_bytes())?)?;
        table.raw_set("first", whole.start() + 1)?;
        table.raw_set("last", whole.end())?;
    }
    Ok(table)
}

fn gmatch(lua: &Lua, cache: &Cache, text: &Value, pattern: &Value) -> mlua::Result<Function> {
    let (text, regex) = asked(lua, cache, "r1.re.gmatch", text, pattern)?;
    let (mut at, mut last_end) = (0, None);
    lua.create_function_mut(move |lua, ()| {
        let bytes = text.as_bytes();
        while at <= bytes.len() {
            let Some(captures) = regex.captures_at(&bytes, at) else { break };
            let Some(whole) = captures.get(0) else { break };
            // As the crate's own iterator: an empty match right behind another is none.
            let again = whole.is_empty() && last_end == Some(whole.end());
            at = if whole.is_empty() { whole.end() + 1 } else { whole.end() };
            if !again {
                last_end = Some(whole.end());
                return groups(lua, &captures);
            }
        }
        at = usize::MAX;
        Ok(MultiValue::from_iter([Value::Nil]))
    })
}

/// With text (`$1`, `${name}`, `$$`) or a function of the match; gives the new text and how many were replaced.
fn replace(
    lua: &Lua,
    cache: &Cache,
    text: &Value,
    pattern: &Value,
    with: &Value,
    most: &Value,
) -> mlua::Result<(LuaString, usize)> {
    const NAME: &str = "r1.re.replace";
    let (text, regex) = asked(lua, cache, NAME, text, pattern)?;
    let most = at_most(lua, NAME, most)?;
    let bytes = text.as_bytes();
    let (mut out, mut end, mut replaced) = (Vec::with_capacity(bytes.len()), 0, 0);
    for captures in regex.captures_iter(&bytes).take(most) {
        let Some(whole) = captures.get(0) else { continue };
        out.extend_from_slice(&bytes[end..whole.start()]);
        match with {
            Value::String(template) => captures.expand(&template.as_bytes(), &mut out),
            Value::Function(function) => match function.call::<Value>(table(lua, &regex, &captures)?)? {
                Value::String(new) => out.extend_from_slice(&new.as_bytes()),
                // As in string.gsub: it stays.
                Value::Nil | Value::Boolean(false) => out.extend_from_slice(whole.as_bytes()),
                other => {
                    return Err(fail(
                        lua,
                        NAME,
                        format!("the function gave {}; it must give text or nil", kind(&other)),
                    ));
                }
            },
            other => return Err(fail(lua, NAME, format!("`with` must be text or a function, got {}", kind(other)))),
        }
        if out.len() > TEXT {
            return Err(fail(lua, NAME, format!("the result has more than {TEXT} bytes")));
        }
        end = whole.end();
        replaced += 1;
    }
    out.extend_from_slice(&bytes[end..]);
    Ok((lua.create_string(out)?, replaced))
}
