//! `data`: datasets of a recipe, alone or several by name, and their settings on the command line.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::section;
use crate::config::{Columns, DataFile, DataFormat, DataSettings, EnvSettings, HubData, Part, Paths, Source};
use crate::error::{Error, Kind, Result, nearest, suggest};
use crate::schema::{Field, Misfit, Section, fields_of, join};

/// What makes a table a dataset of a kind.
const KINDS: [&str; 4] = ["path", "hf", "count", "rows"];

/// Fields that datasets of a kind have.
const FILE: [&str; 3] = ["path", "format", "columns"];
const HUB: [&str; 5] = ["hf", "split", "subset", "file", "columns"];
const GENERATED: [&str; 2] = ["count", "seed"];

/// Fields of a dataset among others.
const OF_PART: [&str; 3] = ["name", "weight", "env"];

/// `data`.
pub(crate) fn read(data: &Json, envs: &BTreeMap<String, EnvSettings>) -> Result<DataSettings> {
    let mut fields = fields_of("data", data)?.clone();
    let mut source = |name: &str| match fields.remove(name) {
        None | Some(Json::Null) => Ok(None),
        Some(json) => dataset(&format!("data.{name}"), &json).map(Some),
    };
    let (train, eval) = (source("train")?, source("eval")?);
    if let Some(name) = fields.keys().find(|name| !DataSettings::FIELDS.contains(&name.as_str())) {
        return Err(Misfit::unknown("data", name, DataSettings::FIELDS).into());
    }
    for (split, source) in [("train", &train), ("eval", &eval)] {
        let Some(Source::Mixed(parts)) = source else { continue };
        for (name, part) in parts {
            let Some(env) = part.env.as_ref().filter(|env| !envs.contains_key(*env)) else { continue };
            let message = format!("`data.{split}.{name}.env` is \"{env}\", and the recipe has no such environment");
            let hint = if envs.is_empty() {
                "name its environments: envs = { search = r1.env { … }, … }".to_owned()
            } else {
                suggest(env, envs.keys().map(String::as_str))
            };
            let key = format!("data.{split}.{name}.env");
            return Err(Error::new(Kind::Script, message).about_setting(key).hint(hint));
        }
    }
    Ok(DataSettings { train, eval, ..section::<DataSettings>("data", &Json::Object(fields))? })
}

/// A dataset: a path, `{ path =, format =, columns = }`, `{ hf =, split =, … }` for one on the Hub,
/// `{ count =, seed = }` for rows that the script makes, the rows themselves, or several of them by
/// name.
pub(crate) fn dataset(at: &str, json: &Json) -> Result<Source> {
    if let Json::String(path) = json {
        return Ok(Source::File(DataFile { path: path.into(), ..DataFile::default() }));
    }
    if let Some(several) = paths(json) {
        return Ok(Source::File(DataFile { path: several, ..DataFile::default() }));
    }
    if let Json::Array(items) = json {
        return Ok(Source::Rows(rows(at, items)?));
    }
    let fields = fields_of(at, json)?;
    if let Some(parts) = parts(at, fields)? {
        return Ok(Source::Mixed(parts));
    }
    if OF_PART.iter().any(|name| fields.contains_key(*name)) {
        let name = match fields.get("name") {
            None | Some(Json::Null) => stem(fields),
            Some(Json::String(name)) if !name.is_empty() => name.clone(),
            Some(other) => return Err(Misfit::wanted(&join(at, "name"), "text", other).into()),
        };
        return Ok(Source::Mixed(BTreeMap::from([(name, part(at, json)?)])));
    }
    let known: &[&'static str] = if fields.contains_key("count") {
        &GENERATED
    } else if fields.contains_key("hf") {
        &HUB
    } else if let (Some(rows), 1) = (fields.get("rows"), fields.len()) {
        return dataset(at, rows);
    } else {
        &FILE
    };
    if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(Misfit::unknown(at, name, known).into());
    }
    if let Some(count) = fields.get("count") {
        let seed = fields.get("seed").map_or(Ok(0), |seed| u64::read(&join(at, "seed"), seed, None))?;
        return Ok(Source::Generated { count: u64::read(&join(at, "count"), count, None)?, seed });
    }
    let text = |name: &str| match fields.get(name) {
        None | Some(Json::Null) => Ok(String::new()),
        Some(text) => String::read(&join(at, name), text, None),
    };
    let mut columns = Columns::new();
    if let Some(renames) = fields.get("columns") {
        let at = join(at, "columns");
        for (name, column) in fields_of(&at, renames)? {
            columns.insert(name.clone(), String::read(&join(&at, name), column, None)?);
        }
    }
    if fields.contains_key("hf") {
        let data =
            HubData { hf: text("hf")?, split: text("split")?, subset: text("subset")?, file: text("file")?, columns };
        crate::hub::ModelId::dataset(&data.hf).map_err(|error| Error { kind: Kind::Script, ..error })?;
        return Ok(Source::Hub(data));
    }
    if !fields.contains_key("path") {
        let error = Error::new(Kind::Script, format!("`{at}` needs `path`, the file to read")).about_setting(at);
        return Err(if at.contains('.') { error.hint("or `hf`, a dataset on the Hub") } else { error });
    }
    let format = match text("format")?.as_str() {
        "" => None,
        name => Some(DataFormat::read(&join(at, "format"), &Json::from(name), None)?),
    };
    let path = match fields.get("path") {
        Some(list @ Json::Array(_)) => paths(list).ok_or_else(|| Misfit::wanted(&join(at, "path"), "text", list))?,
        _ => text("path")?.into(),
    };
    Ok(Source::File(DataFile { path, format, columns }))
}

/// A list of paths.
fn paths(json: &Json) -> Option<Paths> {
    let items = json.as_array().filter(|items| !items.is_empty())?;
    items.iter().map(|item| item.as_str().map(Into::into)).collect::<Option<_>>().map(Paths::Several)
}

/// Whether a table is several datasets by name, and not the fields of one.
fn is_mixed(fields: &Map<String, Json>) -> bool {
    let of_one = || FILE.iter().chain(&HUB).chain(&GENERATED).chain(&OF_PART).chain(&KINDS).copied();
    let dataset = |value: &Json| value.is_string() || value.is_object() || value.is_array();
    // A single misspelt field is not taken for the name of a dataset.
    let near = |name: &String| fields.len() == 1 && !nearest(name, of_one()).is_empty();
    let meant = |name: &String| of_one().any(|known| known == name) || near(name);
    !fields.is_empty() && fields.values().all(dataset) && !fields.keys().any(meant)
}

/// Several datasets by name; `None` for a table that is one.
fn parts(at: &str, fields: &Map<String, Json>) -> Result<Option<BTreeMap<String, Part>>> {
    if !is_mixed(fields) {
        return Ok(None);
    }
    let mut parts = BTreeMap::new();
    for (name, json) in fields {
        parts.insert(name.clone(), part(&join(at, name), json)?);
    }
    Ok(Some(parts))
}

fn part(at: &str, json: &Json) -> Result<Part> {
    let mut own = json.clone();
    let mut take = |name: &str| own.as_object_mut().and_then(|fields| fields.remove(name)).unwrap_or_default();
    take("name");
    let weight = match take("weight") {
        Json::Null => None,
        value => match value.as_f64().filter(|weight| *weight > 0.0 && weight.is_finite()) {
            Some(weight) => Some(weight),
            None if value.is_number() => {
                let key = join(at, "weight");
                let error = Error::new(Kind::Script, format!("`{key}` is {value}")).about_setting(key);
                return Err(error.hint("a weight is above 0; leave the dataset out instead"));
            }
            None => return Err(Misfit::wanted(&join(at, "weight"), "a number", &value).into()),
        },
    };
    let env = match take("env") {
        Json::Null => None,
        env => Some(String::read(&join(at, "env"), &env, None)?),
    };
    match dataset(at, &own)? {
        Source::Mixed(_) => {
            Err(Error::new(Kind::Script, format!("`{at}` has datasets within a dataset")).about_setting(at))
        }
        source => Ok(Part { weight, env, source }),
    }
}

/// The name of a dataset without one: the name of its file, or its Hub id.
pub(crate) fn stem(fields: &Map<String, Json>) -> String {
    let text = |name: &str| fields.get(name).and_then(Json::as_str);
    let first = fields.get("path").and_then(|path| path.get(0)).and_then(Json::as_str);
    let name = text("path").or(first).or_else(|| text("hf")).unwrap_or("data").rsplit('/').next().unwrap_or_default();
    name.split(['.', '@']).next().unwrap_or_default().to_owned()
}

/// Rows that stand in the recipe: tables with named columns.
fn rows(at: &str, items: &[Json]) -> Result<Vec<Json>> {
    let empty = Error::new(Kind::Script, format!("`{at}` has no rows")).about_setting(at);
    if items.is_empty() {
        return Err(empty.hint("a path, a dataset of r1.data, or a list of rows such as { { prompt = \"…\" } }"));
    }
    let row = |(place, item): (usize, &Json)| match item {
        Json::Object(_) => Ok(item.clone()),
        Json::Array(none) if none.is_empty() => Ok(Json::Object(Map::new())),
        other => Err(Misfit::wanted(&format!("{at}[{}]", place + 1), "a table", other).into()),
    };
    items.iter().enumerate().map(row).collect()
}

/// Whether a key renames a column, by a name of the script's own.
pub(crate) fn is_column(key: &str) -> bool {
    ["data.train.", "data.eval."].iter().any(|split| {
        let rest = key.strip_prefix(split).unwrap_or_default();
        rest.starts_with("columns.") || rest.split_once('.').is_some_and(|(_, rest)| rest.starts_with("columns."))
    })
}

/// Keys of datasets that the command line may set.
pub(crate) fn keys(recipe: &Json) -> Vec<String> {
    let mut keys = Vec::new();
    for split in ["data.train", "data.eval"] {
        let mut places = vec![split.to_owned()];
        let name = split.trim_start_matches("data.");
        let given = recipe.get("data").and_then(|data| data.get(name)).and_then(Json::as_object);
        if let Some(fields) = given.filter(|fields| is_mixed(fields)) {
            places.extend(fields.keys().map(|name| join(split, name)));
        }
        for place in places {
            let fields = FILE.iter().chain(&HUB).chain(&GENERATED).chain(&["weight", "env"]);
            keys.extend(fields.map(|name| join(&place, name)));
            keys.push(place);
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

/// `data.train.hf=…` where the recipe has a dataset of another kind: the new kind takes its place.
pub(crate) fn make_way(recipe: &mut Json, key: &str) {
    let Some((place, kind)) = key.rsplit_once('.').filter(|(place, kind)| {
        KINDS.contains(kind) && (place.starts_with("data.train") || place.starts_with("data.eval"))
    }) else {
        return;
    };
    let pointer = format!("/{}", place.replace('.', "/"));
    let Some(given) = recipe.pointer_mut(&pointer) else { return };
    let keep = |fields: &Map<String, Json>| {
        let kept = fields.iter().filter(|(name, _)| OF_PART.contains(&name.as_str()));
        Json::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    match given {
        Json::Object(fields) if fields.contains_key(kind) => {}
        Json::Object(fields) => *given = keep(fields),
        Json::String(_) if kind == "path" => {}
        _ => *given = Json::Object(Map::new()),
    }
}
