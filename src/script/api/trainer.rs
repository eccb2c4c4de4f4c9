//! `r1.grpo { … }` and `r1.sft { … }`: how to train, checked where it is written.

use mlua::{Lua, Table, UserData, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::args::{Fields, fail_with};
use crate::config::{Grpo, Sft};
use crate::script::settings;

/// A trainer's settings, `algorithm` included.
pub(crate) struct Trainer(pub(crate) Json);

impl UserData for Trainer {}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    constructor::<Grpo>(lua, r1, "grpo", "r1.grpo")?;
    constructor::<Sft>(lua, r1, "sft", "r1.sft")
}

fn constructor<T>(lua: &Lua, r1: &Table, algorithm: &'static str, function: &'static str) -> mlua::Result<()>
where
    T: Serialize + DeserializeOwned + Default + 'static,
{
    let make = move |lua: &Lua, value: Value| {
        let known = settings::names_of::<T>();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let mut fields = Fields::new(lua, function, &value, &known)?.rest(&[])?;
        settings::section::<T>("trainer", &Json::Object(fields.clone()))
            .map_err(|error| fail_with(lua, function, error))?;
        fields.insert("algorithm".to_owned(), Json::from(algorithm));
        Ok(Trainer(Json::Object(fields)))
    };
    r1.raw_set(algorithm, lua.create_function(make)?)
}
