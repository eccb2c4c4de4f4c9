//! Rows of text files: JSON lines, and CSV with column names in its first record. An index of row
//! positions is built once; a row is read on access.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::encoding;
use crate::config::Compression;
use crate::error::{Error, Kind, Result};
use crate::json;

#[derive(Debug)]
pub(super) struct RowLines {
    path: PathBuf,
    file: File,
    kind: LineForm,
    rows: Vec<RowPosition>,
}

#[derive(Debug)]
enum LineForm {
    Json,
    Csv { delimiter: u8, names: Vec<String> },
}

/// Bytes of a row. A row is in memory as a whole, and its values take several times its size.
pub(crate) const ROW: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct RowPosition {
    start: u64,
    length: usize,
    /// Line number from 1, blank lines included.
    line: u64,
}

impl RowLines {
    /// One JSON object per line.
    pub(super) fn jsonl(path: &Path) -> Result<Self> {
        let failed = |error: &std::io::Error| failed(path, error);
        let file = open(path)?;
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        let (mut rows, mut text) = (Vec::new(), Vec::new());
        let (mut start, mut line) = (0, 0);
        loop {
            text.clear();
            let read = reader.by_ref().take(ROW as u64 + 1).read_until(b'\n', &mut text);
            let length = read.map_err(|error| failed(&error))?;
            if length == 0 {
                break;
            }
            line += 1;
            if length > ROW {
                return Err(too_long(path, line));
            }
            if !text.trim_ascii().is_empty() {
                rows.push(RowPosition { start, length, line });
            }
            start += length as u64;
        }
        Ok(Self { path: path.to_owned(), file, kind: LineForm::Json, rows })
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
        Ok(Self { path: path.to_owned(), file, kind: LineForm::Csv { delimiter, names }, rows })
    }

    pub(super) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The line of a row, from 1.
    pub(super) fn line(&self, index: u64) -> u64 {
        let Some(row) = self.get(index) else { return 0 };
        // The bytes of a record include blank lines before it.
        let blank = match self.kind {
            LineForm::Json => 0,
            LineForm::Csv { .. } => self.bytes(row).map_or(0, |bytes| {
                bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).filter(|byte| **byte == b'\n').count()
            }),
        };
        row.line + blank as u64
    }

    fn bytes(&self, row: &RowPosition) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; row.length];
        self.file.read_exact_at(&mut bytes, row.start).map(|()| bytes)
    }

    fn get(&self, index: u64) -> Option<&RowPosition> {
        self.rows.get(usize::try_from(index).ok()?)
    }

    pub(super) fn row(&self, index: u64) -> Result<Json> {
        let Some(row) = self.get(index) else { return Ok(Json::Null) };
        let bytes = self.bytes(row).map_err(|error| {
            Error::io(Kind::Data, "read the row", format!("{}:{}", self.path.display(), row.line), &error)
                .hint("was the file changed while the run was going on?")
        })?;
        match &self.kind {
            LineForm::Json => {
                let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
                json::read(bytes).map_err(|error| {
                    if let Err(error) = encoding::text(bytes, &self.path, row.line) {
                        return error;
                    }
                    let text = error.to_string();
                    let reason = text.split(" at line ").next().unwrap_or(&text);
                    Error::new(Kind::Data, format!("the row is not JSON: {reason} in column {}", error.column()))
                        .hint("a dataset has one JSON object per line")
                })
            }
            LineForm::Csv { delimiter, names } => {
                let mut reader =
                    csv::ReaderBuilder::new().delimiter(*delimiter).has_headers(false).from_reader(bytes.as_slice());
                let mut record = csv::ByteRecord::new();
                let read = reader.read_byte_record(&mut record);
                read.map_err(|error| Error::new(Kind::Data, format!("the row is not CSV: {error}")))?;
                let cell = |cell: &[u8]| encoding::text(cell, &self.path, row.line).map(Json::from);
                let cells = record.iter().map(cell).collect::<Result<Vec<_>>>()?;
                Ok(Json::Object(names.iter().cloned().zip(cells).collect()))
            }
        }
    }
}

/// A CSV file that is read record by record.
#[derive(Debug)]
pub(crate) struct CsvFile {
    pub(crate) path: PathBuf,
    file: File,
    /// Its size in bytes.
    size: u64,
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
        let file = open(path)?;
        let size = file.metadata().map_err(|error| failed(path, &error))?.len();
        let mut lines = Self { path: path.to_owned(), file, size, delimiter, names: Vec::new() };
        let mut first = csv::ByteRecord::new();
        let mut reader = lines.reader()?;
        reader.read_byte_record(&mut first).map_err(|error| lines.broken(&error, 1))?;
        let length = usize::try_from(reader.position().byte()).unwrap_or(0);
        drop(reader);
        lines.check(&first, &RowPosition { start: 0, length, line: 1 })?;
        let text = |cell: &[u8]| {
            encoding::text(cell, path, 1).map(|text| text.trim_start_matches('\u{feff}').trim().to_owned())
        };
        lines.names = first.iter().map(text).collect::<Result<_>>()?;
        let mut seen = HashSet::new();
        if let Some(twice) = lines.names.iter().find(|name| !seen.insert(name.as_str())) {
            return Err(Error::new(Kind::Data, format!("two columns are called `{twice}`"))
                .at(format!("{}:1", path.display()))
                .hint("the first line of a CSV dataset names its columns"));
        }
        Ok(lines)
    }

    /// Calls `use_row` with each record after the first, and its position.
    ///
    /// # Errors
    /// [`Kind::Data`] with the line, for a record that has more or fewer cells than the first, is
    /// not UTF-8, or has a quote that is not closed; the error of `use_row`.
    pub(crate) fn each(&self, mut use_row: impl FnMut(&csv::ByteRecord, RowPosition) -> Result<()>) -> Result<()> {
        let mut reader = self.reader()?;
        let mut record = csv::ByteRecord::new();
        let mut is_first = true;
        loop {
            let (start, line) = (reader.position().byte(), reader.position().line());
            reader.get_ref().begin();
            if !reader.read_byte_record(&mut record).map_err(|error| self.broken(&error, line))? {
                return Ok(());
            }
            if std::mem::take(&mut is_first) {
                continue;
            }
            let length = usize::try_from(reader.position().byte() - start).unwrap_or(0);
            let row = RowPosition { start, length, line };
            self.check(&record, &row)?;
            use_row(&record, row)?;
        }
    }

    /// Refuses a record that is not UTF-8, or has a quote that is not closed: such a cell has the
    /// rest of the file, or several lines.
    fn check(&self, record: &csv::ByteRecord, row: &RowPosition) -> Result<()> {
        let text = record.as_slice();
        let is_utf8 = text.is_ascii() || record.iter().all(|cell| std::str::from_utf8(cell).is_ok());
        let is_last = row.start + row.length as u64 >= self.size;
        if is_utf8 && !is_last && !text.contains(&b'\n') {
            return Ok(());
        }
        let mut bytes = vec![0; row.length];
        self.file.read_exact_at(&mut bytes, row.start).map_err(|error| failed(&self.path, &error))?;
        encoding::text(&bytes, &self.path, row.line)?;
        encoding::check_quotes(&bytes, self.delimiter, &self.path, row.line)
    }

    /// A reader at the beginning of the file.
    fn reader(&self) -> Result<csv::Reader<Bounded<'_>>> {
        (&self.file).seek(SeekFrom::Start(0)).map_err(|error| failed(&self.path, &error))?;
        let file = Bounded { file: &self.file, left: Cell::new(BEYOND) };
        let mut builder = csv::ReaderBuilder::new();
        Ok(builder.buffer_capacity(BUFFER).delimiter(self.delimiter).has_headers(false).from_reader(file))
    }

    /// The error of the record that begins at `line`.
    fn broken(&self, error: &csv::Error, line: u64) -> Error {
        if matches!(error.kind(), csv::ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge) {
            return too_long(&self.path, line);
        }
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

const BUFFER: usize = 1 << 20;

/// Bytes that are read for one record: those that the buffer already has are not counted.
const BEYOND: usize = ROW + BUFFER;

/// A file of which one record may read a limited number of bytes.
#[derive(Debug)]
struct Bounded<'a> {
    file: &'a File,
    left: Cell<usize>,
}

impl Bounded<'_> {
    /// The next record begins.
    fn begin(&self) {
        self.left.set(BEYOND);
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let limit = buffer.len().min(self.left.get());
        if limit == 0 && !buffer.is_empty() {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        let count = self.file.read(&mut buffer[..limit])?;
        self.left.set(self.left.get() - count);
        Ok(count)
    }
}

/// The error of a row that is longer than [`ROW`].
fn too_long(path: &Path, line: u64) -> Error {
    Error::new(Kind::Data, format!("the row has more than {} MiB", ROW >> 20))
        .at(format!("{}:{line}", path.display()))
        .hint("is a line break or a closing quote missing?")
}

/// Opens a text file. A compressed one is decompressed to an anonymous file, for random access.
///
/// # Errors
/// [`Kind::Data`] for a file that can't be read, or is UTF-16.
pub(crate) fn open(path: &Path) -> Result<File> {
    let file = decompressed(path)?;
    encoding::check_start(path, &file)?;
    Ok(file)
}

fn decompressed(path: &Path) -> Result<File> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    /// A row that is longer than the limit, packed in a few kilobytes.
    #[test]
    fn a_row_without_end_is_refused_before_it_is_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        for (name, start, end) in [
            ("a.jsonl.gz", "{\"a\": 1}\n{\"prompt\": \"", "\"}\n"),
            ("a.csv.gz", "a,b\n1,2\n\"", "\",3\n"),
            ("open.csv.gz", "a,b\n1,2\n\"", ""),
            ("names.csv.gz", "a,\"", "\"\n1,2\n"),
        ] {
            let path = dir.path().join(name);
            let mut file = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
            file.write_all(start.as_bytes()).unwrap();
            let blanks = vec![b' '; 1 << 20];
            for _ in 0..80 {
                file.write_all(&blanks).unwrap();
            }
            file.write_all(end.as_bytes()).unwrap();
            file.finish().unwrap();
            let read = if name.contains("csv") { RowLines::csv(&path, b',') } else { RowLines::jsonl(&path) };
            let error = read.unwrap_err();
            assert_eq!((error.kind, error.message.as_str()), (Kind::Data, "the row has more than 64 MiB"), "{name}");
            let line = if name.contains("jsonl") {
                2
            } else if name.starts_with("names") {
                1
            } else {
                3
            };
            assert_eq!(error.place.unwrap(), format!("{}:{line}", path.display()));
        }
        // Shorter rows are read, also many of them.
        let path = dir.path().join("b.csv");
        let cell = "x".repeat(30 << 20);
        std::fs::write(&path, format!("a,b\n{cell},1\n{cell},2\n{cell},3\n{cell},4\n")).unwrap();
        let rows = RowLines::csv(&path, b',').unwrap();
        assert_eq!((rows.len(), rows.row(3).unwrap()["b"].as_str()), (4, Some("4")));
    }
}
