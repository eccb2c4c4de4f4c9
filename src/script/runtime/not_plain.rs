//! The reason why a Lua value is not plain data.

use std::fmt;

use crate::error::{Error, Kind};
use crate::mdp::Invalid;

/// A Lua value that can't become JSON, by its path.
#[derive(Debug)]
pub(crate) struct NotPlain {
    /// `state.items[3]`
    pub(crate) path: String,
    pub(crate) why: NotPlainReason,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotPlainReason {
    /// Of this type: a function, a userdata.
    #[error("is a {0}; plain data holds text, numbers, booleans and tables")]
    Type(&'static str),
    /// NaN or an infinity.
    #[error("is {0}")]
    Number(String),
    #[error("is not valid UTF-8")]
    NotUtf8,
    /// Too many values or bytes.
    #[error("holds too much to be plain data")]
    TooMuch,
    /// Nested too deeply; a table that contains itself is.
    #[error("is nested too deeply, or contains itself")]
    TooDeep,
    #[error("has a metatable; plain data has none")]
    Metatable,
    /// Keys that are neither text nor 1, 2, 3 …
    #[error("has keys that are neither names nor 1, 2, 3 …")]
    Keys,
    /// List items and named fields in one table.
    #[error("mixes a list with named keys")]
    Mixed,
    #[error("has a table as a key")]
    TableKey,
    /// The virtual machine failed.
    #[error("can't be read: {0}")]
    Machine(mlua::Error),
}

impl NotPlain {
    /// The value itself is not plain.
    pub(crate) fn new(why: NotPlainReason) -> Self {
        Self { path: String::new(), why }
    }

    /// The same in a value that contains it; `step` leads from there to the value.
    pub(crate) fn inside(mut self, step: &str) -> Self {
        self.path.insert_str(0, step);
        self
    }

    /// The path of a function, if that is the value.
    pub(crate) fn function(&self) -> Option<&str> {
        matches!(self.why, NotPlainReason::Type("function")).then_some(&*self.path)
    }
}

impl fmt::Display for NotPlain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.why {
            NotPlainReason::TooMuch | NotPlainReason::TooDeep => short(&self.path),
            _ => &self.path,
        };
        write!(f, "{path} {}", self.why)
    }
}

impl From<NotPlain> for Error {
    fn from(error: NotPlain) -> Self {
        Self::new(Kind::Script, error.to_string()).about_setting(short(&error.path))
    }
}

impl From<NotPlain> for Invalid {
    fn from(error: NotPlain) -> Self {
        Self::new(short(&error.path), error.why.to_string())
    }
}

/// The first part of a path, for messages.
pub(crate) fn short(path: &str) -> &str {
    path.char_indices().nth(60).map_or(path, |(end, _)| &path[..end])
}
