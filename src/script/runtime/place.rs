//! The line where a function of a script is defined.

use mlua::Function;

use crate::error::{Error, Kind};

/// An error placed at the line where `function` is defined.
pub(crate) fn at_definition(function: &Function, message: impl Into<String>) -> Error {
    at_function(function, Error::new(Kind::Script, message))
}

/// An error with the line where `function` is defined as its place, unless a closer one is known.
pub(crate) fn at_function(function: &Function, error: Error) -> Error {
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
