//! The reasons why a message, a call or a dataset row can't be read, as data.

use std::fmt;

use crate::error::{Error, Kind, Subject};

/// A value that can't be read, by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// `messages[2].role`; a column of a row; empty for the row itself.
    pub path: String,
    /// The error: `is empty`, `has no `role``.
    pub problem: String,
}

impl Invalid {
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into() }
    }

    /// The same, where the path is relative to `at`, which it follows without a dot.
    #[must_use]
    pub fn inside(self, at: &str) -> Self {
        Self { path: format!("{at}{}", self.path), ..self }
    }

    /// The error about a field of a dataset row.
    pub fn of_row(&self) -> Error {
        let error = Error::new(Kind::Data, self.to_string());
        if self.path.is_empty() { error } else { error.about(Subject::Column(self.path.clone())) }
    }

    /// The error about a value of the script.
    pub fn of_script(&self) -> Error {
        let error = Error::new(Kind::Script, self.to_string());
        if self.path.is_empty() { error } else { error.about_setting(&self.path) }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, problem } = self;
        if path.is_empty() {
            f.write_str(problem)
        } else if path.contains(['.', '[']) {
            write!(f, "{path} {problem}")
        } else {
            write!(f, "`{path}` {problem}")
        }
    }
}

impl std::error::Error for Invalid {}
