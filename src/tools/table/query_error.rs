//! Queries that fail, as messages for a model.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::ErrorCode;

use super::database::{QueryLimits, in_sql};
use super::memory::VALUE;
use super::show::signature;
use super::{TableInfo, memory};

/// A query that failed.
#[derive(Debug, thiserror::Error)]
#[error("{why}{hint}")]
pub struct QueryError {
    why: Why,
    /// The tables and columns, if the query names unknown ones; a name that needs quotes.
    hint: String,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("the query ran longer than {} s", .0.as_secs_f64())]
    Time(Duration),
    /// Other queries of the same tables did not end.
    #[error("other queries of the tables took longer than {} s", .0.as_secs_f64())]
    Busy(Duration),
    #[error("the query needs more than {} MiB of memory", .0 >> 20)]
    Memory(u64),
    #[error("a value of the query is longer than {} MiB", VALUE >> 20)]
    Length,
    #[error("only SELECT statements are allowed: the tables are read-only")]
    NotReading,
    #[error("{0} is not allowed")]
    NotAllowed(String),
    #[error("there is no SQL statement")]
    Nothing,
    #[error("only one SQL statement is allowed")]
    Several,
    #[error("the statement has a NUL character")]
    Nul,
    #[error("the statement has {wanted} parameters and {count} are given")]
    Params { wanted: usize, count: usize },
    #[error("{0}")]
    Sqlite(String),
}

impl QueryError {
    pub(super) fn of(error: &rusqlite::Error, limits: &QueryLimits, refused: &Mutex<Option<String>>) -> Self {
        if let Some(what) = refused.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Why::NotAllowed(what).into();
        }
        let why = match error.sqlite_error_code() {
            Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly) => Why::NotReading,
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
        Self { why, hint: String::new() }
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
                self.hint = format!("; the name is a keyword and needs quotes: {}", in_sql(name));
            }
        } else if ["no such table", "no such column"].iter().any(|start| message.starts_with(start)) {
            let signatures: Vec<String> = tables.iter().map(signature).collect();
            self.hint = format!("; there are {}", signatures.join(", "));
        }
        self
    }
}

impl From<Why> for QueryError {
    fn from(why: Why) -> Self {
        Self { why, hint: String::new() }
    }
}
