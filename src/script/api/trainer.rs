//! `r1.grpo { … }`, `r1.ppo { … }`, `r1.sft { … }` and `r1.trainer { algorithm = … }`: trainer
//! settings, validated at construction.

use mlua::{Lua, Table, UserData, Value};
use serde_json::Value as Json;

use super::algorithm::OwnAlgorithm;
use super::args::{TableFields, fail_with};
use super::argument::{argument, host_object};
use crate::config::{self, Learner, Sft};
use crate::schema::{Field, Section};

/// The result of `r1.grpo { … }`, `r1.ppo { … }` and `r1.sft { … }`.
#[derive(Clone)]
pub(crate) struct TrainerArgument {
    /// The settings as written, with `algorithm`.
    pub(crate) written: Json,
    pub(crate) settings: config::Trainer,
    pub(crate) algorithm: Option<OwnAlgorithm>,
}

impl UserData for TrainerArgument {}

argument!(TrainerArgument, "a result of r1.grpo { … }, r1.ppo { … } or r1.sft { … }", |value| host_object(value));

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
    fields_of_trainer: Vec<&'static str>,
) -> mlua::Result<()> {
    let make = move |lua: &Lua, value: Value| {
        let algorithm = OwnAlgorithm::of(&value);
        let without: &[&str] = if algorithm.is_some() { &["algorithm"] } else { &[] };
        let mut fields = TableFields::new(lua, function, &value, &fields_of_trainer)?.rest(without)?;
        if let Some(algorithm) = &algorithm {
            algorithm.complete(&mut fields);
        } else if name != "trainer" {
            fields.insert("algorithm".to_owned(), Json::from(name));
        }
        let written = Json::Object(fields);
        let settings = config::Trainer::read("trainer", &written, None);
        let settings = settings.map_err(|error| fail_with(lua, function, config::refused(error)))?;
        Ok(TrainerArgument { written, settings, algorithm })
    };
    r1.raw_set(name, lua.create_function(make)?)
}
