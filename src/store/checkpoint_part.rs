//! Parts of a checkpoint that other processes than rank 0 write.

use std::fs;
use std::path::Path;

use super::checkpoint::{TRAINER_STATE, publish};
use super::files::{self, failed};
use crate::error::Result;

/// A file in the folder `checkpoints` of a run that is removed when it is dropped, or when the run
/// is resumed.
///
/// # Errors
/// `Kind::Store` with the path.
pub fn temporary_file(checkpoints: &Path) -> Result<tempfile::NamedTempFile> {
    files::unfinished("ranks", 0o600, |builder| builder.tempfile_in(checkpoints))
        .map_err(|e| failed("make a file in", checkpoints, &e))
}

/// Writes the files of a checkpoint that process `rank` has, into the folder `checkpoints` of a
/// run. `launch` is different each time the processes are started: a process that writes after the
/// others were killed does not write into a checkpoint of the resumed run.
///
/// # Errors
/// Errors of `fill`, and `Kind::Store`.
pub fn write_part(
    checkpoints: &Path,
    launch: &str,
    (step, rank): (u64, usize),
    fill: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<()> {
    let filled = publish(checkpoints, &part_name(launch, step, rank), |dir| {
        let state_dir = dir.join(TRAINER_STATE);
        files::make_dir(&state_dir)?;
        fill(dir, &state_dir)
    });
    filled.map(drop)
}

/// Moves the files of process `rank` into the directory `into` of the checkpoint. False if they are
/// not there yet.
///
/// # Errors
/// `Kind::Store` with the path.
pub fn take_part(checkpoints: &Path, launch: &str, (step, rank): (u64, usize), into: &Path) -> Result<bool> {
    let part = checkpoints.join(part_name(launch, step, rank));
    if !part.is_dir() {
        return Ok(false);
    }
    move_tree(&part, into)?;
    files::remove(&part)?;
    Ok(true)
}

/// An incomplete checkpoint has this folder, too: it is removed when the run is resumed.
fn part_name(launch: &str, step: u64, rank: usize) -> String {
    format!(".step-{step:06}-rank-{rank}-{launch}{}", files::UNFINISHED)
}

fn move_tree(from: &Path, into: &Path) -> Result<()> {
    for path in files::list(from)? {
        let to = into.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            files::make_dir(&to)?;
            move_tree(&path, &to)?;
        } else {
            fs::rename(&path, &to).map_err(|e| failed("rename to", &to, &e))?;
        }
    }
    Ok(())
}
