//! The state of a loop with rollouts: script, model, tokenizer, engine and script workers, on one
//! thread that owns every tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tch::Tensor;

use super::context::{context_of_rollouts, footprint};
use super::files::ModelFiles;
use super::memory::{training_memory, with_micro_batches};
use super::origins::fetch_data;
use super::rollouts::{EndedTrajectories, RolloutInFlight, Rollouts, lock};
use super::script_log::ScriptLog;
use crate::config::refuse_server;
use crate::config::{RolloutSettings, Settings};
use crate::engine::{Engine, EngineOptions, Stats, TokenBytes};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::adapter;
use crate::load::load_renderer;
use crate::mdp::{Sampling, Trajectory};
use crate::model::{Model, available_memory};
use crate::rollout::{OnFinished, Pool, PoolOptions, Tree, no_progress, unknown_accuracy};
use crate::script::{Script, Worker};
use crate::store::IMAGES;
use crate::telemetry::{Bar, Reporter};
use crate::text::Renderer;
use crate::tools;
use crate::train::ranks::Ranks;
use crate::train::rows::curriculum::Curriculum;
use crate::train::rows::selection::Selection;

/// A loaded recipe with its model, engine and workers.
pub(crate) struct Session {
    pub(crate) settings: Settings,
    pub(crate) model: Rc<Model>,
    pub(crate) renderer: Arc<Renderer>,
    /// The engine, and what it samples.
    pub(crate) rollouts: Rc<Rollouts>,
    /// Whether the key-value cache is released for updates, which need its memory.
    pub(crate) releases_cache: bool,
    pub(crate) pool: Pool,
    /// The rows that tasks are drawn from.
    pub(crate) rows: Selection,
    /// Selects among them by their past success.
    pub(crate) curriculum: Option<Curriculum>,
    /// The files of the model other than its weights.
    pub(crate) files: ModelFiles,
    /// The output of the script.
    pub(crate) log: ScriptLog,
    /// Longest prompt plus reply, tokens.
    pub(crate) max_context: usize,
    /// Subjects that the user has been warned of.
    pub(crate) warned: BTreeSet<&'static str>,
    /// Receives each trajectory when it has ended.
    pub(crate) finished: OnFinished,
    /// The processes that divide rollouts.
    pub(crate) ranks: Ranks,
}

impl Session {
    /// Opens the recipe with the model or adapter in `dir`. The output of the script then goes to
    /// the log of the session. On CUDA, the key-value cache leaves the memory that training needs:
    /// `training` says whether the session is for training, and whether that has a separate
    /// reference policy. `run` is the run that is continued, which has stored images.
    pub(crate) fn open(
        script: &mut Script,
        dir: &Path,
        training: Option<bool>,
        run: Option<&Path>,
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
        if settings.trainer.zero_stage() >= 3 {
            // Recorded decode steps have the addresses of weights that are freed during updates.
            model.set_graphs(false);
        }
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
        let renderer = load_renderer(&dir, &script.style()?, fetching.reporter)?;
        if let Some(images) = renderer.images() {
            if let Some(run) = run {
                images.read_from(&run.join(IMAGES))?;
            }
            model.set_images(Arc::clone(images));
        }
        let model = Rc::new(model);
        let files = files.with_template_of(&renderer);
        if let Some(message) = renderer.hidden_tools(Worker::new(script, None)?.tools()) {
            fetching.reporter.warn(&message);
        }
        let max_context = context_of_rollouts(policy, &model.config, fetching.reporter)?;
        if let Some(limit) = script.written_number("sampling.max_new_tokens").filter(|limit| *limit >= max_context) {
            fetching.reporter.warn(&format!(
                "sampling.max_new_tokens is {limit}, and prompt and reply together have {max_context} tokens: replies end sooner"
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
        // Trajectories are in flight during updates, too.
        let rollout = training.map_or_else(RolloutSettings::default, |_| settings.rollout.clone());
        let needs = if rollout.crosses_updates() { (needs.0.saturating_add(needs.1), 0) } else { needs };
        let cache = model.cache_options();
        let (size, releases_cache) = EngineOptions::sized_for_training(&model.config, cache, slots, max_context, needs);
        let learner = settings.trainer.learner().filter(|_| training.is_some());
        let at_once = learner.map_or(slots, |one| slots.min(one.group_size * one.groups_per_step));
        if size.slots < at_once {
            fetching.reporter.warn(&format!(
                "only {} of {at_once} trajectories can be sampled at once: half of the free memory has no room for more \
                 contexts of {max_context} tokens; lower policy.max_context if the trajectories are shorter",
                size.slots
            ));
        }
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
        let rollouts = Rc::new(Rollouts::new(engine, rollout, fetching.interrupt));
        Ok(Self {
            settings,
            model,
            renderer,
            rollouts,
            releases_cache,
            pool,
            rows,
            curriculum: None,
            files,
            log,
            max_context,
            warned: BTreeSet::new(),
            finished: no_progress(),
            ranks: Ranks::default(),
        })
    }

    /// Between sampling and an update: releases the key-value cache if the update needs its memory.
    pub(crate) fn release_cache(&mut self) -> Result<()> {
        if self.releases_cache { self.rollouts.engine().sleep() } else { Ok(()) }
    }

    /// Sampling settings with the tool format's stop strings added.
    pub(crate) fn with_stop(&self, sampling: Sampling) -> Arc<Sampling> {
        Arc::new(sampling.with_stop(self.renderer.stop_strings()))
    }

    /// Runs trajectories to their end: script workers step environments while this thread samples
    /// for them. The processes of a run divide them, and every one receives all, ordered by group
    /// and sample.
    ///
    /// # Errors
    /// `Kind::Interrupted` after [`patience`](Rollouts::patience) signals; the session cannot roll
    /// out afterwards.
    pub(crate) fn rollout(
        &mut self,
        trees: Vec<impl Into<Tree>>,
        reporter: &Reporter,
        label: &str,
    ) -> Result<(Vec<Trajectory>, Stats)> {
        let begun = self.begin(trees.into_iter().map(Into::into).collect());
        let done = begun.and_then(|batch| self.wait(batch, reporter, label));
        self.of_all_ranks(done, reporter, label)
    }

    /// Begins the rollouts of a later training step, which go on while others are waited for, and
    /// during updates.
    pub(crate) fn begin_ahead(&mut self, trees: Vec<Tree>, groups: usize) -> Result<()> {
        let batch = self.begin(trees)?;
        self.rollouts.add_ahead(RolloutInFlight { groups, ..batch });
        Ok(())
    }

    /// Waits for the first of the rollouts that were begun ahead. `None` if there is none.
    #[expect(clippy::type_complexity, reason = "groups, and the result of `rollout`")]
    pub(crate) fn next_ahead(&mut self, reporter: &Reporter) -> Result<Option<(usize, (Vec<Trajectory>, Stats))>> {
        let Some(batch) = self.rollouts.next_ahead() else { return Ok(None) };
        let groups = batch.groups;
        let done = self.wait(batch, reporter, "sampling");
        Ok(Some((groups, self.of_all_ranks(done, reporter, "sampling")?)))
    }

    /// Ends the rollouts of later steps, after a stop. Their tools are not waited for, and the
    /// session cannot roll out afterwards.
    pub(crate) fn discard_ahead(&mut self) {
        if self.rollouts.discard_ahead() {
            self.pool.abandon();
        }
    }

    /// Begins a group, of which [`wait_for_groups`](Self::wait_for_groups) takes the trajectories.
    /// The caller has dealt it to this process.
    pub(crate) fn begin_group(&mut self, position: u64, trees: Vec<Tree>) -> Result<()> {
        self.collect_lines();
        let pending = self.pool.start_group(&self.rollouts.policy()?, trees, &self.finished)?;
        self.rollouts.open_groups().start(position, pending);
        Ok(())
    }

    /// Waits until `wanted` open groups of all processes are complete: each with the first
    /// `samples` of its trajectories, ordered by group and sample. `name` gives the step and the
    /// number of the group at a position.
    pub(crate) fn wait_for_groups(
        &mut self,
        wanted: usize,
        samples: usize,
        name: &dyn Fn(u64) -> (u64, u64),
        reporter: &Reporter,
        label: &str,
    ) -> Result<(Vec<Trajectory>, Stats)> {
        let share = self.rollouts.open_groups().share(wanted, self.ranks.rank(), self.ranks.size());
        let bar = self.sampling_bar(reporter, label, share * samples);
        let taken = self.rollouts.wait_for_groups(share, samples, &self.ranks, &bar);
        let taken = taken.inspect_err(|_| self.pool.abandon());
        bar.finish();
        let mut local = Vec::new();
        let taken = taken.map(|(groups, stats)| {
            let mut all = Vec::new();
            for (position, trajectories) in groups {
                local.push(position);
                let (step, group) = name(position);
                all.extend(trajectories.into_iter().map(|one| one.renamed(step, group)));
            }
            (all, stats)
        });
        let result = self.of_all_ranks(taken, reporter, label)?;
        let positions: Vec<u64> = self.ranks.gather(local)?.into_iter().flatten().collect();
        self.rollouts.open_groups().remove(&positions);
        self.warn_of_sampling(reporter);
        Ok(result)
    }

    /// Before a rollout, after the weights may have changed. With trajectories in flight,
    /// [`weights_changed`](Self::weights_changed) does it.
    pub(crate) fn refresh(&self) -> Result<()> {
        if self.rollouts.crosses_updates() { Ok(()) } else { self.rollouts.engine().clear_cache() }
    }

    /// After an update: rollouts ahead go on with the weights of this version, or begin again.
    pub(crate) fn weights_changed(&mut self, version: u64) -> Result<()> {
        if !self.rollouts.crosses_updates() {
            return Ok(());
        }
        self.rollouts.set_policy_version(version)?;
        let begin = |trees: Vec<Tree>, progress: &OnFinished| {
            let policy = self.rollouts.policy()?;
            self.pool.start(&policy, trees, progress)
        };
        self.rollouts.begin_again(&begin)
    }

    /// Lines of scripts are for rank 0.
    fn collect_lines(&self) {
        if !self.ranks.is_first() {
            self.log.collect();
        }
    }

    /// Starts the trajectories of this process.
    fn begin(&mut self, trees: Vec<Tree>) -> Result<RolloutInFlight> {
        let trees = if self.ranks.size() == 1 { trees } else { local_trees(&self.ranks, trees) };
        self.collect_lines();
        let count = trees.iter().map(Tree::size).sum();
        let ended: Arc<Mutex<EndedTrajectories>> = Arc::default();
        let (shared, also) = (Arc::clone(&ended), Arc::clone(&self.finished));
        let progress: OnFinished = Arc::new(move |trajectory| {
            lock(&shared).add_one();
            also(trajectory);
        });
        let kept = if self.rollouts.keeps_trees() { trees.clone() } else { Vec::new() };
        let pending = self.pool.start(&self.rollouts.policy()?, trees, &progress)?;
        Ok(RolloutInFlight { pending, groups: 0, count, trees: kept, ended, progress })
    }

    /// Called by the processes that compute an update, at its end, with its error. The others
    /// sample until then. All get the weights, if they have `changed`; the result says whether they
    /// have.
    pub(crate) fn end_update(&mut self, changed: Result<bool>, weights: &[Tensor]) -> Result<bool> {
        let learns = self.ranks.learns();
        let barrier = self.ranks.barrier(self.ranks.learners(), learns)?;
        if !learns {
            self.rollouts.serve_until_complete(&barrier, &self.ranks, true)?;
        }
        let changed = self.ranks.all_of(changed)?.into_iter().any(|changed| changed);
        if changed {
            if !learns {
                self.rollouts.finish_ahead(&self.ranks)?;
            }
            self.ranks.broadcast_tensors(weights)?;
        }
        Ok(changed)
    }

    /// The trajectories of all processes, and the lines that their scripts printed.
    fn of_all_ranks(
        &mut self,
        local: Result<(Vec<Trajectory>, Stats)>,
        reporter: &Reporter,
        label: &str,
    ) -> Result<(Vec<Trajectory>, Stats)> {
        let (trajectories, stats) = if self.ranks.size() == 1 {
            local?
        } else {
            let mut local = local;
            if self.rollouts.is_async() {
                // This process goes on with later steps until all others have their trajectories.
                let barrier = self.ranks.barrier(self.ranks.size(), true)?;
                if local.is_ok()
                    && self.rollouts.begun().0 > 0
                    && let Err(error) = self.rollouts.serve_until_complete(&barrier, &self.ranks, false)
                {
                    local = Err(error);
                }
            }
            let lines = self.log.collected(self.rollouts.crosses_updates() || !self.rollouts.open_groups().is_empty());
            // A process that learns has nothing else to show meanwhile.
            let waits = self.ranks.have_roles() && self.ranks.learns();
            let bar = waits.then(|| reporter.bar(label, 0, "trajectories of other processes"));
            let all = self.ranks.all_trajectories(local.map(|(trajectories, stats)| (trajectories, (stats, lines))))?;
            if let Some(bar) = bar {
                bar.finish();
            }
            let (mut trajectories, mut stats) = (Vec::new(), Stats::default());
            for (of_rank, (stats_of_rank, lines)) in all {
                trajectories.extend(of_rank);
                stats.add_beside(&stats_of_rank);
                // The other processes write no log, and would collect the lines again.
                for line in lines.iter().filter(|_| self.ranks.is_first()) {
                    self.log.line(line);
                }
            }
            trajectories.sort_by_key(|trajectory| (trajectory.group, trajectory.sample));
            (trajectories, stats)
        };
        self.log.flush()?;
        Ok((trajectories, stats))
    }

    /// Samples until the trajectories of a batch have ended.
    fn wait(&mut self, batch: RolloutInFlight, reporter: &Reporter, label: &str) -> Result<(Vec<Trajectory>, Stats)> {
        let bar = self.sampling_bar(reporter, label, batch.count);
        let bar = {
            let mut ended = lock(&batch.ended);
            let bar = if ended.count > 0 { bar.resumed_after(ended.count) } else { bar };
            ended.bar.insert(bar).clone()
        };
        let (trajectories, stats) = self.rollouts.wait(batch, &self.ranks).inspect_err(|_| self.pool.abandon())?;
        bar.finish();
        self.warn_of_sampling(reporter);
        Ok((trajectories, stats))
    }

    /// The progress bar of a rollout of `count` trajectories.
    fn sampling_bar(&self, reporter: &Reporter, label: &str, count: usize) -> Bar {
        let concurrency = self.settings.rollout.concurrency as u64;
        let bar = reporter.bar(label, count as u64, "trajectories").concurrent(concurrency);
        let sampled = self.rollouts.engine().progress();
        bar.tokens_from(move || sampled.stats().sampled_tokens);
        bar
    }

    /// Warns once of what made sampling slower or less safe.
    fn warn_of_sampling(&mut self, reporter: &Reporter) {
        if let Some(why) = self.model.graphs_failure().filter(|_| self.warned.insert("graphs")) {
            reporter.warn(&format!(
                "decode steps are not recorded as CUDA graphs, and sampling is slower: {why}; policy.cuda_graphs=false \
                 turns recording off"
            ));
        }
        if let Some(why) = self.model.kernels_failure().filter(|_| self.warned.insert("kernels")) {
            reporter.warn(&format!(
                "some of r1's CUDA kernels are not used, and libtorch's operations take their place: {why}; \
                 R1_CUDA_KERNELS=off turns all of them off"
            ));
        }
        if tools::is_without_namespaces() && self.warned.insert("sandbox") {
            reporter.warn(
                "the system allows no namespaces: Python programs of the policy are confined by Landlock, seccomp and \
                 resource limits alone",
            );
        }
    }

    /// Warns once if no reward has the part that is reported as accuracy.
    pub(crate) fn check_accuracy(&mut self, reporter: &Reporter, trajectories: &[Trajectory]) {
        let why = unknown_accuracy(&self.settings.eval.accuracy, trajectories);
        if let Some(why) = why.filter(|_| self.warned.insert("accuracy")) {
            reporter.warn(&why);
        }
    }
}

/// The trees of this process: whole groups, whose samples have the same prompt, or single trees if
/// there are fewer groups than processes.
fn local_trees(ranks: &Ranks, trees: Vec<Tree>) -> Vec<Tree> {
    let groups: BTreeSet<u64> = trees.iter().map(|tree| tree.root.group).collect();
    let numbers: BTreeMap<u64, usize> = groups.into_iter().zip(0..).collect();
    let (count, by_group) = (trees.len(), numbers.len() >= ranks.sampling());
    let is_local = |(number, tree): &(usize, Tree)| {
        if by_group { ranks.samples(numbers[&tree.root.group], numbers.len()) } else { ranks.samples(*number, count) }
    };
    trees.into_iter().enumerate().filter(is_local).map(|(_, tree)| tree).collect()
}
