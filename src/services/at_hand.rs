//! A script with what can be had of its model without fetching anything: for what works without one.

use std::path::Path;
use std::sync::Arc;

use crate::config::Settings;
use crate::error::Result;
use crate::script::{Script, Worker};
use crate::telemetry::Reporter;
use crate::text::Renderer;
use crate::train::{self, Fetching, MODEL_NANO};

/// A script at work.
pub struct Loaded {
    pub script: Script,
    pub worker: Worker,
    pub renderer: Arc<Renderer>,
    /// Longest prompt plus reply, tokens; 0: as the settings say.
    pub max_context: usize,
    /// The embedded model's tokenizer stands in for the script's, which is not on this machine.
    pub stands_in: bool,
}

impl Loaded {
    /// A script with its own tokenizer if that is on this machine, else with the embedded model's.
    pub fn new(script: Script, reporter: &Reporter) -> Result<Self> {
        let model = &script.settings.policy.model;
        let own = train::model_at_hand(model).filter(|dir| dir.join("tokenizer.json").is_file());
        let (dir, stands_in) = match own {
            Some(dir) => (dir, false),
            None => (train::model_dir(MODEL_NANO, Fetching { reporter, interrupt: None })?, true),
        };
        let mut style = script.style()?;
        if stands_in {
            // Its template is not the one that they are for.
            style.template_kwargs.clear();
        }
        let renderer = Arc::new(Renderer::load_styled(&dir, &style)?);
        let max_context = if stands_in { 0 } else { context_of(&dir, &script.settings) };
        Self::with(script, renderer, max_context, stands_in)
    }

    /// A script with a tokenizer that is there.
    pub fn with(script: Script, renderer: Arc<Renderer>, max_context: usize, stands_in: bool) -> Result<Self> {
        let worker = Worker::new(&script, Some(Arc::clone(&renderer)))?;
        Ok(Self { script, worker, renderer, max_context, stands_in })
    }
}

/// What training with the model would take for the longest prompt plus reply.
fn context_of(dir: &Path, settings: &Settings) -> usize {
    let config = std::fs::read(dir.join("config.json")).ok();
    let config: Option<serde_json::Value> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let limit = config.and_then(|config| config["max_position_embeddings"].as_u64()).unwrap_or(0) as usize;
    match (settings.policy.max_context, limit) {
        (0, limit) => limit,
        (own, 0) => own,
        (own, limit) => own.min(limit),
    }
}
