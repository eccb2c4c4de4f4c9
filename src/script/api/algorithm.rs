//! `r1.algorithm { … }`: an algorithm of a recipe, in the form of r1's algorithms
//! (`lua/algorithms`).

use mlua::{Function, Lua, Table, UserData, Value};
use serde_json::{Map, Value as Json};

use super::args::fail;
use super::argument::host_object;
use crate::algorithms::{AlgorithmFile, FileLoss};
use crate::config::Choice;
use crate::script::runtime::convert::kind;

const NAME: &str = "r1.algorithm";

/// The result of `r1.algorithm { … }`.
#[derive(Clone)]
pub(crate) struct OwnAlgorithm {
    pub(crate) declared: AlgorithmFile,
    pub(crate) loss: Option<Function>,
    pub(crate) advantage: Option<Function>,
}

impl UserData for OwnAlgorithm {}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let make = |lua: &Lua, value: Value| {
        let Value::Table(table) = value else {
            return Err(fail(lua, NAME, format!("takes a table, got {}", kind(&value))));
        };
        let advantage = match table.raw_get("advantage")? {
            Value::Nil => None,
            Value::Function(function) => Some(function),
            other => return Err(fail(lua, NAME, format!("`advantage` is a function, got {}", kind(&other)))),
        };
        let loss = table.raw_get::<Value>("loss")?.as_function().cloned();
        Ok(OwnAlgorithm { declared: AlgorithmFile::read(lua, "", "", &table)?, loss, advantage })
    };
    r1.raw_set("algorithm", lua.create_function(make)?)
}

impl OwnAlgorithm {
    /// The algorithm in the field `algorithm` of a trainer.
    pub(super) fn of(trainer: &Value) -> Option<Self> {
        host_object(&trainer.as_table()?.raw_get("algorithm").ok()?)
    }

    /// Adds its defaults to the settings of a trainer.
    pub(super) fn complete(&self, fields: &mut Map<String, Json>) {
        let AlgorithmFile { critic, estimator, trainer, loss, options, .. } = &self.declared;
        fields.insert("algorithm".to_owned(), if *critic { "ppo" } else { "grpo" }.into());
        for (name, value) in trainer {
            fields.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let defaults = options.iter().map(|option| (option.name.clone(), option.default.clone())).collect();
        if self.advantage.is_some() {
            choose(fields, "estimator", Choice::OF_RECIPE, &defaults);
        } else if let Some((name, options)) = estimator {
            choose(fields, "estimator", name, options);
        }
        match loss {
            Some(FileLoss::Of((name, options))) => choose(fields, "loss", name, options),
            Some(FileLoss::Own) => choose(fields, "loss", Choice::OF_RECIPE, &defaults),
            None => {}
        }
    }
}

/// Sets the name of an estimator or a loss, with options that are not written, unless another one
/// is written.
pub(super) fn choose(fields: &mut Map<String, Json>, field: &str, name: &str, defaults: &Map<String, Json>) {
    let written = fields.entry(field).or_insert_with(|| Json::Object(Map::new()));
    let Json::Object(written) = written else { return };
    if written.contains_key("name") {
        return;
    }
    written.insert("name".to_owned(), name.into());
    for (option, value) in defaults {
        written.entry(option.clone()).or_insert_with(|| value.clone());
    }
}
