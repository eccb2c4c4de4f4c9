//! The line where a function of a script is defined.

use mlua::Function;

use crate::error::{Error, Kind};

/// An error placed at the line where `function` is defined.
pub(crate) fn at_definition(function: &Function, message: impl Into<String>) -> Error {
    let error = Error::new(Kind::Script, message);
    match definition(function) {
        Some(place) => error.at(place),
        None => error,
    }
}

/// The line where a function is defined: `scripts/retool.lua:14`.
pub(crate) fn definition(function: &Function) -> Option<String> {
    let info = function.info();
    let path = info.source?.strip_prefix('@')?.to_owned();
    Some(format!("{path}:{}", info.line_defined?))
}
