//! The lock of a run directory against a second writer.
//!
//! An advisory lock on the file `.lock` decides; the system releases it when the process ends,
//! however it ends. The text of the file, process and host of the writer, is for messages only. A
//! lock on a file that is open for writing works on NFS too, a lock on a directory does not. The
//! file is never removed: a process may hold its lock already.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files::failed;
use crate::error::{Error, Kind, Result};

const FILE: &str = ".lock";

/// The lock of a run directory, held for the lifetime of this value.
#[derive(Debug)]
pub(super) struct RunLock(Option<File>);

/// The process that has the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LockHolder {
    pid: u32,
    host: String,
}

impl RunLock {
    /// Locks a run directory; the inner error is the process that has the lock.
    ///
    /// # Errors
    /// [`Kind::Store`] if the lock file can't be written.
    pub(super) fn take(run: &Path) -> Result<std::result::Result<Self, LockHolder>> {
        let path = run.join(FILE);
        let open = File::options().create(true).read(true).write(true).truncate(false).open(&path);
        let mut file = open.map_err(|e| failed("write the lock file", &path, &e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = fs::read_to_string(&path).unwrap_or_default();
                return Ok(Err(serde_json::from_str(&text).unwrap_or_default()));
            }
            // The file system has no locks.
            Err(TryLockError::Error(_)) => return Ok(Ok(Self(None))),
        }
        let holder = LockHolder { pid: std::process::id(), host: host() };
        let text = serde_json::json!(holder).to_string();
        let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|e| failed("write the lock file", &path, &e))?;
        Ok(Ok(Self(Some(file))))
    }

    /// False on a file system without locks.
    pub(super) fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

impl LockHolder {
    /// The error for a second writer.
    pub(super) fn refusal(&self, run: &Path) -> Error {
        let Self { pid, host } = self;
        // It was killed while it wrote the file, or has not written it yet.
        if *pid == 0 {
            let error = Error::new(Kind::Store, "another r1 process is writing to this run").at_path(run);
            return error.hint("wait for it to end, or stop it");
        }
        let there = if *host == self::host() { String::new() } else { format!("on {host}, ") };
        Error::new(Kind::Store, format!("another r1 process is writing to this run: process {pid} on {host}"))
            .at_path(run)
            .hint(format!(
                "wait for it to end, or {there}end it after its step: kill {pid}; --name NAME starts another run"
            ))
    }
}

/// Whether a path names a lock file.
pub(super) fn is_lock(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == FILE)
}

/// The name of this machine.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "this host".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_writer_of_another_host_is_named() {
        let run = tempfile::tempdir().unwrap();
        // Of a process that was killed.
        fs::write(run.path().join(FILE), "{\"pid\": 7, \"host\": \"elsewhere\", ").unwrap();
        let held = RunLock::take(run.path()).unwrap().unwrap();
        assert!(held.is_held());
        let holder = RunLock::take(run.path()).unwrap().unwrap_err();
        assert_eq!(holder, LockHolder { pid: std::process::id(), host: host() });
        let other = LockHolder { pid: 7, host: "elsewhere".to_owned() }.refusal(run.path());
        assert_eq!(other.message, "another r1 process is writing to this run: process 7 on elsewhere");
        assert!(other.hint.unwrap().contains("on elsewhere, end it after its step: kill 7"));
        // The text is not complete yet.
        fs::write(run.path().join(FILE), "{\"pid\": 7").unwrap();
        let holder = RunLock::take(run.path()).unwrap().unwrap_err();
        assert_eq!(holder.refusal(run.path()).message, "another r1 process is writing to this run");
        drop(held);
        RunLock::take(run.path()).unwrap().unwrap();
    }
}
