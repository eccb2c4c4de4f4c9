//! The cold start of a recipe: a recipe with `r1.sft` in the field `cold_start`, which `r1 run`
//! trains first.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::load::{self, RecipePart, Script, WrittenSettings, unopened};
use crate::error::{Error, Kind, Result};
use crate::script::runtime::definitions::Recipe;
use crate::script::runtime::vm::Vm;
use crate::script::settings::cold_start::recipe;

impl Script {
    /// The recipe's cold start as a script; `None` if there is none.
    ///
    /// # Errors
    /// Errors of its settings.
    pub fn cold_start(&self) -> Result<Option<Self>> {
        let Some(settings) = &self.settings.cold_start else { return Ok(None) };
        let mut settings = (**settings).clone();
        if settings.name.is_empty() {
            settings.name.clone_from(&self.settings.name);
        }
        // The run's seed may differ from the script's.
        settings.seed = self.settings.seed;
        let of = |whole: &Json| recipe(whole).unwrap_or_default();
        let WrittenSettings { recipe, all, typed } = &*self.written;
        let written = WrittenSettings { recipe: of(recipe), all: of(all), typed: typed.clone() };
        Ok(Some(Self {
            datasets: unopened(&settings),
            // The pins of the RL part belong to its own datasets.
            pins: BTreeMap::default(),
            settings,
            loss: None,
            privileged: false,
            row_weight: false,
            algorithm: "sft".to_owned(),
            part: RecipePart::ColdStart,
            written: Arc::new(written),
            ..self.clone()
        }))
    }

    /// Runs the main file in a worker's virtual machine and returns the recipe of this script.
    pub(crate) fn recipe(&self, vm: &Vm) -> Result<Recipe> {
        let recipe = load::run(vm, &self.path, &self.source)?;
        match self.part {
            RecipePart::Whole => Ok(recipe),
            RecipePart::ColdStart => recipe
                .cold_start
                .map(|phase| *phase)
                .ok_or_else(|| Error::new(Kind::Script, "the recipe no longer has a `cold_start`").at_path(&self.path)),
        }
    }
}
