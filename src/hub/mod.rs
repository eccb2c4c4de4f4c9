//! Models and datasets from the Hugging Face Hub, in the cache of Python's `huggingface_hub`.
//!
//! [`Hub::fetch`] returns the directory of a model at a revision. One request lists the repository.
//! Missing files are then downloaded: a few at a time, resumable, verified against the Hub's
//! checksums, safe with concurrent processes. If the Hub is unreachable, the cache is used.
//!
//! [`Hub::fetch_text`] downloads a model's tokenizer and chat template without its weights,
//! [`Hub::fetch_data`] the files of a dataset's split. [`Fetching`] shows their progress to the
//! user.
//!
//! The settings are the environment variables of the Python library: `HF_HOME`, `HF_HUB_CACHE`,
//! `HF_TOKEN` (or the file that `hf auth login` writes), `HF_ENDPOINT`, `HF_HUB_OFFLINE`.
//! docs/lab/decisions/0003 explains why this is not the `hf-hub` crate.

mod cache;
mod data;
mod download;
mod fetch;
mod files;
mod id;
mod remote;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::net::Client;
use cache::Folder;
use download::Download;
use remote::{AccessToken, HubFailure, Meta, Remote, RepositoryListing};

pub use data::DataFiles;
pub use fetch::Fetching;
pub(crate) use fetch::watched;
pub use id::ModelId;

/// Number of concurrent downloads.
const CONCURRENT_DOWNLOADS: usize = 4;
/// A connection without a byte for this long counts as lost.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Progress of a download. Events may come from several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadEvent<'a> {
    /// Number of files and bytes to download (0: unknown).
    Begin { files: usize, bytes: u64 },
    /// Bytes received.
    Bytes(u64),
    /// Bytes that must be downloaded again.
    Lost(u64),
    /// A message for the user.
    Note(&'a str),
}

/// Callbacks of a download.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    pub event: &'a (dyn Fn(DownloadEvent<'_>) + Sync),
    /// True ends the download with [`Kind::Interrupted`]; partial files are kept.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

/// The program's own test for a stop, such as Ctrl-C.
static STOP: OnceLock<fn() -> bool> = OnceLock::new();

/// Makes downloads of this process end when `stop` is true. The program sets it once.
pub fn stop_with(stop: fn() -> bool) {
    let _ = STOP.set(stop);
}

/// Whether the user has stopped the program.
pub fn is_stopped() -> bool {
    STOP.get().is_some_and(|stop| stop())
}

/// The commit of a path in the Hub's cache (`…/snapshots/COMMIT/…`); `None` for other paths.
pub fn commit_of(path: &Path) -> Option<String> {
    let names: Vec<&str> = path.iter().filter_map(|name| name.to_str()).collect();
    let commit = names.windows(2).rfind(|pair| pair[0] == "snapshots" && id::is_commit(pair[1]))?[1];
    Some(commit.to_owned())
}

/// A Hub server and the local cache.
#[derive(Clone, Debug)]
pub struct Hub {
    remote: Remote,
    cache: PathBuf,
    offline: bool,
}

impl Hub {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// [`Kind::Usage`] for an invalid setting.
    pub fn from_env() -> Result<Self> {
        Self::with(&|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
    }

    fn with(get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let user = get("HOME").map(PathBuf::from);
        let path = |text: String| match (text.strip_prefix("~/"), &user) {
            (Some(rest), Some(user)) => user.join(rest),
            _ => PathBuf::from(text),
        };
        let home = get("HF_HOME").map(path).or_else(|| Some(get("XDG_CACHE_HOME").map(path)?.join("huggingface")));
        let home = home
            .or_else(|| Some(user.as_ref()?.join(".cache/huggingface")))
            .ok_or_else(|| Error::new(Kind::Usage, "no cache directory for models: neither HF_HOME nor HOME is set"))?;
        let cache = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE")).map_or_else(|| home.join("hub"), path);
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        if crate::net::origin(&endpoint).is_none() {
            return Err(Error::new(Kind::Usage, format!("HF_ENDPOINT is `{endpoint}`, which is not an http URL"))
                .hint("as in HF_ENDPOINT=https://huggingface.co"));
        }
        let yes = |name: &str| {
            get(name).is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.trim().to_lowercase().as_str()))
        };
        let token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Some(token),
            None if yes("HF_HUB_DISABLE_IMPLICIT_TOKEN") => None,
            // Most users have no such file.
            None => match get("HF_TOKEN_PATH").map(path) {
                Some(file) => std::fs::read_to_string(file).ok(),
                None => hf_hub::Cache::new(home.join("hub")).token(),
            },
        };
        let token = token.map(|token| AccessToken::new(&token)).transpose()?.flatten();
        let client = Client::new(READ_TIMEOUT)?;
        let remote = Remote { client, endpoint, token, tries: 5, pause: Duration::from_secs(1) };
        Ok(Self { remote, cache, offline: yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE") })
    }

    /// The directory, or the GGUF file, of a model that is complete in the cache, as of the last
    /// lookup; sends no request.
    pub fn cached(&self, id: &ModelId) -> Option<PathBuf> {
        let folder = Folder::new(&self.cache, id);
        match &id.file {
            Some(file) => folder.gguf(&id.revision, file),
            None => folder.complete(&id.revision),
        }
    }

    /// The names of the models of which the cache has files.
    pub fn cached_models(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let name = |entry: std::fs::DirEntry| {
            Some(entry.file_name().to_str()?.strip_prefix("models--")?.replacen("--", "/", 1))
        };
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort();
        names
    }

    /// The directory of a model in Hugging Face layout, or the path of its GGUF file if the id
    /// names one; missing files are downloaded.
    ///
    /// # Errors
    /// [`Kind::Model`] if the model or revision does not exist, can't be accessed, has no
    /// safetensors, or the Hub is unreachable and the cache is incomplete; [`Kind::Store`] if the
    /// cache can't be written; [`Kind::Interrupted`].
    pub fn fetch(&self, id: &ModelId, watch: &Watch<'_>) -> Result<PathBuf> {
        if let Some(file) = &id.file {
            return self.fetch_gguf(id, file, watch);
        }
        let folder = Folder::new(&self.cache, id);
        let listing = match self.listing(id, watch, || folder.complete(&id.revision))? {
            RepositoryFiles::Kept(dir) => return Ok(dir),
            RepositoryFiles::Listing(listing) => listing,
        };
        let commit = listing.commit.as_str();
        let at_page = |error: Error| error.at(self.page(id, commit));
        let plan = files::plan(&listing.names).map_err(at_page)?;
        let dir = folder.snapshot(commit);
        let mut weights = plan.weights;
        if let Some(index) = &plan.index {
            let quiet = Watch { event: &|_| (), ..*watch };
            self.fetch_files(&folder, id, commit, std::slice::from_ref(index), &quiet)?;
            let path = dir.join(index);
            let bytes = std::fs::read(&path).map_err(|error| cache::failed("read", &path, &error))?;
            weights.extend(files::shards(&bytes, &listing.names).map_err(at_page)?);
        }
        let names: Vec<String> = plan.small.into_iter().chain(weights).collect();
        self.fetch_files(&folder, id, commit, &names, watch)?;
        note(&folder, id, commit, watch)?;
        Ok(dir)
    }

    /// The path of a GGUF file; a tokenizer in its repository is downloaded, too.
    fn fetch_gguf(&self, id: &ModelId, file: &str, watch: &Watch<'_>) -> Result<PathBuf> {
        let folder = Folder::new(&self.cache, id);
        let listing = match self.listing(id, watch, || folder.gguf(&id.revision, file))? {
            RepositoryFiles::Kept(path) => return Ok(path),
            RepositoryFiles::Listing(listing) => listing,
        };
        let commit = listing.commit.as_str();
        let name = files::gguf(&listing.names, file).map_err(|error| error.at(self.page(id, commit)))?;
        let mut names = files::beside(&listing.names);
        names.push(name.clone());
        self.fetch_files(&folder, id, commit, &names, watch)?;
        note(&folder, id, commit, watch)?;
        Ok(folder.snapshot(commit).join(name))
    }

    /// The directory of a model's text files (tokenizer, chat template, configuration); no weights
    /// are downloaded, except of a GGUF file, which has both.
    ///
    /// # Errors
    /// As [`Hub::fetch`], but a repository needs no weights.
    pub fn fetch_text(&self, id: &ModelId, watch: &Watch<'_>) -> Result<PathBuf> {
        if id.file.is_some() {
            return self.fetch(id, watch);
        }
        let folder = Folder::new(&self.cache, id);
        let listing = match self.listing(id, watch, || folder.text(&id.revision))? {
            RepositoryFiles::Kept(dir) => return Ok(dir),
            RepositoryFiles::Listing(listing) => listing,
        };
        let commit = listing.commit.as_str();
        let names = files::text(&listing.names).map_err(|error| error.at(self.page(id, commit)))?;
        self.fetch_files(&folder, id, commit, &names, watch)?;
        // A revision with cached weights keeps its commit, so that it works offline.
        if folder.complete(&id.revision).is_none() {
            note(&folder, id, commit, watch)?;
        }
        Ok(folder.snapshot(commit))
    }

    /// The files of a dataset's split in the order of their rows; missing files are downloaded.
    ///
    /// # Errors
    /// [`Kind::Data`] if the dataset, revision or split does not exist, or the Hub is unreachable
    /// and the cache is incomplete; [`Kind::Store`] if the cache can't be written;
    /// [`Kind::Interrupted`].
    pub fn fetch_data(&self, id: &ModelId, wanted: &DataFiles<'_>, watch: &Watch<'_>) -> Result<Vec<PathBuf>> {
        let folder = Folder::new(&self.cache, id);
        let listing = match self.listing(id, watch, || folder.data(&id.revision, wanted))? {
            RepositoryFiles::Kept(files) => return Ok(files),
            RepositoryFiles::Listing(listing) => listing,
        };
        let commit = listing.commit.as_str();
        let names = data::choose(&listing.names, wanted).map_err(|error| error.at(self.page(id, commit)))?;
        self.fetch_files(&folder, id, commit, &names, watch)?;
        note(&folder, id, commit, watch)?;
        let dir = folder.snapshot(commit);
        Ok(names.iter().map(|name| dir.join(name)).collect())
    }

    /// The page of a commit, for messages.
    fn page(&self, id: &ModelId, commit: &str) -> String {
        format!("{}/{}/tree/{commit}", self.remote.endpoint, id.page())
    }

    /// The current commit of a revision on the Hub; `None` if offline or unreachable.
    pub fn newest(&self, id: &ModelId, watch: &Watch<'_>) -> Option<String> {
        if self.offline {
            return None;
        }
        self.remote.list(id, watch).ok().map(|listing| listing.commit)
    }

    /// The Hub's listing, or the cached one if the Hub is offline or unreachable.
    fn listing<T>(
        &self,
        id: &ModelId,
        watch: &Watch<'_>,
        cached: impl Fn() -> Option<T>,
    ) -> Result<RepositoryFiles<T>> {
        if self.offline {
            return cached().map(RepositoryFiles::Kept).ok_or_else(|| {
                Error::new(
                    id.kind.error(),
                    format!("`{id}` is not in the cache, or not all of it, and HF_HUB_OFFLINE is set"),
                )
                .at_path(&self.cache)
                .hint("unset HF_HUB_OFFLINE to fetch it, or set HF_HOME to the cache that has it")
            });
        }
        match self.remote.list(id, watch) {
            Ok(listing) => Ok(RepositoryFiles::Listing(listing)),
            Err(HubFailure { error, away }) => {
                let kept = cached().filter(|_| away).ok_or_else(|| error.clone())?;
                let age = if id.is_pinned() { "" } else { ", which may be older than the Hub's" };
                (watch.event)(DownloadEvent::Note(&format!("{}; using the copy in the cache{age}", error.message)));
                Ok(RepositoryFiles::Kept(kept))
            }
        }
    }

    /// Downloads the files of a commit that the snapshot lacks.
    fn fetch_files(
        &self,
        folder: &Folder,
        id: &ModelId,
        commit: &str,
        names: &[String],
        watch: &Watch<'_>,
    ) -> Result<()> {
        let dir = folder.snapshot(commit);
        let missing: Vec<&String> = names.iter().filter(|name| !dir.join(name).is_file()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        folder.prepare(commit)?;
        let metas = concurrently(&missing, watch, |name, watch| Ok(self.remote.head(id, commit, name, watch)?))?;
        // Files with the same content are one blob, which is downloaded once.
        let mut blobs: Vec<(&Meta, Vec<&str>)> = Vec::new();
        for meta in &metas {
            match blobs.iter_mut().find(|(earlier, _)| earlier.etag == meta.etag) {
                Some((_, names)) => names.push(&meta.name),
                None => blobs.push((meta, vec![&meta.name])),
            }
        }
        let absent: Vec<&Meta> =
            blobs.iter().map(|(meta, _)| *meta).filter(|meta| !folder.blob(&meta.etag).is_file()).collect();
        // Sizes are untrusted: sums must not overflow, and one unknown length must not hide the
        // others.
        let needed = absent.iter().filter_map(|meta| meta.size).fold(0, u64::saturating_add);
        let bytes = if absent.iter().all(|meta| meta.size.is_some()) { needed } else { 0 };
        let begun: u64 = absent.iter().filter_map(|meta| Some(folder.part(&meta.etag).metadata().ok()?.len())).sum();
        cache::check_room(needed.saturating_sub(begun), cache::room(&dir), &self.cache)?;
        if !absent.is_empty() {
            (watch.event)(DownloadEvent::Begin { files: absent.len(), bytes });
        }
        let fetch = |(meta, names): &(&Meta, Vec<&str>), watch: &Watch<'_>| {
            Download { remote: &self.remote, folder, id, commit, meta }.run(watch)?;
            names.iter().try_for_each(|name| folder.link(commit, name, &meta.etag))
        };
        concurrently(&blobs, watch, fetch).map(drop)
    }
}

/// The listing of the Hub, or the cached files.
enum RepositoryFiles<T> {
    Listing(RepositoryListing),
    Kept(T),
}

/// Stores the commit of a revision when all files are there. Until then the revision keeps its old
/// commit, so that it works offline.
fn note(folder: &Folder, id: &ModelId, commit: &str, watch: &Watch<'_>) -> Result<()> {
    match folder.note_commit(&id.revision, commit) {
        // A shared cache may be read-only for some users.
        Err(error) if error.kind == Kind::Store => (watch.event)(DownloadEvent::Note(&error.message)),
        noted => noted?,
    }
    Ok(())
}

/// Calls `work` for every item, a few concurrently; results are in the order of the items. The
/// first failure stops the others.
fn concurrently<T: Sync, R: Send>(
    items: &[T],
    watch: &Watch<'_>,
    work: impl Fn(&T, &Watch<'_>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    let failed = || failure.lock().unwrap_or_else(PoisonError::into_inner);
    let stop = || (watch.stop)() || failed().is_some();
    let watch = Watch { stop: &stop, ..*watch };
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT_DOWNLOADS.min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    match work(item, &watch) {
                        Ok(result) => done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result)),
                        Err(error) => {
                            // The others fail because they are stopped; keep the first failure.
                            failed().get_or_insert(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

fn stopped() -> Error {
    Error::new(Kind::Interrupted, "stopped while downloading from the Hub").hint("the next attempt continues from here")
}
