//! What a run starts from, by name: a script, a model with its tokenizer and chat template.
//!
//! - [`load_script`]: a script whose searches may use models
//! - [`Loaded`]: a script with its worker and a tokenizer
//! - [`model_dir`]: the directory of a model: a path, a run, a GGUF file, the embedded model, the Hub
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

pub(crate) use adapter::compute_kind;
pub(crate) use gguf::source_of;
pub use loaded::Loaded;
pub use policy::{load_model, load_policy, load_renderer, load_reward_model};
pub use source::{MODEL_NANO, MODEL_SMOLLM2, from_hub, local_model_dir, model_dir, text_dir};

use crate::encoders::Checkpoints;
use crate::error::Result;
use crate::script::Script;

/// Loads a script whose searches may use models.
///
/// # Errors
/// The errors of [`Script::load`].
pub fn load_script(path: &Path, overrides: &[String]) -> Result<Script> {
    Ok(Script::load(path, overrides)?.with_search_models(&Checkpoints))
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
    Ok(Script::kept(path, source, modules, overrides)?.with_search_models(&Checkpoints))
}
