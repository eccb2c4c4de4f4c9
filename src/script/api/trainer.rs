//! `r1.grpo { … }`, `r1.ppo { … }`, `r1.sft { … }` and `r1.trainer { algorithm = … }`: trainer
//! settings, validated at construction.

use mlua::{Lua, Table, UserData, Value};
use serde_json::Value as Json;

use super::algorithm::OwnAlgorithm;
use super::args::{Fields, fail_with};
use super::argument::{argument, host_object};
use crate::config::{self, Learner, Sft};
use crate::schema::{Field, Section};

/// The result of `r1.grpo { … }`, `r1.ppo { … }` and `r1.sft { … }`.
#[derive(Clone)]
pub(crate) struct Trainer {
    /// The settings as written, with `algorithm`.
    pub(crate) written: Json,
    pub(crate) settings: config::Trainer,
    /// An algorithm of the recipe.
    pub(crate) own: Option<OwnAlgorithm>,
}

impl UserData for Trainer {}

argument!(Trainer, "a result of r1.grpo { … }, r1.ppo { … } or r1.sft { … }", |value| host_object(value));

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    constructor(lua, r1, "grpo", "r1.grpo", Learner::FIELDS.to_vec())?;
    constructor(lua, r1, "ppo", "r1.ppo", Learner::FIELDS.to_vec())?;
    constructor(lua, r1, "sft", "r1.sft", Sft::FIELDS.to_vec())?;
    constructor(lua, r1, "trainer", "r1.trainer", [Learner::FIELDS, Sft::FIELDS, &["algorithm"]].concat())
}

fn constructor(
    lua: &Lua,
    r1: &Table,
    name: &'static str,
    function: &'static str,
    known: Vec<&'static str>,
) -> mlua::Result<()> {
    let make = move |lua: &Lua, value: Value| {
        let own = OwnAlgorithm::of(&value);
        let without: &[&str] = if own.is_some() { &["algorithm"] } else { &[] };
        let mut fields = Fields::new(lua, function, &value, &known)?.rest(without)?;
        if let Some(own) = &own {
            own.complete(&mut fields);
        } else if name != "trainer" {
            fields.insert("algorithm".to_owned(), Json::from(name));
        }
        let written = Json::Object(fields);
        let settings = config::Trainer::read("trainer", &written, None);
        let settings = settings.map_err(|error| fail_with(lua, function, config::refused(error)))?;
        Ok(Trainer { written, settings, own })
    };
    r1.raw_set(name, lua.create_function(make)?)
}
