//! The cold start of a recipe: a recipe with `r1.sft` in its field `cold_start`, which `r1 run` carries out first.
//!
//! What it does not say of model, environment, limits and needs is said by the recipe that it is in. It always trains that
//! recipe's `policy.model`, unless it makes a model of its own (`policy.init`), with that recipe's seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::load::{self, Part, Script, Written, unopened};
use super::settings;
use crate::config::{PolicySettings, Settings, Source};
use crate::error::{Error, Kind, Result, Subject};
use crate::script::api::recipe::Recipe;
use crate::script::runtime::vm::Vm;

/// The field of a recipe.
pub(crate) const FIELD: &str = "cold_start";
/// What the names of its settings begin with.
pub(crate) const PREFIX: &str = "cold_start.";

/// Sections that are those of the recipe where the cold start has none.
const INHERITED: [&str; 4] = ["policy", "env", "limits", "needs"];

/// The cold start of a recipe's data as a recipe of its own.
pub(crate) fn recipe(whole: &Json) -> Option<Json> {
    let mut own = whole.get(FIELD)?.as_object()?.clone();
    let of_whole = |name: &str| whole.get(name).filter(|value| !value.is_null()).cloned();
    for name in INHERITED {
        if !own.contains_key(name)
            && let Some(mut section) = of_whole(name)
        {
            // The adapter of reinforcement learning is its own.
            if let Some(policy) = section.as_object_mut().filter(|_| name == "policy") {
                policy.remove("lora");
            }
            own.insert(name.to_owned(), section);
        }
    }
    let policy = own.entry("policy").or_insert_with(|| Json::Object(Map::new()));
    if let Some(policy) = policy.as_object_mut() {
        let model = whole.get("policy").and_then(|policy| policy.get("model")).cloned();
        policy.insert("model".to_owned(), model.unwrap_or_else(|| PolicySettings::default().model.into()));
    }
    own.insert("seed".to_owned(), of_whole("seed").unwrap_or_else(|| 0.into()));
    Some(Json::Object(own))
}

/// The settings of a recipe's cold start.
pub(crate) fn read(whole: &Json) -> Result<Option<Box<Settings>>> {
    let Some(own) = recipe(whole) else { return Ok(None) };
    // Its settings go by longer names.
    let named = |error: Error| {
        let subject = error.setting().map(|name| Box::new(Subject::Setting(format!("{PREFIX}{name}"))));
        let message = error.message.replacen('`', &format!("`{PREFIX}"), 1);
        Error { message, subject: subject.or(error.subject), ..error }
    };
    settings::read(&own).map(|settings| Some(Box::new(settings))).map_err(named)
}

/// Keys of settings of a recipe's cold start.
pub(crate) fn keys(whole: &Json) -> Vec<String> {
    let Some(own) = recipe(whole) else { return Vec::new() };
    settings::keys(&own).into_iter().map(|key| format!("{PREFIX}{key}")).collect()
}

/// The name that a setting of the whole recipe has in its cold start; `None` for one that it does not go by.
pub(crate) fn own_name(key: &str) -> Option<&str> {
    let section = key.split('.').next().unwrap_or_default();
    let inherited = INHERITED.contains(&section) || section == "seed";
    key.strip_prefix(PREFIX).or(inherited.then_some(key))
}

impl Script {
    /// The recipe's cold start as a script of its own; `None` without one.
    ///
    /// # Errors
    /// Those of its settings.
    pub fn cold_start(&self) -> Result<Option<Self>> {
        let Some(settings) = &self.settings.cold_start else { return Ok(None) };
        let mut settings = (**settings).clone();
        if settings.name.is_empty() {
            settings.name.clone_from(&self.settings.name);
        }
        // The run's seed may not be the script's any more.
        settings.seed = self.settings.seed;
        let of = |whole: &Json| recipe(whole).unwrap_or_default();
        let Written { recipe, all, typed } = &*self.written;
        let written = Written { recipe: of(recipe), all: of(all), typed: typed.clone() };
        Ok(Some(Self {
            datasets: unopened(&settings),
            // The other part has them for datasets of its own.
            pins: BTreeMap::default(),
            settings,
            loss: None,
            privileged: false,
            algorithm: "sft".to_owned(),
            part: Part::ColdStart,
            written: Arc::new(written),
            ..self.clone()
        }))
    }

    /// Runs the main file in a worker's virtual machine and takes the recipe that this script is.
    pub(crate) fn recipe(&self, vm: &Vm) -> Result<Recipe> {
        let recipe = load::run(vm, &self.path, &self.source)?;
        match self.part {
            Part::Whole => Ok(recipe),
            Part::ColdStart => recipe
                .cold_start
                .map(|own| *own)
                .ok_or_else(|| Error::new(Kind::Script, "the recipe has no `cold_start` any more").at_path(&self.path)),
        }
    }
}

/// Refuses rows that a function makes where the recipe has no such function.
pub(crate) fn can_make_rows(settings: &Settings, recipe: &Recipe, prefix: &str) -> Result<()> {
    let splits = [("train", &settings.data.train), ("eval", &settings.data.eval)];
    for ((split, source), rows) in splits.into_iter().zip(&recipe.rows) {
        for (name, source) in source.iter().flat_map(Source::parts) {
            if matches!(source, Source::Generated { .. }) && !rows.contains_key(name) {
                let dot = if name.is_empty() { "" } else { "." };
                let at = format!("{prefix}data.{split}{dot}{name}");
                return Err(Error::new(Kind::Usage, format!("`{at}` has no row function to make rows with"))
                    .hint(format!("give a file: {at}=tasks.jsonl")));
            }
        }
    }
    Ok(())
}
