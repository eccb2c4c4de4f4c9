//! Rows of text files: JSON lines, and CSV with column names in its first record. An index of row
//! positions is built once; a row is read on access.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::config::Compression;
use crate::error::{Error, Kind, Result};

#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: File,
    kind: Form,
    rows: Vec<Row>,
}

#[derive(Debug)]
enum Form {
    Json,
    Csv { delimiter: u8, names: Vec<String> },
}

/// Position of a row in the file.
#[derive(Debug)]
pub(crate) struct Row {
    start: u64,
    length: usize,
    /// Line number from 1, blank lines included.
    line: u64,
}

impl Lines {
    /// One JSON object per line.
    pub(super) fn jsonl(path: &Path) -> Result<Self> {
        let failed = |error: &std::io::Error| failed(path, error);
        let file = open(path)?;
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
        Ok(Self { path: path.to_owned(), file, kind: Form::Json, rows })
    }

    /// CSV after RFC 4180. Cells are kept as text.
    pub(super) fn csv(path: &Path, delimiter: u8) -> Result<Self> {
        let records = CsvFile::open(path, delimiter)?;
        let mut rows = Vec::new();
        records.each(|_, row| {
            rows.push(row);
            Ok(())
        })?;
        let CsvFile { file, names, .. } = records;
        Ok(Self { path: path.to_owned(), file, kind: Form::Csv { delimiter, names }, rows })
    }

    pub(super) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The line of a row, from 1.
    pub(super) fn line(&self, index: u64) -> u64 {
        let Some(row) = self.get(index) else { return 0 };
        // The bytes of a record include blank lines before it.
        let blank = match self.kind {
            Form::Json => 0,
            Form::Csv { .. } => self.bytes(row).map_or(0, |bytes| {
                bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).filter(|byte| **byte == b'\n').count()
            }),
        };
        row.line + blank as u64
    }

    fn bytes(&self, row: &Row) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; row.length];
        self.file.read_exact_at(&mut bytes, row.start).map(|()| bytes)
    }

    fn get(&self, index: u64) -> Option<&Row> {
        self.rows.get(usize::try_from(index).ok()?)
    }

    pub(super) fn row(&self, index: u64) -> Result<Json> {
        let Some(row) = self.get(index) else { return Ok(Json::Null) };
        let bytes = self.bytes(row).map_err(|error| {
            Error::io(Kind::Data, "read the row", format!("{}:{}", self.path.display(), row.line), &error)
                .hint("was the file changed while the run was going on?")
        })?;
        match &self.kind {
            Form::Json => {
                let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
                serde_json::from_slice(bytes).map_err(|error| {
                    let text = error.to_string();
                    let reason = text.split(" at line ").next().unwrap_or(&text);
                    Error::new(Kind::Data, format!("the row is not JSON: {reason} in column {}", error.column()))
                        .hint("a dataset has one JSON object per line")
                })
            }
            Form::Csv { delimiter, names } => {
                let mut reader =
                    csv::ReaderBuilder::new().delimiter(*delimiter).has_headers(false).from_reader(bytes.as_slice());
                let mut record = csv::ByteRecord::new();
                let read = reader.read_byte_record(&mut record);
                read.map_err(|error| Error::new(Kind::Data, format!("the row is not CSV: {error}")))?;
                let cell = |cell: &[u8]| Json::from(String::from_utf8_lossy(cell));
                Ok(Json::Object(names.iter().cloned().zip(record.iter().map(cell)).collect()))
            }
        }
    }
}

/// A CSV file that is read record by record.
#[derive(Debug)]
pub(crate) struct CsvFile {
    pub(crate) path: PathBuf,
    file: File,
    delimiter: u8,
    /// The cells of its first record; empty for a file without one.
    pub(crate) names: Vec<String>,
}

impl CsvFile {
    /// Reads the names of the columns.
    ///
    /// # Errors
    /// [`Kind::Data`] for a file that can't be read, and for two columns of the same name.
    pub(crate) fn open(path: &Path, delimiter: u8) -> Result<Self> {
        let mut own = Self { path: path.to_owned(), file: open(path)?, delimiter, names: Vec::new() };
        let mut first = csv::ByteRecord::new();
        own.reader()?.read_byte_record(&mut first).map_err(|error| own.broken(&error))?;
        let text = |cell: &[u8]| String::from_utf8_lossy(cell).trim_start_matches('\u{feff}').trim().to_owned();
        own.names = first.iter().map(text).collect();
        let names = &own.names;
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(Error::new(Kind::Data, format!("two columns are called `{}`", twice.1))
                .at(format!("{}:1", path.display()))
                .hint("the first line of a CSV dataset names its columns"));
        }
        Ok(own)
    }

    /// Calls `use_row` with each record after the first, and its position.
    ///
    /// # Errors
    /// [`Kind::Data`] with the line, for a record that has more or fewer cells than the first; the
    /// error of `use_row`.
    pub(crate) fn each(&self, mut use_row: impl FnMut(&csv::ByteRecord, Row) -> Result<()>) -> Result<()> {
        let mut reader = self.reader()?;
        let mut record = csv::ByteRecord::new();
        let mut is_first = true;
        loop {
            let (start, line) = (reader.position().byte(), reader.position().line());
            if !reader.read_byte_record(&mut record).map_err(|error| self.broken(&error))? {
                return Ok(());
            }
            if std::mem::take(&mut is_first) {
                continue;
            }
            let length = usize::try_from(reader.position().byte() - start).unwrap_or(0);
            use_row(&record, Row { start, length, line })?;
        }
    }

    /// A reader at the beginning of the file.
    fn reader(&self) -> Result<csv::Reader<BufReader<&File>>> {
        (&self.file).seek(SeekFrom::Start(0)).map_err(|error| failed(&self.path, &error))?;
        let file = BufReader::with_capacity(1 << 20, &self.file);
        Ok(csv::ReaderBuilder::new().delimiter(self.delimiter).has_headers(false).from_reader(file))
    }

    fn broken(&self, error: &csv::Error) -> Error {
        let line = error.position().map_or(1, csv::Position::line);
        let why = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("the row has {len} cells and the first line {expected_len}")
            }
            _ => format!("the row is not CSV: {error}"),
        };
        Error::new(Kind::Data, why).at(format!("{}:{line}", self.path.display()))
    }
}

/// Opens a text file. A compressed one is decompressed to an anonymous file, for random access.
pub(crate) fn open(path: &Path) -> Result<File> {
    let failed = |error: std::io::Error| failed(path, &error);
    let file = File::open(path).map_err(failed)?;
    let Some(compression) = Compression::of(path) else { return Ok(file) };
    let packed = BufReader::with_capacity(1 << 20, file);
    let mut plain = tempfile::tempfile().map_err(failed)?;
    match compression {
        Compression::Gzip => std::io::copy(&mut flate2::bufread::MultiGzDecoder::new(packed), &mut plain),
        Compression::Zstd => zstd::stream::read::Decoder::with_buffer(packed)
            .and_then(|mut packed| std::io::copy(&mut packed, &mut plain)),
    }
    .map_err(|error| {
        Error::new(Kind::Data, format!("the file can't be decompressed: {error}")).at_path(path).hint("is it whole?")
    })?;
    plain.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(plain)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::io(Kind::Data, "read the dataset", path, error)
}
