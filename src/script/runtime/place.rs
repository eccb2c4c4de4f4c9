//! The line where a function of a script is defined.

use mlua::Function;

pub(crate) use crate::algorithms::definition;
use crate::error::{Error, Kind};

/// An error placed at the line where `function` is defined.
pub(crate) fn at_definition(function: &Function, message: impl Into<String>) -> Error {
    at_function(function, Error::new(Kind::Script, message))
}

/// An error with the line where `function` is defined as its place, unless a closer one is known.
pub(crate) fn at_function(function: &Function, error: Error) -> Error {
    match definition(function) {
        Some(location) => error.at(location),
        None => error,
    }
}
