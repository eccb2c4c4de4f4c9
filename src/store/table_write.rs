//! Writes JSON rows to a Parquet file. The type of a column is the type of its values in all rows:
//! booleans, whole numbers, floating point, text, bytes, lists and structs of these. A missing
//! value is null.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, ListArray, NullArray, RecordBatch, StringArray,
    StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::{Map, Value as Json};

use super::files::write_atomic;
use crate::error::{Error, Kind, Result, Subject};
use crate::json::Odd;

/// Rows that are encoded at once.
const BATCH: u64 = 1024;
/// Text of a batch after which it ends, bytes; Arrow's limit is 2 GiB.
const BATCH_BYTES: usize = 256 << 20;
/// Encoded bytes after which a row group is closed.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// The type of the values of a column.
#[derive(Clone, Debug, PartialEq)]
enum ColumnShape {
    /// Nulls only, and objects without fields, which Parquet can't store.
    Null,
    Bool,
    Int,
    Float,
    Text,
    Bytes,
    List(Box<Self>),
    Struct(Vec<(String, Self)>),
}

impl ColumnShape {
    fn of(value: &Json) -> std::result::Result<Self, Clash> {
        Ok(match value {
            Json::Null => Self::Null,
            Json::Bool(_) => Self::Bool,
            Json::Number(number) if number.is_i64() => Self::Int,
            Json::Number(_) => Self::Float,
            Json::String(_) => Self::Text,
            Json::Array(items) => {
                let mut inner = Self::Null;
                for item in items {
                    inner = inner.with(Self::of(item)?)?;
                }
                Self::List(Box::new(inner))
            }
            Json::Object(fields) => {
                match Odd::of(value) {
                    Some(Odd::Bytes(_)) => return Ok(Self::Bytes),
                    Some(Odd::Number(_)) => return Ok(Self::Float),
                    None => {}
                }
                let shape = |(name, value): (&String, &Json)| match Self::of(value) {
                    Ok(shape) => Ok((name.clone(), shape)),
                    Err(clash) => Err(clash.within(name)),
                };
                Self::Struct(fields.iter().map(shape).collect::<std::result::Result<_, _>>()?)
            }
        })
    }

    /// The common type of two.
    fn with(self, other: Self) -> std::result::Result<Self, Clash> {
        Ok(match (self, other) {
            (Self::Null, other) | (other, Self::Null) => other,
            (Self::Int, Self::Float) | (Self::Float, Self::Int) => Self::Float,
            (Self::List(one), Self::List(two)) => Self::List(Box::new(one.with(*two)?)),
            (Self::Struct(mut fields), Self::Struct(more)) => {
                for (name, shape) in more {
                    match fields.iter_mut().find(|(key, _)| *key == name) {
                        Some((_, old_shape)) => {
                            let old = std::mem::replace(old_shape, Self::Null);
                            *old_shape = old.with(shape).map_err(|clash| clash.within(&name))?;
                        }
                        None => fields.push((name, shape)),
                    }
                }
                Self::Struct(fields)
            }
            (one, two) if one == two => one,
            (one, two) => return Err(Clash { path: String::new(), types: [one.name(), two.name()] }),
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool => "true or false",
            Self::Int | Self::Float => "numbers",
            Self::Text => "text",
            Self::Bytes => "bytes",
            Self::List(_) => "lists",
            Self::Struct(_) => "objects",
        }
    }

    /// The Arrow type; `None` for what has no values.
    fn data_type(&self) -> Option<DataType> {
        Some(match self {
            Self::Null => return None,
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::Bytes => DataType::Binary,
            // A list without items needs a type; text is the most common.
            Self::List(inner) => DataType::new_list(inner.data_type().unwrap_or(DataType::Utf8), true),
            Self::Struct(fields) => {
                let field = |(name, shape): &(String, Self)| Some(Field::new(name, shape.data_type()?, true));
                let fields: Fields = fields.iter().filter_map(field).collect();
                if fields.is_empty() {
                    return None;
                }
                DataType::Struct(fields)
            }
        })
    }
}

/// Two values of a column have no common type.
#[derive(Debug)]
struct Clash {
    /// The field within the value.
    path: String,
    types: [&'static str; 2],
}

impl Clash {
    fn within(self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{name}.{}", self.path) };
        Self { path, ..self }
    }
}

/// Writes `count` rows; `row` is called twice for each.
///
/// # Errors
/// [`Kind::Data`] for a column whose values have no common type, and if there is no value at all;
/// [`Kind::Store`] if the file can't be written; errors of `row`.
pub fn write_table(path: &Path, count: u64, row: &dyn Fn(u64) -> Result<Map<String, Json>>) -> Result<()> {
    let mut shape = ColumnShape::Struct(Vec::new());
    for index in 0..count {
        let row_shape = ColumnShape::of(&Json::Object(row(index)?));
        shape = row_shape.and_then(|row_shape| shape.with(row_shape)).map_err(|clash| {
            let Clash { path: column, types: [one, two] } = clash;
            Error::new(Kind::Data, format!("the column `{column}` has {one} and {two}"))
                .about(Subject::Column(column))
                .at(format!("row {index}"))
                .hint("a column of a Parquet file has one type; a .jsonl file may have several")
        })?;
    }
    let Some(DataType::Struct(fields)) = shape.data_type() else {
        return Err(Error::new(Kind::Data, "the rows have no values to write").at_path(path));
    };
    let schema = Arc::new(Schema::new(fields.clone()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(format!("r1 {}", env!("CARGO_PKG_VERSION")))
        .build();
    write_atomic(path, |file| {
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(Kind::Store, format!("can't write the Parquet file: {error}")).at_path(path)
        };
        let mut writer =
            ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties)).map_err(|error| failed(&error))?;
        let mut index = 0;
        while index < count {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while index < count && (rows.len() as u64) < BATCH && bytes < BATCH_BYTES {
                let row_shape = row(index)?;
                bytes += size(&row_shape);
                rows.push(Json::Object(row_shape));
                index += 1;
            }
            let columns = fields
                .iter()
                .map(|field| {
                    column(field.data_type(), &rows.iter().map(|row| row.get(field.name())).collect::<Vec<_>>())
                })
                .collect();
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns).map_err(|error| failed(&error))?;
            writer.write(&batch).map_err(|error| failed(&error))?;
            if writer.in_progress_size() > ROW_GROUP_BYTES {
                writer.flush().map_err(|error| failed(&error))?;
            }
        }
        writer.close().map(drop).map_err(|error| failed(&error))
    })
}

/// The text of a row, approximately.
fn size(fields: &Map<String, Json>) -> usize {
    fn of(value: &Json) -> usize {
        match value {
            Json::String(text) => text.len(),
            Json::Array(items) => items.iter().map(of).sum(),
            Json::Object(fields) => fields.values().map(of).sum(),
            _ => 8,
        }
    }
    fields.values().map(of).sum()
}

fn number(value: &Json) -> Option<f64> {
    if let Some(Odd::Number(number)) = Odd::of(value) { Some(number) } else { value.as_f64() }
}

fn bytes(value: &Json) -> Option<Vec<u8>> {
    if let Some(Odd::Bytes(bytes)) = Odd::of(value) { Some(bytes) } else { None }
}

/// A column of values; missing ones are null.
fn column(kind: &DataType, column_values: &[Option<&Json>]) -> ArrayRef {
    let values = || column_values.iter().copied();
    match kind {
        DataType::Boolean => Arc::new(values().map(|value| value?.as_bool()).collect::<BooleanArray>()),
        DataType::Int64 => Arc::new(values().map(|value| value?.as_i64()).collect::<Int64Array>()),
        DataType::Float64 => Arc::new(values().map(|value| number(value?)).collect::<Float64Array>()),
        DataType::Utf8 => Arc::new(values().map(|value| value?.as_str()).collect::<StringArray>()),
        DataType::Binary => Arc::new(values().map(|value| bytes(value?)).collect::<BinaryArray>()),
        DataType::List(field) => {
            let lists: Vec<Option<&Vec<Json>>> = values().map(|value| value?.as_array()).collect();
            let items: Vec<Option<&Json>> = lists.iter().flatten().flat_map(|list| list.iter().map(Some)).collect();
            let lengths = lists.iter().map(|list| list.map_or(0, Vec::len));
            let offsets = OffsetBuffer::from_lengths(lengths);
            let nulls = lists.iter().map(Option::is_some).collect::<Vec<bool>>();
            Arc::new(ListArray::new(Arc::clone(field), offsets, column(field.data_type(), &items), Some(nulls.into())))
        }
        DataType::Struct(fields) => {
            let objects: Vec<Option<&Map<String, Json>>> = values().map(|value| value?.as_object()).collect();
            let values_of = |name: &str| objects.iter().map(|object| (*object)?.get(name)).collect::<Vec<_>>();
            let columns = fields.iter().map(|field| column(field.data_type(), &values_of(field.name()))).collect();
            let nulls = objects.iter().map(Option::is_some).collect::<Vec<bool>>();
            Arc::new(StructArray::new(fields.clone(), columns, Some(nulls.into())))
        }
        // No other type is inferred.
        _ => Arc::new(NullArray::new(column_values.len())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::store::{BytesColumns, ParquetTable};

    fn written(rows: &[Json]) -> Result<Vec<Json>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        write_table(&path, rows.len() as u64, &|index| Ok(rows[index as usize].as_object().unwrap().clone()))?;
        let table = ParquetTable::open(&path, &BytesColumns::All)?;
        (0..table.rows()).map(|index| table.row(index).map(Json::Object)).collect()
    }

    #[test]
    fn json_rows_are_read_back_from_parquet() {
        let rows = [
            json!({ "a": 1, "b": [{ "role": "user", "content": "ä" }], "c": { "x": [1.5, 2], "y": true }, "l": [] }),
            json!({ "a": 2.5, "b": [], "c": { "z": "t" } }),
            json!({ "b": [{ "role": "x" }, { "content": "y" }], "e": "only here", "f": [[1], [], [2, 3]] }),
            json!({ "a": crate::json::of_float(f64::NAN), "i": { "bytes": crate::json::of_bytes(b"\xff") } }),
        ];
        let expected = [
            json!({ "a": 1.0, "b": [{ "role": "user", "content": "ä" }], "c": { "x": [1.5, 2.0], "y": true }, "l": [] }),
            rows[1].clone(),
            rows[2].clone(),
            rows[3].clone(),
        ];
        assert_eq!(written(&rows).unwrap(), expected);
    }

    #[test]
    fn many_rows_are_written_in_batches() {
        let rows: Vec<Json> = (0..2500).map(|n| json!({ "n": n, "t": format!("row {n}") })).collect();
        assert_eq!(written(&rows).unwrap(), rows);
    }

    #[test]
    fn values_without_a_common_type_are_refused_with_their_column() {
        let error = written(&[json!({ "m": { "truth": "4" } }), json!({ "m": { "truth": 4 } })]).unwrap_err();
        assert_eq!(error.message, "the column `m.truth` has text and numbers");
        assert_eq!(error.place.as_deref(), Some("row 1"));
        assert_eq!(written(&[json!({ "a": null })]).unwrap_err().message, "the rows have no values to write");
    }
}
