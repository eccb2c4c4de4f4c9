//! Queries that fail, as messages for a model.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::ErrorCode;

use super::database::{QueryLimits, in_sql};
use super::memory::VALUE;
use super::show::signature;
use super::{TableInfo, memory};

/// A query that failed.
#[derive(Debug)]
pub struct QueryError {
    why: Why,
    /// The tables and columns, if the query names unknown ones; a name that needs quotes.
    known: String,
}

#[derive(Debug)]
pub(super) enum Why {
    Time(Duration),
    /// Other queries of the same tables did not end.
    Busy(Duration),
    Memory(u64),
    Length,
    NotReading(Option<String>),
    Nothing,
    Several,
    Nul,
    Params {
        wanted: usize,
        given: usize,
    },
    Sqlite(String),
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Time(limit) => write!(f, "the query ran longer than {} s", limit.as_secs_f64()),
            Why::Busy(limit) => write!(f, "other queries of the tables took longer than {} s", limit.as_secs_f64()),
            Why::Memory(limit) => write!(f, "the query needs more than {} MiB of memory", limit >> 20),
            Why::Length => write!(f, "a value of the query is longer than {} MiB", VALUE >> 20),
            Why::NotReading(None) => f.write_str("only SELECT statements are allowed: the tables are read-only"),
            Why::NotReading(Some(what)) => write!(f, "{what} is not allowed"),
            Why::Nothing => f.write_str("there is no SQL statement"),
            Why::Several => f.write_str("only one SQL statement is allowed"),
            Why::Nul => f.write_str("the statement has a NUL character"),
            Why::Params { wanted, given } => write!(f, "the statement has {wanted} parameters and {given} are given"),
            Why::Sqlite(message) => f.write_str(message),
        }?;
        f.write_str(&self.known)
    }
}

impl QueryError {
    pub(super) fn of(error: &rusqlite::Error, limits: &QueryLimits, refused: &Mutex<Option<String>>) -> Self {
        let noted = refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let why = match error.sqlite_error_code() {
            _ if noted.is_some() => Why::NotReading(noted),
            Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly) => Why::NotReading(None),
            Some(ErrorCode::OperationInterrupted) => Why::Time(limits.time),
            _ if memory::is_late() => Why::Time(limits.time),
            Some(ErrorCode::OutOfMemory) => Why::Memory(limits.memory),
            Some(ErrorCode::TooBig) => Why::Length,
            _ => Why::Sqlite(match error {
                rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
                rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
                other => other.to_string(),
            }),
        };
        Self { why, known: String::new() }
    }

    /// Whether the query reached its time limit.
    pub fn timed_out(&self) -> bool {
        matches!(self.why, Why::Time(_))
    }

    /// Adds the tables and columns if the query names one that does not exist, and the spelling of
    /// a name that needs quotes.
    pub(super) fn with_tables(mut self, tables: &[TableInfo]) -> Self {
        let Why::Sqlite(message) = &self.why else { return self };
        if let Some(word) = message.strip_prefix("near \"").and_then(|rest| rest.strip_suffix("\": syntax error")) {
            let mut names = tables
                .iter()
                .flat_map(|table| [&table.name].into_iter().chain(table.columns.iter().map(|column| &column.name)));
            if let Some(name) = names.find(|name| name.eq_ignore_ascii_case(word))
                && in_sql(name) != *name
            {
                self.known = format!("; the name is a keyword and needs quotes: {}", in_sql(name));
            }
        } else if ["no such table", "no such column"].iter().any(|start| message.starts_with(start)) {
            let known: Vec<String> = tables.iter().map(signature).collect();
            self.known = format!("; there are {}", known.join(", "));
        }
        self
    }
}

impl From<Why> for QueryError {
    fn from(why: Why) -> Self {
        Self { why, known: String::new() }
    }
}
