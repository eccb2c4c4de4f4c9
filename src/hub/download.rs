//! Downloads one blob into the cache: resumed after an interruption, verified, then renamed.
//!
//! The bytes are written to `blobs/ETAG.incomplete`. A broken connection is reopened at the byte
//! where it broke. Only attempts without new bytes count against the limit, because a server that
//! ignores ranges sends the start again. The file is compared with the checksum in the ETag
//! (SHA-256 of a large file, git's SHA-1 of a small one) before it becomes a blob, so that a blob
//! is correct or absent.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::cache::{Folder, failed};
use super::id::{ModelId, is_commit, is_sha256};
use super::remote::{HubFailure, Meta, Remote};
use super::{DownloadEvent, Watch, stopped};
use crate::error::{Error, Result};
use crate::net::{self, Fault};

/// Maximum bytes of a file without a known length.
const MAX_UNSIZED: u64 = 16 << 30;
/// For such files, the interval of bytes at which free space is checked, and the bytes that must
/// stay free.
const SPACE_CHECK_INTERVAL: u64 = 64 << 20;
const MIN_FREE: u64 = 256 << 20;
/// Age after which partial downloads of other processes count as abandoned.
const ABANDONED: Duration = Duration::from_hours(24);

/// The download of one file of a commit.
pub(super) struct Download<'a> {
    pub(super) remote: &'a Remote,
    pub(super) folder: &'a Folder,
    pub(super) id: &'a ModelId,
    pub(super) commit: &'a str,
    pub(super) meta: &'a Meta,
}

/// The reason why an attempt did not complete the file.
enum DownloadEnd {
    /// The server's file differs from its metadata, or the partial download belongs to another
    /// file.
    Other(Error),
    Failed(Error),
}

impl From<Error> for DownloadEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Download<'_> {
    /// Downloads the blob unless it exists.
    pub(super) fn run(&self, watch: &Watch<'_>) -> Result<()> {
        let blob = self.folder.blob(&self.meta.etag);
        if !blob.is_file() {
            let lock = self.folder.lock(&self.meta.etag, watch)?;
            // Another process may have been faster.
            if !blob.is_file() {
                let mut part = self.folder.part(&self.meta.etag);
                if lock.is_none() {
                    // Two processes must not write to the same file.
                    part.set_extension(format!("{}.incomplete", std::process::id()));
                }
                self.fetch_with_restart(&part, watch)?;
                fs::rename(&part, &blob).map_err(|error| failed("write", &blob, &error))?;
                self.remove_abandoned(&blob);
            } else if let Some(size) = self.meta.size {
                (watch.event)(DownloadEvent::Bytes(size));
            }
        }
        Ok(())
    }

    /// Removes other partial downloads of this blob when it is complete, except those that may
    /// still be in use.
    fn remove_abandoned(&self, blob: &Path) {
        for entry in blob.parent().and_then(|blobs| fs::read_dir(blobs).ok()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours = name.strip_prefix(&self.meta.etag).is_some_and(|rest| rest.starts_with('.'));
            let old = || {
                entry
                    .metadata()
                    .and_then(|metadata| metadata.modified())
                    .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED))
            };
            if ours && name.ends_with(".incomplete") && old() {
                // A leftover file only costs space.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// A partial download may be unusable: then it starts again from the first byte.
    fn fetch_with_restart(&self, part: &Path, watch: &Watch<'_>) -> Result<()> {
        let mut again = false;
        loop {
            match self.fetch(part, watch) {
                Ok(()) => return Ok(()),
                Err(DownloadEnd::Failed(error)) => return Err(error),
                Err(DownloadEnd::Other(error)) => {
                    fs::remove_file(part).map_err(|error| failed("remove", part, &error))?;
                    if again {
                        return Err(error);
                    }
                    again = true;
                }
            }
        }
    }

    fn fetch(&self, part: &Path, watch: &Watch<'_>) -> std::result::Result<(), DownloadEnd> {
        let io = |error: &std::io::Error| failed("write", part, error);
        let mut file = File::options().create(true).append(true).read(true).open(part).map_err(|error| io(&error))?;
        let mut have = file.metadata().map_err(|error| io(&error))?.len();
        let mut sum = ETagSum::of(&self.meta.etag);
        sum.catch_up(&mut file).map_err(|error| io(&error))?;
        (watch.event)(DownloadEvent::Bytes(have));
        let (mut tried, mut reached) = (0, have);
        let mut looked = have;
        while self.meta.size != Some(have) || have == 0 {
            if self.meta.size.is_some_and(|size| have > size) {
                (watch.event)(DownloadEvent::Lost(have));
                return Err(DownloadEnd::Other(self.other("it is longer than announced")));
            }
            let mut response =
                self.remote.open(self.id, self.commit, &self.meta.name, have, watch).map_err(Error::from)?;
            match response.status {
                206 if begins_at(response.header("content-range"), have) => {}
                200 if have == 0 => {}
                // The server does not support ranges: start from the first byte.
                200 => {
                    file.set_len(0).map_err(|error| io(&error))?;
                    (watch.event)(DownloadEvent::Lost(std::mem::take(&mut have)));
                    sum = ETagSum::of(&self.meta.etag);
                }
                // No bytes are left: the file is complete if its length was not known.
                416 if self.meta.size.is_none() => break,
                status => {
                    (watch.event)(DownloadEvent::Lost(have));
                    return Err(DownloadEnd::Other(
                        self.other(&format!("the Hub responds with {status} to a request for its rest")),
                    ));
                }
            }
            let broken = loop {
                match response.next(watch.stop) {
                    Ok(Some(bytes)) => {
                        file.write_all(&bytes).map_err(|error| io(&error))?;
                        sum.add(&bytes);
                        have += bytes.len() as u64;
                        if self.meta.size.is_none() && have.saturating_sub(looked) >= SPACE_CHECK_INTERVAL {
                            looked = have;
                            self.check_unsized(part, have)?;
                        }
                        (watch.event)(DownloadEvent::Bytes(bytes.len() as u64));
                        if self.meta.size.is_some_and(|size| have > size) {
                            break None;
                        }
                    }
                    Ok(None) => break None,
                    Err(fault) => break Some(fault),
                }
            };
            match broken {
                Some(Fault::Stopped) => return Err(stopped().into()),
                None if self.meta.size.is_none_or(|size| have == size) => break,
                // Too long: refused above.
                None if self.meta.size.is_some_and(|size| have > size) => {}
                fault => {
                    tried = if have > reached { 0 } else { tried + 1 };
                    reached = reached.max(have);
                    if tried >= self.remote.tries {
                        let fault = fault.unwrap_or_else(|| Fault::Broken("the connection was lost".to_owned()));
                        let HubFailure { error, .. } = self.remote.away(self.id, &fault);
                        return Err(error.at(&self.meta.name).into());
                    }
                    let of = self.meta.size.map(|size| format!(" of {size}")).unwrap_or_default();
                    let name = &self.meta.name;
                    (watch.event)(DownloadEvent::Note(&format!(
                        "{name} was interrupted after {have}{of} bytes; trying again"
                    )));
                    net::pause(self.remote.pause * (tried + 1), watch.stop).map_err(|_| stopped())?;
                }
            }
        }
        file.sync_all().map_err(|error| io(&error))?;
        if !sum.agrees(&mut file, have).map_err(|error| io(&error))? {
            (watch.event)(DownloadEvent::Lost(have));
            return Err(DownloadEnd::Other(self.other("its checksum differs from the Hub's")));
        }
        Ok(())
    }

    /// Refuses a file of unknown length that is endless or would fill the disk.
    fn check_unsized(&self, part: &Path, have: u64) -> Result<()> {
        let refuse = |why: &str| {
            let message = format!("{} of `{}` {why}; the Hub gives no length", self.meta.name, self.id);
            Err(Error::new(self.id.kind.error(), message).hint("the server may be broken or not a Hub server"))
        };
        if have > MAX_UNSIZED {
            return refuse(&format!("has more than {} GiB", MAX_UNSIZED >> 30));
        }
        let room = part.parent().and_then(super::cache::room);
        if room.is_some_and(|room| room < MIN_FREE) {
            return refuse("fills the disk");
        }
        Ok(())
    }

    fn other(&self, why: &str) -> Error {
        Error::new(self.id.kind.error(), format!("{} of `{}` was received damaged: {why}", self.meta.name, self.id))
            .hint("try again; if this repeats, a proxy may change the files")
    }
}

/// Whether `bytes 5-9/10` begins at `start`.
fn begins_at(range: Option<&str>, start: u64) -> bool {
    let first = range.and_then(|range| range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok());
    first == Some(start)
}

/// The checksum in an ETag.
enum ETagSum {
    Sha256(String, Sha256),
    /// Git's checksum: of the length followed by the content.
    Blob(String),
    /// The ETag is not a checksum: only the length is compared.
    None,
}

impl ETagSum {
    fn of(etag: &str) -> Self {
        if is_sha256(etag) {
            Self::Sha256(etag.to_owned(), Sha256::new())
        } else if is_commit(etag) {
            Self::Blob(etag.to_owned())
        } else {
            Self::None
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if let Self::Sha256(_, hash) = self {
            hash.update(bytes);
        }
    }

    /// Adds the bytes of a partial download.
    fn catch_up(&mut self, file: &mut File) -> std::io::Result<()> {
        if let Self::Sha256(_, hash) = self {
            read_all(file, |bytes| hash.update(bytes))?;
        }
        Ok(())
    }

    fn agrees(self, file: &mut File, length: u64) -> std::io::Result<bool> {
        match self {
            Self::Sha256(wanted, hash) => Ok(format!("{:x}", hash.finalize()) == wanted),
            Self::Blob(wanted) => {
                let mut hash = Sha1::new();
                hash.update(format!("blob {length}\0"));
                read_all(file, |bytes| hash.update(bytes))?;
                Ok(format!("{:x}", hash.finalize()) == wanted)
            }
            Self::None => Ok(true),
        }
    }
}

fn read_all(file: &mut File, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    use std::io::Seek;
    file.seek(std::io::SeekFrom::Start(0))?;
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            count => take(&piece[..count]),
        }
    }
}
