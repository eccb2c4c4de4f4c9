//! `r1.recipe { … }`: the value that a recipe script returns.

use std::collections::BTreeMap;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Value as Json};

use super::args::{Fields, fail, fail_with};
use super::data::Dataset;
use super::fields;
use super::trainer::Trainer;
use crate::config::{self, CUSTOM, Choice, DataSettings, Learner, Settings};
use crate::error::{Error, Kind};
use crate::schema::Section;
use crate::script::runtime::convert::kind;
use crate::script::runtime::definitions::{Env, EvalEnv, Recipe};
use crate::script::settings;

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    r1.raw_set("recipe", lua.create_function(|lua, value: Value| recipe(lua, &value))?)
}

/// A recipe, or the table that `r1.recipe` takes.
pub(super) fn of(lua: &Lua, value: &Value) -> mlua::Result<Recipe> {
    match value {
        Value::UserData(data) if data.is::<Recipe>() => Ok(data.borrow::<Recipe>()?.clone()),
        table => recipe(lua, table),
    }
}

/// Settings that constructors such as `r1.env` give, or that have functions inside.
const BUILT: [&str; 6] = ["env", "envs", "trainer", "eval", "data", "cold_start"];

fn recipe(lua: &Lua, value: &Value) -> mlua::Result<Recipe> {
    const NAME: &str = "r1.recipe";
    let fields = Fields::new(lua, NAME, value, &fields::of_recipe())?;
    let (context, reward) = (fields.function("context")?, fields.function("reward")?);
    let privileged = fields.function("privileged")?;
    let (advantage, loss) = (fields.function("advantage")?, fields.function("loss")?);
    let mut settings = Map::new();
    for name in Settings::FIELDS.iter().filter(|name| !BUILT.contains(name)) {
        if !fields.get(name)?.is_nil() {
            settings.insert((*name).to_owned(), fields.json(name)?);
        }
    }
    let mut envs = envs(lua, &fields)?;
    if let Some(flow) = fields.function("flow")? {
        if !envs.is_empty() {
            let error = Error::new(Kind::Script, "`flow` and `env` or `envs` are both set");
            let hint = "put it into the env: r1.env { flow = function(task, policy) … end, … }";
            return Err(fail_with(lua, NAME, error.hint(hint)));
        }
        let env = Env { settings: Json::Object(Map::new()), flow: Some(flow), ..Env::default() };
        envs.push((String::new(), env));
    }
    if context.is_some() && !envs.is_empty() && envs.iter().all(|(_, env)| env.flow.is_some()) {
        return Err(fail_with(lua, NAME, super::env::beside_flow("context")));
    }
    for (name, env) in &envs {
        if name.is_empty() {
            settings.insert("env".to_owned(), env.settings.clone());
        } else {
            let named = settings.entry("envs").or_insert_with(|| Json::Object(Map::new()));
            named[name] = env.settings.clone();
        }
    }
    let trainer = match fields.get("trainer")? {
        Value::Nil => None,
        Value::UserData(data) if data.is::<Trainer>() => {
            let Trainer { written, settings: trainer } = data.borrow::<Trainer>()?.clone();
            settings.insert("trainer".to_owned(), written);
            Some(trainer)
        }
        other => {
            return Err(fields.refuse("trainer", "what r1.grpo { … }, r1.ppo { … } or r1.sft { … } gives", &other));
        }
    };
    let eval = match fields.get("eval")? {
        Value::Nil => EvalEnv::default(),
        Value::Table(given) => {
            let (eval, plain) = eval(lua, &fields, &given)?;
            settings.insert("eval".to_owned(), fields.plain("eval", &Value::Table(plain))?);
            eval
        }
        other => return Err(fields.refuse("eval", "a table", &other)),
    };
    let mut rows = [BTreeMap::new(), BTreeMap::new()];
    match fields.get("data")? {
        Value::Nil => {}
        Value::Table(data) => {
            let data = Fields::new(lua, "r1.recipe: data", &Value::Table(data), DataSettings::FIELDS)?;
            let mut own = data.rest(&["train", "eval"])?;
            for (name, rows) in ["train", "eval"].into_iter().zip(&mut rows) {
                let value = data.get(name)?;
                match &value {
                    Value::Nil => continue,
                    Value::Function(_) => return Err(data.misplaced_function(name)),
                    Value::UserData(own) if own.is::<Dataset>() => {}
                    Value::String(_) | Value::Table(_) => {}
                    other => return Err(data.refuse(name, "a path or a dataset of r1.data", other)),
                }
                let (source, made) = super::data::source(lua, name, &value)?;
                own.insert(name.to_owned(), source);
                *rows = made;
            }
            settings.insert("data".to_owned(), Json::Object(own));
        }
        other => {
            return Err(fail(lua, NAME, format!("`data` must be {{ train =, eval = }}, got {}", kind(&other))));
        }
    }
    let cold_start = cold_start(lua, &fields, trainer.as_ref())?;
    if let Some(own) = &cold_start {
        settings.insert("cold_start".to_owned(), own.settings.clone());
    }
    let settings = Json::Object(settings);
    let learner = match &trainer {
        Some(config::Trainer::Grpo(learner) | config::Trainer::Ppo(learner)) => Some(learner.clone()),
        Some(config::Trainer::Sft(_)) | None => None,
    };
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
    let chosen = |choice: fn(Learner) -> Choice| learner.clone().is_some_and(|learner| choice(learner).is_custom());
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
        advantage,
        loss,
        cold_start,
        eval,
        rows,
    })
}

/// `cold_start = r1.recipe { trainer = r1.sft { … }, … }`, or only the table.
fn cold_start(lua: &Lua, fields: &Fields<'_>, trainer: Option<&config::Trainer>) -> mlua::Result<Option<Box<Recipe>>> {
    const WANTED: &str = "a recipe with r1.sft";
    let own = match fields.get("cold_start")? {
        Value::Nil => return Ok(None),
        Value::UserData(data) if data.is::<Recipe>() => data.borrow::<Recipe>()?.clone(),
        Value::UserData(data) if data.is::<Trainer>() => {
            let error = Error::new(Kind::Script, format!("`cold_start` must be {WANTED}, got the trainer alone"));
            let hint = "it has data of its own: cold_start = { trainer = r1.sft { … }, data = { train = … } }";
            return Err(fail_with(lua, "r1.recipe", error.hint(hint)));
        }
        table @ Value::Table(_) => recipe(lua, &table)?,
        other => return Err(fields.refuse("cold_start", WANTED, &other)),
    };
    let refuse = |message: &str, hint: &str| {
        let error = Error::new(Kind::Script, format!("`cold_start` {message}"));
        Err(fail_with(lua, "r1.recipe", error.hint(hint)))
    };
    if matches!(trainer, Some(config::Trainer::Sft(_))) {
        return refuse("comes before reinforcement learning, and this trainer is r1.sft", "leave it out");
    }
    if !matches!(own.typed.trainer, config::Trainer::Sft(_)) {
        return refuse("is supervised training, and its trainer is not r1.sft", "give it trainer = r1.sft { … }");
    }
    if own.typed.data.train.is_none() {
        return refuse("has no training data", "give it data = { train = … }: rows with conversations (docs/sft.md)");
    }
    Ok(Some(Box::new(own)))
}

/// Refuses a custom function that `trainer` does not select, and the selection without a function.
fn own_function(
    lua: &Lua,
    (choice, custom): (&str, bool),
    field: &str,
    example: &str,
    there: bool,
) -> mlua::Result<()> {
    let key = format!("trainer.{choice}");
    let error = |message: String, hint: String| {
        let error = Error::new(Kind::Script, message).about_setting(key.as_str());
        Err(fail_with(lua, "r1.recipe", error.hint(hint)))
    };
    match (custom, there) {
        (true, false) => error(
            format!("`trainer.{choice}` is \"{CUSTOM}\", and the recipe has no `{field}`"),
            format!("give it one: {example} (docs/your-own-algorithm.md)"),
        ),
        (false, true) => error(
            format!("`{field}` is used with trainer.{choice} = \"{CUSTOM}\" only"),
            format!("set {choice} = \"{CUSTOM}\" in the trainer, or leave `{field}` out"),
        ),
        _ => Ok(()),
    }
}

/// `eval = { env =, context =, … }`: the functions kept in the VM, and the rest.
fn eval(lua: &Lua, fields: &Fields<'_>, given: &Table) -> mlua::Result<(EvalEnv, Table)> {
    let (mut eval, plain) = (EvalEnv::default(), lua.create_table()?);
    given.for_each(|name: Value, value: Value| {
        let of = |own: &str| matches!(&name, Value::String(name) if *name == *own);
        match &value {
            Value::UserData(data) if of("env") && data.is::<Env>() => eval.env = Some(data.borrow::<Env>()?.clone()),
            Value::String(_) if of("env") => plain.raw_set(name, value)?,
            other if of("env") => return Err(fields.refuse("eval.env", "an environment, or the name of one", other)),
            Value::Function(function) if of("context") => eval.context = Some(function.clone()),
            other if of("context") => return Err(fields.refuse("eval.context", "a function", other)),
            _ => plain.raw_set(name, value)?,
        }
        Ok(())
    })?;
    Ok((eval, plain))
}

/// `env = r1.env { … }`, or `envs = { search = r1.env { … }, … }`, sorted by name.
fn envs(lua: &Lua, fields: &Fields<'_>) -> mlua::Result<Vec<(String, Env)>> {
    const NAME: &str = "r1.recipe";
    const GIVES: &str = "a result of r1.env { … }";
    let one = match fields.get("env")? {
        Value::Nil => None,
        Value::UserData(data) if data.is::<Env>() => Some(data.borrow::<Env>()?.clone()),
        other => return Err(fields.refuse("env", GIVES, &other)),
    };
    let named = match fields.get("envs")? {
        Value::Nil => return Ok(one.into_iter().map(|env| (String::new(), env)).collect()),
        Value::Table(named) => named,
        other => return Err(fields.refuse("envs", "a table of environments by name", &other)),
    };
    if one.is_some() {
        let error = Error::new(Kind::Script, "`env` and `envs` are both set").about_setting("env");
        return Err(fail_with(
            lua,
            NAME,
            error.hint("`env` is for a recipe with one environment; move it into `envs`"),
        ));
    }
    let mut all = BTreeMap::new();
    named.for_each(|name: Value, env: Value| {
        let name = match &name {
            Value::String(name) if !name.as_bytes().is_empty() => name.to_string_lossy(),
            other => return Err(fail(lua, NAME, format!("environments of `envs` have names, got {}", kind(other)))),
        };
        match env {
            Value::UserData(data) if data.is::<Env>() => all.insert(name, data.borrow::<Env>()?.clone()),
            other => return Err(fields.refuse(&format!("envs.{name}"), GIVES, &other)),
        };
        Ok(())
    })?;
    if all.is_empty() {
        return Err(fail(lua, NAME, "`envs` is empty"));
    }
    Ok(all.into_iter().collect())
}
