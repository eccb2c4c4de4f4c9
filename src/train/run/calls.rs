//! The calls of training loops that programs write (`r1.training`), besides the operations of
//! `policy_loop`: settings of a call, advantages, supervised steps, log-probabilities and values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cold_start;
use super::open_step::UpdateTrajectories;
use super::training::Training;
use crate::config::{Choice, Filter, Learner, LossGraph, Settings, Sft};
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Demonstration, Split, Trajectory};
use crate::rl::advantages::AlgorithmNeed;
use crate::rl::pack::Row;
use crate::rl::rows::StepRow;
use crate::rl::schedule::Schedule;
use crate::telemetry::{Metrics, Reporter};
use crate::text::schema_order::order_tools;
use crate::train::learn::advantages::{by_token, compute_advantages};
use crate::train::learn::generated::without_generated;
use crate::train::learn::given_advantages::GivenAdvantages;
use crate::train::learn::policy::TrainedPolicy;
use crate::train::learn::score::score;
use crate::train::learn::stages::{TrainingData, advantage_config};
use crate::train::learn::steps::{of_trajectory, read_column, read_columns, training_steps};
use crate::train::learn::supervised;
use crate::train::learn::training_rows::{set_column, training_rows};
use crate::train::learn::update::UpdateSettings;
use crate::train::options::RunOptions;
use crate::train::rows::demonstrations;
use crate::train::rules::objective::Objective;
use crate::train::start::resume::StartState;
use crate::train::watch::metrics;
use crate::vision::store_images;

/// Metrics by name.
pub(crate) type MetricValues = BTreeMap<String, f64>;

/// The directory of a run, and properties of its training.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AboutTraining {
    pub(crate) step: u64,
    pub(crate) steps: usize,
    pub(crate) run_dir: PathBuf,
    /// Rows of the training data.
    pub(crate) rows: Option<u64>,
    pub(crate) settings: Box<Settings>,
    /// Whether there is a critic.
    pub(crate) critic: bool,
}

/// The tasks to sample, and the number of samples of each.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RolloutOptions {
    /// Tasks; `trainer.groups_per_step` by default.
    pub(crate) groups: Option<usize>,
    /// Trajectories of each; `trainer.group_size` by default.
    pub(crate) samples: Option<usize>,
    /// Rows of the training data, from 0, in place of the next ones.
    pub(crate) rows: Option<Vec<u64>>,
}

/// Settings of an update; the recipe gives the others.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UpdateOptions {
    /// For each trajectory a number, or a list with a number or a list of numbers for each step.
    pub(crate) advantages: Option<Vec<GivenAdvantages>>,
    pub(crate) estimator: Option<Choice>,
    pub(crate) loss: Option<Choice>,
    /// A loss of the program.
    #[serde(skip)]
    pub(crate) graph: Option<LossGraph>,
    /// The same of returns, for the critic to predict.
    pub(crate) returns: Option<Vec<GivenAdvantages>>,
    /// Whether the policy is updated (default), or only the critic.
    pub(crate) policy: Option<bool>,
    /// For each trajectory the number of the group that it is compared in.
    pub(crate) groups: Option<Vec<u64>>,
    pub(crate) lr: Option<f64>,
    pub(crate) epochs: Option<usize>,
    pub(crate) mini_batches: Option<usize>,
}

/// Values of the critic.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TrajectoryValueReport {
    /// Values of the states before the sampled tokens: by trajectory, step and token.
    pub(crate) values: Vec<Vec<Vec<f64>>>,
    /// Value of the next observation of each trajectory; `None` for a trajectory that was not
    /// truncated.
    pub(crate) next: Vec<Option<f64>>,
}

impl Training {
    /// Opens a run for the loop of a program, as `r1 run` does.
    ///
    /// # Errors
    /// As `r1 run`.
    pub(crate) fn for_program(options: &RunOptions, reporter: &Reporter) -> Result<Self> {
        let mut opened = StartState::new(options, reporter)?;
        if cold_start::run(&mut opened, reporter)?.is_some() {
            return Err(Error::new(Kind::Interrupted, "stopped during the cold start"));
        }
        let rollout = &opened.script.settings.rollout;
        let refused = [
            ("rollout.async.staleness", rollout.r#async.staleness),
            ("rollout.oversample.groups", rollout.oversample.groups),
            ("rollout.oversample.samples", rollout.oversample.samples),
        ];
        if let Some((name, _)) = refused.iter().find(|(_, number)| *number > 0) {
            let message = format!("{name} is for `r1 run`: the loop of a program orders its calls");
            return Err(Error::new(Kind::Usage, message)
                .at(opened.script.place_of(name))
                .hint(format!("pass the setting {name}=0, or leave it out")));
        }
        let training = Self::open(opened, reporter)?;
        training.run.standing.continued_by(training.again());
        Ok(training)
    }

    /// The call of a program that continues the run.
    fn again(&self) -> String {
        format!("r1.training(…, {{ resume = \"{}\" }})", self.run.dir.path().display())
    }

    /// The error of an interrupted operation, which ends the program: the weights of the steps that
    /// have ended are saved, as at the end of `r1 run`.
    pub(crate) fn stopped(&self, error: Error) -> Error {
        if self.step.updating {
            return error;
        }
        match self.save() {
            Ok(checkpoint) => error.hint(format!("saved {}; continue with {}", checkpoint.display(), self.again())),
            Err(failed) => failed,
        }
    }

    /// Directory, step and settings of the run.
    pub(crate) fn about(&self) -> AboutTraining {
        AboutTraining {
            step: self.run.state.step,
            steps: self.learner.steps,
            run_dir: self.run.dir.path().to_owned(),
            rows: self.session.pool.rows(Split::Train),
            settings: Box::new(self.session.settings.clone()),
            critic: self.policy.critic.is_some(),
        }
    }

    /// Completed steps, and the steps of the run, which a changed recipe may change.
    pub(crate) fn progress(&self) -> (u64, usize) {
        (self.run.state.step, self.learner.steps)
    }

    /// Refuses processes whose programs make another call.
    ///
    /// # Errors
    /// `Kind::Usage` names the first process.
    pub(crate) fn require_same_call(&self, name: &str, arguments: &str) -> Result<()> {
        let checksum = format!("{:08x}", crc32c::crc32c(arguments.as_bytes()));
        let facts = [("call", name), ("checksum of the arguments", checksum.as_str())];
        let facts = facts.map(|(fact, value)| (fact.to_owned(), value.to_owned()));
        self.run.options.ranks.require_same_facts(&facts).map_err(|error| match error.kind {
            Kind::Usage => error.hint("a program makes the same calls on all processes; os.time and files may differ"),
            _ => error,
        })
    }

    /// The trajectories of these ids.
    pub(crate) fn trajectories(&self, ids: &[String]) -> Result<Vec<Trajectory>> {
        self.step.find((&self.run.dir, &self.session.ranks), ids)
    }

    /// Metrics for the line of this step.
    pub(crate) fn log(&mut self, values: &BTreeMap<String, f64>) {
        for (name, value) in values {
            self.step.values.set(name.clone(), *value);
        }
    }

    /// Writes a checkpoint of the steps that have ended; with `out` also the model alone, in the
    /// layout of Hugging Face.
    ///
    /// # Errors
    /// [`Kind::Usage`] within a step: a resumed run would sample the trajectories of the step
    /// again.
    pub(crate) fn save_between_steps(&mut self, out: Option<&Path>) -> Result<PathBuf> {
        if self.step.groups > 0 || self.step.updating {
            let message = "a checkpoint is written between steps, and this one has begun";
            return Err(Error::new(Kind::Usage, message).hint("call t:next_step() before t:save()"));
        }
        let checkpoint = self.save()?;
        self.export(&checkpoint, out)?;
        Ok(checkpoint)
    }

    /// The settings of the recipe, overridden by the options of a rollout.
    pub(crate) fn rollout_settings(&self, wanted: &RolloutOptions) -> Result<Learner> {
        let mut learner = self.learner.clone();
        learner.group_size = wanted.samples.unwrap_or(learner.group_size);
        learner.groups_per_step = wanted.groups.unwrap_or(learner.groups_per_step);
        if let Some(rows) = &wanted.rows {
            let count = self.session.pool.rows(Split::Train).unwrap_or(0);
            if let Some(row) = rows.iter().find(|row| **row >= count) {
                let message = format!("there is no row {row}: the training data has {count}");
                return Err(Error::new(Kind::Usage, message).hint("rows are counted from 0"));
            }
            learner.groups_per_step = rows.len();
            learner.filter = Filter::default();
        }
        if learner.group_size == 0 || learner.groups_per_step == 0 {
            return Err(Error::new(Kind::Usage, "a rollout has at least one task and one sample of each"));
        }
        Ok(learner)
    }

    /// The settings of the recipe, overridden by the options of an update of `count` trajectories.
    pub(crate) fn update_settings(&self, wanted: &UpdateOptions, count: usize) -> Result<(Learner, Objective)> {
        let counts = [
            ("advantages", wanted.advantages.as_ref().map(Vec::len)),
            ("returns", wanted.returns.as_ref().map(Vec::len)),
            ("groups", wanted.groups.as_ref().map(Vec::len)),
        ];
        for (what, given_count) in counts {
            if let Some(given_count) = given_count.filter(|given_count| *given_count != count) {
                let message = format!("there are {given_count} {what} for {count} trajectories");
                return Err(Error::new(Kind::Usage, message));
            }
        }
        let critic = self.policy.critic.is_some();
        let of_critic = [("returns", wanted.returns.is_some()), ("policy = false", wanted.policy == Some(false))];
        if let Some((what, _)) = of_critic.into_iter().find(|(_, given_count)| *given_count && !critic) {
            return Err(no_critic(&format!("`{what}` is for the critic")));
        }
        let UpdateOptions { estimator, loss, graph, epochs, mini_batches, .. } = wanted;
        let mut learner = self.learner.clone();
        let of_recipe = self.objective.policy.formula.graph();
        let mut function = of_recipe.filter(|_| learner.loss.is_of_recipe()).cloned();
        if let Some(estimator) = estimator {
            learner.estimator = estimator.clone();
        }
        if let Some(loss) = loss {
            learner.loss = loss.clone();
            function = None;
        }
        if let Some(graph) = graph {
            learner.loss = Choice::of_recipe();
            function = Some(Arc::new(graph.clone()));
        }
        // Settings for the loss of the recipe do not apply to this one.
        if loss.is_some() || graph.is_some() {
            (learner.clip, learner.loss_agg) = (None, None);
        }
        learner.epochs = epochs.unwrap_or(learner.epochs);
        learner.mini_batches = mini_batches.unwrap_or(learner.mini_batches);
        if learner == self.learner && graph.is_none() {
            return Ok((learner, self.objective.clone()));
        }
        let objective = Objective::new(&learner, &self.session.settings.sampling, critic)?.with_loss(function)?;
        Ok((learner, objective))
    }

    /// The learning rate of a call, or the recipe's at this step.
    pub(crate) fn learning_rate(&self, wanted: Option<f64>) -> Result<f64> {
        let Learner { lr: base, warmup, decay, steps: total, final_lr: floor, .. } = self.learner;
        let schedule = Schedule { base, warmup, decay, total, floor };
        let lr = wanted.unwrap_or_else(|| schedule.at(self.run.state.step as usize));
        if lr >= 0.0 && lr.is_finite() {
            return Ok(lr);
        }
        Err(Error::new(Kind::Usage, format!("the learning rate is {lr}")).hint("give a number from 0 up"))
    }

    pub(crate) fn temperature(&self) -> f64 {
        self.session.settings.sampling.temperature
    }

    /// Advantages by trajectory, step and sampled token; `None` for an excluded trajectory.
    pub(crate) fn advantages(
        &mut self,
        ids: &[String],
        estimator: Option<Choice>,
    ) -> Result<Vec<Option<Vec<Vec<f64>>>>> {
        let wanted = UpdateOptions { estimator, ..UpdateOptions::default() };
        let (learner, objective) = self.update_settings(&wanted, ids.len())?;
        if objective.has_reference() {
            self.load_reference()?;
        }
        let batch =
            self.step.batch((&self.run.dir, &self.session.ranks), ids, objective.needs(AlgorithmNeed::Greedy), None)?;
        // The running standard deviation of the returns changes with updates only.
        let returns = self.policy.returns;
        let settings = UpdateSettings::new(&learner, &objective, 0.0, self.temperature());
        let advantages = self.advantages_of(&batch, settings);
        self.policy.returns = returns;
        self.step.put_back(batch);
        advantages
    }

    fn advantages_of(
        &mut self,
        batch: &UpdateTrajectories,
        settings: UpdateSettings<'_>,
    ) -> Result<Vec<Option<Vec<Vec<f64>>>>> {
        let mut data = TrainingData::compute(&self.policy, &batch.trajectories, batch.baselines_from, settings)?;
        let config = advantage_config(&mut self.policy, &self.run.script, settings)?;
        let advantages = compute_advantages(&mut data.steps, config, &data.trajectories)?;
        if let Some(error) = advantages.skipped {
            return Err(error);
        }
        let by_token = by_token(&advantages, &data.steps, batch.baselines_from);
        Ok(without_generated(&data.trajectories, by_token))
    }

    /// A supervised step on conversations, rows `{ messages, tools, format }`; the loss is a mean
    /// over the assistant's tokens.
    pub(crate) fn supervised(&mut self, examples: &[Value], lr: Option<f64>) -> Result<MetricValues> {
        self.begin_step()?;
        let started = Instant::now();
        let renderer = Arc::clone(&self.session.renderer);
        let mut rows = Vec::with_capacity(examples.len());
        for (index, example) in examples.iter().enumerate() {
            let named = |error: Error| {
                let subject = Some(Box::new(Subject::Example(index + 1)));
                Error { place: Some(format!("example {}", index + 1)), subject, kind: Kind::Usage, ..error }
            };
            let mut example = example.clone();
            order_tools(&mut example);
            if let Some(images) = renderer.images() {
                store_images(&mut example, images).map_err(named)?;
            }
            let example = Demonstration::read(&example).map_err(|invalid| named(invalid.of_row()))?;
            let row = demonstrations::row(&example, &renderer).map_err(named)?;
            let (tokens, longest) = (row.len(), self.session.max_context);
            if tokens > longest {
                let message = format!("the conversation has {tokens} tokens and the model's context holds {longest}");
                return Err(named(Error::new(Kind::Usage, message).hint("shorten it or leave it out")));
            }
            rows.push(Row { trajectory: index, ..row });
        }
        let (learner, lr) = (&self.learner, self.learning_rate(lr)?);
        let settings =
            Sft { tokens_per_batch: learner.tokens_at_once(), max_grad_norm: learner.max_grad_norm, ..Sft::default() };
        self.session.release_cache()?;
        self.step.updating = true;
        self.run.begin_gradients()?;
        let model = Rc::clone(&self.session.model);
        let TrainedPolicy { optimizer, shards, .. } = &mut self.policy;
        let settings = (&settings, &*shards);
        let done = supervised::update(&model, optimizer, &rows, settings, lr, || self.run.writer.release())?;
        self.policy.average()?;
        self.run.state.optimizer_step += 1;
        self.step.changed = true;
        let mut values = Metrics::new();
        metrics::supervised(&mut values, &done, lr, started.elapsed().as_secs_f64());
        self.step.values.extend(values.clone());
        self.step.training_seconds += started.elapsed().as_secs_f64();
        Ok(values.into())
    }

    /// For each trajectory a list with the log-probabilities of the sampled tokens of each step,
    /// under the current policy or under the reference policy.
    pub(crate) fn logprobs(&mut self, ids: &[String], reference: bool) -> Result<Vec<Vec<Vec<f64>>>> {
        let all = self.trajectories(ids)?;
        let mut rows = training_rows(&self.learner, &all, |_| false)?;
        let temperature = self.temperature();
        let tokens = self.learner.tokens_at_once();
        let scores = if reference {
            self.load_reference()?;
            match &self.policy.reference {
                Some(reference) => reference.score(&rows, temperature, tokens, &self.policy.shards)?,
                None => return Err(Error::new(Kind::Internal, "there is no reference policy")),
            }
        } else {
            score(&self.session.model, &rows, temperature, tokens, &self.policy.shards)?
        };
        set_column(&mut rows, scores, |row| &mut row.logp_old);
        let mut steps = training_steps(&all, |_| false);
        read_column(&mut steps, &rows, |row| &row.logp_old, |step| &mut step.logp);
        let of = |index| steps[of_trajectory(&steps, index)].iter().map(|step| step.logp.clone()).collect();
        Ok((0..all.len()).map(of).collect())
    }

    /// For each trajectory a list with the values of the sampled tokens of each step under the
    /// current critic; and the value of the next observation, `None` if the trajectory was not
    /// truncated.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a recipe whose trainer has no critic.
    pub(crate) fn values(&mut self, ids: &[String]) -> Result<TrajectoryValueReport> {
        let all = self.trajectories(ids)?;
        let Training { policy, learner, .. } = &*self;
        let Some(critic) = &policy.critic else { return Err(no_critic("t:values needs a critic")) };
        let mut rows = training_rows(learner, &all, |_| false)?;
        let (tokenizer, settings) = (policy.renderer.tokenizer(), (learner, &policy.shards));
        let (next, _) = critic.values(&policy.model, &mut rows, &all, tokenizer, settings)?;
        let mut steps = training_steps(&all, |_| false);
        read_columns(&mut steps, &rows);
        let of = |index| steps[of_trajectory(&steps, index)].iter().map(sampled).collect();
        Ok(TrajectoryValueReport { values: (0..all.len()).map(of).collect(), next })
    }
}

/// The values of a step's sampled tokens; empty if there are none.
fn sampled(row: &StepRow) -> Vec<f64> {
    if row.values.len() == row.mask.len() { row.values.clone() } else { Vec::new() }
}

fn no_critic(what: &str) -> Error {
    Error::new(Kind::Usage, format!("{what}, and this recipe's trainer has none")).hint("use r1.ppo")
}
