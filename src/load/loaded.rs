//! A loaded script with a tokenizer that is available offline, for commands that need no model.

use std::path::Path;
use std::sync::Arc;

use super::{MODEL_NANO, attach_images, attach_stand_in_images, local_model_dir, model_dir};
use crate::config::Settings;
use crate::error::Result;
use crate::hub::Fetching;
use crate::model::Config;
use crate::rollout::Stage;
use crate::script::{Script, Worker};
use crate::telemetry::Reporter;
use crate::text::Renderer;

/// A script with its worker and tokenizer.
pub struct Loaded {
    pub script: Script,
    pub worker: Worker,
    pub renderer: Arc<Renderer>,
    /// Maximum length of prompt plus response, tokens; 0: as in the settings.
    pub max_context: usize,
    /// Whether the embedded model's tokenizer replaces the script's, which is not on this machine.
    pub stands_in: bool,
}

impl Loaded {
    /// Loads a script with its own tokenizer if that is on this machine, else with the embedded
    /// model's.
    pub fn new(script: Script, reporter: &Reporter) -> Result<Self> {
        let model = &script.settings.policy.model;
        let local = local_model_dir(model).filter(|dir| dir.join("tokenizer.json").is_file());
        let (dir, stands_in) = match local {
            Some(dir) => (dir, false),
            None => (model_dir(MODEL_NANO, Fetching { reporter, interrupt: None })?, true),
        };
        let mut style = script.style()?;
        if stands_in {
            // These variables are for the template of the script's model.
            style.template_kwargs.clear();
        }
        let renderer = Arc::new(Renderer::load_styled(&dir, &style)?);
        attach_images(&renderer, &dir)?;
        attach_stand_in_images(&renderer, &script.settings.policy, stands_in)?;
        let max_context = if stands_in { 0 } else { context_of(&dir, &script.settings) };
        Ok(Self { stands_in, ..Self::with(script, renderer, max_context)? })
    }

    /// Creates a script's worker with the given tokenizer.
    pub fn with(script: Script, renderer: Arc<Renderer>, max_context: usize) -> Result<Self> {
        let worker = Worker::new(&script, Some(Arc::clone(&renderer)))?;
        Ok(Self { script, worker, renderer, max_context, stands_in: false })
    }

    /// The environment and the tokenizer of a trajectory.
    pub fn stage(&self) -> Stage<'_> {
        Stage { worker: &self.worker, renderer: &self.renderer }
    }
}

/// Maximum length of prompt plus response in training with the model of `dir`.
fn context_of(dir: &Path, settings: &Settings) -> usize {
    let config = std::fs::read(dir.join("config.json")).ok();
    let config: Option<serde_json::Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    // Without a model, other families have a tokenizer too.
    let limit = config.map_or(0, |config| match Config::from_json(&config) {
        Ok(config) => config.default_context(),
        Err(_) => config["max_position_embeddings"].as_u64().unwrap_or(0) as usize,
    });
    match (settings.policy.max_context, limit) {
        (0, limit) => limit,
        (setting, 0) => setting,
        (setting, limit) => setting.min(limit),
    }
}
