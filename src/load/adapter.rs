//! Policies of a model and a low-rank adapter: the base model of the adapter, and its source.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tch::Device;

use super::gguf::source_of;
use super::source::model_dir;
use crate::config::{LoraSettings, PolicySettings};
use crate::error::{Error, Kind, Result};
use crate::hub::{Fetching, ModelId, commit_of};
use crate::model::{LoraConfig, Model, tensors_beside_text};
use crate::native::compute_kind;
use crate::script::Script;
use crate::store::verify;
use crate::telemetry::Reporter;

/// Loads the model in `dir`, or the adapter in `dir` with its base model. Also returns the
/// directory of tokenizer and settings: the adapter's or the base model's.
pub(crate) fn load(dir: &Path, policy: &PolicySettings, fetching: Fetching<'_>) -> Result<(Model, PathBuf)> {
    load_with(dir, policy, Model::load, fetching)
}

/// [`load`] with a way to load the model: [`Model::load`] or [`Model::load_base`].
pub(crate) fn load_with(
    dir: &Path,
    policy: &PolicySettings,
    read: impl Fn(&Path, Device, tch::Kind) -> Result<Model>,
    fetching: Fetching<'_>,
) -> Result<(Model, PathBuf)> {
    verify(dir, true)?;
    let device = crate::native::device(policy.device)?;
    let kind = compute_kind(policy.dtype, device);
    let Some(config) = LoraConfig::load(dir)? else {
        // A run that adds a new adapter to a model has adapters as its checkpoints.
        if !policy.base.is_empty() && policy.lora.is_none() {
            return Err(Error::new(
                Kind::Usage,
                format!("a base model is given ({}), but the model is not an adapter", policy.base),
            )
            .at_path(dir)
            .hint("leave out --base or policy.base"));
        }
        let model = read(dir, device, kind)?;
        report_left_out(&model, dir, fetching.reporter)?;
        return Ok((model, dir.to_owned()));
    };
    let base = base_dir(dir, &config, policy, fetching)?;
    let mut model = read(&base, device, kind)?;
    report_left_out(&model, &base, fetching.reporter)?;
    model.load_adapter(dir)?;
    if !policy.base.is_empty() {
        let (name, revision) = base_of(&policy.base, &base);
        model.set_adapter_base(&name, revision.as_deref())?;
    }
    let text = if dir.join("tokenizer.json").is_file() { dir.to_owned() } else { base };
    Ok((model, text))
}

/// The directory of the base model of the adapter in `dir`: `policy.base`, or the one that its file
/// names.
///
/// # Errors
/// `Kind::Model` if no model is named, or if it is not available or is an adapter itself.
pub(crate) fn base_dir(
    dir: &Path,
    config: &LoraConfig,
    policy: &PolicySettings,
    fetching: Fetching<'_>,
) -> Result<PathBuf> {
    const OVERRIDE: &str = "--base DIR (r1 infer), policy.base=DIR or r1.model(…, { base = DIR }) names another copy";
    let from_settings = Some(&policy.base).filter(|base| !base.is_empty()).cloned();
    let name = from_settings.clone().or_else(|| config.base()).ok_or_else(|| {
        Error::new(Kind::Model, "the adapter does not name its base model")
            .at_path(dir.join("adapter_config.json"))
            .hint(format!("name it in `base_model_name_or_path`; {OVERRIDE}"))
    })?;
    let base = model_dir(&name, fetching).map_err(|error| {
        if from_settings.is_some() {
            return error;
        }
        let hint = error.hint.map_or_else(|| OVERRIDE.to_owned(), |hint| format!("{hint}; {OVERRIDE}"));
        let message = format!("the base model of the adapter in {} is missing: {}", dir.display(), error.message);
        Error { message, hint: Some(hint), ..error }
    })?;
    if LoraConfig::load(&base)?.is_some() {
        return Err(Error::new(Kind::Model, format!("the base model of the adapter, {name}, is an adapter itself"))
            .at_path(dir)
            .hint(OVERRIDE));
    }
    Ok(base)
}

/// Warns about tensors of images and multi-token prediction.
fn report_left_out(model: &Model, dir: &Path, reporter: &Reporter) -> Result<()> {
    let has_tower = model.config.vision.is_some();
    let count = if model.config.is_recurrent() { tensors_beside_text(dir, has_tower)? } else { 0 };
    if count > 0 {
        let what = if has_tower { "multi-token prediction" } else { "images or multi-token prediction" };
        reporter.warn(&format!("{count} tensors for {what} are left out: r1 neither reads nor writes them"));
    }
    Ok(())
}

/// [`load`], with the adapter of the recipe. `merging`: whether it is merged at the end.
pub(crate) fn load_for_training(
    dir: &Path,
    policy: &PolicySettings,
    merging: bool,
    seed: u64,
    fetching: Fetching<'_>,
) -> Result<(Model, PathBuf)> {
    if policy.init.is_some() && policy.lora.is_some() {
        return Err(Error::new(Kind::Script, "policy.init initialises a new model, and policy.lora freezes it")
            .hint("leave one of the two out"));
    }
    let adapts = policy.lora.is_some() || LoraConfig::load(dir)?.is_some();
    let read = if adapts { Model::load_base } else { Model::load };
    let (mut model, text) = load_with(dir, policy, read, fetching)?;
    match (&policy.lora, model.lora()) {
        (None, None) if merging => {
            return Err(Error::new(Kind::Script, "checkpoint.merge is set, but the policy has no adapter")
                .hint("add one with policy.lora = { rank = 16 }"));
        }
        (None, _) => {}
        (Some(wanted), Some(present)) => same(wanted, present).map_err(|error| error.at_path(dir))?,
        (Some(wanted), None) => {
            let mut config = new(wanted);
            let (name, revision) = base_of(&policy.model, dir);
            config.set_base(&name, revision.as_deref());
            model.add_adapter(config, seed)?;
        }
    }
    Ok((model, text))
}

/// The name of the model `name` in the file of an adapter, which was found in `dir`: a model from
/// the Hub with its commit, a directory or a file by the path that is valid from anywhere.
fn base_of(name: &str, dir: &Path) -> (String, Option<String>) {
    let path = source_of(dir);
    if Path::new(name).exists() {
        return (path.display().to_string(), None);
    }
    match (commit_of(&path), ModelId::parse(name)) {
        (Some(commit), Ok(id)) => (id.at("main").to_string(), Some(commit)),
        _ => (name.to_owned(), None),
    }
}

/// An error about the adapter, at its line in the recipe.
pub(crate) fn placed(error: Error, script: &Script) -> Error {
    if error.kind != Kind::Script || error.place.is_some() {
        return error;
    }
    match script.typed("policy.lora") {
        Some(typed) => error.at(typed),
        None => error.at(script.place_of("policy.lora")),
    }
}

/// A new adapter with the settings of the recipe.
pub(crate) fn new(wanted: &LoraSettings) -> LoraConfig {
    let targets: Vec<&str> = wanted.targets.iter().map(String::as_str).collect();
    let mut config = LoraConfig::new(wanted.rank, wanted.alpha, &targets);
    config.rank_stabilised = wanted.rank_stabilized;
    config
}

/// Whether the recipe adds a new adapter to a model without one.
pub(crate) fn is_new(policy: &PolicySettings, fetching: Fetching<'_>) -> Result<bool> {
    Ok(policy.lora.is_some() && LoraConfig::load(&model_dir(&policy.model, fetching)?)?.is_none())
}

/// Refuses an adapter that differs from the settings of the recipe.
fn same(wanted: &LoraSettings, present: &LoraConfig) -> Result<()> {
    let refuse = |name: &str, wanted: &str, present: &str| {
        Err(Error::new(Kind::Script, format!("policy.lora.{name} is {wanted}, but the policy's adapter has {present}"))
            .hint("leave policy.lora out to continue with the adapter"))
    };
    let numbers = [
        ("rank", wanted.rank.to_string(), present.rank.to_string()),
        ("alpha", wanted.alpha.to_string(), present.alpha.to_string()),
        ("rank_stabilized", wanted.rank_stabilized.to_string(), present.rank_stabilised.to_string()),
    ];
    if let Some((name, wanted, present)) = numbers.iter().find(|(_, wanted, present)| wanted != present) {
        return refuse(name, wanted, present);
    }
    let set = |names: &[String]| -> BTreeSet<String> { names.iter().cloned().collect() };
    // `None` for a file with a pattern instead of a list.
    if !present.target_modules.is_empty() && set(&wanted.targets) != set(&present.target_modules) {
        return refuse("targets", &wanted.targets.join(", "), &present.target_modules.join(", "));
    }
    Ok(())
}
