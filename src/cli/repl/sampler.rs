//! The model of `:sample`.

use std::path::PathBuf;
use std::sync::Arc;

use crate::config::PolicySettings;
use crate::engine::{Engine, EngineOptions, TokenBytes};
use crate::error::Result;
use crate::mdp::{Completion, Request};
use crate::script::Script;
use crate::telemetry::{Interrupt, Reporter};
use crate::text::Renderer;
use crate::train::{self, Fetching};

/// A loaded policy.
pub(super) struct Sampler {
    engine: Engine,
    pub(super) renderer: Arc<Renderer>,
    pub(super) name: String,
}

impl Sampler {
    /// Opens the model of the script, or `model` instead.
    pub(super) fn open(
        script: &Script,
        model: Option<&PathBuf>,
        interrupt: Interrupt,
        reporter: &Reporter,
    ) -> Result<Self> {
        let settings = &script.settings;
        let mut policy = PolicySettings { init: None, lora: None, ..settings.policy.clone() };
        if let Some(model) = model {
            policy.model = model.display().to_string();
        }
        let fetching = Fetching { reporter, interrupt: Some(interrupt) };
        let (model, renderer, _) = train::load_policy(&policy, &script.style()?, fetching)?;
        let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
        let options = EngineOptions::for_chat(&model, policy.max_context);
        Ok(Self { engine: Engine::new(model, vocabulary, options)?, renderer, name: policy.model })
    }

    /// Samples one reply; Ctrl-C ends it.
    pub(super) fn reply(&mut self, mut request: Request, interrupt: Interrupt) -> Result<Completion> {
        let mut sampling = (*request.sampling).clone();
        for stop in self.renderer.stop_strings() {
            if !sampling.stop.contains(stop) {
                sampling.stop.push(stop.clone());
            }
        }
        request.sampling = Arc::new(sampling);
        self.engine.generate(request, &|| interrupt.is_set(), &mut |_| ())
    }
}
