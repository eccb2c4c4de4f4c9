//! The state of a run of reinforcement learning: policy, engine and data, settings in effect, and
//! checks; with what every run has (`RunState`).

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::open_step::OpenStep;
use super::run_state::{RunState, no_training_data};
use crate::adamw::{AdamW, AdamWOptions};
use crate::config::{Learner, PolicySettings};
use crate::engine::ReferenceScorer;
use crate::error::{Error, Kind, Result};
use crate::load::model_dir;
use crate::model::{Model, UnwrittenFile};
use crate::rl::ema::Ema;
use crate::rl::kl::KlController;
use crate::rl::rewards::ReturnScale;
use crate::script::{ReloadedScript, Watcher};
use crate::store::{BEST, IMAGES, Origins, trainer_state};
use crate::telemetry::{Reporter, counted};
use crate::train::learn::critic::TrainedCritic;
use crate::train::learn::policy::TrainedPolicy;
use crate::train::learn::profile::RunProfile;
use crate::train::learn::score::Reference;
use crate::train::learn::weights::{self, freeze, trained};
use crate::train::options::{RunOptions, Summary, checkpoint_due};
use crate::train::rows::curriculum::Curriculum;
use crate::train::rows::order::Order;
use crate::train::rules::objective::Objective;
use crate::train::rules::validate::{ValidatedTrainer, validate};
use crate::train::shards::{Interleaved, ShardSettings, Shards};
use crate::train::start::best::{BestEvaluation, EVALUATED, best_so_far};
use crate::train::start::checkpoint::{Contents, OPTIMIZER, load_average, load_optimizer};
use crate::train::start::origins;
use crate::train::start::resume::{StartState, record, warn_of_data};
use crate::train::start::session::Session;
use crate::train::watch::failures::Failures;
use crate::train::watch::report;
use crate::train::watch::shared_state::SharedStateCheck;
use crate::train::watch::warnings::RunWarnings;

/// A run of reinforcement learning, ready for its next step.
pub(crate) struct Training {
    pub(crate) run: RunState,
    pub(crate) learner: Learner,
    pub(crate) objective: Objective,
    pub(crate) session: Session,
    pub(crate) policy: TrainedPolicy,
    /// Whether updates train a critic, in this process or in others.
    pub(crate) has_critic: bool,
    /// The reference policy differs from the initial model, so checkpoints contain it.
    renewed: bool,
    pub(crate) warnings: RunWarnings,
    pub(crate) failures: Failures,
    pub(crate) sharing: SharedStateCheck,
    /// Settings with a warning.
    pub(crate) warned: Vec<String>,
    /// The policy's settings with the model that the run started from, which is the reference
    /// policy.
    pub(crate) base: PolicySettings,
    /// The best evaluation so far.
    pub(crate) best: Option<BestEvaluation>,
    /// The watcher of the script, from the first step on.
    pub(crate) reloads: Option<Reloads>,
    pub(crate) step: OpenStep,
    /// The profile of the first step, until that has ended.
    pub(crate) profile: Option<RunProfile>,
    pub(crate) curves: report::Curves,
}

/// The versions of the script that were loaded since the last step, by the watcher of a run.
pub(crate) struct Reloads {
    pub(crate) inbox: Arc<Mutex<Vec<ReloadedScript>>>,
    /// Versions applied since the last step.
    pub(crate) applied: usize,
    /// `None` if the user has disabled reloads.
    pub(crate) _watcher: Option<Watcher>,
}

impl Training {
    /// Loads and checks everything; nothing is written before everything is validated.
    pub(crate) fn open(mut opened: StartState, reporter: &Reporter) -> Result<Self> {
        let ValidatedTrainer { learner, objective, critic: has_critic, warnings } = validate(&opened.script)?;
        report::warn(reporter, &warnings);

        // A resumed run starts from its newest checkpoint, everything else from the recipe's model.
        let (checkpoint, mut base) = (opened.checkpoint().map(Path::to_owned), opened.base()?);
        let (repeats_from, same_script) = (opened.repeats_from(), opened.same_script());
        let (state, origin) = (opened.state(), opened.model_origin());
        let fetching = opened.options.fetching(reporter);
        let script = &mut opened.script;
        origins::fetch_data(script, fetching)?;
        let (dir, origin) = match (&checkpoint, origin) {
            (Some(checkpoint), Some(origin)) => (checkpoint.clone(), origin),
            (directory, _) => {
                let dir = model_dir(&base.model, fetching)?;
                let origin = origins::origin(&script.settings.policy.model, &dir);
                base.model = dir.display().to_string();
                (directory.clone().unwrap_or(dir), origin)
            }
        };
        // The session's policy is the result of the cold start; the recipe's setting is unchanged.
        let written = script.settings.policy.clone();
        if script.settings.cold_start.is_some() {
            script.settings.policy = PolicySettings { model: base.model.clone(), init: None, ..written.clone() };
        }
        // Also the images of a run that this one begins from, whose trajectories it may repeat.
        let stored = opened.resumed.as_ref().map(|resumed| resumed.source.path.as_path());
        let mut session = Session::open(script, &dir, Some(objective.has_reference()), stored, fetching)?;
        script.settings.policy = written;
        let (script, options) = (&opened.script, &opened.options);
        let mut learner = learner;
        // The number for the process with the least memory.
        let samplers = session.settings.rollout.r#async.ranks;
        let ranks = options.ranks.with_samplers(samplers);
        let ranks = ranks.map_err(|error| error.at(script.place_of("rollout.async.ranks")))?;
        let learners = ranks.of_learners()?;
        learner.tokens_per_batch = ranks.largest(Reverse(*session.settings.trainer.tokens_per_batch_mut()))?.0;
        session.weights_changed(state.policy_version)?;
        let mut shards = Shards::new(&learners, ShardSettings::from(&learner))?;
        if session.rollouts.is_async() && !ranks.have_roles() {
            shards = shards.beside(Rc::clone(&session.rollouts) as Rc<dyn Interleaved>);
        }
        let by_groups =
            !session.rollouts.is_async() && !script.settings.data.curriculum.has_band() && !script.row_weight;
        if !state.carried.is_empty() && !by_groups {
            let groups = counted(state.carried.len(), "unfinished group", "unfinished groups");
            let message =
                format!("the checkpoint has {groups} (rollout.oversample), which begin again in the next step");
            let hint =
                "do one more step without rollout.async and data.curriculum, which draw the tasks of whole steps";
            return Err(Error::new(Kind::Usage, message).at_path(&options.script).hint(hint));
        }
        ranks.require_same_weights(&session.model)?;
        session.ranks = ranks.with_images(session.renderer.images());
        let origins = Origins { fork: opened.fork_origin(), ..origins::origins(script, Some(origin))? };
        if let Some(resumed) = &opened.resumed {
            warn_of_data(&resumed.stored.origins, &origins, reporter);
        }
        let rows = session.rows.train.as_ref().map(Order::rows).ok_or_else(|| no_training_data(options))?;
        if let Some(order) = &session.rows.train {
            session.curriculum = Curriculum::open(script, order, checkpoint.as_deref(), state.data_position, reporter)?;
        }
        freeze(&session.model, &learner.freeze).map_err(|error| error.at(script.place_of("trainer.freeze")))?;
        // A process that samples only has none of the states of an update.
        let critic = has_critic && ranks.learns();
        let mut optimizer = if ranks.learns() {
            weights::optimizer(&session.model, &learner).map_err(|error| error.at(script.place_of("trainer.groups")))?
        } else {
            AdamW::new(Vec::new(), AdamWOptions::default())?
        };
        shards.divide(&mut optimizer, session.model.config.num_hidden_layers)?;
        let critic = if critic {
            let (policy, from) = (&session.model, checkpoint.as_deref());
            Some(TrainedCritic::open(policy, &learner, from, &base, &shards, fetching)?)
        } else {
            None
        };
        let saved = checkpoint.as_deref().and_then(renewed_reference);
        let renewed = saved.is_some();
        let reference = match saved {
            Some(dir) => Some(Reference::saved(&dir, &session.model, &base, fetching)?),
            None if objective.has_reference() && ranks.learns() => {
                Some(Reference::load(&session.model, &base, fetching)?)
            }
            None => None,
        };
        session.rollouts.engine().set_reference(reference_scorer(
            &session.model,
            &base,
            options,
            reporter,
            reference.clone(),
        ));
        if let Some(path) = checkpoint.as_ref().filter(|_| ranks.learns()) {
            load_optimizer(&mut optimizer, path)?;
        }
        let mut ema = None;
        if learner.ema > 0.0 && ranks.learns() {
            let mut average = Ema::new(&trained(&session.model), learner.ema)?;
            if let Some(path) = &checkpoint {
                load_average(&mut average, path)?;
            }
            ema = Some(average);
        }
        let mut kl = objective.kl_coef;
        if let (KlController::Adaptive { coef, .. }, Some(saved)) = (&mut kl, state.kl_coef) {
            *coef = saved;
        }
        let returns = state.returns.map(|[gamma, count, mean, variance]| ReturnScale { gamma, count, mean, variance });
        let run_dir = opened.directory()?;
        if let Some(images) = session.renderer.images().filter(|_| ranks.is_first()) {
            images.store_in(&run_dir.path().join(IMAGES))?;
        }
        record(&run_dir, script, &options.overrides, &origins, session.max_context, state.step)?;
        let profile = options.profile.then(|| RunProfile::new(run_dir.path()));
        let mut run = RunState::open(opened, run_dir, origins, reporter)?;
        run.learners = learners;
        if optimizer.is_divided() {
            run.divide_checkpoints(&mut shards)?;
        }
        let best = ranks.of_first(best_so_far(&run.dir, &run.log, &run.script.settings.checkpoint)?)?;
        if state.step >= learner.steps as u64 && repeats_from.is_some() {
            reporter.warn(&format!(
                "nothing is left to train: the run has done {} of {} steps; trainer.steps=N makes it longer",
                state.step, learner.steps
            ));
        }
        // The evaluation at the end of a run is always repeated.
        let ends = state.step >= learner.steps as u64 && session.settings.eval.after;
        let evaluation = repeats_from.map(|_| state.step).filter(|step| ends || !run.log.has(*step, EVALUATED));
        let evaluation = ranks.of_first(evaluation)?;
        if let Some(step) = evaluation {
            run.log.repeats_evaluation(step)?;
        }
        session.log.open(run.dir.path(), repeats_from, evaluation)?;
        session.log.at(state.step);
        report::opening(reporter, &session.settings, &session.model, &run.dir, rows, (&learner, state.step));
        report::far_files(reporter, &run.script, &run.origins);
        report::servers(reporter, &run.script);
        session.log.top_level(&run.script.logged, same_script);
        session.log.flush()?;
        report::literal_keys(reporter, &run.script);
        run.begins(checkpoint.is_some(), "run");
        Ok(Self {
            policy: TrainedPolicy {
                model: Rc::clone(&session.model),
                renderer: Arc::clone(&session.renderer),
                optimizer,
                critic,
                reference,
                ema,
                kl,
                returns,
                custom_estimator: None,
                shards,
            },
            run,
            learner,
            objective,
            session,
            has_critic,
            renewed,
            base,
            best,
            warnings: RunWarnings::new()?,
            failures: Failures::default(),
            sharing: SharedStateCheck::default(),
            warned: warnings.into_iter().map(|error| error.message).collect(),
            reloads: None,
            step: OpenStep::default(),
            profile,
            curves: report::Curves::default(),
        })
    }

    /// Writes a checkpoint, unless the newest one is of this step already.
    pub(crate) fn save(&self) -> Result<PathBuf> {
        self.run.save(self.contents()?)
    }

    /// The checkpoint of every `checkpoint.every` steps, which is written in the background.
    pub(crate) fn save_if_due(&self) -> Result<()> {
        if checkpoint_due(self.run.state.step, &self.session.settings.checkpoint, self.learner.steps) {
            self.session.ranks.require_same_weights(&self.session.model)?;
            self.run.begin_save(self.contents()?)?;
        }
        Ok(())
    }

    fn contents(&self) -> Result<Contents<'_>> {
        let Self { session, policy, .. } = self;
        let mut more = Vec::new();
        let mut optimizers = vec![policy.shards.state(OPTIMIZER, "the optimiser state", &policy.optimizer)?];
        if let Some(critic) = &policy.critic {
            more.extend(critic.unwritten()?);
            optimizers.push(critic.optimizer_file(&policy.shards)?);
        }
        if let Some(curriculum) = &session.curriculum {
            let (name, bytes) = curriculum.file()?;
            more.push(UnwrittenFile::bytes(name, bytes));
        }
        if let Some(reference) = policy.reference.as_ref().filter(|_| self.renewed) {
            more.extend(reference.unwritten()?.into_iter().map(|file| file.within(REFERENCE)));
        }
        Ok(Contents {
            model: &session.model,
            files: &session.files,
            optimizers,
            ema: policy.ema.as_ref(),
            state: &self.run.state,
            more,
        })
    }

    /// Saves the trained weights before a run ends with an error in a step whose update has not
    /// begun, and adds a note to the error.
    pub(crate) fn save_before(&self, error: Error) -> Error {
        // The other processes do not take part in the checkpoint.
        if self.step.updating || self.policy.optimizer.is_divided() {
            return error;
        }
        self.run.with_saved(error, || self.save())
    }

    /// Loads the reference policy, the initial model of the run, unless it is already loaded.
    pub(crate) fn load_reference(&mut self) -> Result<()> {
        if self.policy.reference.is_none() {
            let fetching = self.run.fetching();
            self.policy.reference = Some(Reference::load(&self.policy.model, &self.base, fetching)?);
        }
        Ok(())
    }

    /// Makes the current policy the reference policy.
    pub(crate) fn renew_reference(&mut self) -> Result<()> {
        // The checkpoint that is being written has the reference policy of before.
        self.run.writer.finish()?;
        let reference = Reference::new(self.session.model.duplicate()?);
        let weights = Some(reference.clone());
        let scorer = reference_scorer(&self.session.model, &self.base, &self.run.options, &self.run.reporter, weights);
        self.session.rollouts.engine().set_reference(scorer);
        (self.policy.reference, self.renewed) = (Some(reference), true);
        self.run.standing.changed();
        Ok(())
    }

    /// Writes the average of the weights as a model.
    fn save_average(&self) -> Result<()> {
        let Some(ema) = self.policy.ema.as_ref().filter(|_| self.run.writes()) else { return Ok(()) };
        let (model, mut weights) = (&self.session.model, trained(&self.session.model));
        let dir = self.run.dir.path().join("ema");
        let kept = ema.lend(&mut weights)?;
        let saved = model.save_trained(&dir);
        Ema::give_back(&mut weights, &kept)?;
        saved?;
        self.session.files.write(&dir)
    }

    /// Writes the average of the weights, and with `out` the model of a checkpoint alone, in the
    /// layout of Hugging Face.
    pub(crate) fn export(&self, checkpoint: &Path, out: Option<&Path>) -> Result<()> {
        self.save_average()?;
        self.run.export(checkpoint, out, self.session.model.kind())
    }

    /// Writes the export, runs the last evaluation, and prints the closing lines.
    pub(crate) fn close(mut self, mut summary: Summary, checkpoint: PathBuf) -> Result<Summary> {
        self.export(&checkpoint, self.run.options.out.as_deref())?;
        if !summary.interrupted && self.session.settings.eval.after {
            summary.after = self.evaluate("after", true)?;
            summary.interrupted = self.run.standing.is_stopping();
        }
        self.session.log.flush()?;
        summary.checkpoint = Some(checkpoint);
        summary.steps = self.run.state.step as usize;
        let best = self.best.filter(|best| best.step > 0);
        summary.best = best.map(|_| self.run.dir.path().join(BEST));
        let best = best.map(|best| (best, self.run.script.settings.checkpoint.best.as_str()));
        report::closing(&self.run.reporter, &summary, self.run.began_after, best, &self.curves, &self.run.options);
        Ok(summary)
    }

    /// Advances the counters by a step that began this number of groups. `unfinished` has the
    /// positions of the groups that the next step continues. `changed`: the weights have changed.
    pub(crate) fn advance(&mut self, groups: usize, unfinished: Vec<u64>, changed: bool) {
        self.run.state.step += 1;
        if let Some(curriculum) = &mut self.session.curriculum {
            curriculum.advance();
        }
        self.run.state.data_position += groups as u64;
        self.run.state.carried = unfinished;
        self.run.state.policy_version += u64::from(changed);
        self.run.state.returns =
            self.policy.returns.map(|scale| [scale.gamma, scale.count, scale.mean, scale.variance]);
        self.run.standing.step_is_done(self.run.state.step);
        self.run.state.kl_coef = match self.policy.kl {
            KlController::Adaptive { coef, .. } => Some(coef),
            KlController::Fixed { .. } => None,
        };
    }
}

/// The folder of a renewed reference policy within a checkpoint's `trainer_state`.
const REFERENCE: &str = "reference";

/// The directory of a checkpoint's reference policy, if the run has renewed it.
fn renewed_reference(checkpoint: &Path) -> Option<PathBuf> {
    Some(trainer_state(checkpoint).join(REFERENCE)).filter(|dir| dir.is_dir())
}

/// Scores texts of scripts under the reference policy, which is loaded for the first one unless the
/// run already has it.
fn reference_scorer(
    model: &Rc<Model>,
    base: &PolicySettings,
    options: &RunOptions,
    reporter: &Reporter,
    mut reference: Option<Reference>,
) -> ReferenceScorer {
    let (model, base, options, reporter) = (Rc::clone(model), base.clone(), options.clone(), reporter.clone());
    Box::new(move |scoring| {
        let network = match reference.take() {
            Some(network) => network,
            None => Reference::load(&model, &base, options.fetching(&reporter))?,
        };
        reference.insert(network).logprobs(scoring)
    })
}
