//! Functions for programs (`r1 lua`) that recipes do not have: standard input and output, reading
//! files, arguments, an exit code.

use std::io::{BufRead, Read};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use mlua::{AnyUserData, Function, Lua, Table, UserData, UserDataMethods, Value, Variadic};
use serde_json::json;

use super::args::{fail, raise, text};
use super::outcome::NilReason;
use crate::error::{Error, Kind, Subject};
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::{kind, printed};
use crate::script::runtime::host::Host;
use crate::script::runtime::log::{LogLine, LogStream};
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
    environment.raw_set("arg", arguments)?;
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
        let reader = match &path {
            None => Reader(Some(Box::new(std::io::stdin().lock()))),
            Some(path) => Reader::open(path).map_err(|NilReason(why)| fail(lua, "io.lines", why))?,
        };
        lines(lua, lua.create_userdata(reader)?)
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
        Ok(Reader::open(&path))
    })?;
    super::seal(lua, "io", &io)?;
    Ok(io)
}

/// A file that is read, with `:read(format)`, `:lines()` and `:close()`; `None` once it is closed.
struct Reader(Option<Box<dyn BufRead>>);

impl Reader {
    fn open(path: &str) -> Result<Self, NilReason> {
        let file = std::fs::File::open(path).map_err(|error| NilReason(format!("{path}: {error}")))?;
        Ok(Self(Some(Box::new(std::io::BufReader::new(file)))))
    }

    fn read(&mut self, lua: &Lua, format: Option<&Value>) -> mlua::Result<Value> {
        match &mut self.0 {
            Some(source) => read(lua, source, format),
            None => Err(fail(lua, "file", "is closed")),
        }
    }
}

impl UserData for Reader {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method_mut("read", |lua, this, format: Option<Value>| this.read(lua, format.as_ref()));
        methods.add_function("lines", |lua, this: AnyUserData| lines(lua, this));
        methods.add_method_mut("close", |_, this, ()| {
            this.0 = None;
            Ok(())
        });
    }
}

/// An iterator over the lines of a reader.
fn lines(lua: &Lua, reader: AnyUserData) -> mlua::Result<Function> {
    lua.create_function(move |lua, ()| reader.borrow_mut::<Reader>()?.read(lua, None))
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
    bind(lua, &os, "time", move |_, ()| clock(&shared_host, "time", || now().floor()))?;
    let (shared_host, start) = (host.clone(), std::time::Instant::now());
    bind(lua, &os, "clock", move |_, ()| clock(&shared_host, "clock", || start.elapsed().as_secs_f64()))?;
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
