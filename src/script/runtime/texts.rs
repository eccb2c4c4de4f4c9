//! The texts of a script's files, for the lines in messages and for breakpoints.

use std::collections::BTreeMap;

use mlua::Function;

/// The files that were run, by the paths shown in messages.
#[derive(Default)]
#[allow(clippy::struct_field_names)] // it is what the struct holds
pub(crate) struct Texts {
    pub(crate) texts: BTreeMap<String, String>,
    /// The paths of modules, by the names that `require` takes.
    pub(crate) modules: BTreeMap<String, String>,
    /// Their code; the main file first.
    pub(crate) chunks: Vec<(String, Function)>,
}
