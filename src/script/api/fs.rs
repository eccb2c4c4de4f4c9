//! `r1.fs`: files below the directories that a recipe declares. The content that is read is
//! recorded, or its checksum if it is long.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fs, io};

use mlua::{Lua, Table, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::args::{answer, raise, required, text, undeclared};
use super::arguments::{Arguments, arguments};
use super::outcome::{NilReason, failed};
use crate::error::{Error, Kind, Result};
use crate::mdp::Outcome;
use crate::script::runtime::bind::bind;
use crate::script::runtime::grants::PathRefusal;
use crate::script::runtime::host::Host;

/// Maximum bytes of a text in the record; for longer ones it keeps the checksum, and a replay reads
/// the file again.
const KEPT: usize = 64 << 10;
/// Maximum size of a file.
const MOST: u64 = 256 << 20;

arguments! {
    /// Options of `r1.fs.write`.
    pub(super) struct WriteOptions {
        append: bool = false;
    }
}

/// The content of a file, as recorded.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum FileContent {
    Text { text: String },
    Checksum { sha256: String, bytes: usize },
}

/// The names in a directory, as recorded.
#[derive(Serialize, Deserialize)]
struct FileNames {
    names: Vec<String>,
}

/// What `r1.fs.stat` returns, as recorded.
#[derive(Serialize, Deserialize)]
struct FileFacts {
    kind: String,
    size: u64,
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let table = lua.create_table()?;
    let shared_host = host.clone();
    bind(lua, &table, "read", move |lua, path: Value| {
        let path = text(lua, "r1.fs.read", "path", &path)?;
        let content = recorded_call(lua, &shared_host, "r1.fs.read", &path, read)?;
        let bytes = content.map(|content| match content {
            FileContent::Text { text } => Ok(text.into_bytes()),
            FileContent::Checksum { sha256, .. } => again(&shared_host, &path, &sha256).map_err(raise),
        });
        bytes.map(|bytes| lua.create_string(bytes?)).map_or_else(|why| Ok(Err(why)), |text| text.map(Ok))
    })?;
    let shared_host = host.clone();
    bind(lua, &table, "list", move |lua, path: Value| {
        let path = text(lua, "r1.fs.list", "path", &path)?;
        Ok(recorded_call(lua, &shared_host, "r1.fs.list", &path, list)?.map(|FileNames { names }| names))
    })?;
    let shared_host = host.clone();
    bind(lua, &table, "stat", move |lua, path: Value| {
        let path = text(lua, "r1.fs.stat", "path", &path)?;
        let facts = recorded_call(lua, &shared_host, "r1.fs.stat", &path, stat)?;
        facts.map(|facts| answer(lua, &facts)).map_or_else(|why| Ok(Err(why)), |facts| facts.map(Ok))
    })?;
    let shared_host = host.clone();
    bind(lua, &table, "write", move |lua, (path, content, options): (Value, Value, Value)| {
        write(lua, &shared_host, &path, &content, &options)
    })?;
    super::namespace(lua, r1, "r1.fs", table)
}

/// The content of a file, or what the caller has for its checksum.
pub(super) enum ReadFile<T> {
    Bytes(Vec<u8>),
    Known(T),
}

/// Reads a file and records its content, or its checksum if it is long. A recorded file is not read
/// again if `lookup` has something for its checksum.
pub(super) fn file<T>(
    lua: &Lua,
    host: &Host,
    function: &str,
    path: &str,
    lookup: impl Fn(&str) -> Option<T>,
) -> mlua::Result<Result<ReadFile<T>, NilReason>> {
    let content = match recorded_call(lua, host, function, path, read)? {
        Ok(content) => content,
        Err(reason) => return Ok(Err(reason)),
    };
    Ok(Ok(match content {
        FileContent::Text { text } => ReadFile::Bytes(text.into_bytes()),
        FileContent::Checksum { sha256, .. } => match lookup(&sha256) {
            Some(value) => ReadFile::Known(value),
            None => ReadFile::Bytes(again(host, path, &sha256).map_err(raise)?),
        },
    }))
}

/// Reads file system data at a path and records the result. The inner error is about the file.
fn recorded_call<T: Serialize + DeserializeOwned>(
    lua: &Lua,
    host: &Host,
    function: &str,
    path: &str,
    operation: fn(&Path) -> Result<T, FileFailure>,
) -> mlua::Result<Result<T, NilReason>> {
    let real = allowed(lua, host, function, path, false)?;
    let live = || {
        let outcome = real.and_then(|real| operation(&real));
        Ok(outcome.map_or_else(|why| failed(why.to_string()), Outcome::Ok))
    };
    let kind = function.trim_start_matches("r1.");
    Ok(match host.current().external_now(kind, json!({ "path": path }), live).map_err(raise)? {
        Outcome::Ok(answer) => Ok(answer),
        Outcome::Failed(failed) => Err(NilReason(failed.error)),
    })
}

/// The reason why a file is not read or written. The script receives it as text, as the second
/// result.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
struct FileFailure {
    path: String,
    why: String,
}

impl FileFailure {
    fn new(path: impl Display, why: impl Display) -> Self {
        Self { path: path.to_string(), why: why.to_string() }
    }
}

/// The real path; an expected failure inside, misuse outside.
fn allowed(
    lua: &Lua,
    host: &Host,
    function: &str,
    path: &str,
    write: bool,
) -> mlua::Result<Result<PathBuf, FileFailure>> {
    // A separate statement, since the message borrows the grants again.
    let path_or_refusal = host.grants.borrow().path(path, write);
    match path_or_refusal {
        Ok(real) => Ok(Ok(real)),
        Err(PathRefusal::Expected(why)) => Ok(Err(FileFailure::new(path, why))),
        Err(PathRefusal::Undeclared) => {
            let folder = path.split('/').next().filter(|_| path.contains('/') && !path.starts_with('/'));
            let folder = folder.unwrap_or(if path.starts_with('/') { path } else { "." });
            let need = if write { format!("fs:write:{folder}") } else { format!("fs:{folder}") };
            Err(undeclared(lua, host, function, &need))
        }
    }
}

fn load(path: &Path) -> Result<Vec<u8>, FileFailure> {
    let failed = |error: io::Error| FileFailure::new(path.display(), error);
    let size = fs::metadata(path).map_err(&failed)?.len();
    if size > MOST {
        let why = format!("the file has {size} bytes; {MOST} are the most");
        return Err(FileFailure::new(path.display(), why));
    }
    fs::read(path).map_err(failed)
}

fn read(path: &Path) -> Result<FileContent, FileFailure> {
    let bytes = load(path)?;
    Ok(match std::str::from_utf8(&bytes) {
        Ok(text) if text.len() <= KEPT => FileContent::Text { text: text.to_owned() },
        _ => FileContent::Checksum { sha256: checksum(&bytes), bytes: bytes.len() },
    })
}

/// A long file, whose checksum must equal the recorded one.
fn again(host: &Host, path: &str, sum: &str) -> Result<Vec<u8>> {
    let real = host.grants.borrow().path(path, false);
    let bytes = match real {
        Ok(real) => load(&real),
        Err(_) => Err(FileFailure::new(path, "reading is not allowed")),
    };
    let bytes = bytes.map_err(|why| Error::new(Kind::Env, format!("r1.fs.read: {why}")))?;
    if checksum(&bytes) == sum {
        return Ok(bytes);
    }
    Err(Error::new(Kind::Env, format!("r1.fs.read: {path} differs from the recorded file"))
        .hint("the file has changed since"))
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// The names in a directory, sorted; names of directories end with a slash.
fn list(path: &Path) -> Result<FileNames, FileFailure> {
    let failed = |error: io::Error| FileFailure::new(path.display(), error);
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let folder = if entry.path().is_dir() { "/" } else { "" };
        names.push(format!("{}{folder}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(FileNames { names })
}

fn stat(path: &Path) -> Result<FileFacts, FileFailure> {
    let facts = fs::metadata(path).map_err(|error| FileFailure::new(path.display(), error))?;
    let kind = if facts.is_dir() { "directory" } else { "file" };
    Ok(FileFacts { kind: kind.to_owned(), size: facts.len() })
}

/// True, or nil and the reason. Missing parent directories are created.
fn write(
    lua: &Lua,
    host: &Host,
    path: &Value,
    content: &Value,
    options: &Value,
) -> mlua::Result<Result<bool, NilReason>> {
    const NAME: &str = "r1.fs.write";
    let path = text(lua, NAME, "path", path)?;
    let bytes: Vec<u8> = required(lua, NAME, "text", content)?;
    let WriteOptions { append } = WriteOptions::read_optional(lua, NAME, options)?;
    let real = allowed(lua, host, NAME, &path, true)?;
    let live = || {
        let written = real.and_then(|real| {
            let failed = |error: io::Error| FileFailure::new(&path, error);
            if let Some(folder) = real.parent() {
                fs::create_dir_all(folder).map_err(&failed)?;
            }
            let mut file = fs::OpenOptions::new();
            let file = file.create(true).write(true).append(append).truncate(!append).open(&real);
            io::Write::write_all(&mut file.map_err(&failed)?, &bytes).map_err(&failed)
        });
        Ok(json!({ "error": written.err().map(|why| why.to_string()) }))
    };
    let request = json!({ "path": path, "append": append, "sha256": checksum(&bytes) });
    let outcome: Json = host.current().external_now("fs.write", request, live).map_err(raise)?;
    Ok(outcome["error"].as_str().map_or(Ok(true), |why| Err(NilReason(why.to_owned()))))
}
