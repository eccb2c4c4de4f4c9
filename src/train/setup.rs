//! The state of a run of reinforcement learning: script, policy, optimiser, run directory,
//! counters.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::best::{self, Best, EVALUATED, best_so_far};
use super::checkpoint::{Contents, load_average, load_optimizer, with_kept};
use super::critic::Learning;
use super::curriculum::Curriculum;
use super::custom_estimator::ScriptEstimator;
use super::evaluate::{Evaluation, evaluate, stored};
use super::failures::replay_command;
use super::health::HealthMonitor;
use super::interrupt::InterruptState;
use super::learning_signal::LearningSignal;
use super::objective::Objective;
use super::order::Order;
use super::origins;
use super::resume::{Opened, record, warn_of_data};
use super::score::Reference;
use super::session::Session;
use super::shared_state::SharedStateCheck;
use super::validate::{ValidatedTrainer, validate};
use super::weights::{self, freeze, trained};
use super::{RunOptions, Summary, due, files, report, tensorboard};
use crate::config::{Learner, PolicySettings};
use crate::engine::ReferenceScorer;
use crate::error::{Error, Kind, Result};
use crate::load::load_model;
use crate::load::model_dir;
use crate::mdp::Trajectory;
use crate::model::Model;
use crate::rl::adamw::AdamW;
use crate::rl::ema::Ema;
use crate::rl::kl::KlController;
use crate::rl::rewards::{ReturnScale, RewardShaping};
use crate::rl::schedule::Schedule;
use crate::script::Script;
use crate::store::{BEST, Origins, RunDir, State, latest_checkpoint, trainer_state};
use crate::telemetry::{MetricsLog, Reporter};

/// A run of reinforcement learning, ready for its next step.
pub(super) struct Training {
    pub(super) script: Script,
    pub(super) learner: Learner,
    /// The critic, if the algorithm trains one.
    pub(super) critic: Option<Learning>,
    pub(super) objective: Objective,
    pub(super) session: Session,
    pub(super) optimizer: AdamW,
    pub(super) reference: Option<Reference>,
    /// The reference policy differs from the initial model, so checkpoints contain it.
    renewed: bool,
    pub(super) ema: Option<Ema>,
    pub(super) kl: KlController,
    /// The running standard deviation of returns, if rewards are divided by it.
    pub(super) returns: Option<ReturnScale>,
    /// The recipe's function `advantage` in its virtual machine, created on first use.
    pub(super) custom_estimator: Option<ScriptEstimator>,
    pub(super) schedule: Schedule,
    pub(super) state: State,
    pub(super) run: RunDir,
    pub(super) log: MetricsLog,
    pub(super) watch: HealthMonitor,
    /// Tools that were reported because all their calls failed.
    pub(super) failing_tools: BTreeSet<String>,
    pub(super) signal: LearningSignal,
    pub(super) sharing: SharedStateCheck,
    /// Settings with a warning.
    pub(super) warned: Vec<String>,
    /// The policy's settings with the model that the run started from, which is the reference
    /// policy.
    pub(super) base: PolicySettings,
    pub(super) origins: Origins,
    pub(super) standing: InterruptState,
    /// The best evaluation so far.
    pub(super) best: Option<Best>,
    options: RunOptions,
}

impl Training {
    /// Loads and checks everything; nothing is written before everything is validated.
    pub(super) fn open(opened: Opened, reporter: &Reporter) -> Result<Self> {
        let ValidatedTrainer { learner, objective, critic, warnings } = validate(&opened.script)?;
        report::warn(reporter, &warnings);

        // A resumed run starts from its newest checkpoint, everything else from the recipe's model.
        let (checkpoint, mut base) = (opened.checkpoint().map(Path::to_owned), opened.base()?);
        let (repeats_from, same_script) = (opened.repeats_from(), opened.same_script());
        let (state, origin) = (opened.state(), opened.model_origin());
        let Opened { mut script, options, resumed, standing } = opened;
        let fetching = options.fetching(reporter);
        origins::fetch_data(&script, fetching)?;
        let (dir, origin) = match (&checkpoint, origin) {
            (Some(checkpoint), Some(origin)) => (checkpoint.clone(), origin),
            (found, _) => {
                let dir = model_dir(&base.model, fetching)?;
                let origin = origins::origin(&script.settings.policy.model, &dir);
                base.model = dir.display().to_string();
                (found.clone().unwrap_or(dir), origin)
            }
        };
        // The session's policy is the result of the cold start; the recipe's setting is unchanged.
        let written = script.settings.policy.clone();
        if script.settings.cold_start.is_some() {
            script.settings.policy = PolicySettings { model: base.model.clone(), init: None, ..written.clone() };
        }
        let mut session = Session::open(&mut script, &dir, Some(objective.has_reference()), fetching)?;
        script.settings.policy = written;
        let mut learner = learner;
        learner.tokens_per_batch = *session.settings.trainer.tokens_per_batch_mut();
        let origins = origins::origins(&script, Some(origin))?;
        if let Some(resumed) = &resumed {
            warn_of_data(&resumed.stored.origins, &origins, reporter);
        }
        let rows = session.rows.train.as_ref().map(Order::rows).ok_or_else(|| {
            Error::new(Kind::Data, "the recipe has no training data")
                .at_path(&options.script)
                .hint("give `data = { train = … }` in the recipe, or data.train=FILE.jsonl on the command line")
        })?;
        if let Some(order) = &session.rows.train {
            session.curriculum =
                Curriculum::open(&script, order, checkpoint.as_deref(), state.data_position, reporter)?;
        }
        freeze(&session.model, &learner.freeze).map_err(|error| error.at(script.place_of("trainer.freeze")))?;
        let mut optimizer = weights::optimizer(&session.model, &learner)
            .map_err(|error| error.at(script.place_of("trainer.groups")))?;
        let critic = if critic {
            let (policy, from) = (&session.model, checkpoint.as_deref());
            Some(Learning::open(policy, &learner, from, &base, &options, reporter)?)
        } else {
            None
        };
        let saved = checkpoint.as_deref().and_then(renewed_reference);
        let renewed = saved.is_some();
        let reference = match saved {
            Some(dir) => Some(Reference::saved(&dir, &base, fetching)?),
            None if objective.has_reference() => Some(Reference::load(&session.model, &base, &options, reporter)?),
            None => None,
        };
        session.engine.set_reference(reference_scorer(&session.model, &base, &options, reporter, reference.clone()));
        if let Some(path) = &checkpoint {
            load_optimizer(&mut optimizer, path)?;
        }
        let mut ema = None;
        if learner.ema > 0.0 {
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
        let goes_on = resumed.is_some();
        let run = match resumed {
            Some(resumed) => resumed.run,
            None => RunDir::create(&options.runs_dir, &files::run_name(&options, &script))?,
        };
        record(&run, &script, &options.overrides, &origins, session.max_context, state.step)?;
        if goes_on {
            let keep = session.settings.checkpoint.keep;
            run.repeats_after(checkpoint.as_deref().map(|path| (state.step, path)), keep)?;
        }
        let mut log = MetricsLog::open(run.path(), repeats_from)?;
        let best = best_so_far(&run, &log)?;
        tensorboard::settings(&mut log, &script)?;
        if state.step >= learner.steps as u64 && goes_on {
            reporter.warn(&format!(
                "nothing is left to train: the run has done {} of {} steps; trainer.steps=N makes it longer",
                state.step, learner.steps
            ));
        }
        // The evaluation at the end of a run is always repeated.
        let ends = state.step >= learner.steps as u64 && session.settings.eval.after;
        let evaluation = repeats_from.map(|_| state.step).filter(|step| ends || !log.has(*step, EVALUATED));
        session.log.open(run.path(), repeats_from, evaluation)?;
        session.log.at(state.step);
        report::opening(reporter, &session, &run, rows, &learner);
        report::far_files(reporter, &script, &origins);
        report::servers(reporter, &script);
        session.log.top_level(&script.logged, same_script);
        session.log.flush()?;
        report::literal_keys(reporter, &script);
        let schedule = schedule_of(&learner);
        let saved = checkpoint.as_ref().map(|_| state.step);
        standing.opened(state.step, saved, options.resume_command("run", run.path()));
        Ok(Self {
            script,
            learner,
            critic,
            objective,
            session,
            optimizer,
            reference,
            renewed,
            ema,
            kl,
            returns,
            custom_estimator: None,
            schedule,
            state,
            run,
            log,
            base,
            origins,
            standing,
            best,
            options,
            watch: HealthMonitor::default(),
            failing_tools: BTreeSet::new(),
            signal: LearningSignal::default(),
            sharing: SharedStateCheck::default(),
            warned: warnings.into_iter().map(|error| error.message).collect(),
        })
    }

    /// Warns of a row that can't be read, among those that were not checked before step 1.
    pub(super) fn report_row_check(&self, reporter: &Reporter) {
        if let Some(rest) = &self.session.rows.rest {
            rest.report(reporter);
        }
    }

    /// Whether the run ends before its next step.
    pub(super) fn is_stopping(&self) -> bool {
        self.standing.is_stopping()
    }

    /// The evaluation before the first step, or the one after the newest step that a killed run did
    /// not complete. A resumed run does not repeat one that is in its metrics.
    pub(super) fn evaluate_first(&mut self, reporter: &Reporter) -> Result<Option<Evaluation>> {
        let step = self.state.step;
        let eval = &self.session.settings.eval;
        if self.log.has(step, EVALUATED) {
            return Ok(None);
        }
        if step == 0 {
            return if eval.before { self.evaluate(reporter, "before", true) } else { Ok(None) };
        }
        if due(step, eval.every, self.learner.steps) {
            self.evaluate(reporter, "held out", false)?;
        }
        Ok(None)
    }

    /// Evaluates, and logs and prints the result; `examples` also stores a few trajectories as
    /// text.
    pub(super) fn evaluate(&mut self, reporter: &Reporter, label: &str, examples: bool) -> Result<Option<Evaluation>> {
        self.session.engine.clear_cache();
        self.session.patience = 1;
        let evaluated = evaluate(&mut self.session, reporter, label, self.state.step);
        self.session.patience = 2;
        let (evaluation, trajectories) = match evaluated {
            Ok(Some(evaluated)) => evaluated,
            Ok(None) => return Ok(None),
            // The run ends before its next step.
            Err(error) if error.kind == Kind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        };
        let stored = self.store_evaluation(&trajectories)?;
        let Self { session, state, .. } = &*self;
        let is_saved = self.standing.is_saved(state.step);
        self.best = best::keep(self.best, evaluation.accuracy, state, &self.run, is_saved, |dir| {
            session.model.save_trained(dir)?;
            session.files.write(dir)
        })?;
        let (script, run) = (&self.script.path, self.run.path());
        let again =
            |trajectory: &Trajectory| stored.contains(&trajectory.id).then(|| replay_command(script, run, trajectory));
        let what = format!("the evaluation ({label})");
        self.session.failures.report(reporter, &what, &trajectories, again);
        report::evaluation(reporter, &mut self.log, self.state.step, label, &evaluation)?;
        tensorboard::samples(&mut self.log, self.state.step, "eval", &trajectories)?;
        if examples {
            report::examples(reporter, (label, self.state.step), &trajectories, &self.run, self.options.verbose)?;
        }
        Ok(Some(evaluation))
    }

    /// Stores the trajectories of an evaluation that `eval.store` selects, and returns their ids.
    fn store_evaluation(&self, trajectories: &[Trajectory]) -> Result<BTreeSet<String>> {
        let places = stored(trajectories.len(), self.session.settings.eval.store);
        let chosen: Vec<Trajectory> = places.map(|place| trajectories[place].clone()).collect();
        if !chosen.is_empty() {
            self.run.write_evaluation(self.state.step, self.state.policy_version, &chosen)?;
        }
        Ok(chosen.into_iter().map(|trajectory| trajectory.id).collect())
    }

    /// An objective's shaping with the current coefficient of the KL.
    pub(super) fn shaping(&self, objective: &Objective) -> RewardShaping {
        let mut shaping = objective.shaping.clone();
        if let Some(penalty) = &mut shaping.kl {
            penalty.coef = self.kl.coef();
        }
        shaping
    }

    /// Writes a checkpoint, unless the newest one is of this step already.
    pub(super) fn save(&self) -> Result<PathBuf> {
        let Self { session, optimizer, ema, state, .. } = self;
        if self.standing.is_saved(state.step)
            && let Some((_, path)) = latest_checkpoint(self.run.path())?
        {
            return Ok(path);
        }
        let contents = Contents { model: &session.model, files: &session.files, optimizer, ema: ema.as_ref(), state };
        let more = |dir: &Path| {
            if let Some(critic) = &self.critic {
                critic.save(dir)?;
            }
            if let Some(curriculum) = &self.session.curriculum {
                curriculum.save(dir)?;
            }
            match self.reference.as_ref().filter(|_| self.renewed) {
                Some(reference) => reference.save(&dir.join(REFERENCE)),
                None => Ok(()),
            }
        };
        self.standing.saving(state.step, || contents.write(&self.run, session.settings.checkpoint.keep, more))
    }

    /// Saves the trained weights before a run ends with an error in a step whose update has not
    /// begun, and adds a note to the error.
    pub(super) fn save_before(&self, error: Error) -> Error {
        let step = self.state.step;
        if step == 0 || self.standing.is_saved(step) {
            return error;
        }
        with_kept(error, step, self.save())
    }

    /// Loads the reference policy, the initial model of the run, unless it is already loaded.
    pub(super) fn load_reference(&mut self, reporter: &Reporter) -> Result<()> {
        if self.reference.is_none() {
            let model = &self.session.model;
            self.reference = Some(Reference::load(model, &self.base, &self.options, reporter)?);
        }
        Ok(())
    }

    /// Makes the current policy the reference policy.
    pub(super) fn renew_reference(&mut self, reporter: &Reporter) -> Result<()> {
        let reference = Reference::new(self.session.model.duplicate()?);
        let own = Some(reference.clone());
        let scorer = reference_scorer(&self.session.model, &self.base, &self.options, reporter, own);
        self.session.engine.set_reference(scorer);
        (self.reference, self.renewed) = (Some(reference), true);
        self.standing.changed();
        Ok(())
    }

    /// Updates the average of the weights after an optimiser step.
    pub(super) fn average(&mut self) -> Result<()> {
        match &mut self.ema {
            Some(ema) => ema.update(&trained(&self.session.model)),
            None => Ok(()),
        }
    }

    /// Writes the average of the weights as a model.
    fn save_average(&self) -> Result<()> {
        let Some(ema) = &self.ema else { return Ok(()) };
        let (model, mut weights) = (&self.session.model, trained(&self.session.model));
        let dir = self.run.path().join("ema");
        let kept = ema.lend(&mut weights)?;
        let saved = model.save_trained(&dir);
        Ema::give_back(&mut weights, &kept)?;
        saved?;
        self.session.files.write(&dir)
    }

    /// Writes the last checkpoint and the export, runs the last evaluation, and prints the closing
    /// lines.
    pub(super) fn close(
        mut self,
        mut summary: Summary,
        checkpoint: PathBuf,
        curves: &report::Curves,
        options: &RunOptions,
        reporter: &Reporter,
    ) -> Result<Summary> {
        self.save_average()?;
        if let Some(out) = &options.out {
            let (settings, kind) = (&self.script.settings.checkpoint, self.session.model.kind());
            let origin = self.origins.model.as_ref();
            files::export(&checkpoint, out, settings, kind, origin, options.fetching(reporter))?;
        }
        if !summary.interrupted && self.session.settings.eval.after {
            summary.after = self.evaluate(reporter, "after", true)?;
            summary.interrupted = self.standing.is_stopping();
        }
        self.session.log.flush()?;
        summary.checkpoint = Some(checkpoint);
        summary.steps = self.state.step as usize;
        let best = self.best.filter(|best| best.step > 0);
        summary.best = best.map(|_| self.run.path().join(BEST));
        report::closing(reporter, &summary, best, curves, options);
        Ok(summary)
    }

    /// Records of a step: the sampled trajectories first, then the counters that mark it as done.
    /// `changed` says whether an optimiser step has changed the policy.
    pub(super) fn record(
        &mut self,
        trajectories: &[Trajectory],
        advantages: &[Option<Vec<f64>>],
        groups: usize,
        changed: bool,
    ) -> Result<()> {
        self.run.write_trajectories(self.state.step + 1, self.state.policy_version, trajectories, advantages)?;
        // Lines of the function `advantage`.
        self.session.log.flush()?;
        self.advance(groups, changed);
        Ok(())
    }

    /// Advances the counters by a step that sampled this number of groups. `changed`: the weights
    /// have changed.
    pub(super) fn advance(&mut self, groups: usize, changed: bool) {
        self.state.step += 1;
        if let Some(curriculum) = &mut self.session.curriculum {
            curriculum.advance();
        }
        self.state.data_position += groups as u64;
        self.state.policy_version += u64::from(changed);
        self.state.returns = self.returns.map(|own| [own.gamma, own.count, own.mean, own.variance]);
        self.standing.step_is_done(self.state.step);
        self.state.kl_coef = match self.kl {
            KlController::Adaptive { coef, .. } => Some(coef),
            KlController::Fixed { .. } => None,
        };
    }

    /// Stores the trajectories of a step that ends with an error, so that the user can find the
    /// reason. The counters are unchanged, so a resumed run repeats the step.
    pub(super) fn keep(&self, error: Error, trajectories: &[Trajectory]) -> Error {
        let (step, run) = (self.state.step + 1, self.run.path().display());
        let error = report::in_step(error, step);
        let kept = match self.run.write_trajectories(step, self.state.policy_version, trajectories, &[]) {
            Ok(_) => {
                let named = error.trajectories().first().and_then(|number| trajectories.get(*number as usize));
                let id = named.or(trajectories.first()).map_or("", |trajectory| &trajectory.id);
                let script = self.script.path.display();
                format!("the sampled trajectories are stored: r1 repl {script} --replay {run}:{id}")
            }
            Err(failed) => format!("the sampled trajectories could not be stored: {}", failed.message),
        };
        let hint = error.hint.as_ref().map_or_else(|| kept.clone(), |hint| format!("{hint}; {kept}"));
        Error { hint: Some(hint), ..error }
    }
}

/// The folder of a renewed reference policy within a checkpoint's `trainer_state`.
const REFERENCE: &str = "reference";

/// The directory of a checkpoint's reference policy, if the run has renewed it.
fn renewed_reference(checkpoint: &Path) -> Option<PathBuf> {
    Some(trainer_state(checkpoint).join(REFERENCE)).filter(|dir| dir.is_dir())
}

pub(super) fn schedule_of(learner: &Learner) -> Schedule {
    let Learner { lr, warmup, decay, steps, final_lr, .. } = *learner;
    Schedule { base: lr, warmup, decay, total: steps, floor: final_lr }
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
        let own = match reference.take() {
            Some(own) => own,
            None => Reference::load(&model, &base, &options, &reporter)?,
        };
        reference.insert(own).logprobs(scoring)
    })
}

/// The recipe's initial model, loaded again: the reference policy, or the initial critic.
pub(super) fn load_initial_model(policy: &PolicySettings, options: &RunOptions, reporter: &Reporter) -> Result<Model> {
    let (model, _) = load_model(policy, options.fetching(reporter))?;
    Rc::try_unwrap(model).map_err(|_| Error::new(Kind::Internal, "a model is used before it was initialised"))
}
