//! The source of a model: a directory, this binary, or the Hub.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::error::{Error, Kind, Result, suggest};
use crate::hub::{Event, Hub, ModelId, Watch, commit_of, is_stopped};
use crate::model::stored_dtype;
use crate::script::Script;
use crate::store::{Origin, Origins, find_model};
use crate::telemetry::{Bar, Interrupt, Reporter};

/// The name of the embedded model.
pub const MODEL_NANO: &str = "r1-nano";

/// The embedded model's files, so that `r1` works from any directory. `just nano` makes the model
/// with a binary that does not have it yet (build.rs).
#[cfg(not(nano))]
const NANO_FILES: [(&str, &[u8]); 0] = [];
#[cfg(nano)]
const NANO_FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../models/r1-nano/config.json")),
    ("generation_config.json", include_bytes!("../../models/r1-nano/generation_config.json")),
    ("model.safetensors", include_bytes!("../../models/r1-nano/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/r1-nano/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/r1-nano/tokenizer_config.json")),
];

/// Reports a download to the user, and stops it on request.
#[derive(Clone, Copy)]
pub struct Fetching<'a> {
    pub reporter: &'a Reporter,
    /// Ctrl-C ends the download; the received part is kept.
    pub interrupt: Option<Interrupt>,
}

/// The directory of a model: one that exists, the newest checkpoint of a run, the embedded model,
/// or one downloaded from the Hub into its cache.
pub fn model_dir(name: &str, fetching: Fetching<'_>) -> Result<PathBuf> {
    let path = &find_model(Path::new(name))?;
    if path.join("config.json").is_file() || path.join("adapter_config.json").is_file() {
        return Ok(path.to_owned());
    }
    if path.is_dir() && name != MODEL_NANO {
        return Err(Error::new(Kind::Model, "the model directory has no config.json")
            .at_path(path)
            .hint("point at a directory in Hugging Face layout (config.json, model.safetensors, tokenizer.json)"));
    }
    by_name(name, fetching, Hub::fetch)
}

/// The directory of a model's tokenizer and chat template: the embedded one's, or the downloaded
/// text files of a model on the Hub.
pub fn text_dir(name: &str, fetching: Fetching<'_>) -> Result<PathBuf> {
    by_name(name, fetching, Hub::fetch_text)
}

/// Fetches the directory of a model, or of a part of it, from the Hub.
type Fetch = fn(&Hub, &ModelId, &Watch<'_>) -> Result<PathBuf>;

/// The directory of a model by name: the embedded one, or one on the Hub.
fn by_name(name: &str, fetching: Fetching<'_>, fetch: Fetch) -> Result<PathBuf> {
    if name == MODEL_NANO {
        return unpack_nano();
    }
    if Path::new(name).is_file() {
        return Err(Error::new(Kind::Model, format!("`{name}` is a file; a model is a directory")).hint(
            "it has config.json, model.safetensors and tokenizer.json; other formats (gguf, pickles) are not read",
        ));
    }
    if let Some(error) = missing_run(name) {
        return Err(error);
    }
    if ModelId::is_hub_id(name) {
        return fetched(name, fetching, fetch).map_err(|mut error| {
            if error.kind == Kind::Model {
                let hint = error.hint.take().map_or_else(String::new, |hint| format!("{hint}; "));
                error.hint = Some(format!("{hint}there is no directory `{name}` either"));
            }
            error
        });
    }
    Err(Error::new(Kind::Model, format!("there is no model `{name}`")).hint(format!(
        "give a directory, a Hub id such as Qwen/Qwen2.5-1.5B-Instruct, or `{MODEL_NANO}` for the embedded model"
    )))
}

/// The error for `runs/NAME` without that run: it is not looked up on the Hub.
fn missing_run(name: &str) -> Option<Error> {
    let path = Path::new(name);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let runs = runs_in(folder);
    if runs.is_empty() && folder != Path::new("runs") {
        return None;
    }
    let error = Error::new(Kind::Model, format!("there is no run or model `{name}`"));
    let known = runs.iter().map(String::as_str);
    let asked = path.file_name().unwrap_or_default().to_string_lossy();
    let hint = if runs.is_empty() { format!("{} has no runs", folder.display()) } else { suggest(&asked, known) };
    Some(error.hint(format!("{hint}; r1 infer --hf {name} is a model of the Hub")))
}

/// The names of the runs in a directory.
fn runs_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = entries.filter(|entry| entry.path().join("recipe.lua").is_file());
    let mut names: Vec<String> = runs.filter_map(|run| run.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The directory of a model whose files are all on this machine; otherwise `None`. Downloads
/// nothing.
pub fn local_model_dir(name: &str) -> Option<PathBuf> {
    let path = find_model(Path::new(name)).ok()?;
    if path.join("config.json").is_file() {
        return Some(path);
    }
    if name == MODEL_NANO {
        return unpack_nano().ok();
    }
    Hub::from_env().ok()?.cached(&ModelId::parse(name).ok()?)
}

/// Writes the embedded model to a file system where files can be mapped; once per content.
fn unpack_nano() -> Result<PathBuf> {
    if NANO_FILES.is_empty() {
        return Err(Error::new(Kind::Model, "this binary was built without the embedded model")
            .hint("make it with `just nano`, then `just build`"));
    }
    let mut hash = Sha256::new();
    for (_, bytes) in NANO_FILES {
        hash.update(bytes);
    }
    let digest: u64 = hash.finalize().iter().take(6).fold(0, |digest, byte| digest << 8 | u64::from(*byte));
    let name = format!("{MODEL_NANO}-{digest:012x}");
    let mut failed = None;
    for cache in caches() {
        match unpacked(&cache, &name) {
            Ok(dir) => return Ok(dir),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed
        .unwrap_or_else(|| Error::new(Kind::Model, "there is no directory for the embedded model"))
        .hint("XDG_CACHE_HOME names the directory in which its files are kept"))
}

/// Directories for files that can be made again, the best first. The last one is of this user.
fn caches() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = variable("HOME").map(|home| home.join(".cache"));
    let temporary = std::env::temp_dir().join(format!("r1-cache-{}", user()));
    variable("XDG_CACHE_HOME").or(home).into_iter().chain([temporary]).collect()
}

#[allow(unsafe_code)]
fn user() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}

/// The embedded model in a cache directory. Files there that are not those of this program, or that
/// belong to another user, are not used.
fn unpacked(cache: &Path, name: &str) -> Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let parent = cache.join("r1");
    let dir = parent.join(name);
    let io = |error: std::io::Error| Error::io(Kind::Model, "unpack the embedded model", &dir, &error);
    let is_own = |path: &Path| {
        let about = std::fs::symlink_metadata(path)?;
        Ok::<_, std::io::Error>(about.is_dir() && (about.uid() == user() || about.uid() == 0))
    };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&parent).map_err(io)?;
    // A link to a directory of this user is one.
    let real = parent.canonicalize().map_err(io)?;
    if !is_own(&real).map_err(io)? {
        let why = format!("the directory {} belongs to another user", real.display());
        return Err(Error::new(Kind::Model, why));
    }
    let is_whole = || {
        let same = |(name, bytes): &(&str, &[u8])| std::fs::read(dir.join(name)).is_ok_and(|own| own == *bytes);
        is_own(&dir).unwrap_or(false) && NANO_FILES.iter().all(same)
    };
    if is_whole() {
        return Ok(dir);
    }
    let part = tempfile::Builder::new().prefix(".nano").tempdir_in(&parent).map_err(io)?;
    for (name, bytes) in NANO_FILES {
        std::fs::write(part.path().join(name), bytes).map_err(io)?;
    }
    if dir.symlink_metadata().is_ok() {
        // Another process may do the same.
        let _ = std::fs::rename(&dir, part.path().with_extension("old"));
        let _ = std::fs::remove_dir_all(part.path().with_extension("old"));
    }
    let part = part.keep();
    if let Err(error) = std::fs::rename(&part, &dir) {
        let _ = std::fs::remove_dir_all(&part);
        // Another process may have been faster; its copy is the same.
        if !is_whole() {
            return Err(io(error));
        }
    }
    Ok(dir)
}

/// The directory of a model from the Hub (`ORG/NAME[@revision]`); missing files are downloaded,
/// with a progress bar.
pub fn from_hub(name: &str, fetching: Fetching<'_>) -> Result<PathBuf> {
    fetched(name, fetching, Hub::fetch)
}

fn fetched(name: &str, fetching: Fetching<'_>, fetch: Fetch) -> Result<PathBuf> {
    let id = ModelId::parse(name)?;
    watched(&id.to_string(), fetching, |watch| fetch(&Hub::from_env()?, &id, watch))
}

/// Downloads the Hub datasets that a script names, with a progress bar.
pub(super) fn fetch_data(script: &Script, fetching: Fetching<'_>) -> Result<()> {
    watched("data", fetching, |watch| script.fetch_data(watch))
}

/// The origin of the model in `dir`.
pub(super) fn origin(name: &str, dir: &Path) -> Origin {
    let path = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let dtype = stored_dtype(dir).map(str::to_owned);
    Origin { name: name.to_owned(), commit: commit_of(dir), path, dtype }
}

/// The origins of the model of a run and of its datasets on the Hub, which have been downloaded.
///
/// # Errors
/// `Kind::Data` for a dataset that can't be read.
pub(super) fn origins(script: &Script, model: Option<Origin>) -> Result<Origins> {
    let files = script.hub_files()?;
    let mut found = Origins { model, files: script.data_files()?, ..Origins::default() };
    for (key, name) in script.hub_names() {
        let Some(path) = files.get(&key).cloned() else { continue };
        let origin = Origin { commit: commit_of(&path), name, path, dtype: None };
        match key.as_str() {
            "train" => found.train = Some(origin),
            "eval" => found.eval = Some(origin),
            _ => drop(found.parts.insert(key, origin)),
        }
    }
    Ok(found)
}

/// Makes a resumed run read its Hub datasets at the commits that it has read before, and reports
/// newer commits on the Hub. A dataset whose name or revision has changed is read at its new
/// revision.
pub(super) fn pin_data(script: &mut Script, before: &Origins, fetching: Fetching<'_>) -> Result<()> {
    let stop = || fetching.interrupt.is_some_and(Interrupt::is_set);
    let watch = Watch { event: &|_| (), stop: &stop };
    let mut pins = BTreeMap::new();
    for (key, name) in script.hub_names() {
        let known = before.dataset(&key).filter(|origin| origin.name == name);
        let Some(commit) = known.and_then(|origin| origin.commit.clone()) else { continue };
        let newest = Hub::from_env()?.newest(&ModelId::dataset(&name)?, &watch);
        if let Some(newest) = newest.filter(|newest| *newest != commit) {
            let short = |commit: &str| commit.chars().take(12).collect::<String>();
            fetching.reporter.info(&format!(
                "data.{key}: the Hub has a newer commit of {name}, {}; the run continues with {} (a new run takes the newer \
                 one, as does data.{key}.hf={}@{} here)",
                short(&newest),
                short(&commit),
                name.split('@').next().unwrap_or_default(),
                newest
            ));
        }
        pins.insert(key, commit);
    }
    script.pin_data(pins);
    Ok(())
}

/// The model that a run started from, as recorded in its configuration: the directory if it still
/// exists, else a Hub model at the recorded commit, else the model that the name now refers to.
pub(super) fn recorded(origin: &Origin) -> String {
    let path = &origin.path;
    if path.join("config.json").is_file() || path.join("adapter_config.json").is_file() {
        return path.display().to_string();
    }
    match &origin.commit {
        Some(commit) => format!("{}@{commit}", origin.name.split('@').next().unwrap_or_default()),
        None => origin.name.clone(),
    }
}

/// Shows the progress of a download, which the user can stop.
pub(crate) fn watched<T>(what: &str, fetching: Fetching<'_>, fetch: impl FnOnce(&Watch<'_>) -> Result<T>) -> Result<T> {
    let reporter = fetching.reporter;
    let shown: Mutex<Shown> = Mutex::default();
    let event = |event: Event<'_>| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Begin { files, bytes } => {
                let size = if bytes > 0 { format!(", {:.1} MB", bytes as f64 / 1e6) } else { String::new() };
                let plural = if files == 1 { "" } else { "s" };
                reporter.info(&format!("fetching {what}: {files} file{plural}{size}"));
                shown.bar = Some(reporter.bar("fetching", bytes.div_ceil(MEGABYTE), "MB"));
            }
            Event::Bytes(more) => shown.add(more),
            Event::Lost(less) => shown.bytes = shown.bytes.saturating_sub(less),
            Event::Note(note) => reporter.warn(note),
        }
    };
    let stop = || fetching.interrupt.is_some_and(Interrupt::is_set) || is_stopped();
    let fetched = fetch(&Watch { event: &event, stop: &stop });
    if let Some(bar) = &shown.into_inner().unwrap_or_else(PoisonError::into_inner).bar {
        bar.finish();
    }
    fetched
}

const MEGABYTE: u64 = 1_000_000;

/// Position of the bar. It never decreases: bytes that are fetched again count once.
#[derive(Default)]
struct Shown {
    bar: Option<Bar>,
    bytes: u64,
    megabytes: u64,
}

impl Shown {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        let megabytes = self.bytes / MEGABYTE;
        if let Some(bar) = self.bar.as_ref().filter(|_| megabytes > self.megabytes) {
            bar.inc(megabytes - self.megabytes);
            self.megabytes = megabytes;
        }
    }
}
