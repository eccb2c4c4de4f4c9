//! Tables for SQL: tables of files are read once per process and shared by all virtual machines,
//! tables of plain data are kept while a trajectory with equal data uses them.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::resource::{Resource, ResourceFormat, ResourceSpec};
use crate::config::{Compression, DataFormat};
use crate::data::{CsvFile, Dataset};
use crate::error::{Error, Kind, Result, suggest};
use crate::tools::table::{
    ColumnTypes, FileRow, FileTable, TableData, TableInput, TableNames, TableOptions, Tables, describe,
};

#[derive(Clone, Debug)]
pub(crate) enum TableSource {
    File {
        resource: Arc<Resource>,
        spec: ResourceSpec,
    },
    /// Plain data of the script.
    Data(Json),
    Column(String),
}

#[derive(Clone, Debug)]
pub(crate) struct NamedTable {
    /// Its name in SQL; empty for a column with several tables by name.
    pub(crate) name: String,
    pub(crate) source: TableSource,
    pub(crate) types: ColumnTypes,
}

/// A tool that answers SQL.
#[derive(Debug)]
pub(crate) struct TableTool {
    pub(crate) options: TableOptions,
    /// Rows of each table that the description shows.
    pub(crate) preview: usize,
    pub(crate) tables: ToolTables,
}

#[derive(Debug)]
pub(crate) enum ToolTables {
    Fixed(Arc<Tables>),
    /// Made of columns of each task.
    OfTask(Vec<NamedTable>),
}

/// Name of a task's only table.
pub(crate) const ONLY: &str = "t";

/// Maximum number of concurrent queries of the same tables.
const AT_ONCE: usize = 16;

type TableCache = Mutex<Vec<(Vec<u8>, Weak<Tables>)>>;

static KNOWN: TableCache = Mutex::new(Vec::new());

/// Tables of files and plain data, built by the first caller.
///
/// # Errors
/// [`Kind::Data`], with the file or the table and its row.
pub(crate) fn open(tables: &[NamedTable]) -> Result<Arc<Tables>> {
    let key = key(tables);
    // Held while tables are built, so that two threads do not build them twice.
    let mut cache = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    cache.retain(|(_, open)| open.strong_count() > 0);
    if let Some(open) = cache.iter().find(|(cached, _)| *cached == key).and_then(|(_, open)| open.upgrade()) {
        return Ok(open);
    }
    let has_files = tables.iter().any(|table| matches!(table.source, TableSource::File { .. }));
    let built = if has_files {
        // On another thread, since reading files does not count as CPU time of the script.
        let built = std::thread::scope(|scope| scope.spawn(|| build(tables)).join());
        built.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "building the tables stopped")))?
    } else {
        build(tables)?
    };
    let built = Arc::new(built);
    cache.push((key, Arc::downgrade(&built)));
    Ok(built)
}

/// The identity of tables: names, options, and content.
fn key(tables: &[NamedTable]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for table in tables {
        let mut text = format!("{:?}{:?}", table.name, table.types);
        match &table.source {
            TableSource::File { resource, spec } => {
                let _ = write!(text, "{spec:?}{}", resource.sha256);
            }
            TableSource::Data(data) => {
                let _ = write!(text, "{data}");
            }
            TableSource::Column(column) => {
                let _ = write!(text, "{column:?}");
            }
        }
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().to_vec()
}

enum TableFile {
    /// CSV and TSV are read in order, without an index of their rows.
    Csv(CsvFile),
    Rows(Dataset),
}

impl TableFile {
    fn open(path: &Path, spec: &ResourceSpec) -> Result<Self> {
        let declared = spec.format.and_then(ResourceFormat::of_rows);
        Ok(match declared.or_else(|| DataFormat::of(path)) {
            Some(DataFormat::Csv) if spec.columns.is_empty() => Self::Csv(CsvFile::open(path, b',')?),
            Some(DataFormat::Tsv) if spec.columns.is_empty() => Self::Csv(CsvFile::open(path, b'\t')?),
            _ => Self::Rows(Dataset::open(&[path.to_owned()], declared, &spec.columns)?),
        })
    }

    /// Whether its cells are text.
    fn is_text(path: &Path, spec: &ResourceSpec) -> bool {
        let format = spec.format.and_then(ResourceFormat::of_rows).or_else(|| DataFormat::of(path));
        matches!(format, Some(DataFormat::Csv | DataFormat::Tsv))
    }

    fn header(&self) -> &[String] {
        match self {
            Self::Csv(file) => &file.names,
            Self::Rows(_) => &[],
        }
    }

    fn each(&self, use_row: &mut dyn FnMut(FileRow<'_>) -> Result<()>) -> Result<()> {
        match self {
            Self::Csv(file) => {
                let mut is_empty = true;
                file.each(|cells, _| {
                    is_empty = false;
                    use_row(FileRow::Cells(cells))
                })?;
                if is_empty {
                    Err(Error::new(Kind::Data, "the dataset has no rows").at_path(&file.path))
                } else {
                    Ok(())
                }
            }
            Self::Rows(data) => (0..data.len()).try_for_each(|index| use_row(FileRow::Fields(&data.fields(index)?))),
        }
    }
}

fn build(tables: &[NamedTable]) -> Result<Tables> {
    let file = |table: &NamedTable| match &table.source {
        TableSource::File { resource, spec } => Some(TableFile::open(&resource.path, spec)).transpose(),
        _ => Ok(None),
    };
    let files = tables.iter().map(file).collect::<Result<Vec<_>>>()?;
    if files.iter().all(Option::is_none) {
        let data = tables.iter().map(read).collect::<Result<Vec<_>>>()?;
        return Ok(Tables::of_data(data));
    }
    let mut sources = Vec::new();
    for (table, file) in tables.iter().zip(&files) {
        let (TableSource::File { resource, spec }, Some(file)) = (&table.source, file) else {
            sources.push(TableInput::Data(read(table)?));
            continue;
        };
        sources.push(TableInput::Rows(FileTable {
            name: table.name.clone(),
            header: file.header().to_vec(),
            read: Box::new(|use_row| file.each(use_row)),
            is_text: TableFile::is_text(&resource.path, spec),
            types: table.types.clone(),
        }));
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Tables::build(&sources, cores.min(AT_ONCE))
}

fn read(table: &NamedTable) -> Result<TableData> {
    match &table.source {
        TableSource::Data(data) => Ok(TableData::read(&table.name, data, &table.types)?),
        _ => Err(Error::new(Kind::Internal, format!("table `{}` has no data", table.name))),
    }
}

/// The content of a file that is a column of the task: text as it is; for `.csv` and `.tsv` a
/// table; otherwise JSON.
///
/// # Errors
/// [`Kind::Data`] for a column that is not a table.
pub(crate) fn file_of(name: &str, value: &Json) -> Result<Vec<u8>> {
    if let Json::String(text) = value {
        return Ok(text.clone().into_bytes());
    }
    let separator = match Path::new(name).extension().and_then(|end| end.to_str()) {
        Some("csv") => b',',
        Some("tsv") => b'\t',
        Some("jsonl") if value.is_array() => {
            let lines = value.as_array().into_iter().flatten().map(|row| format!("{row}\n"));
            return Ok(lines.collect::<String>().into_bytes());
        }
        _ => return Ok(value.to_string().into_bytes()),
    };
    // Cells stay as they are.
    let types = ColumnTypes { infer: Some(false), ..ColumnTypes::default() };
    Ok(TableData::read(name, value, &types)?.to_csv(separator))
}

/// A column of the task that the tool needs.
///
/// # Errors
/// [`Kind::Data`] if the task does not have it.
pub(super) fn task_column<'a>(tool: &str, task: &'a Json, column: &str) -> Result<&'a Json> {
    task.get(column).filter(|value| !value.is_null()).ok_or_else(|| {
        let names = task.as_object().into_iter().flat_map(serde_json::Map::keys).map(String::as_str);
        let message = format!("tool `{tool}`: the task has no column `{column}`");
        Error::new(Kind::Data, message).hint(suggest(column, names))
    })
}

/// The name of a file's table: its name without extensions, other characters replaced by `_`.
pub(crate) fn name_of(path: &Path) -> Option<String> {
    let plain = if Compression::of(path).is_some() { path.file_stem()?.as_ref() } else { path };
    let name: String =
        plain.file_stem()?.to_str()?.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    TableNames::is_name(&name).then_some(name)
}

/// Refuses a name that needs quotes in SQL.
///
/// # Errors
/// [`Kind::Data`], with the rule.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if TableNames::is_name(name) {
        return Ok(());
    }
    let name: String = name.chars().take(80).collect();
    let message = format!("{name:?} can't be the name of a table");
    Err(Error::new(Kind::Data, message).hint("a name has letters, digits and _, and does not begin with a digit"))
}

impl TableTool {
    /// The columns of the task that it needs.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        let tables: &[NamedTable] = match &self.tables {
            ToolTables::Fixed(_) => &[],
            ToolTables::OfTask(tables) => tables,
        };
        tables.iter().filter_map(|table| match &table.source {
            TableSource::Column(column) => Some(column.as_str()),
            _ => None,
        })
    }

    /// The tables of a task; `None` if they are the same for all tasks.
    ///
    /// # Errors
    /// [`Kind::Data`] for a column that is missing or no table.
    pub(crate) fn of_task(&self, tool: &str, task: &Json) -> Result<Option<Arc<Tables>>> {
        let ToolTables::OfTask(tables) = &self.tables else { return Ok(None) };
        let mut named_tables = Vec::new();
        for table in tables {
            let TableSource::Column(column) = &table.source else { continue };
            let data = task_column(tool, task, column)?;
            let with = |name: &str, data: &Json| NamedTable {
                name: name.to_owned(),
                source: TableSource::Data(data.clone()),
                types: table.types.clone(),
            };
            match data.as_object().filter(|_| table.name.is_empty() && !TableData::is_one(data)) {
                Some(several) => named_tables.extend(several.iter().map(|(name, data)| with(name, data))),
                None => named_tables.push(with(if table.name.is_empty() { ONLY } else { &table.name }, data)),
            }
        }
        let mut names = TableNames::default();
        let mut about = |table: &NamedTable| {
            check_name(&table.name)?;
            if names.table(&table.name) {
                return Ok(());
            }
            Err(Error::new(Kind::Data, format!("two tables are called `{}`", table.name)))
        };
        named_tables
            .iter()
            .try_for_each(&mut about)
            .and_then(|()| open(&named_tables))
            .map(Some)
            .map_err(|error| Error { message: format!("tool `{tool}`: {}", error.message), ..error })
    }

    /// The tables' part of the tool's description.
    pub(crate) fn describe(&self, tables: &Tables) -> String {
        format!("\n\nTables:\n{}", describe(tables.tables(), self.preview, &self.options))
    }
}
