//! The settings of a recipe's cold start, and what it inherits from the recipe.
//!
//! A cold start without a model, environment, limits or needs has the recipe's.
//! It always trains the recipe's `policy.model`, unless it initialises a model (`policy.init`),
//! with the recipe's seed.

use serde_json::{Map, Value as Json};

use crate::config::{PolicySettings, Settings};
use crate::error::{Error, Result, Subject};

/// The field of a recipe.
pub(crate) const FIELD: &str = "cold_start";
/// The prefix of its settings.
pub(crate) const PREFIX: &str = "cold_start.";

/// Sections that come from the recipe where the cold start has none.
const INHERITED: [&str; 5] = ["policy", "env", "limits", "needs", super::PARAMS];

/// The cold start in a recipe's data, as a separate recipe.
pub(crate) fn recipe(whole: &Json) -> Option<Json> {
    let mut phase = whole.get(FIELD)?.as_object()?.clone();
    let of_whole = |name: &str| whole.get(name).filter(|value| !value.is_null()).cloned();
    for name in INHERITED {
        if !phase.contains_key(name)
            && let Some(mut section) = of_whole(name)
        {
            // The adapter of reinforcement learning is its own.
            if let Some(policy) = section.as_object_mut().filter(|_| name == "policy") {
                policy.remove("lora");
            }
            phase.insert(name.to_owned(), section);
        }
    }
    let policy = phase.entry("policy").or_insert_with(|| Json::Object(Map::new()));
    if let Some(policy) = policy.as_object_mut() {
        let model = whole.get("policy").and_then(|policy| policy.get("model")).cloned();
        policy.insert("model".to_owned(), model.unwrap_or_else(|| PolicySettings::default().model.into()));
    }
    phase.insert("seed".to_owned(), of_whole("seed").unwrap_or_else(|| 0.into()));
    Some(Json::Object(phase))
}

/// The settings of a recipe's cold start.
pub(crate) fn read(whole: &Json) -> Result<Option<Box<Settings>>> {
    let Some(phase) = recipe(whole) else { return Ok(None) };
    // Errors name its settings with their prefix.
    let named = |error: Error| {
        let subject = error.setting().map(|name| Box::new(Subject::Setting(format!("{PREFIX}{name}"))));
        let message = error.message.replacen('`', &format!("`{PREFIX}"), 1);
        Error { message, subject: subject.or(error.subject), ..error }
    };
    super::read(&phase).map(|settings| Some(Box::new(settings))).map_err(named)
}

/// Keys of settings of a recipe's cold start.
pub(crate) fn keys(whole: &Json) -> Vec<String> {
    let Some(phase) = recipe(whole) else { return Vec::new() };
    super::keys(&phase).into_iter().map(|key| format!("{PREFIX}{key}")).collect()
}

/// The name of a setting of the recipe in its cold start; `None` for a setting that does not apply
/// to it.
pub(crate) fn own_name(key: &str) -> Option<&str> {
    let section = key.split('.').next().unwrap_or_default();
    let inherited = INHERITED.contains(&section) || section == "seed";
    key.strip_prefix(PREFIX).or(inherited.then_some(key))
}
