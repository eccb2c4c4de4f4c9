//! `r1.grpo { … }`, `r1.ppo { … }`, `r1.sft { … }` and `r1.trainer { algorithm = … }`: how to train, checked where it is
//! written.

use mlua::{Lua, Table, UserData, Value};
use serde_json::Value as Json;

use super::args::{Fields, fail_with};
use crate::config::{Learner, Sft};
use crate::script::settings;

/// A trainer's settings, `algorithm` included.
pub(crate) struct Trainer(pub(crate) Json);

impl UserData for Trainer {}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    constructor(lua, r1, "grpo", "r1.grpo", settings::names_of::<Learner>)?;
    constructor(lua, r1, "ppo", "r1.ppo", settings::names_of::<Learner>)?;
    constructor(lua, r1, "sft", "r1.sft", settings::names_of::<Sft>)?;
    let any = || [settings::names_of::<Learner>(), settings::names_of::<Sft>(), vec!["algorithm".to_owned()]].concat();
    constructor(lua, r1, "trainer", "r1.trainer", any)
}

fn constructor(
    lua: &Lua,
    r1: &Table,
    name: &'static str,
    function: &'static str,
    names: fn() -> Vec<String>,
) -> mlua::Result<()> {
    let make = move |lua: &Lua, value: Value| {
        let known = names();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let mut fields = Fields::new(lua, function, &value, &known)?.rest(&[])?;
        if name != "trainer" {
            fields.insert("algorithm".to_owned(), Json::from(name));
        }
        let fields = Json::Object(fields);
        settings::trainer(&fields).map_err(|error| fail_with(lua, function, error))?;
        Ok(Trainer(fields))
    };
    r1.raw_set(name, lua.create_function(make)?)
}
