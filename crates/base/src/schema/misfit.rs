//! The refusal of a value, as data: the setting and its allowed values.

use std::fmt;

use serde_json::Value as Json;

use crate::error::{Error, Kind, nearest, suggest};

/// An invalid value of a setting, or an unknown setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Misfit {
    /// Dotted name; empty for the whole table.
    pub key: String,
    pub why: MisfitReason,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MisfitReason {
    /// There is no such field. `name` is the last part of the key, `names` the fields of its table.
    Unknown { name: String, names: Vec<&'static str> },
    /// The type is another.
    Wanted { wanted: String, got: Json },
    /// It is none of these names.
    NotOneOf { got: String, names: Vec<&'static str> },
    /// Another reason, and how to fix it; an empty hint is none.
    Refused { message: String, hint: &'static str },
}

impl Misfit {
    pub fn unknown(at: &str, name: &str, names: &[&'static str]) -> Self {
        Self { key: join(at, name), why: MisfitReason::Unknown { name: name.to_owned(), names: names.to_vec() } }
    }

    /// `wanted`: `a number`, `a list of two numbers`.
    pub fn wanted(key: &str, wanted: &str, got: &Json) -> Self {
        Self { key: key.to_owned(), why: MisfitReason::Wanted { wanted: wanted.to_owned(), got: got.clone() } }
    }

    pub fn refused(key: &str, message: impl Into<String>, hint: &'static str) -> Self {
        Self { key: key.to_owned(), why: MisfitReason::Refused { message: message.into(), hint } }
    }

    pub fn not_one_of(key: &str, got: &str, names: &[&'static str]) -> Self {
        Self { key: key.to_owned(), why: MisfitReason::NotOneOf { got: got.to_owned(), names: names.to_vec() } }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.key.is_empty() { "the recipe" } else { &self.key };
        match &self.why {
            MisfitReason::Unknown { .. } => write!(f, "unknown field `{key}`"),
            MisfitReason::Wanted { wanted, got } => write!(f, "`{key}` must be {wanted}, got {}", described(got)),
            MisfitReason::Refused { message, .. } => f.write_str(message),
            MisfitReason::NotOneOf { got, names } => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                write!(f, "`{key}` is \"{got}\"; it is one of {}", names.join(", "))
            }
        }
    }
}

impl std::error::Error for Misfit {}

/// The given value.
fn described(got: &Json) -> String {
    const MOST: usize = 60;
    match got {
        Json::Null => "nothing".to_owned(),
        Json::String(text) => match text.char_indices().nth(MOST) {
            Some((end, _)) => format!("the text \"{}…\"", &text[..end]),
            None => format!("the text \"{text}\""),
        },
        Json::Number(number) => format!("the number {number}"),
        Json::Bool(truth) => truth.to_string(),
        Json::Array(items) => format!("a list of {}", items.len()),
        Json::Object(_) => "a table".to_owned(),
    }
}

/// The dotted name of a field.
pub fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// With the nearest names as the hint.
impl From<Misfit> for Error {
    fn from(misfit: Misfit) -> Self {
        let error = Self::new(Kind::Script, misfit.to_string()).about_setting(&misfit.key);
        match misfit.why {
            MisfitReason::Unknown { name, names } => error.hint(suggest(&name, names.iter().copied())),
            MisfitReason::NotOneOf { got, names } if !nearest(&got, names.iter().copied()).is_empty() => {
                error.hint(suggest(&got, names))
            }
            MisfitReason::Wanted { wanted, got } if got.is_string() && wanted.starts_with("a list") => {
                error.hint("a list is written [1, 2] on the command line, and { 1, 2 } in a script")
            }
            MisfitReason::Refused { hint, .. } if !hint.is_empty() => error.hint(hint),
            _ => error,
        }
    }
}
