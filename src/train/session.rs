//! The state of a loop with rollouts: script, model, tokenizer, engine and script workers, on one
//! thread that owns every tensor.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::curriculum::Curriculum;
use super::failures::Failures;
use super::files::ModelFiles;
use super::origins::fetch_data;
use super::plan::{training_memory, with_micro_batches};
use super::script_log::ScriptLog;
use super::selection::Selection;
use crate::config::refuse_server;
use crate::config::{PolicySettings, Settings};
use crate::engine::{self, Engine, EngineOptions, Stats, TokenBytes};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::adapter;
use crate::load::load_renderer;
use crate::mdp::{Policy, Sampling, Trajectory};
use crate::model::{Config, Footprint, Model, available_memory};
use crate::rollout::{Pool, PoolOptions, Progress, Tree, no_progress, unknown_accuracy};
use crate::script::{Script, Worker};
use crate::telemetry::{Interrupt, Reporter};
use crate::text::Renderer;
use crate::tools;

/// A loaded recipe with its model, engine and workers.
#[expect(clippy::struct_excessive_bools, reason = "switches of the command line")]
pub(super) struct Session {
    pub(super) settings: Settings,
    pub(super) model: Rc<Model>,
    pub(super) renderer: Arc<Renderer>,
    pub(super) engine: Engine,
    /// Whether the key-value cache is released for updates, which need its memory.
    pub(super) releases_cache: bool,
    pub(super) pool: Pool,
    pub(super) failures: Failures,
    /// The rows that tasks are drawn from.
    pub(super) rows: Selection,
    /// Selects among them by their past success.
    pub(super) curriculum: Option<Curriculum>,
    /// The files of the model other than its weights.
    pub(super) files: ModelFiles,
    /// The output of the script.
    pub(super) log: ScriptLog,
    /// Longest prompt plus reply, tokens.
    pub(super) max_context: usize,
    /// The user has been warned of a weaker sandbox.
    warned_of_sandbox: bool,
    /// The user has been warned that decode steps are not recorded as CUDA graphs.
    warned_of_graphs: bool,
    warned_of_kernels: bool,
    /// The user has been warned that no reward has the part `eval.accuracy`.
    warned_of_accuracy: bool,
    interrupt: Option<Interrupt>,
    /// Signals that end a rollout: an evaluation ends with the first, the sampling of a step with
    /// the second.
    pub(super) patience: u32,
    /// Receives each trajectory when it has ended.
    pub(super) finished: Progress,
}

impl Session {
    /// Opens the recipe with the model or adapter in `dir`. The output of the script then goes to
    /// the log of the session. On CUDA, the key-value cache leaves the memory that training needs:
    /// `training` says whether the session is for training, and whether that has a separate
    /// reference policy.
    pub(super) fn open(
        script: &mut Script,
        dir: &Path,
        training: Option<bool>,
        fetching: Fetching<'_>,
    ) -> Result<Self> {
        let settings = script.settings.clone();
        let policy = &settings.policy;
        refuse_server(policy)?;
        let log = ScriptLog::new(fetching.reporter);
        script.listen(log.sink());
        fetch_data(script, fetching)?;
        let (mut model, dir) =
            adapter::load_for_training(dir, policy, settings.checkpoint.merge, settings.seed, fetching)
                .map_err(|error| adapter::placed(error, script))?;
        model.set_checkpointing(settings.trainer.gradient_checkpointing());
        model.set_graphs(policy.cuda_graphs);
        let settings = match training {
            Some(reference) => {
                let free = available_memory(model.device());
                with_micro_batches(&footprint(&model, &settings), &settings, reference, free)
            }
            None => settings.clone(),
        };
        let policy = &settings.policy;
        let merges = training.is_some() && policy.merged_sampling.unless_auto(model.device().is_cuda());
        model.set_merged_sampling(merges)?;
        let files = ModelFiles::read(&dir)?;
        let (model, renderer) = (Rc::new(model), load_renderer(&dir, &script.style()?, fetching.reporter)?);
        let files = files.with_template_of(&renderer);
        if let Some(message) = renderer.hidden_tools(Worker::new(script, None)?.tools()) {
            fetching.reporter.warn(&message);
        }
        let max_context = context_of_rollouts(policy, &model.config, fetching.reporter)?;
        if let Some(most) = script.written_number("sampling.max_new_tokens").filter(|most| *most >= max_context) {
            fetching.reporter.warn(&format!(
                "sampling.max_new_tokens is {most}, and prompt and reply together have {max_context} tokens: replies end sooner"
            ));
        }
        let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
        let slots = settings.rollout.concurrency;
        let needs = match training {
            Some(reference) if model.device().is_cuda() => {
                training_memory(&footprint(&model, &settings), &settings, reference)
            }
            _ => (0, 0),
        };
        let cache = model.cache_options();
        let (size, releases_cache) = EngineOptions::sized_for_training(&model.config, cache, slots, max_context, needs);
        let mut engine = Engine::new(Rc::clone(&model), vocabulary, size)?;
        if settings.trainer.replays_routing() {
            engine.record_routing().map_err(|error| {
                let message = format!("trainer.routing_replay is \"rollout\", and {}", error.message);
                Error::new(Kind::Script, message).at(script.place_of("trainer.routing_replay")).hint("leave it out")
            })?;
        }
        let pool = Pool::new(
            script,
            &renderer,
            &PoolOptions { workers: settings.rollout.workers, concurrency: slots, retries: settings.rollout.retries },
        )?;
        let rows = Selection::new(script, &renderer, max_context, fetching)?;
        Ok(Self {
            settings,
            model,
            renderer,
            engine,
            releases_cache,
            pool,
            failures: Failures::default(),
            rows,
            curriculum: None,
            files,
            log,
            max_context,
            warned_of_sandbox: false,
            warned_of_graphs: false,
            warned_of_kernels: false,
            warned_of_accuracy: false,
            interrupt: fetching.interrupt,
            patience: 2,
            finished: no_progress(),
        })
    }

    /// Between sampling and an update: releases the key-value cache if the update needs its memory.
    pub(super) fn release_cache(&mut self) -> Result<()> {
        if self.releases_cache { self.engine.sleep() } else { Ok(()) }
    }

    /// Sampling settings with the tool format's stop strings added.
    pub(super) fn with_stop(&self, mut sampling: Sampling) -> Arc<Sampling> {
        for stop in self.renderer.stop_strings() {
            if !sampling.stop.contains(stop) {
                sampling.stop.push(stop.clone());
            }
        }
        Arc::new(sampling)
    }

    /// Runs trajectories to their end: script workers step environments while this thread samples
    /// for them.
    ///
    /// # Errors
    /// `Kind::Interrupted` after [`patience`](Self::patience) signals; the session cannot roll
    /// out afterwards.
    pub(super) fn rollout(
        &mut self,
        trees: Vec<impl Into<Tree>>,
        reporter: &Reporter,
        label: &str,
    ) -> Result<(Vec<Trajectory>, Stats)> {
        let trees: Vec<Tree> = trees.into_iter().map(Into::into).collect();
        let count: usize = trees.iter().map(Tree::size).sum();
        let bar = reporter.bar(label, count as u64, "trajectories");
        let sampled = self.engine.progress();
        bar.tokens_from(move || sampled.stats().sampled_tokens);
        let (counter, also) = (bar.clone(), Arc::clone(&self.finished));
        let progress: Progress = Arc::new(move |trajectory| {
            counter.inc(1);
            also(trajectory);
        });
        let (client, queue) = engine::channel();
        let policy: Arc<dyn Policy> = Arc::new(client);
        let pending = self.pool.start(&policy, trees, &progress)?;
        drop(policy);
        let (interrupt, patience) = (self.interrupt, self.patience);
        let stop = || interrupt.is_some_and(|interrupt| interrupt.count() >= patience);
        let stats = self.engine.serve_until(queue, &stop).inspect_err(|_| {
            pending.stop_flag().store(true, Ordering::Relaxed);
            self.pool.abandon();
        })?;
        let trajectories = pending.finish();
        bar.finish();
        self.log.flush()?;
        if let Some(why) = self.model.graphs_failure().filter(|_| !self.warned_of_graphs) {
            self.warned_of_graphs = true;
            reporter.warn(&format!(
                "decode steps are not recorded as CUDA graphs, and sampling is slower: {why}; policy.cuda_graphs=false \
                 turns recording off"
            ));
        }
        if let Some(why) = self.model.kernels_failure().filter(|_| !self.warned_of_kernels) {
            self.warned_of_kernels = true;
            reporter.warn(&format!(
                "some of r1's CUDA kernels are not used, and libtorch's operations take their place: {why}; \
                 R1_CUDA_KERNELS=off turns all of them off"
            ));
        }
        if tools::is_without_namespaces() && !self.warned_of_sandbox {
            self.warned_of_sandbox = true;
            reporter.warn(
                "the system allows no namespaces: Python programs of the policy are confined by Landlock, seccomp and \
                 resource limits alone",
            );
        }
        Ok((trajectories?, stats))
    }

    /// Warns once if no reward has the part that is reported as accuracy.
    pub(super) fn check_accuracy(&mut self, reporter: &Reporter, trajectories: &[Trajectory]) {
        let why = unknown_accuracy(&self.settings.eval.accuracy, trajectories);
        if let Some(why) = why.filter(|_| !self.warned_of_accuracy) {
            self.warned_of_accuracy = true;
            reporter.warn(&why);
        }
    }
}

/// The shape of a loaded policy.
pub(super) fn footprint<'a>(model: &'a Model, settings: &Settings) -> Footprint<'a> {
    Footprint {
        config: &model.config,
        device: model.device(),
        kind: model.kind(),
        adapter: model.lora(),
        checkpointing: settings.trainer.gradient_checkpointing(),
        threads: crate::native::thread_count(),
    }
}

/// Longest prompt plus reply: the setting of the recipe, at most the model's limit. A larger
/// setting causes a warning.
pub(super) fn context(policy: &PolicySettings, config: &Config, reporter: &Reporter) -> usize {
    let limit = config.longest_context();
    match policy.max_context {
        0 => config.max_position_embeddings,
        wanted if wanted > limit => {
            reporter.warn(&context_limit_message(wanted, limit));
            limit
        }
        wanted => wanted,
    }
}

/// [`context`] for rollouts, whose log-probabilities must be those of a pass over the whole
/// sequence.
///
/// # Errors
/// `Kind::Model` for a context in which dynamic rotary embeddings apply.
pub(super) fn context_of_rollouts(policy: &PolicySettings, config: &Config, reporter: &Reporter) -> Result<usize> {
    let (wanted, limit) = (policy.max_context, config.max_position_embeddings);
    if config.turns_by_length(wanted) {
        let message = format!(
            "policy.max_context is {wanted}, and the model has dynamic rotary embeddings with max_position_embeddings = {limit}"
        );
        return Err(Error::new(Kind::Model, message).hint(format!(
            "above {limit} tokens their rotation depends on the length of the sequence, and samples made with a \
             key-value cache are not those that the update computes: set policy.max_context={limit} or less; r1 sft and \
             r1 infer take longer sequences"
        )));
    }
    Ok(context(policy, config, reporter))
}

/// The message about a context that is too long for a model.
pub fn context_limit_message(wanted: usize, limit: usize) -> String {
    format!("policy.max_context is {wanted}, and the limit of the model is {limit} tokens: {limit} is used")
}
