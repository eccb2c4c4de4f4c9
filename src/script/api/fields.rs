//! The fields of `r1.recipe` and `r1.env`: the settings of their sections, and what is no setting.

use crate::config::{EnvSettings, Settings};
use crate::schema::Section;

/// Fields of `r1.recipe`.
pub(super) fn of_recipe() -> Vec<&'static str> {
    [Settings::FIELDS, &["flow", "context", "reward", "privileged", "advantage", "loss"]].concat()
}

/// Fields of `r1.env`.
pub(super) fn of_env() -> Vec<&'static str> {
    [EnvSettings::FIELDS, &ENV_OBJECTS].concat()
}

/// Fields of `r1.env` that are functions and tools.
pub(super) const ENV_OBJECTS: [&str; 6] = ["tools", "reset", "step", "flow", "context", "reward"];
