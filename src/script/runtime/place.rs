//! The line where a function of a script is defined.

use mlua::Function;

pub(crate) use crate::algorithms::{at_function, definition};
use crate::error::{Error, Kind};

/// An error placed at the line where `function` is defined.
pub(crate) fn at_definition(function: &Function, message: impl Into<String>) -> Error {
    at_function(function, Error::new(Kind::Script, message))
}
