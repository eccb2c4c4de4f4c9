//! `r1.clock`, `r1.sleep`, `r1.join`: time and concurrency.

use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use mlua::{Function, Lua, MultiValue, Table, Value};
use serde_json::json;

use super::args::{fail, raise};
use super::argument::Argument;
use crate::script::runtime::bind::{bind, bind_async};
use crate::script::runtime::convert::kind;
use crate::script::runtime::host::Host;
use crate::script::runtime::suspended::Suspended;

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let shared_host = host.clone();
    bind(lua, r1, "clock", move |_, ()| {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let result = shared_host.current().external_now("clock", json!({}), || Ok(json!(now()))).map_err(raise)?;
        Ok(result.as_f64())
    })?;
    let shared_host = host.clone();
    bind_async(lua, r1, "sleep", move |lua, length: Value| {
        let call = shared_host.current();
        // A length of 0 is allowed.
        let zero = matches!(length, Value::Integer(0));
        let length = if zero { Some(Duration::ZERO) } else { Duration::read(&length) }
            .ok_or_else(|| fail(&lua, "r1.sleep", format!("takes {}, got {}", Duration::wanted(), kind(&length))));
        async move {
            let length = length?;
            let live = async {
                tokio::time::sleep(length).await;
                Ok(json!(null))
            };
            call.external("sleep", json!(length.as_secs_f64()), live).await.map(drop).map_err(raise)
        }
    })?;
    let shared_host = host.clone();
    bind_async(lua, r1, "join", move |lua, functions: Value| {
        let call = shared_host.current();
        let jobs = list(&lua, &functions).map(|functions| {
            functions
                .iter()
                .map(|function| call.branch(Suspended::<Value>::inner(&lua, function, ()), None))
                .collect::<Vec<_>>()
        });
        async move {
            // All jobs run to their end: which error is raised must not depend on time.
            let answers = join_all(jobs?).await;
            answers.into_iter().collect::<mlua::Result<MultiValue>>()
        }
    })
}

fn list(lua: &Lua, functions: &Value) -> mlua::Result<Vec<Function>> {
    let Value::Table(list) = functions else {
        return Err(fail(lua, "r1.join", format!("takes a list of functions, got {}", kind(functions))));
    };
    (1..=list.raw_len())
        .map(|index| match list.raw_get(index)? {
            Value::Function(function) => Ok(function),
            other => Err(fail(lua, "r1.join", format!("entry {index} is {}; it must be a function", kind(&other)))),
        })
        .collect()
}
