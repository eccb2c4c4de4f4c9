//! From a recipe's plain data and `key=value` arguments to typed [`Settings`]; every refusal names
//! the field.

pub(crate) mod cold_start;
mod data;
pub(crate) mod reload;

use serde_json::{Map, Value as Json};

pub(crate) use self::data::dataset;
use crate::config::{Settings, Trainer, refused, settings, unknown_hint};
use crate::error::{Error, Kind, Result, suggest};
use crate::schema::{Field, Section, Setting, ValueSyntax, fields_of, join};
use crate::script::runtime::grants::DeclaredNeed;

/// Reads one section; a missing one is all defaults. `at` is its dotted name.
pub(crate) fn section<S: Section>(at: &str, json: &Json) -> Result<S> {
    crate::schema::read(at, json, &S::default()).map_err(refused)
}

/// All settings from a recipe's data.
pub(crate) fn read(json: &Json) -> Result<Settings> {
    read_with(json, None)
}

/// [`read`] with the trainer as its constructor has read it.
pub(crate) fn read_with(json: &Json, trainer: Option<Trainer>) -> Result<Settings> {
    let mut plain = fields_of("", json).map_err(refused)?.clone();
    plain.remove(cold_start::FIELD);
    if trainer.is_some() {
        plain.remove("trainer");
    }
    let mut settings = Settings::read("", &Json::Object(plain), None).map_err(refused)?;
    if let Some(trainer) = trainer {
        settings.trainer = trainer;
    }
    if !settings.eval.env.is_empty() && !settings.envs.contains_key(&settings.eval.env) {
        let env = &settings.eval.env;
        let message = format!("`eval.env` is \"{env}\", and the recipe has no such environment");
        let error = Error::new(Kind::Script, message).about_setting("eval.env");
        return Err(error.hint(suggest(env, settings.envs.keys().map(String::as_str))));
    }
    for need in &settings.needs {
        DeclaredNeed::parse(need)?;
    }
    data::check(&settings)?;
    settings.cold_start = cold_start::read(json)?;
    Ok(settings)
}

/// The setting with the parameters of a script (`r1.params`).
pub(crate) const PARAMS: &str = "params";

/// The parameters among `key=value` arguments, by name. Unknown names are refused with the other
/// settings, after the script has declared them.
pub(crate) fn params(arguments: &[String]) -> Map<String, Json> {
    let param = |argument: &String| {
        let (key, text) = argument.split_once('=')?;
        let name = key.trim().strip_prefix(PARAMS)?.strip_prefix('.')?;
        Some((name.to_owned(), ValueSyntax::Json.value(text)))
    };
    arguments.iter().filter_map(param).collect()
}

/// Whether `key` is a parameter that the script has not declared.
fn is_unknown_param(key: &str, recipe: &Json) -> bool {
    let Some(rest) = key.strip_prefix(PARAMS).filter(|rest| rest.is_empty() || rest.starts_with('.')) else {
        return false;
    };
    let declared = |name: &str| recipe.get(PARAMS).and_then(|params| params.get(name)).is_some();
    !rest.strip_prefix('.').is_some_and(declared)
}

/// A `key=value` argument.
struct Override<'a> {
    argument: &'a str,
    key: &'a str,
    /// The key that it sets in the recipe, or in the cold start as a separate recipe.
    local_key: &'a str,
    value: Json,
}

impl<'a> Override<'a> {
    fn parse(argument: &'a str, recipe: &Json) -> Result<Self> {
        let Some((key, text)) = argument.split_once('=') else {
            let error = Error::new(Kind::Usage, format!("`{argument}` is not a setting")).at(argument);
            return Err(error.hint("write settings as key=value: trainer.lr=2e-6"));
        };
        let key = key.trim();
        let inside = key.strip_prefix(cold_start::PREFIX).filter(|_| recipe.get(cold_start::FIELD).is_some());
        let local_key = inside.unwrap_or(key);
        Ok(Self { argument, key, local_key, value: written(local_key).value(text) })
    }

    /// Refuses a key that is not a setting of the recipe.
    fn check(&self, recipe: &Json) -> Result<()> {
        // A recipe without one is started without one.
        if self.key == cold_start::FIELD && self.value == Json::Bool(false) {
            return Ok(());
        }
        if self.key == cold_start::FIELD && recipe.get(self.key).is_some() {
            let message = format!("`{}` takes false, which leaves it out, or settings of its own", self.key);
            let error = Error::new(Kind::Usage, message).about_setting(self.key).at(self.argument);
            return Err(error.hint(format!("{}trainer.steps=50 changes one", cold_start::PREFIX)));
        }
        let known_keys = keys(recipe);
        let open = settings().any(|table| table.open && self.local_key.starts_with(&format!("{}.", table.path)));
        let is_known = open
            || data::is_column(self.local_key)
            || known_keys.iter().any(|key| key == self.key || is_table_of(self.key, key));
        if is_known && !is_unknown_param(self.local_key, recipe) {
            return Ok(());
        }
        let names: Vec<&str> = known_keys.iter().map(String::as_str).collect();
        let hint = unknown_hint(self.key, self.key, &names);
        let error = Error::new(Kind::Usage, format!("unknown setting `{}`", self.key)).about_setting(self.key);
        Err(error.at(self.argument).hint(hint))
    }

    fn apply(&self, recipe: &mut Json) {
        let target = if self.local_key == self.key { recipe } else { &mut recipe[cold_start::FIELD] };
        data::remove_other_kinds(target, self.local_key);
        put(target, self.local_key, self.value.clone());
    }
}

/// Whether `key` is a table inside of a section, and `setting` is in it: `trainer.kl`.
fn is_table_of(key: &str, setting: &str) -> bool {
    key.contains('.') && setting.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
}

/// The syntax of the value after `key=`.
fn written(key: &str) -> ValueSyntax {
    let of = |path: &str| settings().find(|setting| setting.path == path).map(|setting| setting.written);
    // A setting of one of several environments, or of one of several datasets.
    let env = || key.strip_prefix("envs.").and_then(|rest| of(&join("env", rest.split_once('.')?.1)));
    let dataset = || {
        let (split, rest) = ["data.train", "data.eval"]
            .iter()
            .find_map(|split| Some((split, key.strip_prefix(split)?.strip_prefix('.')?)))?;
        of(&join(split, rest.rsplit('.').next()?))
    };
    match of(key).or_else(env).or_else(dataset) {
        Some(written) => written,
        None if data::is_column(key) => ValueSyntax::Text,
        None => ValueSyntax::Json,
    }
}

/// A recipe's data with `a.b.c=value` arguments on top, and the settings that it makes.
///
/// # Errors
/// `Kind::Usage` with the argument that is wrong.
pub(crate) fn overridden(recipe: &Json, arguments: &[String]) -> Result<(Json, Settings)> {
    let mut overrides = Vec::new();
    for argument in arguments {
        overrides.push(Override::parse(argument, recipe)?);
    }
    // The algorithm decides which other settings there are, and the kind of a dataset its fields.
    overrides.sort_by_key(|it| (it.local_key != "trainer.algorithm", !data::is_kind(it.local_key)));
    let mut all = recipe.clone();
    for it in &overrides {
        it.check(&all)?;
        it.apply(&mut all);
    }
    match read(&all) {
        Ok(settings) => Ok((all, settings)),
        Err(error) => Err(first_invalid_override(recipe, &overrides).unwrap_or(error)),
    }
}

/// The error of the first argument that makes the recipe invalid.
fn first_invalid_override(recipe: &Json, overrides: &[Override<'_>]) -> Option<Error> {
    let mut changed = recipe.clone();
    overrides.iter().find_map(|it| {
        it.apply(&mut changed);
        read(&changed).err().map(|error| Error { kind: Kind::Usage, ..error }.at(it.argument))
    })
}

fn put(recipe: &mut Json, key: &str, value: Json) {
    let mut target = recipe;
    for name in key.split('.') {
        // A dataset given as a path is the object `{ path = … }` in short, a choice given as a name
        // `{ name = … }`.
        if let Json::String(short) = target {
            let long = if key.starts_with("data.") { "path" } else { "name" };
            *target = Json::Object(Map::from_iter([(long.to_owned(), Json::String(short.clone()))]));
        }
        if !target.is_object() {
            *target = Json::Object(Map::new());
        }
        let Json::Object(fields) = target else { return };
        target = fields.entry(name).or_insert(Json::Null);
    }
    *target = value;
}

/// Every dotted key that may be set for this recipe (the trainer decides about its own).
pub(crate) fn keys(recipe: &Json) -> Vec<String> {
    let algorithm = recipe.get("trainer").and_then(|trainer| trainer.get("algorithm")).and_then(Json::as_str);
    let only = if algorithm == Some("sft") { "sft" } else { "" };
    let envs = recipe.get("envs").and_then(Json::as_object);
    // Their names are in the recipe.
    let elsewhere = |setting: &Setting| {
        ["envs", PARAMS, cold_start::FIELD].contains(&setting.path)
            || setting.is_below("data.train")
            || setting.is_below("data.eval")
    };
    let of_trainer = |setting: &Setting| setting.section() != "trainer" || setting.only == only;
    // An open table accepts any name, so its options are not candidates for suggestions.
    let is_option = |setting: &Setting| {
        settings().any(|table| table.open && table.path != setting.path && setting.is_below(table.path))
    };
    let mut keys = Vec::new();
    for setting in settings().filter(|setting| !elsewhere(setting) && !is_option(setting)) {
        match (setting.path.strip_prefix("env."), envs) {
            (Some(name), Some(envs)) => keys.extend(envs.keys().map(|env| format!("envs.{env}.{name}"))),
            _ if of_trainer(setting) || setting.path == "trainer.algorithm" => keys.push(setting.path.to_owned()),
            _ => {}
        }
    }
    let params = recipe.get(PARAMS).and_then(Json::as_object);
    keys.extend(params.into_iter().flat_map(Map::keys).map(|name| format!("{PARAMS}.{name}")));
    keys.extend(data::keys(recipe));
    keys.extend(cold_start::keys(recipe));
    keys
}

/// Every dotted key that may be set for recipes of this algorithm.
pub fn setting_keys(algorithm: &str) -> Vec<String> {
    keys(&serde_json::json!({ "trainer": { "algorithm": algorithm } }))
}
