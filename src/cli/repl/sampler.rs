//! The model of `:sample` and of the script's requests (`r1.generate`, `r1.logprobs`), opened on
//! first use.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Runtime;

use super::terminal::Terminal;
use crate::cli::generation::{self, serve};
use crate::cli::infer::recipe::wait;
use crate::config::PolicySettings;
use crate::engine::{Engine, EngineOptions, TokenBytes};
use crate::error::Result;
use crate::hub::Fetching;
use crate::load;
use crate::mdp::{Completion, Request, Split};
use crate::model::Model;
use crate::rollout::Spec;
use crate::script::{PolicyRequest, PolicyRequests, Script};
use crate::telemetry::{Interrupt, Reporter};
use crate::text::Renderer;

pub(super) struct SessionPolicy {
    /// Replaces the script's model.
    model: Option<PathBuf>,
    interrupt: Interrupt,
    reporter: Reporter,
    terminal: Rc<Terminal>,
    opened: RefCell<Option<ReplSampler>>,
}

/// A loaded policy.
struct ReplSampler {
    engine: Engine,
    model: Rc<Model>,
    renderer: Arc<Renderer>,
}

impl SessionPolicy {
    pub(super) fn new(
        model: Option<PathBuf>,
        interrupt: Interrupt,
        reporter: Reporter,
        terminal: &Rc<Terminal>,
    ) -> Self {
        Self { model, interrupt, reporter, terminal: Rc::clone(terminal), opened: RefCell::default() }
    }

    /// Runs `work` on the model, which is opened before if it is not open.
    fn with<T>(&self, script: &Script, work: impl FnOnce(&mut ReplSampler) -> Result<T>) -> Result<T> {
        let mut opened = self.opened.borrow_mut();
        let sampler = match &mut *opened {
            Some(sampler) => sampler,
            empty => empty.insert(self.open(script)?),
        };
        work(sampler)
    }

    fn open(&self, script: &Script) -> Result<ReplSampler> {
        let mut policy = PolicySettings { init: None, lora: None, ..script.settings.policy.clone() };
        if let Some(model) = &self.model {
            policy.model = model.display().to_string();
        }
        let fetching = Fetching { reporter: &self.reporter, interrupt: Some(self.interrupt) };
        let (model, renderer, _) = load::load_policy(&policy, &script.style()?, fetching)?;
        let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
        let options = EngineOptions::for_chat(&model, policy.max_context);
        let engine = Engine::new(Rc::clone(&model), vocabulary, options)?;
        self.terminal.note(&format!("{} replies", policy.model));
        Ok(ReplSampler { engine, model, renderer })
    }

    /// The tokenizer and template of the model.
    pub(super) fn renderer(&self, script: &Script) -> Result<Arc<Renderer>> {
        self.with(script, |sampler| Ok(Arc::clone(&sampler.renderer)))
    }

    /// Samples one reply; Ctrl-C ends it.
    pub(super) fn reply(&self, script: &Script, mut request: Request) -> Result<Completion> {
        self.with(script, |sampler| {
            let sampling = (*request.sampling).clone();
            request.sampling = Arc::new(sampling.with_stop(sampler.renderer.stop_strings()));
            sampler.engine.generate(request, &|| self.interrupt.is_set(), &mut |_| ())
        })
    }

    /// Waits for a part of the script until Ctrl-C, and answers its requests to the policy.
    pub(super) fn wait<T>(
        &self,
        runtime: &Runtime,
        script: &Script,
        mut requests: PolicyRequests,
        future: impl Future<Output = T>,
    ) -> Result<T> {
        wait(runtime, self.interrupt, serve(&mut requests, |request| self.answer(script, request), future))
    }

    /// The receiver may be gone: the call may have timed out.
    fn answer(&self, script: &Script, request: PolicyRequest) {
        match request {
            PolicyRequest::Generate(request) => {
                let written = self.with(script, |ReplSampler { engine, renderer, .. }| {
                    let mut spec = Spec::new(Split::Eval, 0, &script.settings).as_evaluated(&script.settings);
                    (spec.seed.trajectory, spec.max_context) = (0, engine.capacity());
                    generation::generate(renderer, &spec, &request, |wanted| {
                        engine.generate(wanted, &|| self.interrupt.is_set(), &mut |_| ())
                    })
                });
                let _ = request.reply.send(written);
            }
            PolicyRequest::Logprobs(request) => {
                let scored = self.with(script, |ReplSampler { model, renderer, .. }| {
                    generation::logprobs(model, renderer, &request)
                });
                let _ = request.reply.send(scored);
            }
        }
    }
}
