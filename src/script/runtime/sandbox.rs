//! The globals of a script: an allow-list, read-only, without access to the outside.
//!
//! Excluded: raw coroutines (they would see the host's suspension marks), `loadstring`, `getfenv`,
//! `setfenv`, `collectgarbage`, `debug`, `os`, `newproxy`, `_G`. `math.random` draws from the
//! call's own stream.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Lua, Table, Value, Variadic};

use super::bind::bind;
use super::host::{Host, misuse, place};
use super::require::{self, Loader};
use crate::algorithms::raise;
use crate::error::{nearest, suggest};

/// The environment table of script chunks.
pub(crate) fn environment(lua: &Lua, host: &Rc<Host>, loader: &Rc<RefCell<Loader>>) -> mlua::Result<Table> {
    let globals = lua.globals();
    let environment: Table = lua.load(include_str!("../../../lua/globals.lua")).set_name("=[r1]").call(())?;
    environment.raw_set("math", math(lua, host, &globals.raw_get("math")?)?)?;
    environment.raw_set("error", error_function(lua)?)?;
    let log = host.clone();
    bind(lua, &environment, "print", move |lua, values: Variadic<Value>| write_log(lua, &log, &values))?;
    let refuse = lua.create_function(|lua, why: String| -> mlua::Result<()> { Err(raise(misuse(lua, why))) })?;
    lua.load(include_str!("../../../lua/bounds.lua")).set_name("=[r1]").call::<()>(refuse)?;
    let loader = loader.clone();
    bind(lua, &environment, "require", move |lua, name: Value| require::require(lua, &loader, &name))?;
    Ok(environment)
}

/// Makes all tables read-only; access to an unknown global is an error that names it.
pub(crate) fn seal(lua: &Lua, environment: &Table) -> mlua::Result<()> {
    let mut names = Vec::new();
    environment.for_each(|name: String, _: Value| {
        names.push(name);
        Ok(())
    })?;
    let meta = lua.create_table()?;
    bind(lua, &meta, "__index", move |lua, (_, name): (Value, Value)| -> mlua::Result<Value> {
        let name = name.to_string()?;
        let error = misuse(lua, format!("undefined global `{name}`"));
        if let Some(hint) = super::language_hints::of_name(&name) {
            return Err(raise(error.hint(hint)));
        }
        let known_names = names.iter().map(String::as_str);
        let is_near = !nearest(&name, known_names.clone()).is_empty();
        Err(raise(if is_near { error.hint(suggest(&name, known_names)) } else { error }))
    })?;
    bind(lua, &meta, "__newindex", |lua, (_, name, _): (Value, Value, Value)| -> mlua::Result<()> {
        let error = misuse(lua, format!("assignment to global `{}`", name.to_string()?));
        Err(raise(error.hint("write `local` before it; keep data that must last in the environment's state")))
    })?;
    meta.raw_set("__metatable", false)?;
    meta.set_readonly(true);
    environment.set_metatable(Some(meta))?;
    environment.for_each(|_: String, value: Value| {
        if let Value::Table(library) = value {
            library.set_readonly(true);
        }
        Ok(())
    })?;
    if let Some(strings) = lua.type_metatable::<mlua::LuaString>() {
        strings.set_readonly(true);
    }
    environment.set_readonly(true);
    // Not `set_environment` per chunk: Luau binds names like `math.random` when it loads a chunk,
    // and reads them from the VM's globals, not from the chunk's environment.
    lua.set_globals(environment.clone())?;
    environment.set_safeenv(true);
    Ok(())
}

/// Maximum bytes of a log line; the rest is cut off.
const LOGGED: usize = 4096;

/// `print` and `r1.log`: write a line to the host's log, not to stdout.
pub(crate) fn write_log(lua: &Lua, host: &Host, values: &[Value]) -> mlua::Result<()> {
    let mut text = String::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        match value {
            Value::Table(table) if super::origin::is_plain(table) => text.push_str(&super::convert::logged(value)),
            Value::String(string) => text.push_str(&super::convert::beginning(string, LOGGED + 1)),
            _ => text.push_str(&value.to_string()?),
        }
        if text.len() > LOGGED {
            text.truncate(text.floor_char_boundary(LOGGED));
            text.push('…');
            break;
        }
    }
    host.log(place(lua).unwrap_or_default(), text);
    Ok(())
}

/// `error` as in Lua, except that a table without metatable gets a text form instead of its
/// address.
fn error_function(lua: &Lua) -> mlua::Result<Value> {
    let show = lua.create_function(|lua, table: Value| {
        let location = place(lua).map_or_else(String::new, |location| format!("{location}: "));
        Ok(format!("{location}{}", super::convert::show(&table)))
    })?;
    lua.load(include_str!("../../../lua/error.lua")).set_name("=[r1]").call(show)
}

fn math(lua: &Lua, host: &Rc<Host>, builtin: &Table) -> mlua::Result<Table> {
    let math = lua.create_table()?;
    builtin.for_each(|name: String, value: Value| math.raw_set(name, value))?;
    let shared_host = host.clone();
    bind(lua, &math, "random", move |lua, bounds: Variadic<Value>| random(lua, &shared_host, &bounds))?;
    let host = host.clone();
    bind(lua, &math, "randomseed", move |lua, seed: Value| {
        let seed = match seed {
            Value::Integer(seed) => seed as u64,
            Value::Number(seed) => seed.to_bits(),
            other => {
                return Err(raise(misuse(lua, format!("math.randomseed takes a number, got {}", other.type_name()))));
            }
        };
        host.current().reseed(seed);
        Ok(())
    })?;
    math.set_readonly(true);
    Ok(math)
}

/// `math.random()` in [0, 1), `math.random(n)` in 1..n, `math.random(m, n)` in m..n.
fn random(lua: &Lua, host: &Host, bounds: &[Value]) -> mlua::Result<Value> {
    let fail = |message: String| raise(misuse(lua, message));
    let whole = |value: &Value| match value {
        Value::Integer(whole) => Ok(*whole),
        other => Err(fail(format!("math.random takes whole numbers, got {}", super::convert::show(other)))),
    };
    let call = host.current();
    let (low, high) = match bounds {
        [] => return Ok(Value::Number((call.random() >> 11) as f64 / (1_u64 << 53) as f64)),
        [high] => (1, whole(high)?),
        [low, high] => (whole(low)?, whole(high)?),
        _ => return Err(fail("math.random takes at most two numbers".to_owned())),
    };
    if low > high {
        return Err(fail(format!("math.random: the range {low} to {high} is empty")));
    }
    let span = high.abs_diff(low);
    if span == u64::MAX {
        return Ok(Value::Integer(call.random() as i64));
    }
    // Rejection sampling, so that every value is equally likely.
    let span = span + 1;
    let zone = u64::MAX - u64::MAX % span;
    let draw = loop {
        let bits = call.random();
        if bits < zone {
            break bits % span;
        }
    };
    Ok(Value::Integer(low.wrapping_add_unsigned(draw)))
}
