//! Refuses the functions `row_order` and `row_weight` where the settings contradict them.

use crate::config::{Settings, Trainer};
use crate::error::{Error, Kind, Result};
use crate::script::runtime::definitions::Recipe;

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
