//! SQL over tables: SQLite databases that are built once and only read.
//!
//! Rows come from files ([`Tables::build`]) or from plain data ([`Tables::of_data`]). A query is
//! one SELECT statement. It may be hostile: an authorizer refuses everything but reading, and time,
//! memory, rows and the length of values are limited (`database`). A query that fails is an
//! ordinary result ([`QueryError`]), not an [`Error`](crate::Error).
//!
//! - `column`: names and types of columns
//! - `data`: tables of plain data
//! - `database`: building a database, and queries under limits
//! - `query`: a query on a new thread, which is abandoned when it does not end
//! - `query_error`: why a query failed
//! - `memory`: counts what SQLite allocates for a query
//! - `functions`, `pattern`: functions whose time is bounded
//! - `math`: mathematical functions
//! - `show`: results and descriptions as text for models

mod column;
mod data;
mod database;
mod functions;
mod math;
mod memory;
mod pattern;
mod query;
mod query_error;
mod show;

use std::sync::OnceLock;

use rusqlite::types::ValueRef;
use serde_json::{Map, Value as Json};

pub use column::{Cell, Column, ColumnType, TableNames};
pub use data::{InvalidTable, TableData};
pub use database::{QueryLimits, QueryResult};
pub use query_error::QueryError;
pub use show::{ResultFormat, describe, show};

use self::column::Scan;
use self::database::Database;
use crate::error::Result;

/// The conversion of cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ColumnTypes {
    /// Types of columns by name, instead of inferred ones.
    pub declared: std::collections::BTreeMap<String, ColumnType>,
    /// Columns of text in which every cell is a number are numbers. `None`: for formats whose cells
    /// are all text.
    pub infer: Option<bool>,
    /// `1,234` is the number 1234 where types are inferred or given.
    pub thousands: bool,
}

/// A table that is built.
pub enum TableInput<'a> {
    Rows(FileTable<'a>),
    Data(TableData),
}

pub enum FileRow<'a> {
    /// Cells of UTF-8 text, in the order of the header.
    Cells(&'a csv::ByteRecord),
    /// Values by column.
    Fields(&'a Map<String, Json>),
}

/// Passes each row of a file to a function, in order.
pub type ReadRows<'a> = Box<dyn Fn(&mut dyn FnMut(FileRow<'_>) -> Result<()>) -> Result<()> + Sync + 'a>;

pub struct FileTable<'a> {
    pub name: String,
    /// The columns of rows of cells.
    pub header: Vec<String>,
    /// Called twice: types are known after the last row.
    pub read: ReadRows<'a>,
    /// Cells are all text, as in CSV.
    pub is_text: bool,
    pub types: ColumnTypes,
}

/// A table of a database.
#[derive(Clone, Debug, PartialEq)]
pub struct TableInfo {
    pub name: String,
    pub columns: Vec<Column>,
    pub rows: u64,
    /// The first rows.
    pub sample: Vec<Vec<Cell>>,
}

/// Rows that [`TableInfo::sample`] keeps.
pub const SAMPLE: usize = 10;

impl FileTable<'_> {
    fn build(&self, builder: &database::DatabaseBuilder) -> Result<TableInfo> {
        let mut scan = Scan::new(&self.types, self.is_text);
        scan.header(self.header.iter().cloned());
        let mut rows = 0;
        (self.read)(&mut |row| {
            rows += 1;
            match row {
                FileRow::Fields(fields) => scan.row(fields),
                FileRow::Cells(cells) => {
                    cells.iter().enumerate().for_each(|(at, cell)| scan.text(at, &String::from_utf8_lossy(cell)));
                }
            }
            Ok(())
        })?;
        let columns = scan.finish().map_err(|error| error.of(&self.name))?;
        let mut info = TableInfo { name: self.name.clone(), columns, rows, sample: Vec::new() };
        let mut table = builder.table(&info)?;
        let (mut at, mut sample) = (0, Vec::new());
        (self.read)(&mut |row| {
            at += 1;
            let mut shown = (sample.len() < SAMPLE).then(|| Vec::with_capacity(info.columns.len()));
            for (index, column) in info.columns.iter().enumerate() {
                let wrong = |error: InvalidTable| error.at_row(at).of(&self.name);
                let mut set = |value: ValueRef<'_>| {
                    if let Some(shown) = &mut shown {
                        shown.push(value.into());
                    }
                    table.set(index, value)
                };
                match row {
                    FileRow::Cells(cells) => {
                        let text = String::from_utf8_lossy(cells.get(index).unwrap_or_default());
                        set(column.text(&text).map_err(wrong)?)?;
                    }
                    FileRow::Fields(fields) => {
                        set(column.cell(fields.get(&column.key)).map_err(wrong)?.as_value())?;
                    }
                }
            }
            sample.extend(shown);
            table.add()
        })?;
        drop(table);
        info.sample = sample;
        Ok(info)
    }
}

/// Tables that one query can use together. Shared by threads.
#[derive(Debug)]
pub struct Tables {
    infos: Vec<TableInfo>,
    /// Rows of plain data, until the first query needs the database.
    data: Vec<TableData>,
    database: OnceLock<Result<Database>>,
}

impl Tables {
    /// Reads all rows into a database in a temporary file, which has no name and ends with the
    /// process. `connections` is the number of queries that can run at once.
    ///
    /// # Errors
    /// Errors of the rows; [`Kind::Data`](crate::error::Kind) for a table that SQLite can't hold or
    /// a disk that is full.
    pub fn build(sources: &[TableInput<'_>], connections: usize) -> Result<Self> {
        let builder = database::DatabaseBuilder::in_file()?;
        let mut tables = Vec::new();
        for source in sources {
            tables.push(match source {
                TableInput::Data(data) => {
                    builder.table_of(&data.info(), &data.rows)?;
                    data.info()
                }
                TableInput::Rows(rows) => rows.build(&builder)?,
            });
        }
        let database = OnceLock::from(Ok(builder.finish(connections)?));
        Ok(Self { infos: tables, data: Vec::new(), database })
    }

    /// Tables of plain data; the database is built in memory by the first query.
    pub fn of_data(data: Vec<TableData>) -> Self {
        let infos = data.iter().map(TableData::info).collect();
        Self { infos, data, database: OnceLock::new() }
    }

    /// The tables, in the order of their names.
    pub fn tables(&self) -> &[TableInfo] {
        &self.infos
    }

    /// The database; plain data is stored by the first caller.
    fn database(&self) -> Result<&Database> {
        let build = || {
            let builder = database::DatabaseBuilder::in_memory()?;
            for (info, data) in self.infos.iter().zip(&self.data) {
                builder.table_of(info, &data.rows)?;
            }
            builder.finish(1)
        };
        self.database.get_or_init(build).as_ref().map_err(Clone::clone)
    }
}

crate::schema::section! {
    /// Settings of `r1.tools.table`.
    pub struct TableOptions: "" {
        /// Rows of a result that are shown.
        max_rows: usize = 50;
        /// Characters of a cell that are shown.
        max_cell: usize = 200;
        /// Bytes of a result that are shown; whole rows only.
        output_bytes: usize = 8192;
        /// Wall time of one query in seconds.
        timeout: f64 = 5.0;
        /// Memory that one query may allocate, MiB.
        memory_mb: u64 = 256;
        /// The format of results.
        format: ResultFormat = ResultFormat::Markdown;
    }
}

impl TableOptions {
    /// Refuses values out of range.
    ///
    /// # Errors
    /// [`Kind::Script`](crate::error::Kind), with the range.
    pub fn check(&self) -> Result<()> {
        let rules = [
            (self.timeout > 0.0 && self.timeout <= 86_400.0, "timeout", "more than 0 and at most 86400 seconds"),
            ((1..=1_000_000).contains(&self.max_rows), "max_rows", "from 1 to 1000000"),
            ((1..=1 << 20).contains(&self.max_cell), "max_cell", "from 1 to 1048576"),
            ((64..=1 << 28).contains(&self.output_bytes), "output_bytes", "from 64 to 268435456"),
            ((1..=1 << 20).contains(&self.memory_mb), "memory", "from 1 MiB to 1 TiB"),
        ];
        let Some((_, name, range)) = rules.iter().find(|(holds, ..)| !holds) else { return Ok(()) };
        let why = format!("`{name}` must be {range}");
        Err(crate::error::Error::new(crate::error::Kind::Script, why).about_setting((*name).to_owned()))
    }

    /// The limits of the tool's queries.
    pub fn limits(&self) -> QueryLimits {
        QueryLimits {
            time: std::time::Duration::from_secs_f64(self.timeout),
            memory: self.memory_mb << 20,
            rows: self.max_rows,
            // Cells are cut and rows are dropped when the result is shown.
            bytes: 64 << 20,
            repeatable: false,
        }
    }
}

#[cfg(test)]
mod tests;
