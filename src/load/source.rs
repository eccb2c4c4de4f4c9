//! The source of a model: a directory, this binary, or the Hub.

use std::path::{Path, PathBuf};

use super::embedded::unpack_nano;
use crate::error::{Error, Kind, Result, nearest, suggest};
use crate::hub::{Fetching, Hub, ModelId, Watch, watched};
use crate::store::{find_model, run_names};

/// The usual directory of runs.
const RUNS: &str = "runs";

/// The name of the embedded model.
pub const MODEL_NANO: &str = "r1-nano";

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
    if path.join("config.json").is_file() {
        return Some(path);
    }
    if name == MODEL_NANO {
        return unpack_nano().ok();
    }
    Hub::from_env().ok()?.cached(&ModelId::parse(name).ok()?)
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
