//! Reads trajectories from Parquet.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::files::{checksum, failed};
use super::trajectories::{FORMAT, FORMAT_KEY, SUM_KEY, parquet_failed};
use super::trajectory_row::{TrajectoryRow, damaged};
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;

/// Reads a file of trajectories. Refuses damaged files, missing columns and other format versions.
pub fn read_trajectories(path: &Path) -> Result<Vec<Trajectory>> {
    let builder = open(path)?;
    let metadata = |key: &str| {
        let all = builder.metadata().file_metadata().key_value_metadata()?;
        all.iter().find(|pair| pair.key == key)?.value.as_deref()
    };
    // Files of the first versions of r1 have no checksum.
    if let Some(sum) = metadata(SUM_KEY) {
        check_sum(path, sum)?;
    }
    let mut trajectories = Vec::new();
    read_rows(builder, path, &mut trajectories, |_| ())?;
    Ok(trajectories)
}

/// Reads the trajectory in these rows of a file: the first one and their number. Also returns the
/// advantage of each row. The checksum of the file is not compared.
///
/// # Errors
/// As [`read_trajectories`]; also for rows that the file does not have.
pub fn read_trajectory(path: &Path, (first, count): (usize, usize)) -> Result<(Trajectory, Vec<Option<f64>>)> {
    let builder = open(path)?.with_offset(first).with_limit(count);
    let (mut trajectories, mut advantages) = (Vec::new(), Vec::new());
    read_rows(builder, path, &mut trajectories, |row| advantages.push(row.advantage))?;
    let missing = || damaged(format!("there is no row {first}")).at_path(path);
    trajectories.pop().map(|trajectory| (trajectory, advantages)).ok_or_else(missing)
}

pub(super) const WHAT: &str = "read trajectories";

/// Opens a file of trajectories.
pub(super) fn open(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let file = File::open(path).map_err(|e| failed(WHAT, path, &e))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| parquet_failed(WHAT, path, &e))?;
    let pairs = builder.metadata().file_metadata().key_value_metadata();
    let format = pairs.and_then(|all| all.iter().find(|pair| pair.key == FORMAT_KEY)?.value.as_deref());
    if format != Some(FORMAT) {
        return Err(Error::new(Kind::Store, "not a file of trajectories that this r1 reads").at_path(path));
    }
    Ok(builder)
}

fn read_rows(
    builder: ParquetRecordBatchReaderBuilder<File>,
    path: &Path,
    trajectories: &mut Vec<Trajectory>,
    mut see: impl FnMut(&TrajectoryRow),
) -> Result<()> {
    let reader = builder.build().map_err(|e| parquet_failed(WHAT, path, &e))?;
    let (mut last, mut number) = (None, 0_u64);
    for batch in reader {
        let batch = batch.map_err(|e| Error::new(Kind::Store, format!("can't {WHAT}: {e}")).at_path(path))?;
        let rows: Vec<TrajectoryRow> =
            serde_arrow::from_record_batch(&batch).map_err(|e| damaged(e.message()).at_path(path))?;
        for row in rows {
            see(&row);
            row.append(trajectories, &mut last).map_err(|error| {
                Error { message: format!("{}, row {number}", error.message), ..error }.at_path(path)
            })?;
            number += 1;
        }
    }
    Ok(())
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
