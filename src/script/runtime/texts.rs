//! The source texts of a script, for messages and breakpoints.

use std::collections::BTreeMap;

use mlua::Function;

/// The files that were run, by the paths shown in messages.
#[derive(Default)]
#[allow(clippy::struct_field_names)] // the field name is the clearest one
pub(crate) struct Texts {
    pub(crate) texts: BTreeMap<String, String>,
    /// Paths of modules by the name passed to `require`.
    pub(crate) modules: BTreeMap<String, String>,
    /// Compiled chunks; the main file first.
    pub(crate) chunks: Vec<(String, Function)>,
}
