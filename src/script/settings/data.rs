//! `data`: rules of datasets that the schema does not cover (environments, names of the Hub), and
//! datasets given on the command line.

use serde_json::{Map, Value as Json};

use crate::config::{PartOptions, SOURCE_KINDS, Settings, Source, refused};
use crate::error::{Error, Kind, Result, suggest};
use crate::hub::ModelId;
use crate::schema::{Field, Section, join};

/// A dataset from its fields. `at` is its name in messages.
///
/// # Errors
/// `Kind::Script` names the field.
pub(crate) fn dataset(at: &str, json: &Json) -> Result<Source> {
    let source = Source::read(at, json, None).map_err(refused)?;
    check_hub_names(&source)?;
    Ok(source)
}

/// Refuses invalid names on the Hub, and environments that the recipe does not have.
pub(super) fn check(settings: &Settings) -> Result<()> {
    for (split, source) in [("train", &settings.data.train), ("eval", &settings.data.eval)] {
        let Some(source) = source else { continue };
        check_hub_names(source)?;
        let Source::Mixed(parts) = source else { continue };
        for (name, part) in parts {
            let envs = &settings.envs;
            let Some(env) = part.env.as_ref().filter(|env| !envs.contains_key(*env)) else { continue };
            let key = format!("data.{split}.{name}.env");
            let message = format!("`{key}` is \"{env}\", and the recipe has no such environment");
            let hint = if envs.is_empty() {
                "name its environments: envs = { search = r1.env { … }, … }".to_owned()
            } else {
                suggest(env, envs.keys().map(String::as_str))
            };
            return Err(Error::new(Kind::Script, message).about_setting(key).hint(hint));
        }
    }
    Ok(())
}

fn check_hub_names(source: &Source) -> Result<()> {
    for (_, part) in source.parts() {
        if let Source::Hub(data) = part {
            ModelId::dataset(&data.hf).map_err(|error| Error { kind: Kind::Script, ..error })?;
        }
    }
    Ok(())
}

/// Whether a key renames a column; the script chooses the new name.
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
        let dataset = recipe.get("data").and_then(|data| data.get(name)).and_then(Json::as_object);
        if let Some(fields) = dataset.filter(|fields| Source::is_mixed(fields)) {
            places.extend(fields.keys().map(|name| join(split, name)));
        }
        for table in places {
            keys.extend(Source::fields().map(|name| join(&table, name)));
            keys.push(table);
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Whether a key is a dataset, or determines its kind; it is applied before the other fields.
pub(crate) fn is_kind(key: &str) -> bool {
    key == "data.train" || key == "data.eval" || kind_of(key).is_some()
}

/// The dataset and the field of a key that determines the kind of the dataset.
fn kind_of(key: &str) -> Option<(&str, &str)> {
    key.rsplit_once('.').filter(|(table, kind)| {
        SOURCE_KINDS.contains(kind) && (table.starts_with("data.train") || table.starts_with("data.eval"))
    })
}

/// `data.train.hf=…` where the recipe has a dataset of another kind: the new kind takes its place.
pub(crate) fn remove_other_kinds(recipe: &mut Json, key: &str) {
    let Some((table, kind)) = kind_of(key) else { return };
    let pointer = format!("/{}", table.replace('.', "/"));
    let Some(source) = recipe.pointer_mut(&pointer) else { return };
    let keep = |fields: &Map<String, Json>| {
        let kept = fields.iter().filter(|(name, _)| PartOptions::FIELDS.contains(&name.as_str()));
        Json::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    match source {
        Json::Object(fields) if fields.contains_key(kind) => {}
        Json::Object(fields) => *source = keep(fields),
        Json::String(_) if kind == "path" => {}
        _ => *source = Json::Object(Map::new()),
    }
}
