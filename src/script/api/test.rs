//! `test` and `expect`: functions for files run by `r1 test`, in addition to the functions of
//! programs. The assertions are in `lua/test.lua`.

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};

use super::args::{fail, raise};
use crate::error::{Error, Kind};
use crate::script::runtime::bind::bind;
use crate::script::runtime::convert::{kind, show};
use crate::script::runtime::definitions::Cases;
use crate::script::runtime::host::{Host, misuse};
use crate::script::runtime::show::{ShowLimits, Shown};

pub(crate) fn install(lua: &Lua, environment: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let shared_host = host.clone();
    bind(lua, environment, "test", move |lua, (name, body): (Value, Value)| {
        let (Value::String(name), Value::Function(body)) = (&name, &body) else {
            let got = format!("{} and {}", kind(&name), kind(&body));
            return Err(fail(lua, "test", format!("takes a name and a function, got {got}")));
        };
        let name = name.to_string_lossy();
        let twice = with(&shared_host, |cases| {
            let twice = cases.tests.iter().any(|(earlier, _)| *earlier == name);
            cases.tests.push((name.clone(), body.clone()));
            twice
        });
        if twice { Err(fail(lua, "test", format!("there are two tests called \"{name}\""))) } else { Ok(()) }
    })?;
    let shared_host = host.clone();
    let fail = lua.create_function(move |lua, (message, values): (String, mlua::MultiValue)| -> mlua::Result<()> {
        let text = |value: &Value| Shown::of(value, &ShowLimits::lines()).to_string();
        let sides = match values.iter().map(text).collect::<Vec<_>>()[..] {
            [ref expected, ref actual] => Some((expected.clone(), actual.clone())),
            _ => None,
        };
        with(&shared_host, |cases| cases.sides = sides);
        Err(raise(misuse(lua, message)))
    })?;
    let short = lua.create_function(|_, value: Value| Ok(show(&value)))?;
    let source = include_str!("../../../lua/test.lua");
    let (expect, methods): (Function, Table) = lua.load(source).set_name("=[r1]").call((fail, short))?;
    methods.set_readonly(true);
    environment.raw_set("expect", expect)
}

/// Runs `work` on the registered tests; outside of `r1 test` there are none.
fn with<T: Default>(host: &Host, work: impl FnOnce(&mut Cases) -> T) -> T {
    host.cases.as_ref().map(|cases| work(&mut cases.borrow_mut())).unwrap_or_default()
}

/// The error for a file without tests.
pub(crate) fn none_found(path: &std::path::Path) -> Error {
    Error::new(Kind::Script, "the file has no tests")
        .at_path(path)
        .hint("test(\"what holds\", function() … end) makes one")
}
