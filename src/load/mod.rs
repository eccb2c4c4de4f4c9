//! What a run starts from, by name: a script, a model with its tokenizer and chat template.
//!
//! - [`load_script`]: a script whose searches may use models
//! - [`Loaded`]: a script with its worker and a tokenizer
//! - [`model_dir`]: the directory of a model: a path, a run, a GGUF file, one with a name, the Hub
//! - [`load_policy`], [`load_model`], [`load_renderer`], [`load_reward_model`]: its parts in memory
//! - `adapter`: an adapter with its base model, and the adapter that a recipe adds

pub(crate) mod adapter;
mod cached;
mod embedded;
mod gguf;
mod loaded;
mod policy;
mod source;

use std::collections::BTreeMap;
use std::path::Path;

pub(crate) use gguf::source_of;
pub use loaded::Loaded;
pub use policy::{
    IMAGE_FRAMES, IMAGE_MERGE, attach_images, attach_stand_in_images, load_model, load_policy, load_renderer,
    load_reward_model, new_images, new_processor,
};
pub use source::{MODEL_NANO, MODEL_SMOLLM2, from_hub, local_model_dir, model_dir, text_dir};

use crate::config::DeviceChoice;
use crate::encoders::Checkpoints;
use crate::error::Result;
use crate::script::Script;

/// Loads a script whose searches may use models.
///
/// # Errors
/// The errors of [`Script::load`].
pub fn load_script(path: &Path, overrides: &[String]) -> Result<Script> {
    Script::load(path, overrides).map(with_search_models)
}

/// The script, whose searches load their models as its settings say.
fn with_search_models(script: Script) -> Script {
    let search = &script.settings.search;
    let device = if search.device == DeviceChoice::Auto { script.settings.policy.device } else { search.device };
    let models = Checkpoints { device, dtype: search.dtype };
    script.with_search_models(models.kept())
}

/// A script kept by a run, whose searches may use models.
///
/// # Errors
/// The errors of [`Script::kept`].
pub fn kept_script(
    path: &Path,
    source: String,
    modules: BTreeMap<String, String>,
    overrides: &[String],
) -> Result<Script> {
    Script::kept(path, source, modules, overrides).map(with_search_models)
}
