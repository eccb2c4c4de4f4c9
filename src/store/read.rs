//! Reads trajectories from Parquet.

use std::fs::File;
use std::io::Read;
use std::panic::{self, UnwindSafe};
use std::path::Path;

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::FileMetaData;

use super::files::{checksum, failed};
use super::trajectories::{EARLIER_FORMATS, FORMAT, FORMAT_KEY, SUM_KEY, StepTasks, TASKS_KEY, parquet_failed};
use super::trajectory_row::{TrajectoryRow, damaged};
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;

/// Reads a file of trajectories. Refuses damaged files, missing columns and other format versions.
pub fn read_trajectories(path: &Path) -> Result<Vec<Trajectory>> {
    without_panic(path, || read(path))
}

fn read(path: &Path) -> Result<Vec<Trajectory>> {
    let what = "read trajectories";
    let file = File::open(path).map_err(|e| failed(what, path, &e))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| parquet_failed(what, path, &e))?;
    let metadata = builder.metadata().file_metadata();
    check_format(metadata, path)?;
    // Files of the first versions of r1 have no checksum.
    if let Some(sum) = entry(metadata, SUM_KEY) {
        check_sum(path, sum)?;
    }
    let reader = builder.build().map_err(|e| parquet_failed(what, path, &e))?;
    let (mut trajectories, mut last, mut number) = (Vec::new(), None, 0_u64);
    let mut previous = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|e| Error::new(Kind::Store, format!("can't {what}: {e}")).at_path(path))?;
        let rows: Vec<TrajectoryRow> =
            serde_arrow::from_record_batch(&batch).map_err(|e| damaged(e.message()).at_path(path))?;
        for row in rows {
            row.append(&mut trajectories, &mut last, &mut previous).map_err(|error| {
                Error { message: format!("{}, row {number}", error.message), ..error }.at_path(path)
            })?;
            number += 1;
        }
    }
    Ok(trajectories)
}

/// The position of a step's tasks in the data, from the metadata of its file. `None` for files of
/// earlier versions of r1 and for files of evaluations and exports.
///
/// # Errors
/// [`Kind::Store`] for a file that can't be read.
pub fn read_step_tasks(path: &Path) -> Result<Option<StepTasks>> {
    let what = "read trajectories";
    without_panic(path, || {
        let file = File::open(path).map_err(|e| failed(what, path, &e))?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new());
        let metadata = metadata.map_err(|e| parquet_failed(what, path, &e))?;
        let text = entry(metadata.metadata().file_metadata(), TASKS_KEY);
        let read = |text| serde_json::from_str(text).map_err(|e| damaged(format!("{TASKS_KEY}: {e}")).at_path(path));
        text.map(read).transpose()
    })
}

/// Refuses other files than trajectories, and files of a later version.
pub(super) fn check_format(metadata: &FileMetaData, path: &Path) -> Result<()> {
    let format = entry(metadata, FORMAT_KEY).unwrap_or_default();
    if format == FORMAT || EARLIER_FORMATS.contains(&format) {
        return Ok(());
    }
    Err(Error::new(Kind::Store, "not a file of trajectories that this r1 reads").at_path(path))
}

/// The result of `read`. The footer of a file has no checksum, and the reader trusts its numbers.
pub(super) fn without_panic<T>(path: &Path, read: impl FnOnce() -> Result<T> + UnwindSafe) -> Result<T> {
    panic::catch_unwind(read).unwrap_or_else(|_| Err(damaged("it can't be decoded").at_path(path)))
}

fn entry<'a>(metadata: &'a FileMetaData, key: &str) -> Option<&'a str> {
    metadata.key_value_metadata()?.iter().find(|pair| pair.key == key)?.value.as_deref()
}

/// Compares the pages of a file with the checksum in its footer.
fn check_sum(path: &Path, sum: &str) -> Result<()> {
    let wrong = || damaged("checksum mismatch").at_path(path);
    let (bytes, crc) = sum.split_once(':').ok_or_else(wrong)?;
    let bytes: u64 = bytes.parse().map_err(|_| wrong())?;
    let file = File::open(path).map_err(|e| failed("read trajectories", path, &e))?;
    let (read, checksum) = checksum(file.take(bytes)).map_err(|e| failed("read trajectories", path, &e))?;
    if read == bytes && checksum == crc { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests;
