//! The algorithms that come with r1: `lua/algorithms`, a file each.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use mlua::{Function, Lua, StdLib, Table, Value};
use serde_json::{Map, Value as Json};

use super::estimated::{self, Caller, Estimated};
use super::graph::LossGraph;
use super::group::GroupInput;
use super::lua::{fail, from_json, kind, location, raise};
use super::needs::{AlgorithmNeed, Level};
use super::options::{self, Declared, OF_EVERY_LOSS};
use super::trace::Trace;
use crate::error::{Error, Kind, Result, suggest};

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../lua/algorithms/", $name, ".lua")))),*]
    };
}

/// Name and text of every file.
const FILES: &[(&str, &str)] = files![
    "grpo" "dr_grpo" "dapo" "gspo" "cispo" "sapo" "gmpo" "gpg" "rloo" "opo" "max_rl" "grpo_passk" "rapo" "gigpo"
    "remax" "reinforce_pp" "reinforce_pp_baseline" "ppo" "pspo" "capo" "seeupo" "gdpo" "optimal_token_baseline"
    "tir_optimal_token_baseline" "tree" "luspo" "vespo" "dro" "geo_mean" "bnpo" "clip_cov" "kl_cov" "dppo_tv"
    "dppo_kl" "reinforce"
];

/// The module that the files may require.
const STATISTICS: (&str, &str) = ("@r1/statistics", include_str!("../../lua/statistics.lua"));

/// The fields of an algorithm.
pub(crate) const FIELDS: [&str; 12] = [
    "advantage",
    "needs",
    "level",
    "paper",
    "about",
    "remarks",
    "critic",
    "estimator",
    "trainer",
    "options",
    "loss",
    "one_advantage_per_sequence",
];

/// What the file of an algorithm declares.
#[derive(Clone, Debug, PartialEq)]
pub struct AlgorithmFile {
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
    /// Its paper, or the system that defines it.
    pub paper: String,
    /// A short description of its estimator or its loss, if one of them has its name too.
    pub about: String,
    /// A note on the algorithm.
    pub remarks: String,
    /// Whether a critic is trained.
    pub critic: bool,
    /// The advantage estimator; `None` for a function of the file, and for a file that is a loss
    /// only.
    pub estimator: Option<NamedChoice>,
    /// Whether its function `advantage` is the estimator.
    pub advantage: bool,
    /// The inputs of that function.
    pub needs: Vec<AlgorithmNeed>,
    /// The unit of its advantages, and other units with an option that is true.
    level: (Level, Vec<(String, Level)>),
    /// Settings of the trainer with other defaults.
    pub trainer: Map<String, Json>,
    pub loss: Option<FileLoss>,
    /// The options of its functions; for options of every loss, other defaults.
    pub options: Vec<Declared>,
    /// Whether all tokens of a sequence must have the same advantage.
    pub one_advantage_per_sequence: bool,
}

/// An estimator or a loss by name, with options.
pub type NamedChoice = (String, Map<String, Json>);

/// The loss of an algorithm.
#[derive(Clone, Debug, PartialEq)]
pub enum FileLoss {
    /// A function of its file.
    Own,
    /// Another loss, with options.
    Of(NamedChoice),
}

/// A virtual machine with the tables of the files. It runs no code of users.
struct AlgorithmsVm {
    lua: Lua,
    tables: BTreeMap<&'static str, Table>,
}

thread_local! {
    /// Virtual machines are bound to their thread.
    static MACHINE: Result<AlgorithmsVm> = AlgorithmsVm::new();
}

static ALGORITHMS: LazyLock<Vec<AlgorithmFile>> = LazyLock::new(|| {
    // A test reads every file, so that none is missing here.
    MACHINE.with(|machine| machine.as_ref().map(AlgorithmsVm::declared).unwrap_or_default())
});

pub fn all() -> &'static [AlgorithmFile] {
    &ALGORITHMS
}

pub fn find(name: &str) -> Option<&'static AlgorithmFile> {
    all().iter().find(|algorithm| algorithm.name == name)
}

/// The error of the host in an error of Lua, if there is one; others are mistakes of the files.
fn internal(error: &mlua::Error) -> Error {
    let of_host = match error {
        mlua::Error::CallbackError { cause, .. } => return internal(cause),
        mlua::Error::ExternalError(external) => external.downcast_ref::<Error>().cloned(),
        _ => None,
    };
    of_host.unwrap_or_else(|| Error::new(Kind::Internal, format!("an algorithm of r1 fails: {error}")))
}

impl AlgorithmsVm {
    fn new() -> Result<Self> {
        let load = || -> mlua::Result<Self> {
            let lua = Lua::new_with(StdLib::MATH | StdLib::TABLE | StdLib::STRING, mlua::LuaOptions::default())?;
            let r1 = lua.create_table()?;
            r1.raw_set("algorithm", lua.create_function(|_, table: Table| Ok(table))?)?;
            lua.globals().raw_set("r1", r1)?;
            let (module, text) = STATISTICS;
            let statistics: Table = lua.load(text).set_name(format!("@{module}.lua")).eval()?;
            lua.globals().raw_set("require", lua.create_function(move |_, _: String| Ok(statistics.clone()))?)?;
            lua.sandbox(true)?;
            let mut tables = BTreeMap::new();
            for (name, source) in FILES {
                let chunk = lua.load(*source).set_name(format!("@@r1/algorithms/{name}.lua"));
                tables.insert(*name, chunk.eval()?);
            }
            Ok(Self { lua, tables })
        };
        load().map_err(|error| internal(&error))
    }

    fn declared(&self) -> Vec<AlgorithmFile> {
        let read = |(name, source): &(&'static str, &'static str)| {
            AlgorithmFile::read(&self.lua, name, source, self.tables.get(name)?).ok()
        };
        FILES.iter().filter_map(read).collect()
    }
}

impl AlgorithmFile {
    /// Reads the table of a file, whose text is `source`.
    ///
    /// # Errors
    /// An unknown field, or a field of the wrong type.
    pub fn read(lua: &Lua, name: &'static str, source: &'static str, table: &Table) -> mlua::Result<Self> {
        const WHAT: &str = "r1.algorithm";
        for (key, _) in table.pairs::<Value, Value>().flatten() {
            let field = key.as_string().map(mlua::LuaString::to_string_lossy).unwrap_or_default();
            if !FIELDS.contains(&field.as_str()) {
                return Err(fail(lua, WHAT, format!("there is no field `{field}`; {}", suggest(&field, FIELDS))));
            }
        }
        let choice = |field: &str, value: Value| match value {
            Value::String(other) => Ok((other.to_string_lossy(), Map::new())),
            Value::Table(other) => options::plain_table(lua, &other)
                .and_then(|mut options| {
                    let name = options.shift_remove("name")?.as_str()?.to_owned();
                    Some((name, options))
                })
                .ok_or_else(|| fail(lua, WHAT, format!("`{field}` is a table without `name`"))),
            other => Err(fail(lua, WHAT, format!("`{field}` must not be {}", kind(&other)))),
        };
        let loss = match table.raw_get("loss")? {
            Value::Nil => None,
            Value::Function(_) => Some(FileLoss::Own),
            other => Some(FileLoss::Of(choice("loss", other)?)),
        };
        let estimator = match table.raw_get("estimator")? {
            Value::Nil => None,
            other => Some(choice("estimator", other)?),
        };
        let text = |field: &str| match table.raw_get(field)? {
            Value::Nil => Ok(String::new()),
            Value::String(text) => Ok(text.to_string_lossy()),
            other => Err(fail(lua, WHAT, format!("`{field}` must be text, got {}", kind(&other)))),
        };
        let truth = |field: &str| match table.raw_get(field)? {
            Value::Nil => Ok(false),
            Value::Boolean(truth) => Ok(truth),
            other => Err(fail(lua, WHAT, format!("`{field}` must be true or false, got {}", kind(&other)))),
        };
        let trainer = match table.raw_get("trainer")? {
            Value::Nil => Map::new(),
            Value::Table(settings) => options::plain_table(lua, &settings)
                .ok_or_else(|| fail(lua, WHAT, "`trainer` must be a table of settings with plain values"))?,
            other => return Err(fail(lua, WHAT, format!("`trainer` must not be {}", kind(&other)))),
        };
        let (needs, level) = (needs(lua, WHAT, table)?, level(lua, WHAT, table)?);
        let options = match table.raw_get("options")? {
            Value::Nil => None,
            Value::Table(options) => Some(options),
            other => return Err(fail(lua, WHAT, format!("`options` must not be {}", kind(&other)))),
        };
        Ok(Self {
            name,
            source,
            paper: text("paper")?,
            about: text("about")?,
            remarks: text("remarks")?,
            critic: truth("critic")?,
            estimator,
            advantage: table.raw_get::<Value>("advantage")?.is_function(),
            needs,
            level,
            trainer,
            loss,
            options: options::read(options.as_ref(), source).map_err(|error| {
                raise(match location(lua) {
                    Some(location) => error.at(location),
                    None => error,
                })
            })?,
            one_advantage_per_sequence: truth("one_advantage_per_sequence")?,
        })
    }

    /// Whether a loss has its name.
    pub fn is_loss(&self) -> bool {
        self.loss.is_some() && !self.about.is_empty()
    }

    /// Whether it names an estimator, so that a trainer can have it as its algorithm.
    pub fn is_algorithm(&self) -> bool {
        self.advantage || self.estimator.is_some()
    }

    /// Whether its options have a clip range, which `trainer.clip` sets.
    pub fn has_clip(&self) -> bool {
        ["clip_low", "clip_high"].iter().all(|name| self.options.iter().any(|option| option.name == *name))
    }

    /// The options of its loss with other values than the defaults, without the options that every
    /// loss has.
    pub fn changed(&self, options: &Map<String, Json>) -> Vec<String> {
        let is_changed = |option: &&Declared| options.get(&option.name).is_some_and(|value| *value != option.default);
        let names = self.options.iter().filter(is_changed).map(|option| option.name.clone());
        names.filter(|name| !OF_EVERY_LOSS.contains(&name.as_str())).collect()
    }

    /// The unit of one of its advantages.
    pub fn level(&self, options: &Map<String, Json>) -> Level {
        let (level, with) = &self.level;
        let is_on = |(option, _): &&(String, Level)| options.get(option) == Some(&Json::Bool(true));
        with.iter().find(is_on).map_or(*level, |(_, other)| *other)
    }

    /// Takes the options of its functions out of `options`, which may have others. Missing options
    /// have their defaults.
    ///
    /// # Errors
    /// [`Kind::Usage`] names an option of the wrong type or out of its range.
    pub fn take_options(&self, what: &str, options: &mut Map<String, Json>) -> Result<Map<String, Json>> {
        options::take(what, &self.options, options)
    }

    /// The graph of the file's loss with these options.
    ///
    /// # Errors
    /// [`Kind::Internal`] if it has none or fails.
    pub fn loss_graph(&self, options: &Map<String, Json>) -> Result<LossGraph> {
        self.with_function("loss", |lua, function| {
            let trace = Trace::of_declared(lua, options).map_err(|error| internal(&error))?;
            let returned = function.call::<Value>(trace.arguments.clone()).map_err(|error| internal(&error))?;
            trace.finish(function, &returned)
        })
    }

    /// The advantages of the groups of a batch by its function, with these options.
    ///
    /// # Errors
    /// [`Kind::Usage`] for trajectories that it refuses; [`Kind::Internal`] if it fails.
    pub fn advantages(&self, batch: &[GroupInput], options: &Map<String, Json>) -> Result<Vec<Estimated>> {
        self.with_function("advantage", |lua, function| {
            let call = |arguments: (&Table, &Value)| function.call(arguments).map_err(|error| internal(&error));
            let caller = Caller { call: &call, task: from_json, show: kind };
            estimated::advantages(lua, function, (batch, batch.len()), options, &caller)
        })
    }

    /// Runs `run` with a function of the file.
    fn with_function<T>(&self, field: &str, run: impl FnOnce(&Lua, &Function) -> Result<T>) -> Result<T> {
        MACHINE.with(|machine| {
            let AlgorithmsVm { lua, tables } = machine.as_ref().map_err(Clone::clone)?;
            let table = tables.get(self.name).ok_or_else(|| Error::new(Kind::Internal, "the algorithm has no file"))?;
            let function: Function = table.raw_get(field).map_err(|error| internal(&error))?;
            run(lua, &function)
        })
    }
}

/// The names of a list `needs`.
fn needs(lua: &Lua, what: &str, table: &Table) -> mlua::Result<Vec<AlgorithmNeed>> {
    let list = match table.raw_get("needs")? {
        Value::Nil => return Ok(Vec::new()),
        Value::Table(list) => list,
        other => return Err(fail(lua, what, format!("`needs` must be a list of names, got {}", kind(&other)))),
    };
    let needs = AlgorithmNeed::OF_FUNCTIONS.map(|need| (need.name(), need));
    list.sequence_values::<Value>().map(|name| named(lua, what, "needs", &name?, &needs)).collect()
}

/// The field `level`: a name, or a list of one with options that select others,
/// `{ "trajectory", reward_to_go = "token" }`.
fn level(lua: &Lua, what: &str, table: &Table) -> mlua::Result<(Level, Vec<(String, Level)>)> {
    let name = |value: &Value| named(lua, what, "level", value, &Level::ALL.map(|level| (level.name(), level)));
    match table.raw_get("level")? {
        Value::Nil => Ok((Level::default(), Vec::new())),
        Value::Table(levels) => {
            let mut with = Vec::new();
            for (option, value) in levels.pairs::<Value, Value>().flatten() {
                if let Value::String(option) = option {
                    with.push((option.to_string_lossy(), name(&value)?));
                }
            }
            Ok((name(&levels.raw_get(1)?)?, with))
        }
        value => Ok((name(&value)?, Vec::new())),
    }
}

/// One of several names.
fn named<T: Copy>(lua: &Lua, what: &str, field: &str, value: &Value, names: &[(&str, T)]) -> mlua::Result<T> {
    let text = value.as_string().map(mlua::LuaString::to_string_lossy).unwrap_or_default();
    names.iter().find(|(name, _)| *name == text).map(|(_, one)| *one).ok_or_else(|| {
        let hint = suggest(&text, names.iter().map(|(name, _)| *name));
        fail(lua, what, format!("`{field}` must not have {}; {hint}", kind(value)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_file_of_an_algorithm_is_read_and_its_loss_is_traced() {
        assert_eq!(all().len(), FILES.len(), "{:?}", AlgorithmsVm::new().err());
        let machine = AlgorithmsVm::new().unwrap();
        for (name, source) in FILES {
            let algorithm = AlgorithmFile::read(&machine.lua, name, source, &machine.tables[name]).unwrap();
            assert!(!algorithm.paper.is_empty() && (algorithm.is_loss() || algorithm.is_algorithm()), "{name}");
            if algorithm.loss == Some(FileLoss::Own) {
                let mut options = algorithm.take_options(name, &mut Map::new()).unwrap();
                options.entry("ratio_over").or_insert_with(|| "step".into());
                assert!(algorithm.loss_graph(&options).unwrap().has_gradient(), "{name}");
            }
        }
    }

    #[test]
    fn options_are_refused_outside_of_their_type_and_range() {
        let gspo = find("gspo").unwrap();
        let refused = |option: &str, value: Json| {
            let mut options = Map::from_iter([(option.to_owned(), value)]);
            gspo.take_options("gspo", &mut options).unwrap_err().message
        };
        assert_eq!(refused("clip_low", 1.5.into()), "option `clip_low` of `gspo` is from 0 to 1, not 1.5");
        assert_eq!(refused("clip_high", (-1).into()), "option `clip_high` of `gspo` is at least 0, not -1");
        assert_eq!(refused("clip_high", "x".into()), "option `clip_high` of `gspo` is at least 0, not \"x\"");
        let dro = find("dro").unwrap();
        let mut options = Map::from_iter([("beta".to_owned(), 0.into())]);
        assert_eq!(
            dro.take_options("dro", &mut options).unwrap_err().message,
            "option `beta` of `dro` is above 0, not 0"
        );
    }
}
