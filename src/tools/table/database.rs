//! One SQLite database: written once, then read by several connections under limits.
//!
//! A database of files is written to a temporary file. Its connections are opened before the file
//! is removed, so that no file remains after the process ends. Queries are limited by an authorizer
//! (reading only), SQLite's own limits (lengths, depths), a progress handler (time), a counter of
//! allocations (`memory`), and functions of our own (`functions`). Sorting and temporary tables
//! stay in memory, so that they count.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Batch, Connection, OpenFlags, Statement, ToSql, ffi};

use super::memory::VALUE;
use super::query_error::{QueryError, Why};
use super::{Cell, TableInfo, TableNames, functions, math, memory, pattern};
use crate::error::{Error, Kind, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct QueryLimits {
    /// Wall time.
    pub time: Duration,
    /// Bytes that SQLite may allocate.
    pub memory: u64,
    /// Rows that are returned.
    pub rows: usize,
    /// Bytes of text that are returned.
    pub bytes: usize,
    /// Functions with random results are refused.
    pub repeatable: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryResult {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    /// There are more rows.
    pub more: bool,
}

/// SQLite's limits of one statement. A parse tree uses the thread's stack, a pattern of LIKE is
/// compared with a text in quadratic time.
const STATEMENT: [(Limit, i32); 8] = [
    (Limit::SQLITE_LIMIT_LENGTH, VALUE),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 256 << 10),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
    (Limit::SQLITE_LIMIT_VDBE_OP, 1 << 20),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, pattern::LONGEST),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// Pragmas that only describe tables.
const PRAGMAS: [&str; 3] = ["table_info", "table_xinfo", "table_list"];

/// Functions whose results differ from call to call.
const RANDOM: [&str; 2] = ["random", "randomblob"];

/// Functions that reach into SQLite itself, or whose time grows with the product of the sizes of
/// their arguments.
const FORBIDDEN: [&str; 4] = ["load_extension", "fts3_tokenizer", "json_patch", "jsonb_patch"];

/// Instructions of SQLite between two checks of the time. One instruction can read a value of
/// [`VALUE`] bytes, which takes milliseconds.
const STEPS: i32 = 200;

/// Interval at which a query that waits for a connection looks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// A database that is being written.
pub(super) struct DatabaseBuilder {
    connection: Connection,
    /// The file, for a database on disk.
    file: Option<tempfile::NamedTempFile>,
}

/// A table whose rows are being added, a cell at a time.
pub(super) struct NewTable<'a>(Statement<'a>);

impl NewTable<'_> {
    /// Sets a cell of the next row; columns are counted from 0.
    pub(super) fn set(&mut self, column: usize, value: ValueRef<'_>) -> Result<()> {
        self.0.raw_bind_parameter(column + 1, ToSqlOutput::Borrowed(value)).map_err(|error| failed(&error))
    }

    /// Adds the row. Its cells stay set for the next one.
    pub(super) fn add(&mut self) -> Result<()> {
        self.0.raw_execute().map(drop).map_err(|error| failed(&error))
    }
}

fn failed(error: &rusqlite::Error) -> Error {
    Error::new(Kind::Data, format!("SQLite can't hold the table: {error}"))
        .hint("TMPDIR names the directory of temporary files")
}

impl DatabaseBuilder {
    pub(super) fn in_memory() -> Result<Self> {
        memory::install()?;
        let connection = Connection::open_in_memory().map_err(|error| failed(&error))?;
        Self::new(connection, None)
    }

    pub(super) fn in_file() -> Result<Self> {
        memory::install()?;
        let file = tempfile::Builder::new().prefix("r1-table-").tempfile();
        let file =
            file.map_err(|error| Error::io(Kind::Data, "make a temporary file", std::env::temp_dir(), &error))?;
        let connection = Connection::open(file.path()).map_err(|error| failed(&error))?;
        Self::new(connection, Some(file))
    }

    fn new(connection: Connection, file: Option<tempfile::NamedTempFile>) -> Result<Self> {
        // No other process reads the file before it is complete.
        let settings = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE; \
                        PRAGMA page_size = 8192; BEGIN";
        connection.execute_batch(settings).map_err(|error| failed(&error))?;
        Ok(Self { connection, file })
    }

    /// Creates a table, whose rows are added to the result.
    pub(super) fn table(&self, info: &TableInfo) -> Result<NewTable<'_>> {
        let columns = info.columns.iter().map(|column| format!("{} {}", quoted(&column.name), column.kind.sql()));
        let columns = columns.collect::<Vec<_>>().join(", ");
        let table = quoted(&info.name);
        let made = self.connection.execute_batch(&format!("CREATE TABLE {table} ({columns})"));
        made.map_err(|error| {
            let error = failed(&error);
            let message = format!("table `{}` with {} columns: {}", info.name, info.columns.len(), error.message);
            Error { message, hint: None, ..error }
        })?;
        let places = vec!["?"; info.columns.len()].join(", ");
        let insert = format!("INSERT INTO {table} VALUES ({places})");
        Ok(NewTable(self.connection.prepare(&insert).map_err(|error| failed(&error))?))
    }

    /// Creates a table with its rows.
    pub(super) fn table_of(&self, info: &TableInfo, rows: &[Vec<Cell>]) -> Result<()> {
        let mut table = self.table(info)?;
        for row in rows {
            for (at, cell) in row.iter().enumerate() {
                table.set(at, cell.as_value())?;
            }
            table.add()?;
        }
        Ok(())
    }

    /// Opens the connections that read it, and removes the file.
    pub(super) fn finish(self, connections: usize) -> Result<Database> {
        let Self { connection, file } = self;
        connection.execute_batch("COMMIT").map_err(|error| failed(&error))?;
        let Some(file) = file else { return Database::new(vec![connection]) };
        connection.close().map_err(|(_, error)| failed(&error))?;
        // Without locks and without looking for a journal.
        let path = file.path().to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let uri = format!("file:{path}?immutable=1");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = |_| {
            let connection = Connection::open_with_flags(&uri, flags)?;
            connection.pragma_update(None, "mmap_size", 1_i64 << 40)?;
            // Reads the schema, with the file still there.
            connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(connection)
        };
        let opened = (0..connections.max(1)).map(open).collect::<rusqlite::Result<Vec<_>>>();
        Database::new(opened.map_err(|error| failed(&error))?)
    }
}

/// A name as an SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A name as a query has to write it: quoted unless it has letters, digits and `_` only and is no
/// keyword.
pub(super) fn in_sql(name: &str) -> String {
    let length = c_int::try_from(name.len()).unwrap_or(0);
    // SAFETY: the name has `length` bytes, and the function only compares them.
    let is_keyword = unsafe { ffi::sqlite3_keyword_check(name.as_ptr().cast(), length) } != 0;
    if TableNames::is_name(name) && !is_keyword { name.to_owned() } else { quoted(name) }
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.as_value()))
    }
}

/// A database that is only read.
#[derive(Debug)]
pub(super) struct Database {
    free: Mutex<Vec<Connection>>,
    returned: Condvar,
}

/// A connection that goes back to its database.
struct Lent<'a> {
    database: &'a Database,
    connection: Option<Connection>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.database.free.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            self.database.returned.notify_one();
        }
    }
}

impl Database {
    fn new(connections: Vec<Connection>) -> Result<Self> {
        for connection in &connections {
            let set = |(limit, value): &(Limit, i32)| connection.set_limit(*limit, *value).map(drop);
            STATEMENT.iter().try_for_each(set).map_err(|error| failed(&error))?;
            functions::register(connection)
                .and_then(|()| math::register(connection))
                .map_err(|error| failed(&error))?;
            connection
                .set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)
                .and_then(|_| connection.pragma_update(None, "temp_store", "MEMORY"))
                .and_then(|()| connection.pragma_update(None, "query_only", true))
                .map_err(|error| failed(&error))?;
        }
        Ok(Self { free: Mutex::new(connections), returned: Condvar::new() })
    }

    /// Waits for a connection; `None` if the query is cancelled before.
    fn connection(&self, cancelled: &AtomicBool) -> Option<Lent<'_>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if cancelled.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(connection) = free.pop() {
                return Some(Lent { database: self, connection: Some(connection) });
            }
            (free, _) = self.returned.wait_timeout(free, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a query; `begins` is called when it has a connection, after which its time is limited.
    pub(super) fn query(
        &self,
        sql: &str,
        params: &[Cell],
        limits: &QueryLimits,
        cancelled: &Arc<AtomicBool>,
        begins: impl FnOnce(),
    ) -> Result<QueryResult, QueryError> {
        if sql.contains('\0') {
            return Err(Why::Nul.into());
        }
        let mut lent = self.connection(cancelled).ok_or(Why::Time(limits.time))?;
        let Some(connection) = &mut lent.connection else { return Err(Why::Nothing.into()) };
        begins();
        let refused = Arc::new(Mutex::new(None));
        let query_error = |error: rusqlite::Error| QueryError::of(&error, limits, &refused);
        let end = Instant::now().checked_add(limits.time);
        let (repeatable, note, stop) = (limits.repeatable, refused.clone(), Arc::clone(cancelled));
        let hook = move |context: AuthContext<'_>| match denied(&context.action, repeatable) {
            None => Authorization::Allow,
            Some(what) => {
                let mut note = note.lock().unwrap_or_else(PoisonError::into_inner);
                *note = (!what.is_empty()).then_some(what);
                Authorization::Deny
            }
        };
        let late = move || end.is_some_and(|end| Instant::now() >= end) || stop.load(Ordering::Relaxed);
        connection
            .authorizer(Some(hook))
            .and_then(|()| connection.progress_handler(STEPS, Some(late)))
            .map_err(query_error)?;
        let memory = memory::Limit::new(limits.memory, end);
        let result = run(connection, sql, params, limits, &query_error);
        drop(memory);
        result
    }
}

/// The refused part of a statement; empty for any write.
fn denied(action: &AuthAction<'_>, repeatable: bool) -> Option<String> {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => None,
        AuthAction::Function { function_name: name } => {
            let is_in = |list: &[&str]| list.iter().any(|listed| name.eq_ignore_ascii_case(listed));
            (is_in(&FORBIDDEN) || (repeatable && is_in(&RANDOM))).then(|| format!("the function {name}"))
        }
        AuthAction::Pragma { pragma_name: name, .. } => {
            (!PRAGMAS.iter().any(|listed| name.eq_ignore_ascii_case(listed))).then(|| format!("PRAGMA {name}"))
        }
        _ => Some(String::new()),
    }
}

fn run(
    connection: &Connection,
    sql: &str,
    params: &[Cell],
    limits: &QueryLimits,
    query_error: &impl Fn(rusqlite::Error) -> QueryError,
) -> Result<QueryResult, QueryError> {
    let mut batch = Batch::new(connection, sql);
    let mut statement = batch.next().map_err(query_error)?.ok_or(Why::Nothing)?;
    // The rest is parsed one statement at a time, because `Connection::prepare` recurses over all.
    if !matches!(batch.next(), Ok(None)) {
        return Err(Why::Several.into());
    }
    if statement.parameter_count() != params.len() {
        return Err(Why::Params { wanted: statement.parameter_count(), count: params.len() }.into());
    }
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut result = QueryResult { columns, ..QueryResult::default() };
    let mut bytes = 0;
    let mut rows = statement.query(rusqlite::params_from_iter(params)).map_err(query_error)?;
    while let Some(row) = rows.next().map_err(query_error)? {
        if result.rows.len() == limits.rows || bytes > limits.bytes {
            result.more = true;
            break;
        }
        let mut cells = Vec::with_capacity(result.columns.len());
        for at in 0..result.columns.len() {
            let value = row.get_ref(at).map_err(query_error)?;
            if let ValueRef::Text(data) | ValueRef::Blob(data) = value {
                bytes += data.len();
            }
            cells.push(value.into());
        }
        bytes += 16 * cells.len();
        result.rows.push(cells);
    }
    Ok(result)
}
