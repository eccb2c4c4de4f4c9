//! What people note about trajectories: tags, a note, a quality, and whether to leave one out.
//!
//! `curation.jsonl` of a run has one line per change, which is appended and synced; the last line
//! of a trajectory counts. A line that a crash cut off is skipped, and the next one begins on a
//! line of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::{failed, write_bytes};
use crate::error::{Error, Kind, Result};
use crate::mdp::Split;

/// Name of the file in the run directory.
pub const CURATION: &str = "curation.jsonl";
/// Notes about trajectories that a resumed run replaced by others.
pub const NOTES_ASIDE: &str = "curation.removed.jsonl";
/// Longest line; a note is shorter.
const LINE: usize = 64 << 10;

/// What is noted about a trajectory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curation {
    /// The trajectory.
    pub id: String,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub note: String,
    /// From 1 (bad) to 5 (good).
    #[serde(default)]
    pub quality: Option<u8>,
    /// Exports leave it out. Programs that train on stored trajectories can read the mark.
    #[serde(default)]
    pub exclude: bool,
}

impl Curation {
    /// Refuses values that have no meaning.
    fn check(&self) -> Result<()> {
        let wrong = |why: &str| Err(Error::new(Kind::Usage, why.to_owned()));
        if self.id.is_empty() {
            return wrong("`id` is empty");
        }
        if self.quality.is_some_and(|quality| !(1..=5).contains(&quality)) {
            return wrong("`quality` must be from 1 to 5");
        }
        if self.tags.iter().any(|tag| tag.trim().is_empty() || tag.contains(char::is_whitespace)) {
            return wrong("a tag is a word without blanks");
        }
        Ok(())
    }
}

/// The notes of a run by trajectory. Damaged lines are skipped.
///
/// # Errors
/// [`Kind::Store`] for a file that can't be read.
pub fn read_curation(run: &Path) -> Result<BTreeMap<String, Curation>> {
    let path = run.join(CURATION);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(failed("read the file", &path, &error)),
    };
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Curation>(line).ok());
    Ok(lines.map(|line| (line.id.clone(), line)).collect())
}

/// Appends the notes of a trajectory, which replace its earlier ones, and syncs the file.
///
/// # Errors
/// [`Kind::Usage`] for notes that have no meaning, [`Kind::Store`] if they can't be written.
pub fn write_curation(run: &Path, notes: &Curation) -> Result<()> {
    notes.check()?;
    let line = line(notes)?;
    if line.len() > LINE {
        return Err(Error::new(Kind::Usage, format!("the notes have more than {} KiB", LINE >> 10)));
    }
    let path = run.join(CURATION);
    append(&path, &line).map_err(|error| failed("write the file", &path, &error))
}

/// Moves the notes about trajectories of steps after `step` to [`NOTES_ASIDE`], because a resumed
/// run samples other trajectories with their ids. Returns their number.
///
/// # Errors
/// [`Kind::Store`] for a file that can't be read or written.
pub fn set_notes_aside(run: &Path, step: u64) -> Result<usize> {
    let is_later = |id: &str| Split::of_id(id).is_some_and(|(_, of)| of > step);
    let (removed, kept): (Vec<_>, Vec<_>) = read_curation(run)?.into_iter().partition(|(id, _)| is_later(id));
    if removed.is_empty() {
        return Ok(0);
    }
    for (_, notes) in &removed {
        append(&run.join(NOTES_ASIDE), &line(notes)?)
            .map_err(|error| failed("write the file", &run.join(NOTES_ASIDE), &error))?;
    }
    let lines = kept.iter().map(|(_, notes)| line(notes)).collect::<Result<String>>()?;
    write_bytes(&run.join(CURATION), lines.as_bytes())?;
    Ok(removed.len())
}

fn line(notes: &Curation) -> Result<String> {
    let line = serde_json::to_string(notes);
    Ok(line.map_err(|error| Error::new(Kind::Internal, format!("can't write the notes as JSON: {error}")))? + "\n")
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = File::options().create(true).read(true).append(true).open(path)?;
    // Another process may append at the same time; the lock is released with the file.
    file.lock()?;
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let start = if last == *b"\n" { "" } else { "\n" };
    file.write_all(format!("{start}{line}").as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn notes(id: &str, note: &str) -> Curation {
        Curation { id: id.to_owned(), note: note.to_owned(), ..Curation::default() }
    }

    #[test]
    fn the_last_line_of_a_trajectory_counts_and_a_torn_line_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_curation(dir.path()).unwrap().is_empty());
        let good = Curation { tags: vec!["odd".to_owned()], quality: Some(4), exclude: true, ..notes("1-0-0", "a\nb") };
        write_curation(dir.path(), &notes("1-0-0", "first")).unwrap();
        write_curation(dir.path(), &good).unwrap();
        let path = dir.path().join(CURATION);
        let whole = fs::read_to_string(&path).unwrap();
        // A crash may leave any beginning of a line.
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            write_curation(dir.path(), &notes("2-0-0", "after")).unwrap();
            let read = read_curation(dir.path()).unwrap();
            assert_eq!(read["2-0-0"].note, "after", "cut at {cut}");
            let complete = whole[..cut].matches('\n').count();
            assert!(complete == 0 || read.contains_key("1-0-0"), "cut at {cut}");
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(read_curation(dir.path()).unwrap(), BTreeMap::from([("1-0-0".to_owned(), good)]));
    }

    #[test]
    fn notes_about_later_steps_are_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(set_notes_aside(dir.path(), 0).unwrap(), 0);
        for id in ["1-0-0", "12-3-1", "eval-2-0-0", "eval-3-0-0", "odd"] {
            write_curation(dir.path(), &notes(id, "seen")).unwrap();
        }
        assert_eq!(set_notes_aside(dir.path(), 2).unwrap(), 2);
        let ids = |all: BTreeMap<String, Curation>| all.into_keys().collect::<Vec<_>>();
        assert_eq!(ids(read_curation(dir.path()).unwrap()), ["1-0-0", "eval-2-0-0", "odd"]);
        let removed = fs::read_to_string(dir.path().join(NOTES_ASIDE)).unwrap();
        assert_eq!(removed.lines().count(), 2);
        assert!(removed.contains("12-3-1") && removed.contains("eval-3-0-0"));
    }

    #[test]
    fn notes_without_meaning_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for wrong in [
            notes("", ""),
            Curation { quality: Some(6), ..notes("1-0-0", "") },
            Curation { tags: vec!["two words".to_owned()], ..notes("1-0-0", "") },
            notes("1-0-0", &"x".repeat(LINE)),
        ] {
            assert_eq!(write_curation(dir.path(), &wrong).unwrap_err().kind, Kind::Usage);
        }
        assert!(!dir.path().join(CURATION).exists());
    }
}
