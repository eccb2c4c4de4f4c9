//! The rows that the commands of `r1 data` read and write.

use std::path::{Path, PathBuf};

use super::super::data_args::RowsArgs;
use crate::data::{Dataset, check_output, find, write_rows};
use crate::error::{Error, Kind, Result};
use crate::telemetry::{Interrupt, counted};

/// Opens files, folders and patterns.
pub(super) fn open(files: &[PathBuf]) -> Result<Dataset> {
    Dataset::open_whole(&find(files, Path::new("."), None)?)
}

impl RowsArgs {
    pub(super) fn open(&self) -> Result<Dataset> {
        open(&self.files)
    }
}

/// Refuses to write over an input, and formats that can't be written.
pub(super) fn check_out(out: &Path, inputs: &Dataset) -> Result<()> {
    check_output(out)?;
    let same = |path: &Path| path.canonicalize().is_ok_and(|path| out.canonicalize().is_ok_and(|out| out == path));
    if inputs.paths().any(same) {
        return Err(Error::new(Kind::Usage, "the output is a file that is read")
            .at_path(out)
            .hint("choose another --out"));
    }
    Ok(())
}

/// Writes the rows of these indexes as they are.
pub(super) fn write_selected(out: &Path, data: &Dataset, rows: &[u64], interrupt: Interrupt) -> Result<()> {
    let row = |position: u64| {
        check_interrupt(interrupt)?;
        data.raw_row(rows[position as usize])
    };
    write_rows(out, rows.len() as u64, &row)
}

pub(super) fn check_interrupt(interrupt: Interrupt) -> Result<()> {
    if interrupt.is_set() {
        return Err(Error::new(Kind::Interrupted, "stopped; no file was changed"));
    }
    Ok(())
}

pub(super) fn in_rows(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "row", "rows")
}
