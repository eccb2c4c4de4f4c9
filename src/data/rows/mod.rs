//! Datasets: rows of JSONL, JSON, CSV and Parquet files, indexed once and read on access.

mod encoding;
mod find;
mod lines;
mod place;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::catalog::hint_for;
use super::texts::find_column;
use crate::config::DataFormat;
use crate::error::{Error, Kind, Result, Subject, suggest};
use crate::json;
use crate::store::{ArrowFile, BytesColumns, ParquetTable};
pub(crate) use encoding::text as utf8;
pub(crate) use find::{find, listed};
pub(crate) use lines::CsvFile;
use lines::RowLines;
pub(crate) use lines::open as open_text;
pub(crate) use place::check_place;

/// The field of a JSON file with one object that has the rows.
const ROWS: &str = "data";

/// One or more files with consecutive rows.
#[derive(Debug)]
pub(crate) struct Dataset {
    files: Vec<File>,
    rows: u64,
    /// Column name in the script -> column name in the files.
    columns: BTreeMap<String, String>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Number of rows of the files before it.
    first: u64,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Lines(RowLines),
    /// A list in one JSON file.
    List(Vec<Json>),
    Table(ParquetTable),
    Arrow(ArrowFile),
}

impl Dataset {
    /// Opens files and indexes their rows. Columns of bytes are read if `columns` names them.
    ///
    /// # Errors
    /// [`Kind::Data`], with the file and the reason.
    pub(crate) fn open(
        paths: &[PathBuf],
        format: Option<DataFormat>,
        columns: &BTreeMap<String, String>,
    ) -> Result<Self> {
        Self::open_with(paths, format, columns, &BytesColumns::Named(columns.values().cloned().collect()))
    }

    /// As [`Dataset::open`], with all columns of bytes.
    pub(crate) fn open_whole(paths: &[PathBuf]) -> Result<Self> {
        Self::open_with(paths, None, &BTreeMap::new(), &BytesColumns::All)
    }

    fn open_with(
        paths: &[PathBuf],
        format: Option<DataFormat>,
        columns: &BTreeMap<String, String>,
        bytes: &BytesColumns,
    ) -> Result<Self> {
        let (mut files, mut rows) = (Vec::with_capacity(paths.len()), 0);
        for path in paths {
            crate::error::readable(path).map_err(|error| {
                let missing = error.kind() == std::io::ErrorKind::NotFound;
                let error = Error::io(Kind::Data, "read the dataset", path, &error);
                match hint_for(path).filter(|_| missing) {
                    Some(hint) => error.hint(hint),
                    None => error,
                }
            })?;
            let file = File { path: path.clone(), first: rows, rows: Rows::open(path, format, bytes)? };
            rows += file.rows.count();
            files.push(file);
        }
        if rows == 0 {
            let error = Error::new(Kind::Data, "the dataset has no rows");
            return Err(paths.first().map_or(error.clone(), |path| error.at_path(path)));
        }
        Ok(Self { files, rows, columns: columns.clone() })
    }

    /// What is left out of its rows: columns of bytes that `columns` does not name.
    pub(crate) fn left_out(&self) -> Option<String> {
        self.files.iter().find_map(|file| {
            let columns = match &file.rows {
                Rows::Table(table) => table.left_out(),
                Rows::Arrow(file) => file.left_out(),
                Rows::Lines(_) | Rows::List(_) => Vec::new(),
            };
            let first = columns.first()?;
            let names: Vec<String> = columns.iter().map(|name| format!("`{name}`")).collect();
            let root = first.split('.').next().unwrap_or(first);
            Some(format!(
                "{}: bytes are left out of its rows: {}; columns = {{ {root} = \"{root}\" }} of the dataset keeps them",
                file.path.display(),
                names.join(", "),
            ))
        })
    }

    /// Its files, in the order of their rows.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    pub(crate) fn first_file(&self) -> Option<&Path> {
        self.files.first().map(|file| file.path.as_path())
    }

    pub(crate) fn len(&self) -> u64 {
        self.rows
    }

    /// `data.jsonl:17`, or `data.parquet, row 17` (from 0) for formats without lines.
    pub(crate) fn place(&self, index: u64) -> String {
        match self.file(index) {
            Some((file, within)) => file.place(within),
            None => self.files.first().map(|file| file.path.display().to_string()).unwrap_or_default(),
        }
    }

    /// A row as the subject of an error.
    pub(crate) fn subject(&self, index: u64) -> Option<Subject> {
        let (file, row) = self.file(index)?;
        Some(Subject::Row { file: file.path.clone(), row, field: None })
    }

    fn file(&self, index: u64) -> Option<(&File, u64)> {
        let at = self.files.partition_point(|file| file.first <= index).checked_sub(1)?;
        let file = self.files.get(at).filter(|_| index < self.rows)?;
        Some((file, index - file.first))
    }

    /// A row as it is in its file.
    pub(crate) fn raw_row(&self, index: u64) -> Result<Map<String, Json>> {
        let Some((file, within)) = self.file(index) else { return Err(self.no_row(index)) };
        let about = Subject::Row { file: file.path.clone(), row: within, field: None };
        file.row(within).map_err(|error| error.about(about))
    }

    fn no_row(&self, index: u64) -> Error {
        let error = Error::new(Kind::Data, format!("there is no row {index}; the dataset has {}", self.rows));
        self.files.first().map_or(error.clone(), |file| error.at_path(&file.path))
    }

    /// A row with renamed columns.
    pub(crate) fn row(&self, index: u64) -> Result<Json> {
        self.fields(index).map(Json::Object)
    }

    /// As [`Dataset::row`].
    pub(crate) fn fields(&self, index: u64) -> Result<Map<String, Json>> {
        let Some((file, within)) = self.file(index) else { return Err(self.no_row(index)) };
        let about = |field| Subject::Row { file: file.path.clone(), row: within, field };
        let mut fields = file.row(within).map_err(|error| error.about(about(None)))?;
        for (name, column) in &self.columns {
            let Some(value) = take(&mut fields, column) else {
                let columns: Vec<&str> = fields.keys().map(String::as_str).collect();
                return Err(Error::new(Kind::Data, format!("the row has no column `{column}`"))
                    .about(about(Some(column.clone())))
                    .at(self.place(index))
                    .hint(suggest(column, columns)));
            };
            fields.insert(name.clone(), value);
        }
        read_verl(&mut fields);
        Ok(fields)
    }
}

impl File {
    fn place(&self, index: u64) -> String {
        let path = self.path.display();
        match &self.rows {
            Rows::Lines(lines) => format!("{path}:{}", lines.line(index)),
            Rows::List(_) | Rows::Table(_) | Rows::Arrow(_) => format!("{path}, row {index}"),
        }
    }

    fn row(&self, index: u64) -> Result<Map<String, Json>> {
        let json = match &self.rows {
            Rows::Table(table) => return table.row(index),
            Rows::Arrow(file) => return file.row(index),
            Rows::Lines(lines) => lines.row(index).map_err(|error| error.at(self.place(index)))?,
            Rows::List(items) => items.get(usize::try_from(index).unwrap_or(usize::MAX)).cloned().unwrap_or_default(),
        };
        match json {
            Json::Object(fields) => Ok(fields),
            _ => Err(Error::new(Kind::Data, "the row is not a JSON object").at(self.place(index))),
        }
    }
}

impl Rows {
    fn open(path: &Path, format: Option<DataFormat>, bytes: &BytesColumns) -> Result<Self> {
        match format.or_else(|| DataFormat::of(path)).unwrap_or(DataFormat::Jsonl) {
            DataFormat::Jsonl => Ok(Self::Lines(RowLines::jsonl(path)?)),
            DataFormat::Csv => Ok(Self::Lines(RowLines::csv(path, b',')?)),
            DataFormat::Tsv => Ok(Self::Lines(RowLines::csv(path, b'\t')?)),
            DataFormat::Parquet => Ok(Self::Table(ParquetTable::open(path, bytes)?)),
            DataFormat::Arrow => Ok(Self::Arrow(ArrowFile::open(path, bytes)?)),
            DataFormat::Json => {
                if let Some(items) = list_of(path)? {
                    return Ok(Self::List(items));
                }
                // JSON lines files are often named .json.
                let lines = RowLines::jsonl(path)?;
                let nested = if lines.len() == 1 { lines.row(0).ok() } else { None };
                nested.and_then(|whole| nested_rows(&whole, path)).map_or(Ok(Self::Lines(lines)), Err)
            }
        }
    }

    fn count(&self) -> u64 {
        match self {
            Self::Lines(lines) => lines.len(),
            Self::List(items) => items.len() as u64,
            Self::Table(table) => table.rows(),
            Self::Arrow(file) => file.rows(),
        }
    }
}

/// Bytes of a file with a single list.
const LIST: u64 = 2 << 30;

/// The items of a file with a single list, or with one object that has them in `data`; `None` for
/// other content.
fn list_of(path: &Path) -> Result<Option<Vec<Json>>> {
    let failed = |error: std::io::Error| Error::io(Kind::Data, "read the dataset", path, &error);
    let mut file = BufReader::new(lines::open(path)?);
    // Lines of JSON are not read as a whole.
    let start = file.fill_buf().map_err(failed)?;
    let start = start.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(start).trim_ascii_start();
    let names_rows = start.windows(ROWS.len()).any(|part| part == ROWS.as_bytes());
    if start.first().is_some_and(|first| *first != b'[' && !names_rows) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(LIST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LIST {
        let message = format!("the list has more than {} GiB, and is read as a whole", LIST >> 30);
        return Err(Error::new(Kind::Data, message).at_path(path).hint("write JSON lines: one object per line"));
    }
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    if !text.trim_ascii_start().starts_with(b"[") {
        let whole = json::read(text).ok();
        let rows = whole.and_then(|mut whole| whole.get_mut(ROWS).map(Json::take));
        return Ok(rows.and_then(|rows| match rows {
            Json::Array(rows) if !rows.is_empty() && rows.iter().all(Json::is_object) => Some(rows),
            _ => None,
        }));
    }
    let items = json::read(text).map_err(|error| {
        let not_json = Error::new(Kind::Data, format!("the dataset is not JSON: {error}"));
        let location = format!("{}:{}", path.display(), error.line());
        utf8(text, path, 1).err().unwrap_or_else(|| not_json.at(location))
    })?;
    match items {
        Json::Array(items) => Ok(Some(items)),
        _ => Ok(None),
    }
}

/// The error of a file with one object that has the rows in a field.
fn nested_rows(whole: &Json, path: &Path) -> Option<Error> {
    const NAMES: [&str; 8] = ["rows", "train", "test", "examples", "instances", "records", "items", "questions"];
    NAMES.into_iter().find_map(|name| {
        let rows = whole.get(name)?.as_array()?;
        if rows.is_empty() || !rows.iter().all(Json::is_object) {
            return None;
        }
        let count = rows.len();
        let why = format!("the file is one object, and not a list of rows: its `{name}` is a list of {count}");
        let hint = format!("write that list alone: jq -c '.{name}[]' {} > rows.jsonl", path.display());
        Some(Error::new(Kind::Data, why).at_path(path).hint(hint))
    })
}

/// A column by name, or by a dotted path (`reward_model.ground_truth`). A column found by its name
/// is moved; a nested one is copied.
fn take(fields: &mut Map<String, Json>, column: &str) -> Option<Json> {
    fields.remove(column).or_else(|| find_column(fields, column).cloned())
}

/// Copies values of verl's columns (`data_source, prompt, ability, reward_model, extra_info`) to
/// the names that recipes use, if the row does not have them: `answer` is
/// `reward_model.ground_truth`, `problem` the last user message of `prompt`.
fn read_verl(fields: &mut Map<String, Json>) {
    let truth = fields.get("reward_model").and_then(|column| column.get("ground_truth"));
    let user = fields.get("prompt").and_then(Json::as_array).and_then(|messages| {
        messages.iter().rfind(|message| message.get("role").and_then(Json::as_str) == Some("user"))?.get("content")
    });
    let (truth, user) = (truth.cloned(), user.cloned());
    for (name, value) in [("answer", truth), ("problem", user)] {
        if let Some(value) = value {
            fields.entry(name).or_insert(value);
        }
    }
}
