//! From a recipe's plain data and `key=value` arguments to typed [`Settings`]; every refusal names the field.

pub(crate) mod cold_start;
mod data;
pub(crate) mod reload;

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

pub(crate) use self::data::{dataset, stem};
use crate::config::{
    ALGORITHMS, Algorithm, CheckpointSettings, EnvSettings, EvalSettings, InitModel, Learner, Limits, LoraSettings,
    PolicySettings, RolloutSettings, Settings, Sft, Trainer, WeightGroup, counterparts,
};
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Sampling;
use crate::script::runtime::grants::Need;

/// Reads one section; a missing one is all defaults. `at` is its dotted name.
pub(crate) fn section<T>(at: &str, json: &Json) -> Result<T>
where
    T: Serialize + DeserializeOwned + Default,
{
    section_over(at, json, &T::default())
}

/// [`section`] with defaults of its own.
pub(crate) fn section_over<T>(at: &str, json: &Json, defaults: &T) -> Result<T>
where
    T: Serialize + DeserializeOwned,
{
    let defaults = to_json(defaults);
    let mut given = Vec::new();
    collect(at, "", json, &defaults, &mut given)?;
    // One field at a time, so that the message can name the one that does not fit.
    for (path, value) in &given {
        let mut alone = defaults.clone();
        put(&mut alone, path, value.clone());
        if let Err(error) = serde_json::from_value::<T>(alone) {
            return Err(misfit(&join(at, path), value, &error.to_string()));
        }
    }
    let mut all = defaults;
    for (path, value) in given {
        put(&mut all, &path, value);
    }
    serde_json::from_value(all).map_err(|error| misfit(at, json, &error.to_string()))
}

/// The fields of a table with their dotted paths; those of tables that `defaults` has as tables, one by one.
fn collect(at: &str, path: &str, json: &Json, defaults: &Json, given: &mut Vec<(String, Json)>) -> Result<()> {
    let place = join(at, path);
    let known: Vec<&str> = defaults.as_object().map(|all| all.keys().map(String::as_str).collect()).unwrap_or_default();
    for (name, value) in fields_of(place.trim_end_matches('.'), json)? {
        let Some(default) = defaults.get(name) else {
            return Err(unknown(place.trim_end_matches('.'), name, known.iter().copied()));
        };
        let path = join(path, name);
        // An empty Lua table says neither list nor object; the default knows.
        let empty = value.as_object().is_some_and(Map::is_empty);
        // What is chosen by name is one value, with options that depend on the name.
        if default.as_object().is_some_and(|fields| !fields.is_empty() && !fields.contains_key("name")) {
            collect(at, &path, value, default, given)?;
        } else if empty && default.is_array() {
            given.push((path, Json::Array(Vec::new())));
        } else {
            let mut value = value.clone();
            if let (Json::Object(options), Some(name)) = (&mut value, default.get("name")) {
                options.entry("name").or_insert_with(|| name.clone());
            }
            given.push((path, value));
        }
    }
    Ok(())
}

/// All settings from a recipe's data.
pub(crate) fn read(json: &Json) -> Result<Settings> {
    let recipe = fields_of("", json)?;
    let null = Json::Null;
    let get = |name: &str| recipe.get(name).unwrap_or(&null);
    let envs = envs(get("envs"))?;
    let eval = section::<EvalSettings>("eval", get("eval"))?;
    if !eval.env.is_empty() && !envs.contains_key(&eval.env) {
        let message = format!("`eval.env` is \"{}\", and the recipe has no such environment", eval.env);
        let error = Error::new(Kind::Script, message).about_setting("eval.env");
        return Err(error.hint(suggest(&eval.env, envs.keys().map(String::as_str))));
    }
    Ok(Settings {
        name: match get("name") {
            Json::Null => String::new(),
            Json::String(name) => name.clone(),
            other => return Err(misfit("name", other, "expected a string")),
        },
        seed: match get("seed") {
            Json::Null => 0,
            other => other.as_u64().ok_or_else(|| misfit("seed", other, "expected u64"))?,
        },
        policy: policy(get("policy"))?,
        data: data::read(get("data"), &envs)?,
        sampling: section::<Sampling>("sampling", get("sampling"))?,
        env: section::<EnvSettings>("env", get("env"))?,
        envs,
        rollout: section::<RolloutSettings>("rollout", get("rollout"))?,
        trainer: trainer(get("trainer"))?,
        eval,
        checkpoint: section::<CheckpointSettings>("checkpoint", get("checkpoint"))?,
        limits: section::<Limits>("limits", get("limits"))?,
        cold_start: cold_start::read(json)?,
        needs: needs(get("needs"))?,
    })
}

/// `envs`: a section for each environment.
fn envs(json: &Json) -> Result<BTreeMap<String, EnvSettings>> {
    let named = fields_of("envs", json)?.iter();
    named.map(|(name, env)| Ok((name.clone(), section::<EnvSettings>(&format!("envs.{name}"), env)?))).collect()
}

/// What a recipe declares; one that can't be meant is refused.
fn needs(json: &Json) -> Result<Vec<String>> {
    let items = match json {
        Json::Null => return Ok(Vec::new()),
        Json::Object(fields) if fields.is_empty() => return Ok(Vec::new()),
        Json::Array(items) => items,
        other => return Err(misfit("needs", other, "expected a sequence")),
    };
    items
        .iter()
        .map(|item| {
            let text = item.as_str().ok_or_else(|| misfit("needs", item, "expected a string"))?;
            Need::parse(text).map(|_| text.to_owned())
        })
        .collect()
}

/// `policy`, with `policy.init` and `policy.lora` checked as sections of their own.
pub(crate) fn policy(json: &Json) -> Result<PolicySettings> {
    let mut fields = fields_of("policy", json)?.clone();
    let mut given = |name: &str| fields.remove(name).filter(|value| !value.is_null());
    let init = given("init").map(|init| section::<InitModel>("policy.init", &init)).transpose()?;
    let lora = given("lora").map(|lora| section::<LoraSettings>("policy.lora", &lora)).transpose()?;
    Ok(PolicySettings { init, lora, ..section("policy", &Json::Object(fields))? })
}

/// `trainer`: an object with `algorithm`, as `r1.grpo` and its like make it.
pub(crate) fn trainer(json: &Json) -> Result<Trainer> {
    let mut fields = fields_of("trainer", json)?.clone();
    let algorithm = fields.remove("algorithm").unwrap_or_else(|| Json::from("grpo"));
    let fields = Json::Object(fields);
    match algorithm.as_str() {
        Some("sft") => return Ok(Trainer::Sft(section::<Sft>("trainer", &fields)?)),
        Some(name) => {
            if let Some(Algorithm { critic, settings }) = Algorithm::named(name) {
                for (place, group) in (1..).zip(fields["groups"].as_array().into_iter().flatten()) {
                    section::<WeightGroup>(&format!("trainer.groups[{place}]"), group)?;
                }
                let learner = section_over::<Learner>("trainer", &fields, &settings)?;
                return Ok(if critic { Trainer::Ppo(learner) } else { Trainer::Grpo(learner) });
            }
        }
        None => {}
    }
    let known: Vec<&str> = ALGORITHMS.into_iter().chain(["sft"]).collect();
    let text = algorithm.as_str().map_or_else(|| algorithm.to_string(), |text| format!("\"{text}\""));
    let name = algorithm.as_str().unwrap_or_default();
    let hint = counterparts::value_hint("trainer.algorithm", name).unwrap_or_else(|| suggest(name, known.clone()));
    Err(Error::new(Kind::Script, format!("`trainer.algorithm` is {text}; it is one of {}", quoted(&known)))
        .about_setting("trainer.algorithm")
        .hint(hint))
}

/// Tables whose fields depend on the script's data or on what was chosen by name.
const OPEN: [&str; 6] = [
    "policy.template_kwargs.",
    "trainer.estimator.",
    "trainer.loss.",
    "trainer.importance.",
    "trainer.rejection.",
    "trainer.shaping.",
];

/// Applies `a.b.c=value` arguments to a recipe's data, in order. The value is JSON if it parses, else text.
pub(crate) fn override_with(recipe: &mut Json, arguments: &[String]) -> Result<()> {
    for argument in arguments {
        let usage = |message: String| Error::new(Kind::Usage, message).at(argument);
        let Some((key, text)) = argument.split_once('=') else {
            return Err(
                usage(format!("`{argument}` is not a setting")).hint("write settings as key=value: trainer.lr=2e-6")
            );
        };
        let key = key.trim();
        let known = keys(recipe);
        // Those of a cold start are set as those of the recipe that it is.
        let (of_cold_start, own) = match key.strip_prefix(cold_start::PREFIX) {
            Some(own) if recipe.get(cold_start::FIELD).is_some() => (true, own),
            _ => (false, key),
        };
        let open = OPEN.iter().any(|table| own.starts_with(table)) || data::is_column(own);
        if !known.iter().any(|known| known == key) && !open {
            let hint = counterparts::hint(key).unwrap_or_else(|| suggest(key, known.iter().map(String::as_str)));
            return Err(usage(format!("unknown setting `{key}`")).about_setting(key).hint(hint));
        }
        // `name=7` is the text "7" where the number 7 does not fit.
        let parsed = serde_json::from_str::<Json>(text).ok();
        let candidates = parsed.into_iter().chain([Json::String(text.to_owned())]);
        let mut refused = None;
        let mut fitting = None;
        for candidate in candidates {
            let mut changed = recipe.clone();
            let place = if of_cold_start { &mut changed[cold_start::FIELD] } else { &mut changed };
            data::make_way(place, own);
            put(place, own, candidate);
            match read(&changed) {
                Ok(_) => {
                    fitting = Some(changed);
                    break;
                }
                Err(error) => _ = refused.get_or_insert(error),
            }
        }
        match (fitting, refused) {
            (Some(changed), _) => *recipe = changed,
            (None, Some(error)) => return Err(Error { kind: Kind::Usage, ..error }.at(argument)),
            (None, None) => {}
        }
    }
    Ok(())
}

pub(crate) fn put(recipe: &mut Json, key: &str, value: Json) {
    let mut place = recipe;
    for name in key.split('.') {
        // A dataset given as a path is the object `{ path = … }` in short, a choice given as a name `{ name = … }`.
        if let Json::String(short) = place {
            let long = if key.starts_with("data.") { "path" } else { "name" };
            *place = Json::Object(Map::from_iter([(long.to_owned(), Json::String(short.clone()))]));
        }
        if !place.is_object() {
            *place = Json::Object(Map::new());
        }
        let Json::Object(fields) = place else { return };
        place = fields.entry(name).or_insert(Json::Null);
    }
    *place = value;
}

/// Every dotted key that may be set for this recipe (the trainer decides about its own).
pub(crate) fn keys(recipe: &Json) -> Vec<String> {
    let defaults = Settings {
        trainer: trainer(recipe.get("trainer").unwrap_or(&Json::Null)).unwrap_or(Trainer::Grpo(Learner::default())),
        ..Settings::default()
    };
    let mut keys = Vec::new();
    flatten("", &to_json(&defaults), &mut keys);
    if let Some(envs) = recipe.get("envs").and_then(Json::as_object) {
        keys.retain(|key| !key.starts_with("env."));
        for name in envs.keys() {
            flatten(&join("envs", name), &to_json(&EnvSettings::default()), &mut keys);
        }
    }
    keys.extend(["trainer.estimator", "trainer.loss"].map(str::to_owned));
    keys.extend(["needs", "policy.template_kwargs"].map(str::to_owned));
    flatten("policy.init", &to_json(&InitModel::default()), &mut keys);
    flatten("policy.lora", &to_json(&LoraSettings::default()), &mut keys);
    keys.retain(|key| !["data.train", "data.eval"].contains(&key.as_str()));
    keys.extend(data::keys(recipe));
    keys.extend(cold_start::keys(recipe));
    keys
}

/// Every dotted key that may be set for recipes of this algorithm.
pub fn setting_keys(algorithm: &str) -> Vec<String> {
    keys(&serde_json::json!({ "trainer": { "algorithm": algorithm } }))
}

fn flatten(at: &str, json: &Json, keys: &mut Vec<String>) {
    match json {
        Json::Object(fields) => fields.iter().for_each(|(name, value)| flatten(&join(at, name), value, keys)),
        _ => keys.push(at.to_owned()),
    }
}

pub(crate) fn fields_of<'a>(at: &str, json: &'a Json) -> Result<&'a Map<String, Json>> {
    static NONE: std::sync::LazyLock<Map<String, Json>> = std::sync::LazyLock::new(Map::new);
    match json {
        Json::Object(fields) => Ok(fields),
        Json::Null => Ok(&NONE),
        Json::Array(items) if items.is_empty() => Ok(&NONE),
        other => Err(misfit(at, other, "expected a map")),
    }
}

/// The names of a section's fields.
pub(crate) fn names_of<T: Serialize + Default>() -> Vec<String> {
    let mut names: Vec<String> =
        to_json(&T::default()).as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default();
    // Left out of its JSON while it is None.
    if names.iter().any(|name| name == "max_context") {
        names.extend(["init", "lora"].map(str::to_owned));
    }
    names
}

fn to_json<T: Serialize>(value: &T) -> Json {
    serde_json::to_value(value).unwrap_or(Json::Null)
}

pub(crate) fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// The error for a field that does not exist.
pub(crate) fn unknown<'a>(at: &str, name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Error {
    let key = join(at, name);
    // A name of verl or TRL is refused with its name in r1.
    let hint = counterparts::hint(&key).unwrap_or_else(|| suggest(name, known));
    Error::new(Kind::Script, format!("unknown field `{key}`")).about_setting(key).hint(hint)
}

/// The error for a value of the wrong type: serde's words made readable.
pub(crate) fn misfit(at: &str, value: &Json, serde: &str) -> Error {
    let wanted = serde.rsplit("expected ").next().unwrap_or(serde).trim_end_matches('`');
    if let Some(variants) = serde.strip_prefix("unknown variant ") {
        let names: Vec<&str> = variants.split('`').skip(3).step_by(2).collect();
        let got = value.as_str().unwrap_or_default();
        let message = format!("`{at}` is \"{got}\"; it is one of {}", quoted(&names));
        let near = crate::error::nearest(got, names.iter().copied());
        let error = Error::new(Kind::Script, message).about_setting(at);
        return if near.is_empty() { error } else { error.hint(suggest(got, names)) };
    }
    let wanted = match wanted {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i32" | "i64" | "isize" => "a whole number",
        "a string" | "path string" | "string or map" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "key to be a number in quotes" => "a table by token id",
        _ if serde.contains("ChoiceForm") => "a name, or a table with `name`",
        "a tuple of size 2" | "a tuple of 2 elements" => "a list of two numbers",
        _ if wanted == "a map" || wanted.starts_with("struct ") => "a table",
        other => other,
    };
    let got = match value {
        Json::Null => "nothing".to_owned(),
        Json::String(text) => format!("the text \"{}\"", crate::script::runtime::convert::clip(text, 60)),
        Json::Number(number) => format!("the number {number}"),
        Json::Bool(truth) => truth.to_string(),
        Json::Array(items) => format!("a list of {}", items.len()),
        Json::Object(_) => "a table".to_owned(),
    };
    let shown = if at.is_empty() { "the recipe" } else { at };
    Error::new(Kind::Script, format!("`{shown}` must be {wanted}, got {got}")).about_setting(at)
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
