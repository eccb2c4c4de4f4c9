//! Writes rows to a file whose extension selects the format: JSON lines (also `.gz` and `.zst`), a
//! JSON list, or Parquet.

use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::config::{Compression, DataFormat};
use crate::error::{Error, Kind, Result};
use crate::store::{write_atomic, write_table};

/// A row by its index.
pub(crate) type RowAt<'a> = dyn Fn(u64) -> Result<Map<String, Json>> + 'a;

/// Refuses a file name whose format can't be written.
///
/// # Errors
/// [`Kind::Usage`] with the formats.
pub(crate) fn check_output(path: &Path) -> Result<DataFormat> {
    let format = DataFormat::of(path);
    let packed = Compression::of(path).is_some();
    match format {
        Some(DataFormat::Jsonl) => Ok(DataFormat::Jsonl),
        Some(format @ (DataFormat::Parquet | DataFormat::Json)) if !packed => Ok(format),
        _ => Err(Error::new(Kind::Usage, "rows can't be written in the format of this file name")
            .at_path(path)
            .hint("name it .jsonl, .jsonl.gz, .jsonl.zst, .json or .parquet")),
    }
}

/// Writes `count` rows. The file has its old content until the new one is complete.
///
/// # Errors
/// Errors of [`check_output`] and of `row`; [`Kind::Store`] if the file can't be written;
/// [`Kind::Data`] for a Parquet column whose values have no common type.
pub(crate) fn write_rows(path: &Path, count: u64, row: &RowAt<'_>) -> Result<()> {
    let format = check_output(path)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| Error::io(Kind::Store, "make the folder", folder, &error))?;
    }
    if format == DataFormat::Parquet {
        return write_table(path, count, row);
    }
    write_atomic(path, |file| {
        let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the rows", path, error);
        match Compression::of(path) {
            None => text(file, format, count, row, path),
            Some(Compression::Gzip) => {
                let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::default());
                text(&mut packed, format, count, row, path)?;
                packed.finish().map(drop).map_err(|error| failed(&error))
            }
            Some(Compression::Zstd) => {
                let mut packed = zstd::stream::write::Encoder::new(file, 0).map_err(|error| failed(&error))?;
                text(&mut packed, format, count, row, path)?;
                packed.finish().map(drop).map_err(|error| failed(&error))
            }
        }
    })
}

fn text(file: &mut dyn Write, format: DataFormat, count: u64, row: &RowAt<'_>, path: &Path) -> Result<()> {
    let list = format == DataFormat::Json;
    let mut write = |text: &str| {
        file.write_all(text.as_bytes()).map_err(|error| Error::io(Kind::Store, "write the rows", path, &error))
    };
    if list {
        write("[\n")?;
    }
    for index in 0..count {
        let row = Json::Object(row(index)?).to_string();
        let end = if list && index + 1 < count { ",\n" } else { "\n" };
        write(&row)?;
        write(end)?;
    }
    if list { write("]\n") } else { Ok(()) }
}
