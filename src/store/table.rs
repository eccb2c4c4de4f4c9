//! Parquet datasets as JSON rows, written by pandas, Spark or the Hugging Face Hub.
//!
//! A row group is decoded on the first access to one of its rows. The most recent row groups are
//! cached as Arrow data.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::cast::AsArray;
use arrow_array::types as arrow;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, FieldRef, Fields, Schema, TimeUnit};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{ConvertedType, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::ColumnDescriptor;
use serde_json::{Map, Value as Json};

use crate::error::{Error, Kind, Result, Subject};
use crate::json;

/// Cache size of decoded row groups, bytes; at least one is cached.
const KEPT: usize = 256 << 20;

/// Bytes of a decoded row group. A few bytes of a file may be many values: pages are compressed,
/// and equal values are counted.
const GROUP: u64 = 2 << 30;

/// Bytes and values of one row. A value takes 32 bytes or more.
const ROW: RowBudget = RowBudget { bytes: 64 << 20, values: 1 << 22, has_bytes: true };

/// The columns of bytes, such as images, that are read. Others are left out.
#[derive(Clone, Debug, PartialEq)]
pub enum BytesColumns {
    All,
    /// Columns by name, or fields of columns (`image.bytes`).
    Named(Vec<String>),
}

impl BytesColumns {
    /// Whether the bytes of a column or of one of its fields are read.
    fn has(&self, column: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names
                .iter()
                .any(|name| name.strip_prefix(column).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))),
        }
    }

    /// The columns of a file, or fields of columns, that are left out.
    pub(super) fn left_out(&self, schema: &Schema) -> Vec<String> {
        let mut names = Vec::new();
        for field in schema.fields().iter().filter(|field| !self.has(field.name())) {
            bytes_in(field.data_type(), field.name(), &mut names);
        }
        names
    }
}

/// The names of the parts of a column that are bytes.
fn bytes_in(data_type: &DataType, name: &str, names: &mut Vec<String>) {
    match data_type {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            names.push(name.to_owned());
        }
        DataType::List(items) | DataType::LargeList(items) | DataType::FixedSizeList(items, _) => {
            bytes_in(items.data_type(), name, names);
        }
        DataType::Struct(fields) => {
            fields.iter().for_each(|field| bytes_in(field.data_type(), &format!("{name}.{}", field.name()), names));
        }
        DataType::Dictionary(_, values) => bytes_in(values, name, names),
        _ => {}
    }
}

/// A Parquet file with access by row, from any thread.
#[derive(Debug)]
pub struct ParquetTable {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    bytes: BytesColumns,
    /// The columns that are read.
    columns: ProjectionMask,
    /// First row and size in bytes of each row group.
    groups: Vec<(u64, usize)>,
    rows: u64,
    kept: Mutex<VecDeque<(usize, Arc<Vec<RecordBatch>>)>>,
}

impl ParquetTable {
    /// Reads the file's footer.
    ///
    /// # Errors
    /// [`Kind::Data`] for a file that is missing, damaged, or not Parquet.
    pub fn open(path: &Path, bytes: &BytesColumns) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io(Kind::Data, "read the dataset", path, &error))?;
        let not_parquet = |error| damaged(path, &error).hint("the file may be incomplete, or not be a Parquet file");
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(not_parquet)?;
        let metadata = as_views(metadata);
        let schema = metadata.metadata().file_metadata().schema_descr_ptr();
        // A column of bytes has no other type in Parquet's or Arrow's schema.
        let left_out = bytes.left_out(metadata.schema());
        let is_read: Vec<bool> = schema.columns().iter().map(|column| !is_left_out(column, &left_out)).collect();
        let columns = ProjectionMask::leaves(&schema, (0..is_read.len()).filter(|at| is_read[*at]));
        for (at, group) in metadata.metadata().row_groups().iter().enumerate() {
            let read = group.columns().iter().zip(&is_read).filter(|(_, is_read)| **is_read);
            let size = read.map(|(column, _)| decoded(column)).fold(0, u64::saturating_add);
            if size > GROUP {
                let message = format!(
                    "row group {at} of the Parquet file has {} rows of {} MiB; a row group may have {} MiB",
                    group.num_rows(),
                    size >> 20,
                    GROUP >> 20
                );
                return Err(Error::new(Kind::Data, message).at_path(path).hint("write it with fewer rows per group"));
            }
        }
        let mut rows = 0;
        let groups = metadata.metadata().row_groups().iter().map(|group| {
            let first = rows;
            rows += u64::try_from(group.num_rows()).unwrap_or(0);
            (first, usize::try_from(group.total_byte_size()).unwrap_or(0))
        });
        let groups = groups.collect();
        let (path, bytes) = (path.to_owned(), bytes.clone());
        Ok(Self { path, file, metadata, bytes, columns, groups, rows, kept: Mutex::default() })
    }

    /// The columns of bytes that are not read.
    pub fn left_out(&self) -> Vec<String> {
        self.bytes.left_out(self.metadata.schema())
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Row `index`, counted from 0. Bytes and numbers that are not finite are objects
    /// (`json::Odd`), times are ISO 8601, nulls are omitted.
    ///
    /// # Errors
    /// [`Kind::Data`] for a damaged file or a column type without a JSON form.
    pub fn row(&self, index: u64) -> Result<Map<String, Json>> {
        let group = self.groups.partition_point(|(first, _)| *first <= index).saturating_sub(1);
        let Some((first, _)) = self.groups.get(group).filter(|_| index < self.rows) else {
            return Err(no_row(&self.path, index, self.rows));
        };
        match row_of(&self.group(group)?, index - first) {
            Some((batch, row)) => fields(&self.path, batch, row, index, &self.bytes),
            None => {
                Err(Error::new(Kind::Data, "the Parquet file is damaged: a row group has too few rows")
                    .at_path(&self.path))
            }
        }
    }

    fn group(&self, index: usize) -> Result<Arc<Vec<RecordBatch>>> {
        // Held while a group is decoded, so that other workers wait instead of decoding it again.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = kept.iter().position(|(key, _)| *key == index)
            && let Some(entry) = kept.remove(position)
        {
            kept.push_back(entry.clone());
            return Ok(entry.1);
        }
        let failed = |error: &dyn std::fmt::Display| damaged(&self.path, error);
        let file = self.file.try_clone().map_err(|error| failed(&error))?;
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_row_groups(vec![index])
            .with_projection(self.columns.clone())
            .with_batch_size(8192)
            .build()
            .map_err(|error| failed(&error))?;
        let batches = Arc::new(reader.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| failed(&error))?);
        kept.push_back((index, Arc::clone(&batches)));
        let size = |key: usize| self.groups.get(key).map_or(0, |(_, size)| *size);
        while kept.len() > 1 && kept.iter().map(|(key, _)| size(*key)).sum::<usize>() > KEPT {
            kept.pop_front();
        }
        Ok(batches)
    }
}

/// The metadata with texts as views: a reader copies a text of the dictionary for each row
/// otherwise.
pub(super) fn as_views(metadata: ArrowReaderMetadata) -> ArrowReaderMetadata {
    let fields: Fields = metadata.schema().fields().iter().map(view).collect();
    let schema = Schema::new_with_metadata(fields, metadata.schema().metadata().clone());
    let options = ArrowReaderOptions::new().with_schema(Arc::new(schema));
    // A schema that the reader refuses has types that this program refuses by name.
    ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options).unwrap_or(metadata)
}

fn view(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::List(items) => DataType::List(view(items)),
        DataType::LargeList(items) => DataType::LargeList(view(items)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(view).collect()),
        other => other.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// Whether a column of a file is among those that are left out. The parts of its path that lists
/// add have no names in a row.
fn is_left_out(column: &ColumnDescriptor, left_out: &[String]) -> bool {
    let is_bytes = matches!(column.physical_type(), Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY)
        && column.logical_type_ref().is_none()
        && column.converted_type() == ConvertedType::NONE;
    let parts = column.path().parts();
    is_bytes
        && left_out.iter().any(|name| {
            let mut rest = parts.iter();
            name.split('.').all(|segment| rest.any(|part| part == segment))
                && name.split('.').next() == parts.first().map(String::as_str)
        })
}

/// Bytes of a column of a row group in memory, from the footer.
fn decoded(column: &ColumnChunkMetaData) -> u64 {
    let values = u64::try_from(column.num_values()).unwrap_or(0);
    let pages = u64::try_from(column.uncompressed_size()).unwrap_or(0);
    let width = match column.column_type() {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::BYTE_ARRAY => 16,
        Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(column.column_descr().type_length()).unwrap_or(0),
    };
    // Two levels of two bytes for each value.
    values.saturating_mul(width + 4).saturating_add(pages)
}

/// The batch of a row, and its number in that batch.
pub(super) fn row_of(batches: &[RecordBatch], index: u64) -> Option<(&RecordBatch, usize)> {
    let mut within = usize::try_from(index).ok()?;
    batches.iter().find_map(|batch| match within.checked_sub(batch.num_rows()) {
        Some(rest) => {
            within = rest;
            None
        }
        None => Some((batch, within)),
    })
}

pub(super) fn no_row(path: &Path, index: u64, rows: u64) -> Error {
    Error::new(Kind::Data, format!("there is no row {index}; the file has {rows}")).at_path(path)
}

/// A row of a batch. `index` is its number in the file.
pub(super) fn fields(
    path: &Path,
    batch: &RecordBatch,
    row: usize,
    index: u64,
    bytes: &BytesColumns,
) -> Result<Map<String, Json>> {
    let mut fields = Map::new();
    let mut budget = ROW;
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        budget.has_bytes = bytes.has(field.name());
        let value = value(column, row, &mut budget).map_err(|why| {
            let field = Some(field.name().clone());
            Error::new(Kind::Data, format!("column `{}`: {why}", field.as_deref().unwrap_or_default()))
                .about(Subject::Row { file: path.to_owned(), row: index, field })
                .at_path(path)
        })?;
        if !value.is_null() {
            fields.insert(field.name().clone(), value);
        }
    }
    Ok(fields)
}

fn damaged(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Data, format!("can't read the Parquet file: {error}")).at_path(path)
}

/// A value that has no JSON form.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("the type {0} is not supported")]
    Type(DataType),
    /// The key of a dictionary value is not in the dictionary.
    #[error("a broken dictionary")]
    Dictionary,
    /// The row is longer than [`ROW`].
    #[error("the row has more than {} MiB, or more than {} values", ROW.bytes >> 20, ROW.values)]
    TooLong,
}

/// What a row may still have.
#[derive(Clone, Copy)]
struct RowBudget {
    bytes: usize,
    values: usize,
    /// Whether bytes of this column are read; null otherwise.
    has_bytes: bool,
}

impl RowBudget {
    fn take(&mut self, bytes: usize, values: usize) -> Result<(), Unreadable> {
        match (self.bytes.checked_sub(bytes), self.values.checked_sub(values)) {
            (Some(bytes), Some(values)) => {
                (self.bytes, self.values) = (bytes, values);
                Ok(())
            }
            _ => Err(Unreadable::TooLong),
        }
    }
}

fn list(items: &ArrayRef, budget: &mut RowBudget) -> Result<Json, Unreadable> {
    (0..items.len()).map(|at| value(items, at, budget)).collect()
}

fn text(text: &str, budget: &mut RowBudget) -> Result<Json, Unreadable> {
    budget.take(text.len(), 0).map(|()| Json::from(text))
}

fn bytes(bytes: &[u8], budget: &mut RowBudget) -> Result<Json, Unreadable> {
    if !budget.has_bytes {
        return Ok(Json::Null);
    }
    // In Base64.
    budget.take(bytes.len().saturating_add(bytes.len() / 3), 2)?;
    Ok(json::of_bytes(bytes))
}

/// One value of a column.
fn value(column: &ArrayRef, row: usize, budget: &mut RowBudget) -> Result<Json, Unreadable> {
    budget.take(0, 1)?;
    if column.is_null(row) {
        return Ok(Json::Null);
    }
    macro_rules! number {
        ($kind:ty) => {
            Json::from(column.as_primitive::<$kind>().value(row))
        };
    }
    Ok(match column.data_type() {
        DataType::Null => Json::Null,
        DataType::Boolean => Json::from(column.as_boolean().value(row)),
        DataType::Int8 => number!(arrow::Int8Type),
        DataType::Int16 => number!(arrow::Int16Type),
        DataType::Int32 => number!(arrow::Int32Type),
        DataType::Int64 => number!(arrow::Int64Type),
        DataType::UInt8 => number!(arrow::UInt8Type),
        DataType::UInt16 => number!(arrow::UInt16Type),
        DataType::UInt32 => number!(arrow::UInt32Type),
        DataType::UInt64 => number!(arrow::UInt64Type),
        DataType::Float16 => json::of_float(column.as_primitive::<arrow::Float16Type>().value(row).to_f64()),
        DataType::Float32 => json::of_float(column.as_primitive::<arrow::Float32Type>().value(row).into()),
        DataType::Float64 => json::of_float(column.as_primitive::<arrow::Float64Type>().value(row)),
        DataType::Decimal128(..) => Json::from(column.as_primitive::<arrow::Decimal128Type>().value_as_string(row)),
        DataType::Utf8 => text(column.as_string::<i32>().value(row), budget)?,
        DataType::LargeUtf8 => text(column.as_string::<i64>().value(row), budget)?,
        DataType::Utf8View => text(column.as_string_view().value(row), budget)?,
        DataType::Binary => bytes(column.as_binary::<i32>().value(row), budget)?,
        DataType::LargeBinary => bytes(column.as_binary::<i64>().value(row), budget)?,
        DataType::BinaryView => bytes(column.as_binary_view().value(row), budget)?,
        DataType::FixedSizeBinary(_) => bytes(column.as_fixed_size_binary().value(row), budget)?,
        DataType::List(_) => list(&column.as_list::<i32>().value(row), budget)?,
        DataType::LargeList(_) => list(&column.as_list::<i64>().value(row), budget)?,
        DataType::FixedSizeList(..) => list(&column.as_fixed_size_list().value(row), budget)?,
        DataType::Struct(fields) => {
            let mut object = Map::new();
            for (field, column) in fields.iter().zip(column.as_struct().columns()) {
                let value = value(column, row, budget)?;
                if !value.is_null() {
                    object.insert(field.name().clone(), value);
                }
            }
            Json::Object(object)
        }
        DataType::Map(..) => {
            let entries = column.as_map().value(row);
            let (keys, values) = (entries.column(0), entries.column(1));
            let mut object = Map::new();
            for at in 0..entries.len() {
                let key = value(keys, at, budget)?;
                let name = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                object.insert(name, value(values, at, budget)?);
            }
            Json::Object(object)
        }
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let key = value(&dictionary.keys().slice(row, 1), 0, budget)?;
            let key = key.as_u64().and_then(|key| usize::try_from(key).ok());
            value(dictionary.values(), key.ok_or(Unreadable::Dictionary)?, budget)?
        }
        DataType::Date32 => {
            let date = column.as_primitive::<arrow::Date32Type>().value_as_date(row);
            date.map_or(Json::Null, |date| Json::from(date.to_string()))
        }
        DataType::Timestamp(unit, zone) => {
            let time = match unit {
                TimeUnit::Second => column.as_primitive::<arrow::TimestampSecondType>().value_as_datetime(row),
                TimeUnit::Millisecond => {
                    column.as_primitive::<arrow::TimestampMillisecondType>().value_as_datetime(row)
                }
                TimeUnit::Microsecond => {
                    column.as_primitive::<arrow::TimestampMicrosecondType>().value_as_datetime(row)
                }
                TimeUnit::Nanosecond => column.as_primitive::<arrow::TimestampNanosecondType>().value_as_datetime(row),
            };
            // Times with a zone are stored in UTC. The name of another zone follows (RFC 9557).
            let end = match zone.as_deref() {
                None => String::new(),
                Some("UTC" | "Z" | "+00:00" | "") => "Z".to_owned(),
                Some(zone) => format!("Z[{zone}]"),
            };
            time.map_or(Json::Null, |time| Json::from(time.to_string().replace(' ', "T") + &*end))
        }
        other => return Err(Unreadable::Type(other.clone())),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow_array::builder::{Int32Builder, ListBuilder, StringBuilder};
    use arrow_array::*;
    use arrow_schema::{Field, Fields};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_writer::ArrowWriterOptions;
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;
    use serde_json::json;

    use super::*;

    /// Writes a file of `columns` with `group` rows per row group.
    fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, group: usize, compression: Compression) {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties =
            WriterProperties::builder().set_compression(compression).set_max_row_group_row_count(Some(group)).build();
        let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn parquet_columns_become_plain_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let mut lists = ListBuilder::new(StringBuilder::new());
        lists.values().append_value("a");
        lists.values().append_null();
        lists.append(true);
        lists.append(false);
        let messages = StructArray::new(
            Fields::from(vec![Field::new("role", DataType::Utf8, true), Field::new("n", DataType::Int64, true)]),
            vec![
                Arc::new(StringArray::from(vec![Some("user"), None])),
                Arc::new(Int64Array::from(vec![Some(i64::MAX), None])),
            ],
            None,
        );
        let kinds: DictionaryArray<arrow::Int8Type> = vec!["x", "y"].into_iter().collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("text", Arc::new(StringArray::from(vec![Some("ä"), None]))),
            ("large", Arc::new(LargeStringArray::from(vec!["1", "2"]))),
            ("whole", Arc::new(Int32Array::from(vec![-7, 8]))),
            ("half", Arc::new(Float64Array::from(vec![0.5, f64::NAN]))),
            ("truth", Arc::new(BooleanArray::from(vec![true, false]))),
            ("list", Arc::new(lists.finish())),
            ("message", Arc::new(messages)),
            ("kind", Arc::new(kinds)),
            ("bytes", Arc::new(BinaryArray::from(vec![&b"\xff\x00"[..], b""]))),
            ("day", Arc::new(Date32Array::from(vec![19_000, 0]))),
            ("time", Arc::new(TimestampMicrosecondArray::from(vec![1_700_000_000_000_001, 0]))),
            ("zoned", Arc::new(TimestampSecondArray::from(vec![1_700_000_000, 0]).with_timezone("Europe/Rome"))),
            ("price", Arc::new(Decimal128Array::from(vec![1234, -5]).with_precision_and_scale(10, 2).unwrap())),
        ];
        write(&path, columns, 10, Compression::SNAPPY);
        let table = ParquetTable::open(&path, &BytesColumns::All).unwrap();
        assert_eq!(table.rows(), 2);
        assert_eq!(
            Json::Object(table.row(0).unwrap()),
            json!({
                "text": "ä", "large": "1", "whole": -7, "half": 0.5, "truth": true, "list": ["a", null],
                "message": {"role": "user", "n": i64::MAX}, "kind": "x", "bytes": { "$r1": "bytes", "value": "/wA=" }, "day": "2022-01-08",
                "time": "2023-11-14T22:13:20.000001", "zoned": "2023-11-14T22:13:20Z[Europe/Rome]", "price": "12.34",
            })
        );
        assert_eq!(
            Json::Object(table.row(1).unwrap()),
            json!({
                "large": "2", "whole": 8, "half": { "$r1": "number", "value": "NaN" }, "truth": false, "message": {},
                "kind": "y", "bytes": { "$r1": "bytes", "value": "" }, "day": "1970-01-01",
                "time": "1970-01-01T00:00:00", "zoned": "1970-01-01T00:00:00Z[Europe/Rome]", "price": "-0.05",
            })
        );
    }

    /// Images as the Hugging Face Hub has them.
    #[test]
    fn columns_of_bytes_are_read_if_they_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xff\x00"[..], b"P"]));
        let image = || {
            let fields = vec![Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)];
            let paths: ArrayRef = Arc::new(StringArray::from(vec!["a.png", "b.png"]));
            StructArray::new(Fields::from(fields), vec![Arc::clone(&bytes), paths], None)
        };
        let frames = ListArray::new(
            Arc::new(Field::new("element", image().data_type().clone(), true)),
            arrow_buffer::OffsetBuffer::from_lengths([1, 1]),
            Arc::new(image()),
            None,
        );
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("n", Arc::new(Int64Array::from(vec![1, 2]))),
            ("image", Arc::new(image())),
            ("frames", Arc::new(frames)),
            ("raw", Arc::clone(&bytes)),
        ];
        write(&path, columns, 10, Compression::SNAPPY);
        let read = |names: &[&str]| {
            let names = BytesColumns::Named(names.iter().map(|&name| name.to_owned()).collect());
            let table = ParquetTable::open(&path, &names).unwrap();
            (Json::Object(table.row(0).unwrap()), table.left_out())
        };
        let stored_bytes = json!({ "$r1": "bytes", "value": "/wA=" });
        let (row, left_out) = read(&[]);
        assert_eq!(row, json!({ "n": 1, "image": { "path": "a.png" }, "frames": [{ "path": "a.png" }] }));
        assert_eq!(left_out, ["image.bytes", "frames.bytes", "raw"]);
        let (row, left_out) = read(&["image.bytes", "raw"]);
        assert_eq!((&row["image"]["bytes"], &row["raw"]), (&stored_bytes, &stored_bytes));
        assert_eq!(left_out, ["frames.bytes"]);
        let (row, left_out) = read(&["frames"]);
        assert_eq!((&row["frames"][0]["bytes"], row.get("raw")), (&stored_bytes, None));
        assert_eq!(left_out, ["image.bytes", "raw"]);
    }

    #[test]
    fn parquet_rows_are_found_across_row_groups() {
        let dir = tempfile::tempdir().unwrap();
        for (name, compression) in [
            ("plain", Compression::UNCOMPRESSED),
            ("snappy", Compression::SNAPPY),
            ("zstd", Compression::ZSTD(parquet::basic::ZstdLevel::default())),
            ("gzip", Compression::GZIP(parquet::basic::GzipLevel::default())),
            ("lz4", Compression::LZ4_RAW),
            ("brotli", Compression::BROTLI(parquet::basic::BrotliLevel::default())),
        ] {
            let path = dir.path().join(name);
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
            write(&path, vec![("n", numbers)], 64, compression);
            let table = ParquetTable::open(&path, &BytesColumns::All).unwrap();
            for k in 0..1000_u64 {
                let index = k * 617 % 1000;
                assert_eq!(table.row(index).unwrap()["n"], index, "{name}");
            }
            assert!(table.row(1000).unwrap_err().message.contains("there is no row 1000; the file has 1000"));
        }
    }

    /// Files of kilobytes whose rows would take gigabytes.
    #[test]
    fn parquet_files_that_grow_when_they_are_read_are_refused_or_read_by_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bomb.parquet");
        let zstd = Compression::ZSTD(parquet::basic::ZstdLevel::default());
        let size = || std::fs::metadata(&path).unwrap().len();
        // Many items in a row.
        let mut lists = ListBuilder::new(Int32Builder::new());
        for _ in 0..(5 << 20) {
            lists.values().append_value(0);
        }
        lists.append(true);
        write(&path, vec![("items", Arc::new(lists.finish()))], 10, zstd);
        assert!(size() < 100_000, "{}", size());
        let error = ParquetTable::open(&path, &BytesColumns::All).unwrap().row(0).unwrap_err();
        let why = "column `items`: the row has more than 64 MiB, or more than 4194304 values";
        assert_eq!((error.kind, error.message.as_str()), (Kind::Data, why));
        // A text that is longer than a row may be.
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(70 << 20), "y".to_owned()]));
        write(&path, vec![("text", texts)], 10, zstd);
        let table = ParquetTable::open(&path, &BytesColumns::All).unwrap();
        assert!(table.row(0).unwrap_err().message.starts_with("column `text`: the row has more than 64 MiB"));
        assert_eq!(table.row(1).unwrap()["text"], "y");
        // A text of the dictionary in many rows is in memory once.
        let values = StringArray::from(vec!["z".repeat(1 << 20), "a".to_owned()]);
        let keys = Int32Array::from_iter_values((0..600).map(|row| i32::from(row == 1)));
        let texts: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(values)));
        let batch = RecordBatch::try_from_iter(vec![("text", texts)]).unwrap();
        let properties =
            WriterProperties::builder().set_compression(zstd).set_dictionary_page_size_limit(64 << 20).build();
        // Without Arrow's schema it is a column of texts.
        let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new_with_options(file, batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let table = ParquetTable::open(&path, &BytesColumns::All).unwrap();
        assert_eq!((table.row(1).unwrap()["text"].as_str(), table.rows()), (Some("a"), 600));
        assert_eq!(table.row(599).unwrap()["text"].as_str().map(str::len), Some(1 << 20));
        let kept = table.kept.lock().unwrap();
        let bytes: usize = kept[0].1.iter().map(RecordBatch::get_array_memory_size).sum();
        assert!(bytes < 100 << 20, "{bytes}");
    }

    #[test]
    fn files_that_are_not_parquet_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        assert_eq!(ParquetTable::open(&path, &BytesColumns::All).unwrap_err().kind, Kind::Data);
        std::fs::write(&path, "{\"problem\": 1}\n").unwrap();
        let error = ParquetTable::open(&path, &BytesColumns::All).unwrap_err();
        assert!(error.message.starts_with("can't read the Parquet file"), "{error}");
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        write(&path, vec![("n", numbers)], 64, Compression::SNAPPY);
        let mut bytes = std::fs::read(&path).unwrap();
        let length = bytes.len();
        bytes[4..length / 2].fill(0x55);
        std::fs::write(&path, &bytes).unwrap();
        let table = ParquetTable::open(&path, &BytesColumns::All).unwrap();
        assert_eq!(table.row(0).unwrap_err().kind, Kind::Data);
    }
}
