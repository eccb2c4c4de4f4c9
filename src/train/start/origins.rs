//! The origins of the model and the datasets of a run: a resumed run reads the same ones.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Result;
use crate::hub::{Fetching, Hub, ModelId, Watch, commit_of, watched};
use crate::load::source_of;
use crate::model::stored_dtype;
use crate::script::Script;
use crate::store::{Origin, Origins};
use crate::telemetry::Interrupt;

/// Downloads the Hub datasets that a script names, with a progress bar.
pub(crate) fn fetch_data(script: &Script, fetching: Fetching<'_>) -> Result<()> {
    watched("data", fetching, |watch| script.fetch_data(watch))
}

/// The origin of the model in `dir`.
pub(crate) fn origin(name: &str, dir: &Path) -> Origin {
    let path = source_of(dir);
    let dtype = stored_dtype(dir).map(str::to_owned);
    Origin { name: name.to_owned(), commit: commit_of(&path), path, dtype }
}

/// The origins of the model of a run and of its datasets on the Hub, which have been downloaded.
///
/// # Errors
/// `Kind::Data` for a dataset that can't be read.
pub(crate) fn origins(script: &Script, model: Option<Origin>) -> Result<Origins> {
    let files = script.hub_files()?;
    let mut origins = Origins { model, files: script.data_files()?, ..Origins::default() };
    for (key, name) in script.hub_names() {
        let Some(path) = files.get(&key).cloned() else { continue };
        let origin = Origin { commit: commit_of(&path), name, path, dtype: None };
        match key.as_str() {
            "train" => origins.train = Some(origin),
            "eval" => origins.eval = Some(origin),
            _ => drop(origins.parts.insert(key, origin)),
        }
    }
    Ok(origins)
}

/// Makes a resumed run read its Hub datasets at the commits that it has read before, and reports
/// newer commits on the Hub. A dataset whose name or revision has changed is read at its new
/// revision.
pub(crate) fn pin_data(script: &mut Script, before: &Origins, fetching: Fetching<'_>) -> Result<()> {
    let stop = || fetching.interrupt.is_some_and(Interrupt::is_set);
    let watch = Watch { event: &|_| (), stop: &stop };
    let mut pins = BTreeMap::new();
    for (key, name) in script.hub_names() {
        let earlier = before.dataset(&key).filter(|origin| origin.name == name);
        let Some(commit) = earlier.and_then(|origin| origin.commit.clone()) else { continue };
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

/// The model that a run started from, as recorded in its configuration: the directory or GGUF file
/// if it still exists, else a Hub model at the recorded commit, else the model that the name now
/// refers to.
pub(crate) fn recorded(origin: &Origin) -> String {
    let path = &origin.path;
    if path.is_file() || path.join("config.json").is_file() || path.join("adapter_config.json").is_file() {
        return path.display().to_string();
    }
    match (&origin.commit, ModelId::parse(&origin.name)) {
        (Some(commit), Ok(id)) => id.at(commit).to_string(),
        _ => origin.name.clone(),
    }
}
