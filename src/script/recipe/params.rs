//! The parameters of a script (`r1.params`) as a setting of its recipe.

use serde_json::Value as Json;

use crate::error::{Error, Kind, Result};
use crate::script::runtime::definitions::Recipe;
use crate::script::runtime::vm::Vm;
use crate::script::settings;

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
