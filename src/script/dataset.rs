//! JSONL datasets: one JSON object a line, found by an index of line starts and read when asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::error::{Error, Kind, Result, suggest};

#[derive(Debug)]
pub(crate) struct Jsonl {
    path: PathBuf,
    file: File,
    /// What the script calls a column -> what the file calls it.
    columns: BTreeMap<String, String>,
    rows: Vec<Row>,
}

/// Where a row lies in the file.
#[derive(Debug)]
struct Row {
    start: u64,
    length: usize,
    /// Counted from 1, blank lines included.
    line: usize,
}

impl Jsonl {
    /// Opens a file and finds its lines. A relative path is looked for in the current directory, then in `beside`.
    pub(crate) fn open(path: &Path, beside: &Path, columns: &BTreeMap<String, String>) -> Result<Self> {
        let next_to_script = beside.join(path);
        let path = if path.exists() || !next_to_script.exists() { path.to_owned() } else { next_to_script };
        let failed = |error: &std::io::Error| Error::io(Kind::Data, "read the dataset", &path, error);
        let file = File::open(&path).map_err(|error| failed(&error))?;
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        let (mut rows, mut text) = (Vec::new(), Vec::new());
        let (mut start, mut line) = (0, 0);
        loop {
            text.clear();
            let length = reader.read_until(b'\n', &mut text).map_err(|error| failed(&error))?;
            if length == 0 {
                break;
            }
            line += 1;
            if !text.trim_ascii().is_empty() {
                rows.push(Row { start, length, line });
            }
            start += length as u64;
        }
        if rows.is_empty() {
            return Err(Error::new(Kind::Data, "the dataset has no rows").at_path(&path));
        }
        Ok(Self { path, file, columns: columns.clone(), rows })
    }

    pub(crate) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// `data.jsonl:17`
    pub(crate) fn place(&self, index: u64) -> String {
        let line = self.rows.get(index as usize).map_or(0, |row| row.line);
        format!("{}:{line}", self.path.display())
    }

    pub(crate) fn row(&self, index: u64) -> Result<Json> {
        let Some(row) = self.rows.get(index as usize) else {
            return Err(Error::new(
                Kind::Data,
                format!("there is no row {index}; the dataset has {}", self.rows.len()),
            )
            .at_path(&self.path));
        };
        let mut bytes = vec![0; row.length];
        self.file.read_exact_at(&mut bytes, row.start).map_err(|error| {
            Error::io(Kind::Data, "read the row", self.place(index), &error)
                .hint("was the file changed while the run was going on?")
        })?;
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
        let json: Json = serde_json::from_slice(bytes).map_err(|error| {
            let text = error.to_string();
            let reason = text.split(" at line ").next().unwrap_or(&text);
            Error::new(Kind::Data, format!("the row is not JSON: {reason} in column {}", error.column()))
                .at(self.place(index))
                .hint("a dataset holds one JSON object a line")
        })?;
        let Json::Object(mut fields) = json else {
            return Err(Error::new(Kind::Data, "the row is not a JSON object").at(self.place(index)));
        };
        for (name, column) in &self.columns {
            let Some(value) = take(&mut fields, column) else {
                let known: Vec<&str> = fields.keys().map(String::as_str).collect();
                return Err(Error::new(Kind::Data, format!("the row has no column `{column}`"))
                    .at(self.place(index))
                    .hint(suggest(column, known)));
            };
            fields.insert(name.clone(), value);
        }
        Ok(Json::Object(fields))
    }
}

/// A column by name, or by a dotted path into it (`reward_model.ground_truth`). A column found by its name moves;
/// one inside another is copied.
fn take(fields: &mut Map<String, Json>, column: &str) -> Option<Json> {
    if let Some(value) = fields.remove(column) {
        return Some(value);
    }
    let (first, rest) = column.split_once('.')?;
    rest.split('.').try_fold(fields.get(first)?, |value, name| value.get(name)).cloned()
}
