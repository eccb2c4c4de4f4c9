//! Arrow IPC files and streams, as Python's `datasets` writes them with `save_to_disk`.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use serde_json::{Map, Value as Json};

use super::table::{BytesColumns, fields, no_row, row_of};
use crate::error::{Error, Kind, Result};

/// Magic bytes of the file format; streams have none.
const MAGIC: &[u8] = b"ARROW1";

/// An Arrow file, in memory.
#[derive(Debug)]
pub struct ArrowFile {
    path: PathBuf,
    batches: Vec<RecordBatch>,
    bytes: BytesColumns,
    rows: u64,
}

impl ArrowFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Kind::Data`] for a file that is missing, damaged, or not in this format.
    pub fn open(path: &Path, bytes: &BytesColumns) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io(Kind::Data, "read the dataset", path, &error);
        let damaged = |error: arrow_schema::ArrowError| {
            let message = format!("the dataset is not an Arrow file: {error}");
            Error::new(Kind::Data, message).at_path(path).hint("the file may be incomplete")
        };
        let mut file = File::open(path).map_err(failed)?;
        let mut start = Vec::new();
        file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let batches: Vec<RecordBatch> = if start == MAGIC {
            FileReader::try_new(file, None).and_then(Iterator::collect).map_err(damaged)?
        } else {
            StreamReader::try_new(BufReader::new(file), None).and_then(Iterator::collect).map_err(damaged)?
        };
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        Ok(Self { path: path.to_owned(), batches, bytes: bytes.clone(), rows })
    }

    /// The columns of bytes that are not read.
    pub fn left_out(&self) -> Vec<String> {
        self.batches.first().map(|batch| self.bytes.left_out(batch.schema_ref())).unwrap_or_default()
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Row `index`, counted from 0, with values as in
    /// [`ParquetTable::row`](super::ParquetTable::row).
    ///
    /// # Errors
    /// [`Kind::Data`] for a column type without a JSON form.
    pub fn row(&self, index: u64) -> Result<Map<String, Json>> {
        match row_of(&self.batches, index) {
            Some((batch, row)) => fields(&self.path, batch, row, index, &self.bytes),
            None => Err(no_row(&self.path, index, self.rows)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow_array::{Int64Array, StringArray};
    use arrow_ipc::writer::{FileWriter, StreamWriter};
    use arrow_schema::{DataType, Field, Schema};
    use serde_json::json;

    use super::*;

    #[test]
    fn arrow_files_and_streams_are_read() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("problem", DataType::Utf8, true),
            Field::new("n", DataType::Int64, false),
        ]));
        let batch = |first: i64| {
            let problems = StringArray::from(vec![Some("a"), None]);
            let numbers = Int64Array::from(vec![first, first + 1]);
            RecordBatch::try_new(schema.clone(), vec![Arc::new(problems), Arc::new(numbers)]).unwrap()
        };
        let dir = tempfile::tempdir().unwrap();
        let (stream, file) = (dir.path().join("s.arrow"), dir.path().join("f.arrow"));
        let mut writer = StreamWriter::try_new(File::create(&stream).unwrap(), &schema).unwrap();
        writer.write(&batch(0)).unwrap();
        writer.write(&batch(2)).unwrap();
        writer.finish().unwrap();
        let mut writer = FileWriter::try_new(File::create(&file).unwrap(), &schema).unwrap();
        writer.write(&batch(0)).unwrap();
        writer.write(&batch(2)).unwrap();
        writer.finish().unwrap();
        for path in [&stream, &file] {
            let read = ArrowFile::open(path, &BytesColumns::All).unwrap();
            assert_eq!(read.rows(), 4);
            assert_eq!(Json::Object(read.row(2).unwrap()), json!({"problem": "a", "n": 2}));
            assert_eq!(Json::Object(read.row(3).unwrap()), json!({"n": 3}));
            assert!(read.row(4).unwrap_err().message.contains("there is no row 4"));
        }
        std::fs::write(&file, "{}").unwrap();
        assert!(ArrowFile::open(&file, &BytesColumns::All).unwrap_err().message.contains("is not an Arrow file"));
    }
}
