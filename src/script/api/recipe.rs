//! `r1.recipe { … }`: the value that a recipe script returns.

use std::collections::BTreeMap;

use mlua::{Function, Lua, Table, Value};
use serde_json::{Map, Value as Json};

use super::algorithm::{OwnAlgorithm, choose};
use super::args::{FromField, TableFields, fail, fail_with};
use super::argument::{Argument, argument, host_object};
use super::arguments::{Arguments, arguments};
use super::data::DataSource;
use super::trainer::TrainerArgument;
use crate::config::{self, Choice, DataSettings, Learner, Settings};
use crate::error::{Error, Kind};
use crate::schema::{self, Section};
use crate::script::runtime::convert::kind;
use crate::script::runtime::definitions::{Env, EvalEnv, Recipe};
use crate::script::settings;

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    r1.raw_set("recipe", lua.create_function(|lua, value: Value| recipe(lua, &value))?)
}

/// A recipe, or the table that `r1.recipe` takes.
pub(crate) fn of(lua: &Lua, value: &Value) -> mlua::Result<Recipe> {
    Recipe::read(value).map_or_else(|| recipe(lua, value), Ok)
}

argument!(Recipe, "a result of r1.recipe { … }", |value| host_object(value));

arguments! {
    /// Arguments of `r1.recipe`.
    pub(super) struct RecipeArguments {
        context: Option<Function>;
        reward: Option<Function>;
        privileged: Option<Function>;
        row_order: Option<Function>;
        row_weight: Option<Function>;
        advantage: Option<Function>;
        loss: Option<Function>;
        flow: Option<Function>;
        env: Option<Env>;
        envs: Option<EnvsArgument>;
        trainer: Option<TrainerArgument>;
        eval: Eval = Eval::default();
        data: Data = Data::default();
        cold_start: Option<ColdStart>;
        ..settings: Settings::FIELDS;
    }

    /// The field `data` of a recipe.
    pub(super) struct DataArguments {
        train: Option<DataSource>;
        eval: Option<DataSource>;
        ..settings: DataSettings::FIELDS;
    }
}

const NAME: &str = "r1.recipe";

fn recipe(lua: &Lua, value: &Value) -> mlua::Result<Recipe> {
    let arguments = RecipeArguments::read(lua, NAME, value)?;
    let RecipeArguments { context, reward, privileged, row_order, row_weight, .. } = arguments;
    let (mut advantage, mut loss, mut settings) = (arguments.advantage, arguments.loss, arguments.settings);
    let mut envs = envs(lua, arguments.env, arguments.envs)?;
    if let Some(flow) = arguments.flow {
        if !envs.is_empty() {
            let error = Error::new(Kind::Script, "`flow` and `env` or `envs` are both set");
            let hint = "put it into the env: r1.env { flow = function(task, policy) … end, … }";
            return Err(fail_with(lua, NAME, error.hint(hint)));
        }
        let env = Env { settings: Json::Object(Map::new()), flow: Some(flow), ..Env::default() };
        envs.push((String::new(), env));
    }
    if context.is_some() && !envs.is_empty() && envs.iter().all(|(_, env)| env.flow.is_some()) {
        return Err(fail_with(lua, NAME, super::env::conflict_with_flow("context")));
    }
    for (name, env) in &envs {
        if name.is_empty() {
            settings.insert("env".to_owned(), env.settings.clone());
        } else {
            let named = settings.entry("envs").or_insert_with(|| Json::Object(Map::new()));
            named[name] = env.settings.clone();
        }
    }
    let section = arguments.trainer.as_ref().and_then(|trainer| trainer.algorithm.clone());
    let mut algorithm = None;
    if let Some(OwnAlgorithm { declared, loss: own_loss, advantage: own_advantage }) = section {
        let twice = [("loss", &loss, &own_loss), ("advantage", &advantage, &own_advantage)];
        if let Some((field, ..)) = twice.into_iter().find(|(_, a, b)| a.is_some() && b.is_some()) {
            return Err(fail(lua, NAME, format!("`{field}` is set, and the algorithm of the trainer has one")));
        }
        algorithm = (own_loss.is_some() || own_advantage.is_some()).then_some(Box::new(declared));
        (loss, advantage) = (loss.or(own_loss), advantage.or(own_advantage));
    }
    let mut trainer = arguments.trainer.map(|TrainerArgument { written, settings: trainer, .. }| {
        settings.insert("trainer".to_owned(), written);
        trainer
    });
    if !matches!(trainer, Some(config::Trainer::Sft(_))) {
        let functions = [("estimator", advantage.is_some()), ("loss", loss.is_some())];
        for (field, _) in functions.into_iter().filter(|(_, there)| *there) {
            let written = settings.entry("trainer").or_insert_with(|| Json::Object(Map::new()));
            if let Json::Object(fields) = written {
                choose(fields, field, Choice::OF_RECIPE, &Map::new());
            }
        }
        if let Some(trainer) = &mut trainer {
            let read = <config::Trainer as schema::Field>::read("trainer", &settings["trainer"], None);
            *trainer = read.map_err(|error| fail_with(lua, NAME, config::refused(error)))?;
        }
    }
    let Eval { functions: eval, settings: of_eval } = arguments.eval;
    settings.extend(of_eval.map(|section| ("eval".to_owned(), section)));
    let Data { rows, settings: of_data } = arguments.data;
    settings.extend(of_data.map(|section| ("data".to_owned(), Json::Object(section))));
    let cold_start =
        arguments.cold_start.map(|ColdStart(section)| cold_start(lua, section, trainer.as_ref())).transpose()?;
    if let Some(section) = &cold_start {
        settings.insert("cold_start".to_owned(), section.settings.clone());
    }
    let settings = Json::Object(settings);
    let learner = trainer.as_ref().and_then(config::Trainer::learner).cloned();
    let typed = settings::read_with(&settings, trainer).map_err(|error| fail_with(lua, NAME, error))?;
    let rewards = |env: &Env| env.step.is_some() || env.flow.is_some() || env.reward.is_some();
    let unrewarded = envs.iter().find(|(_, env)| !rewards(env)).map(|(name, _)| name.as_str());
    if learner.is_some()
        && reward.is_none()
        && let Some(name) = unrewarded.or(envs.is_empty().then_some(""))
    {
        let which = if name.is_empty() { String::new() } else { format!("; `{name}` has none") };
        let message =
            "reinforcement learning needs a `reward` function, or an env whose `step` or `flow` returns rewards";
        return Err(fail(lua, NAME, format!("{message}{which}")));
    }
    let chosen = |choice: fn(Learner) -> Choice| learner.clone().is_some_and(|learner| choice(learner).is_of_recipe());
    let estimator = ("estimator", chosen(|learner| learner.estimator));
    own_function(lua, estimator, "advantage", "advantage = function(group) … end", advantage.is_some())?;
    own_function(lua, ("loss", chosen(|learner| learner.loss)), "loss", "loss = function(b) … end", loss.is_some())?;
    Ok(Recipe {
        settings,
        typed: Box::new(typed),
        envs,
        context,
        reward,
        privileged,
        row_order,
        row_weight,
        advantage,
        loss,
        algorithm,
        cold_start,
        eval,
        rows,
    })
}

/// `cold_start = r1.recipe { trainer = r1.sft { … }, … }`, or only the table.
pub(super) struct ColdStart(Recipe);

impl FromField for ColdStart {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        const WANTED: &str = "a recipe with r1.sft";
        match value {
            Value::Table(_) => recipe(fields.lua(), value).map(Self),
            Value::UserData(data) if data.is::<TrainerArgument>() => {
                let why = format!("`{name}` must be {WANTED}, got the trainer alone");
                let hint = "it has data of its own: cold_start = { trainer = r1.sft { … }, data = { train = … } }";
                Err(fields.refused(name, Error::new(Kind::Script, why).hint(hint)))
            }
            other => Recipe::read(other).map(Self).ok_or_else(|| fields.refuse(name, WANTED, other)),
        }
    }
}

/// Refuses a cold start that does not fit the recipe with `trainer`.
fn cold_start(lua: &Lua, recipe: Recipe, trainer: Option<&config::Trainer>) -> mlua::Result<Box<Recipe>> {
    let refuse = |message: &str, hint: &str| {
        let error = Error::new(Kind::Script, format!("`cold_start` {message}"));
        Err(fail_with(lua, NAME, error.hint(hint)))
    };
    if matches!(trainer, Some(config::Trainer::Sft(_))) {
        return refuse("comes before reinforcement learning, and this trainer is r1.sft", "leave it out");
    }
    if !matches!(recipe.typed.trainer, config::Trainer::Sft(_)) {
        return refuse("is supervised training, and its trainer is not r1.sft", "give it trainer = r1.sft { … }");
    }
    if recipe.typed.data.train.is_none() {
        let hint = "give it data = { train = … }: rows with conversations (docs/guide/sft.md)";
        return refuse("has no training data", hint);
    }
    Ok(Box::new(recipe))
}

/// Refuses the selection of a function that the recipe does not have.
fn own_function(
    lua: &Lua,
    (choice, selected): (&str, bool),
    field: &str,
    example: &str,
    there: bool,
) -> mlua::Result<()> {
    if !selected || there {
        return Ok(());
    }
    let message = format!("`trainer.{choice}` is {}, and the recipe has no `{field}`", Choice::OF_RECIPE);
    let error = Error::new(Kind::Script, message).about_setting(format!("trainer.{choice}"));
    Err(fail_with(lua, NAME, error.hint(format!("give it one: {example} (docs/guide/your-own-algorithm.md)"))))
}

/// `eval = { env =, context =, reward =, … }`: what is kept in the VM, and the settings.
#[derive(Default)]
pub(super) struct Eval {
    functions: EvalEnv,
    settings: Option<Json>,
}

impl FromField for Eval {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let Value::Table(table) = value else { return Err(fields.refuse(name, "a table", value)) };
        let (mut functions, plain) = (EvalEnv::default(), fields.lua().create_table()?);
        table.for_each(|name: Value, value: Value| {
            let of = |functions: &str| matches!(&name, Value::String(name) if *name == *functions);
            match &value {
                Value::String(_) if of("env") => plain.raw_set(name, value)?,
                other if of("env") => {
                    let wanted = "an environment, or the name of one";
                    functions.env = Some(Env::read(other).ok_or_else(|| fields.refuse("eval.env", wanted, other))?);
                }
                other if of("context") => {
                    functions.context = Some(Function::from_field(fields, "eval.context", other)?);
                }
                other if of("reward") => functions.reward = Some(Function::from_field(fields, "eval.reward", other)?),
                _ => plain.raw_set(name, value)?,
            }
            Ok(())
        })?;
        Ok(Self { functions, settings: Some(fields.plain(name, &Value::Table(plain))?) })
    }
}

/// `data = { train =, eval =, … }`: the settings, and the row functions of both.
#[derive(Default)]
pub(super) struct Data {
    settings: Option<Map<String, Json>>,
    rows: [BTreeMap<String, Function>; 2],
}

impl FromField for Data {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let Value::Table(_) = value else { return Err(fields.refuse(name, "{ train =, eval = }", value)) };
        let DataArguments { train, eval, mut settings } = DataArguments::read(fields.lua(), "r1.recipe: data", value)?;
        let mut rows = [BTreeMap::new(), BTreeMap::new()];
        for ((name, source), rows) in [("train", train), ("eval", eval)].into_iter().zip(&mut rows) {
            if let Some(DataSource { settings: source_settings, rows: made }) = source {
                settings.insert(name.to_owned(), source_settings);
                *rows = made;
            }
        }
        Ok(Self { settings: Some(settings), rows })
    }
}

argument!(Env, "a result of r1.env { … }", |value| host_object(value));

/// `envs = { search = r1.env { … }, … }`
pub(super) struct EnvsArgument(BTreeMap<String, Env>);

impl FromField for EnvsArgument {
    fn from_field(fields: &TableFields<'_>, field: &str, value: &Value) -> mlua::Result<Self> {
        let Value::Table(named) = value else {
            return Err(fields.refuse(field, "a table of environments by name", value));
        };
        let mut all = BTreeMap::new();
        named.for_each(|name: Value, env: Value| {
            let Some(name) = String::read(&name).filter(|name| !name.is_empty()) else {
                let why = format!("environments of `{field}` have names, got {}", kind(&name));
                return Err(fields.refused(field, Error::new(Kind::Script, why)));
            };
            let env = Env::from_field(fields, &format!("{field}.{name}"), &env)?;
            all.insert(name, env);
            Ok(())
        })?;
        if all.is_empty() {
            return Err(fields.refused(field, Error::new(Kind::Script, format!("`{field}` is empty"))));
        }
        Ok(Self(all))
    }
}

/// The environments by name, sorted; a single one has an empty name.
fn envs(lua: &Lua, env: Option<Env>, envs: Option<EnvsArgument>) -> mlua::Result<Vec<(String, Env)>> {
    match (env, envs) {
        (Some(_), Some(_)) => {
            let error = Error::new(Kind::Script, "`env` and `envs` are both set").about_setting("env");
            let hint = "`env` is for a recipe with one environment; move it into `envs`";
            Err(fail_with(lua, NAME, error.hint(hint)))
        }
        (env, None) => Ok(env.into_iter().map(|env| (String::new(), env)).collect()),
        (None, Some(EnvsArgument(all))) => Ok(all.into_iter().collect()),
    }
}
