//! Functions for programs (`r1 lua`) that recipes do not have: standard input and output, reading
//! files, arguments, an exit code.

use std::cell::RefCell;
use std::io::{BufRead, Read};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use mlua::{Lua, Table, Value, Variadic};
use serde_json::json;

use super::args::{fail, raise, text};
use crate::error::{Error, Kind, Subject};
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::{kind, printed};
use crate::script::runtime::host::Host;
use crate::script::runtime::log::LogLine;
use crate::script::runtime::log::LogStream;
use crate::script::runtime::origin::is_plain;

/// The exit code of a program that called `os.exit`.
pub(crate) fn exit_code(error: &Error) -> Option<u8> {
    match error.subject.as_deref() {
        Some(Subject::Exit(code)) => Some(*code),
        _ => None,
    }
}

/// `print`, `io`, `os`, `arg`.
pub(crate) fn install(lua: &Lua, environment: &Table, host: &Rc<Host>, arguments: &[String]) -> mlua::Result<()> {
    let list = lua.create_table()?;
    for argument in arguments {
        list.raw_push(argument.as_str())?;
    }
    environment.raw_set("arg", list)?;
    let shared_host = host.clone();
    bind(lua, environment, "print", move |_, values: Variadic<Value>| {
        let line = joined(&values, "\t")? + "\n";
        shared_host.print_line(&LogLine { text: line, ..LogLine::default() }, LogStream::Out);
        Ok(())
    })?;
    environment.raw_set("io", input_output(lua, host)?)?;
    if host.cases.is_some() {
        super::test::install(lua, environment, host)?;
    }
    environment.raw_set("os", system(lua, host)?)
}

fn joined(values: &[Value], between: &str) -> mlua::Result<String> {
    let mut line = String::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            line.push_str(between);
        }
        match value {
            Value::Table(table) if is_plain(table) => line.push_str(&printed(value)),
            // Bytes that are not text are shown as `\u{fffd}`.
            Value::String(text) => line.push_str(&text.to_string_lossy()),
            _ => line.push_str(&value.to_string()?),
        }
    }
    Ok(line)
}

/// `io.read`, `io.lines`, `io.write`, `io.open` (reading only).
fn input_output(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let io = lua.create_table()?;
    bind(lua, &io, "read", |lua, format: Option<Value>| read(lua, &mut std::io::stdin().lock(), format.as_ref()))?;
    bind(lua, &io, "lines", |lua, path: Option<String>| {
        let mut source: Box<dyn BufRead> = match &path {
            None => Box::new(std::io::stdin().lock()),
            Some(path) => Box::new(std::io::BufReader::new(
                std::fs::File::open(path).map_err(|error| fail(lua, "io.lines", format!("{path}: {error}")))?,
            )),
        };
        lua.create_function_mut(move |lua, ()| read(lua, &mut source, None))
    })?;
    let shared_host = host.clone();
    bind(lua, &io, "write", move |_, values: Variadic<Value>| {
        shared_host.print_line(&LogLine { text: joined(&values, "")?, ..LogLine::default() }, LogStream::Out);
        Ok(())
    })?;
    bind(lua, &io, "open", |lua, (path, mode): (String, Option<String>)| {
        if mode.as_deref().is_some_and(|mode| !matches!(mode, "r" | "rb")) {
            return Err(fail(lua, "io.open", "only reads files here; write to standard output"));
        }
        match std::fs::File::open(&path) {
            Ok(file) => {
                let file = Rc::new(RefCell::new(Some(std::io::BufReader::new(file))));
                Ok((Value::Table(handle(lua, &file)?), None))
            }
            Err(error) => Ok((Value::Nil, Some(format!("{path}: {error}")))),
        }
    })?;
    super::seal(lua, "io", &io)?;
    Ok(io)
}

type OpenFile = Rc<RefCell<Option<std::io::BufReader<std::fs::File>>>>;

/// An open file: `:read(format)`, `:lines()`, `:close()`.
fn handle(lua: &Lua, file: &OpenFile) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let closed = |lua: &Lua| fail(lua, "file", "is closed");
    let shared_file = file.clone();
    bind(lua, &table, "read", move |lua, (_, format): (Value, Option<Value>)| match &mut *shared_file.borrow_mut() {
        Some(file) => read(lua, file, format.as_ref()),
        None => Err(closed(lua)),
    })?;
    let shared_file = file.clone();
    bind(lua, &table, "lines", move |lua, _: Value| {
        let shared_file = shared_file.clone();
        lua.create_function(move |lua, ()| match &mut *shared_file.borrow_mut() {
            Some(file) => read(lua, file, None),
            None => Err(closed(lua)),
        })
    })?;
    let shared_file = file.clone();
    let close = lua.create_function(move |_, _: Value| {
        shared_file.borrow_mut().take();
        Ok(())
    })?;
    table.raw_set("close", close)?;
    Ok(table)
}

/// Reads like Lua's `file:read`: `"a"` all, `"l"` a line, `"L"` a line with its end, `"n"` a line
/// as a number, or a number of bytes. Nil at the end.
fn read(lua: &Lua, source: &mut dyn BufRead, format: Option<&Value>) -> mlua::Result<Value> {
    let bad = |error: std::io::Error| fail(lua, "read", error);
    let bytes = |bytes: &[u8]| lua.create_string(bytes).map(Value::String);
    let name = match format {
        None | Some(Value::Nil) => "l".to_owned(),
        Some(Value::Integer(count)) => {
            let mut data = Vec::new();
            let wanted = u64::try_from(*count).unwrap_or(0);
            source.take(wanted).read_to_end(&mut data).map_err(bad)?;
            return if data.is_empty() && wanted > 0 { Ok(Value::Nil) } else { bytes(&data) };
        }
        Some(value) => text(lua, "read", "format", value)?,
    };
    match name.trim_start_matches('*') {
        "a" | "all" => {
            let mut data = Vec::new();
            source.read_to_end(&mut data).map_err(bad)?;
            bytes(&data)
        }
        form @ ("l" | "L" | "n") => {
            let mut line = Vec::new();
            if source.read_until(b'\n', &mut line).map_err(bad)? == 0 {
                return Ok(Value::Nil);
            }
            if form != "L" {
                let end = line.strip_suffix(b"\n").map_or(line.len(), <[u8]>::len);
                line.truncate(end);
            }
            if form == "n" {
                let number = String::from_utf8_lossy(&line).trim().parse::<f64>().ok();
                return Ok(number.map_or(Value::Nil, Value::Number));
            }
            bytes(&line)
        }
        other => {
            Err(fail(lua, "read", format!("the format is \"a\", \"l\", \"L\", \"n\" or a number, got \"{other}\"")))
        }
    }
}

/// `os.exit`, `os.time`, `os.clock`, `os.getenv`.
fn system(lua: &Lua, host: &Rc<Host>) -> mlua::Result<Table> {
    let os = lua.create_table()?;
    bind(lua, &os, "exit", |lua, value: Value| -> mlua::Result<()> {
        let code = match &value {
            Value::Nil | Value::Boolean(true) => Some(0),
            Value::Boolean(false) => Some(1),
            Value::Integer(code) => u8::try_from(*code).ok(),
            _ => None,
        };
        let Some(code) = code else {
            return Err(fail(lua, "os.exit", format!("takes a code from 0 to 255, got {}", kind(&value))));
        };
        Err(raise(Error::new(Kind::Interrupted, format!("os.exit({code})")).about(Subject::Exit(code))))
    })?;
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let shared_host = host.clone();
    os.raw_set("time", lua.create_function(move |_, ()| clock(&shared_host, "time", || now().floor()))?)?;
    let (shared_host, start) = (host.clone(), std::time::Instant::now());
    os.raw_set(
        "clock",
        lua.create_function(move |_, ()| clock(&shared_host, "clock", || start.elapsed().as_secs_f64()))?,
    )?;
    bind(lua, &os, "getenv", |lua, name: Value| {
        let name = text(lua, "os.getenv", "name", &name)?;
        Ok(std::env::var(name).ok())
    })?;
    super::seal(lua, "os", &os)?;
    Ok(os)
}

/// Reads a clock, through the record.
fn clock(host: &Host, which: &str, now: impl FnOnce() -> f64) -> mlua::Result<Option<f64>> {
    let answer = host.current().external_now("clock", json!({ "clock": which }), || Ok(json!(now()))).map_err(raise)?;
    Ok(answer.as_f64())
}
