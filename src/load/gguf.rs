//! Models in GGUF files: a directory in Hugging Face layout for each, in the user's cache. It has
//! config.json and the tokenizer that the metadata describes, and a link to the file, from which
//! the weights are read. All other code reads it as any model directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::cached::CachedModel;
use crate::error::{Error, Kind, Result};
use crate::model::{GGUF_FILE, Gguf};
use crate::text::{Tokenizer, tokenizer_files};

/// The files of a tokenizer beside a GGUF file, which replace the tokenizer of its metadata.
const BESIDE: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
];

/// The GGUF file that `path` names: itself, or the only one of a directory without other weights.
///
/// # Errors
/// `Kind::Model` for a directory with several.
pub(super) fn gguf_file(path: &Path) -> Result<Option<PathBuf>> {
    let is_gguf = |path: &Path| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if path.is_file() && is_gguf(path) {
        return Ok(Some(path.to_owned()));
    }
    let is_model = |name: &str| path.join(name).exists();
    let others = ["model.safetensors", "model.safetensors.index.json", "adapter_config.json"];
    // A directory of `gguf_directory` is one in Hugging Face layout.
    let is_made = [GGUF_FILE, "config.json", "tokenizer.json"].iter().all(|name| is_model(name));
    if others.iter().any(|name| is_model(name)) || is_made {
        return Ok(None);
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file() && is_gguf(path)).collect();
    files.sort();
    match files.as_slice() {
        [] => Ok(None),
        [file] => Ok(Some(file.clone())),
        [first, ..] => Err(Error::new(Kind::Model, format!("the directory has {} GGUF files", files.len()))
            .at_path(path)
            .hint(format!("name one, such as {}", first.display()))),
    }
}

/// The directory of the model in a GGUF file.
///
/// # Errors
/// `Kind::Model` for a file that can't be read, an unsupported architecture, type or tokenizer.
pub(super) fn gguf_directory(path: &Path) -> Result<PathBuf> {
    if let Some(name) = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_part(stem)) {
        return Err(Error::new(Kind::Model, format!("{name} is one of several parts of a model"))
            .at_path(path)
            .hint("join them with llama.cpp: llama-gguf-split --merge FIRST JOINED.gguf"));
    }
    let config = Gguf::config(path)?.to_string();
    let metadata = Gguf::open(path)?.metadata;
    let at_file = |error: Error| error.at_path(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut files = if folder.join(BESIDE[0]).is_file() {
        tokenizer_beside(folder, metadata.get("tokenizer.chat_template"))?
    } else {
        tokenizer_files(&metadata).map_err(at_file)?
    };
    files.insert("config.json".to_owned(), config.into_bytes());
    // Links in the path of the folder are resolved. The file stays a link if it is one: in the
    // Hub's cache, what it points to has no extension.
    let target = folder.canonicalize().map(|folder| folder.join(path.file_name().unwrap_or_default()));
    let target = target.map_err(|error| Error::io(Kind::Model, "open the model", path, &error))?;
    let files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let model = CachedModel { name: "gguf", what: "the files of the model", files, link: Some((GGUF_FILE, &target)) };
    model.directory(|dir| Tokenizer::load(dir).map(drop).map_err(at_file))
}

/// Whether a file is named as a part of a model: `model-00001-of-00003`.
fn is_part(stem: &str) -> bool {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
    matches!(parts.as_slice(), [count, "of", index, _] if is_number(count) && is_number(index))
}

/// The files of the tokenizer in `folder`, with `template` if they have no chat template.
fn tokenizer_beside(folder: &Path, template: Option<&Value>) -> Result<BTreeMap<String, Vec<u8>>> {
    // Refuses special and large files.
    Tokenizer::load(folder)?;
    let mut files = BTreeMap::new();
    for name in BESIDE {
        if let Ok(bytes) = std::fs::read(folder.join(name)) {
            files.insert(name.to_owned(), bytes);
        }
    }
    let config = files.get("tokenizer_config.json").and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let has_template = config.is_some_and(|config| !config["chat_template"].is_null());
    if let (Some(template), false) = (template.and_then(Value::as_str), has_template) {
        files.entry("chat_template.jinja".to_owned()).or_insert_with(|| template.as_bytes().to_vec());
    }
    Ok(files)
}

/// The path that names the model of a directory: the GGUF file of which it was made, or the
/// directory.
pub(crate) fn source_of(dir: &Path) -> PathBuf {
    // A file of this name in a directory with its own weights is not the source of the directory.
    let is_made = |target: &PathBuf| target.is_absolute() && !dir.join("model.safetensors").exists();
    let linked = || std::fs::read_link(dir.join(GGUF_FILE)).ok().filter(is_made);
    linked().or_else(|| dir.canonicalize().ok()).unwrap_or_else(|| dir.to_owned())
}

#[cfg(test)]
mod tests;
