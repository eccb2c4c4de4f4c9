//! Checks of a loaded recipe: of its functions against its settings, and the parameters of its
//! script (`r1.params`).

use serde_json::Value as Json;

use crate::config::{Settings, Source, Trainer};
use crate::error::{Error, Kind, Result};
use crate::script::runtime::definitions::Recipe;
use crate::script::runtime::vm::Vm;
use crate::script::settings;

/// Refuses generated rows if the recipe has no row function for them.
pub(super) fn can_make_rows(settings: &Settings, recipe: &Recipe, prefix: &str) -> Result<()> {
    let splits = [("train", &settings.data.train), ("eval", &settings.data.eval)];
    for ((split, source), rows) in splits.into_iter().zip(&recipe.rows) {
        for (name, source) in source.iter().flat_map(Source::parts) {
            if matches!(source, Source::Generated(_)) && !rows.contains_key(name) {
                let dot = if name.is_empty() { "" } else { "." };
                let at = format!("{prefix}data.{split}{dot}{name}");
                return Err(Error::new(Kind::Usage, format!("`{at}` has no row function"))
                    .hint(format!("give a file: {at}=tasks.jsonl")));
            }
        }
    }
    Ok(())
}

/// Refuses functions that contradict the settings, also of the command line.
pub(super) fn check_row_functions(settings: &Settings, recipe: &Recipe) -> Result<()> {
    let refused = |message: &str, hint: &str| Err(Error::new(Kind::Script, message).hint(hint));
    if recipe.row_weight.is_some() {
        let message = "`row_weight` is for reinforcement learning: supervised training has no success rates";
        if matches!(settings.trainer, Trainer::Sft(_)) {
            return refused(message, "leave row_weight out");
        }
        if settings.data.curriculum.has_band() {
            let message = "`row_weight` and data.curriculum.low or high both select rows by their success";
            return refused(message, "leave one of the two out");
        }
    }
    if recipe.row_order.is_some() && !settings.data.shuffle {
        let message = "`row_order` sorts the rows, and data.shuffle is false: they would have the order of the files";
        return refused(message, "leave data.shuffle out");
    }
    Ok(())
}

/// The recipe with the defaults of the script's parameters as the setting `params`.
pub(super) fn with_params(mut recipe: Recipe, vm: &Vm) -> Result<Recipe> {
    if recipe.settings.get(settings::PARAMS).is_some() {
        let error = Error::new(Kind::Script, "`params` is not a field of r1.recipe");
        return Err(error.hint("declare them: local params = r1.params { name = default }"));
    }
    if let Some(declared) = &vm.host.params.borrow().declared {
        recipe.settings[settings::PARAMS] = Json::Object(declared.clone());
        recipe.typed.params.clone_from(declared);
    }
    Ok(recipe)
}
