//! Errors of [`schema`](super::schema) as data: a call's arguments that a tool's schema does not
//! allow, and a schema that r1 does not support.

use std::fmt;

use serde_json::Value;

/// The first of a call's arguments that the schema does not allow. The policy reads it as text.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgumentError {
    /// Path of the argument: `arguments.days`, `arguments.tags[1]`.
    pub path: String,
    pub why: Box<Violation>,
}

/// The reason why a schema does not allow an argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Violation {
    /// It must be another value: `string or null`, `at least 1`, `have at most 2 items`.
    Expected {
        expected: Expected,
        actual: Value,
    },
    /// It is required.
    Missing,
    /// There is no such argument; `names` are the others.
    Unknown {
        names: Vec<String>,
    },
    /// The schema allows no value.
    NotAllowed,
    TooDeep,
    /// It matches none of the alternatives of `anyOf` or `oneOf`.
    NoAlternative,
    /// It matches this many alternatives of `oneOf`.
    Alternatives(usize),
}

/// The values that a schema allows.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    Types(Vec<String>),
    OneOf(Vec<Value>),
    Const(Value),
    Pattern(String),
    /// A number: `at least`, `at most`, `more than`, `less than` the bound.
    Bound(&'static str, f64),
    /// A number of items or letters: `at least` or `at most` so many.
    Count(&'static str, u64, &'static str),
}

impl ArgumentError {
    pub(super) fn new(path: impl Into<String>, why: Violation) -> Self {
        Self { path: path.into(), why: Box::new(why) }
    }

    pub(super) fn expected(path: &str, expected: Expected, actual: impl Into<Value>) -> Self {
        Self::new(path, Violation::Expected { expected, actual: actual.into() })
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match &*self.why {
            Violation::Expected { expected: expected @ Expected::Count(..), actual } => {
                write!(f, "{path} must have {expected}, got {actual}")
            }
            Violation::Expected { expected: expected @ Expected::Pattern(_), actual } => {
                write!(f, "{path} must match {expected}, got {}", describe(actual))
            }
            Violation::Expected { expected, actual } => {
                write!(f, "{path} must be {expected}, got {}", describe(actual))
            }
            Violation::Missing => write!(f, "{path} is missing"),
            Violation::Unknown { names } => write!(f, "{path} is unknown; known: {}", names.join(", ")),
            Violation::NotAllowed => write!(f, "{path} is not allowed"),
            Violation::TooDeep => write!(f, "{path} is nested too deep"),
            Violation::NoAlternative => write!(f, "{path} fits nothing that is allowed"),
            Violation::Alternatives(count) => write!(f, "{path} fits {count} alternatives, and must fit one"),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Types(names) => f.write_str(&names.join(" or ")),
            Self::OneOf(choices) => {
                let choices: Vec<String> = choices.iter().map(Value::to_string).collect();
                write!(f, "one of {}", choices.join(", "))
            }
            Self::Const(only) => write!(f, "{only}"),
            Self::Pattern(pattern) => f.write_str(pattern),
            Self::Bound(word, bound) => write!(f, "{word} {bound}"),
            Self::Count(word, count, what) => write!(f, "{word} {count} {what}"),
        }
    }
}

/// A schema that is invalid, or has a keyword that is not checked.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaError {
    /// Path within the schema: `items.pattern`; empty for the schema itself.
    pub path: String,
    pub why: SchemaFault,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SchemaFault {
    NotATable,
    TooDeep,
    /// A type that JSON Schema does not have.
    Type {
        actual: Value,
        names: &'static str,
    },
    /// A regular expression that can't be read.
    Pattern(regex::Error),
    /// The value of a keyword has another type.
    Value(Value),
    /// A keyword that is not checked.
    Keyword {
        keyword: String,
        names: &'static str,
    },
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.path.is_empty() { "" } else { "." };
        write!(f, "the schema{dot}{} ", self.path)?;
        match &self.why {
            SchemaFault::NotATable => f.write_str("is not a table"),
            SchemaFault::TooDeep => f.write_str("is nested too deep"),
            SchemaFault::Type { actual, names } => write!(f, "has the type {actual}; known: {names}"),
            SchemaFault::Pattern(error) => write!(f, "can't be read: {error}"),
            SchemaFault::Value(value) => write!(f, "is {value}"),
            SchemaFault::Keyword { keyword, names } => {
                write!(f, "has the keyword `{keyword}`, which is not checked; known: {names}")
            }
        }
    }
}

fn describe(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
