//! The calls of a training loop that read or change weights: advantages, updates, supervised steps,
//! log-probabilities and values.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use super::Manual;
use crate::config::{CUSTOM, Choice, Learner, Sft};
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Demonstration, Trajectory};
use crate::rl::advantages::Need;
use crate::rl::pack::Row;
use crate::rl::rows::StepRow;
use crate::script::services::training::{
    MetricValues, ScoringModel, SupervisedOptions, TrajectoryValueReport, UpdateOptions,
};
use crate::telemetry::Metrics;
use crate::text::schema_order::order_tools;
use crate::train::learn::score::score;
use crate::train::learn::stages::{TrainingData, advantage_config, compute_advantages};
use crate::train::learn::steps::Steps;
use crate::train::learn::supervised;
use crate::train::learn::update::UpdateSettings;
use crate::train::learn::update_batch;
use crate::train::rows::demonstrations;
use crate::train::rules::objective::Objective;
use crate::train::run::training::Training;
use crate::train::watch::metrics;

impl Manual {
    /// The settings of the recipe, overridden by those of a call.
    fn settings_of(&self, wanted: &UpdateOptions) -> Result<(Learner, Objective)> {
        let mut learner = self.training.learner.clone();
        if let Some(estimator) = &wanted.estimator {
            learner.estimator = estimator.clone();
        }
        let mut custom = self.training.objective.custom.clone();
        if let Some(loss) = &wanted.loss {
            learner.loss = loss.clone();
            custom = None;
        }
        if let Some(graph) = &wanted.graph {
            learner.loss = Choice::new(CUSTOM);
            custom = Some(Arc::new(graph.clone()));
        }
        // Settings for the loss of the recipe do not apply to this one.
        if wanted.loss.is_some() || wanted.graph.is_some() {
            (learner.clip, learner.loss_agg) = (None, None);
        }
        learner.epochs = wanted.epochs.unwrap_or(learner.epochs);
        learner.mini_batches = wanted.mini_batches.unwrap_or(learner.mini_batches);
        let critic = self.training.policy.critic.is_some();
        let objective =
            Objective::new(&learner, &self.training.session.settings.sampling, critic)?.with_loss(custom)?;
        Ok((learner, objective))
    }

    /// The trajectories followed by the greedy baselines of their groups, and the number of the
    /// former.
    fn with_baselines(&self, ids: &[String], objective: &Objective) -> Result<(Vec<Trajectory>, usize)> {
        let mut all = self.find(ids)?;
        let own = all.len();
        if objective.needs(Need::Greedy) {
            let groups: Vec<u64> = all.iter().map(|trajectory| trajectory.group).collect();
            all.extend(self.baselines.iter().filter(|other| groups.contains(&other.group)).cloned());
        }
        Ok((all, own))
    }

    /// Advantages by trajectory, step and sampled token; `None` for an excluded trajectory.
    pub fn advantages(&mut self, ids: &[String], estimator: Option<Choice>) -> Result<Vec<Option<Vec<Vec<f64>>>>> {
        let (learner, objective) = self.settings_of(&UpdateOptions { estimator, ..UpdateOptions::default() })?;
        let (all, own) = self.with_baselines(ids, &objective)?;
        let all = regroup(all, None);
        if objective.has_reference() {
            self.training.load_reference(&self.reporter)?;
        }
        let settings = UpdateSettings::new(&learner, &objective, 0.0, self.temperature());
        let data = TrainingData::compute(&self.training.policy, &all, |index| index >= own, settings)?;
        // The running standard deviation of the returns changes with updates only.
        let returns = self.training.policy.returns;
        let steps = data.steps(&objective, &self.training.session.renderer);
        let config = advantage_config(&mut self.training.policy, &self.training.script, settings, &data.trainable)?;
        let batch = compute_advantages(steps, config, data.trajectories());
        self.training.policy.returns = returns;
        let batch = batch?;
        if let Some(error) = batch.skipped {
            return Err(error);
        }
        let by_token = data.trainable.without_generated(batch.by_token(data.trajectories()));
        Ok(by_token.into_iter().take(own).collect())
    }

    /// Updates the weights with trajectories; returns the metrics of the updates.
    pub fn update(&mut self, ids: &[String], wanted: &UpdateOptions) -> Result<MetricValues> {
        let started = Instant::now();
        let (learner, objective) = self.settings_of(wanted)?;
        let counts = [
            ("advantages", wanted.advantages.as_ref().map(Vec::len)),
            ("returns", wanted.returns.as_ref().map(Vec::len)),
            ("groups", wanted.groups.as_ref().map(Vec::len)),
        ];
        for (what, count) in counts {
            if let Some(count) = count.filter(|count| *count != ids.len()) {
                let message = format!("there are {count} {what} for {} trajectories", ids.len());
                return Err(Error::new(Kind::Usage, message));
            }
        }
        let of_critic = [("returns", wanted.returns.is_some()), ("policy = false", wanted.policy == Some(false))];
        if let Some((what, _)) = of_critic.into_iter().find(|(_, given)| *given)
            && self.training.policy.critic.is_none()
        {
            return Err(no_critic(&format!("`{what}` is for the critic")));
        }
        if objective.has_reference() {
            self.training.load_reference(&self.reporter)?;
        }
        let (all, own) = match wanted.advantages {
            Some(_) => (self.find(ids)?, ids.len()),
            None => self.with_baselines(ids, &objective)?,
        };
        let all = regroup(all, wanted.groups.as_deref());
        let lr = self.rate(wanted.lr)?;
        let settings = UpdateSettings {
            advantages: wanted.advantages.as_deref(),
            returns: wanted.returns.as_deref(),
            policy: wanted.policy != Some(false),
            ..UpdateSettings::new(&learner, &objective, lr, self.temperature())
        };
        let training = &mut self.training;
        training.session.release_cache()?;
        let mut data = TrainingData::compute(&training.policy, &all, |index| index >= own, settings)
            .map_err(|error| training.keep(error, &all))?;
        let steps = data.steps(&objective, &training.session.renderer);
        let advantages = advantage_config(&mut training.policy, &training.script, settings, &data.trainable)
            .and_then(|config| compute_advantages(steps, config, data.trajectories()))
            .map_err(|error| training.keep(error, &all))?;
        let outcome = training
            .update(&mut data, &advantages, settings, &self.reporter)
            .map_err(|error| if error.kind == Kind::Interrupted { error } else { training.keep(error, &all) })?;
        let by_step = data.trainable.without_generated(advantages.by_step(data.trajectories()));
        for (trajectory, advantages) in all.iter().zip(by_step) {
            if let Some(advantages) = advantages {
                self.advantages.insert(trajectory.id.clone(), advantages);
            }
        }
        let mut values = Metrics::new();
        let version = training.state.policy_version + 1;
        metrics::outcome(&mut values, &outcome, &training.policy, &data, &advantages, settings, version);
        let updates = outcome.updates;
        for (name, value) in values.iter() {
            self.values.set(name, value);
        }
        self.changed |= updates.iter().any(|update| update.stepped);
        self.updates.extend(updates);
        self.training_seconds += started.elapsed().as_secs_f64();
        Ok(values.into())
    }

    fn temperature(&self) -> f64 {
        self.training.session.settings.sampling.temperature
    }

    /// The learning rate of a call, or the recipe's at this step.
    fn rate(&self, wanted: Option<f64>) -> Result<f64> {
        let lr = wanted.unwrap_or_else(|| self.training.schedule.at(self.training.state.step as usize));
        if lr >= 0.0 && lr.is_finite() {
            return Ok(lr);
        }
        Err(Error::new(Kind::Usage, format!("the learning rate is {lr}")).hint("give a number from 0 up"))
    }

    /// A supervised step on conversations, rows `{ messages, tools, format }`; the loss is a mean
    /// over the assistant's tokens.
    pub fn supervised(&mut self, examples: &[Value], wanted: &SupervisedOptions) -> Result<MetricValues> {
        let started = Instant::now();
        let renderer = Arc::clone(&self.training.session.renderer);
        let mut rows = Vec::with_capacity(examples.len());
        for (place, example) in examples.iter().enumerate() {
            let named = |error: Error| {
                let subject = Some(Box::new(Subject::Example(place + 1)));
                Error { place: Some(format!("example {}", place + 1)), subject, kind: Kind::Usage, ..error }
            };
            let mut example = example.clone();
            order_tools(&mut example);
            let example = Demonstration::read(&example).map_err(|invalid| named(invalid.of_row()))?;
            let row = demonstrations::row(&example, &renderer).map_err(named)?;
            let (tokens, longest) = (row.len(), self.training.session.max_context);
            if tokens > longest {
                let message = format!("the conversation has {tokens} tokens and the model's context holds {longest}");
                return Err(named(Error::new(Kind::Usage, message).hint("shorten it or leave it out")));
            }
            rows.push(Row { trajectory: place, ..row });
        }
        let (learner, lr) = (&self.training.learner, self.rate(wanted.lr)?);
        let settings =
            Sft { tokens_per_batch: learner.tokens_at_once(), max_grad_norm: learner.max_grad_norm, ..Sft::default() };
        let model = Rc::clone(&self.training.session.model);
        let done = supervised::update(&model, &mut self.training.policy.optimizer, &rows, &settings, lr)?;
        self.training.policy.average()?;
        self.training.state.optimizer_step += 1;
        self.changed = true;
        let mut values = Metrics::new();
        metrics::supervised(&mut values, &done, lr, started.elapsed().as_secs_f64());
        for (name, value) in values.iter() {
            self.values.set(name, value);
        }
        self.training_seconds += started.elapsed().as_secs_f64();
        Ok(values.into())
    }

    /// For each trajectory a list with the log-probabilities of the sampled tokens of each step,
    /// under the current policy or under the reference policy.
    pub fn logprobs(&mut self, ids: &[String], model: ScoringModel) -> Result<Vec<Vec<Vec<f64>>>> {
        let all = self.find(ids)?;
        let mut rows = update_batch::training_rows(&self.training.learner, &all, |_| false)?;
        let temperature = self.temperature();
        let tokens = self.training.learner.tokens_at_once();
        let scores = if model == ScoringModel::Reference {
            self.training.load_reference(&self.reporter)?;
            match &self.training.policy.reference {
                Some(reference) => reference.score(&rows, temperature, tokens)?,
                None => return Err(Error::new(Kind::Internal, "there is no reference policy")),
            }
        } else {
            score(&self.training.session.model, &rows, temperature, tokens)?
        };
        update_batch::set_column(&mut rows, scores, |row| &mut row.logp_old);
        let mut steps = Steps::of(&all, |_| false);
        steps.read_column(&rows, |row| &row.logp_old, |step| &mut step.logp);
        let of = |index| steps.of_trajectory(index).map(|row| steps.rows[row].logp.clone()).collect();
        Ok((0..all.len()).map(of).collect())
    }

    /// For each trajectory a list with the values of the sampled tokens of each step under the
    /// current critic; and the value of the next observation, `None` if the trajectory was not
    /// truncated.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a recipe whose trainer has no critic.
    pub fn values(&mut self, ids: &[String]) -> Result<TrajectoryValueReport> {
        let all = self.find(ids)?;
        let Training { policy, learner, .. } = &self.training;
        let Some(critic) = &policy.critic else { return Err(no_critic("t:values needs a critic")) };
        let mut rows = update_batch::training_rows(learner, &all, |_| false)?;
        let values = critic.values(&policy.model, &mut rows, &all, policy.renderer.tokenizer(), learner)?;
        let mut steps = Steps::of(&all, |_| false);
        steps.read_columns(&rows);
        let of = |index| steps.of_trajectory(index).map(|row| sampled(&steps.rows[row])).collect();
        Ok(TrajectoryValueReport { values: (0..all.len()).map(of).collect(), next: values.next })
    }

    /// Makes the current policy the reference policy, which checkpoints contain from then on.
    pub fn renew_reference(&mut self) -> Result<()> {
        self.training.renew_reference(&self.reporter)
    }
}

/// The values of a step's sampled tokens; empty if there are none.
fn sampled(row: &StepRow) -> Vec<f64> {
    if row.values.len() == row.mask.len() { row.values.clone() } else { Vec::new() }
}

fn no_critic(what: &str) -> Error {
    Error::new(Kind::Usage, format!("{what}, and this recipe's trainer has none")).hint("use r1.ppo")
}

/// Numbers the groups consecutively: trajectories of different steps are in different groups,
/// unless `given` has the group of each trajectory.
fn regroup(mut all: Vec<Trajectory>, given: Option<&[u64]>) -> Vec<Trajectory> {
    if let Some(given) = given {
        for (trajectory, group) in all.iter_mut().zip(given) {
            trajectory.group = *group;
        }
        return all;
    }
    let mut numbers: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for trajectory in &mut all {
        let step = trajectory.id.split('-').next().unwrap_or_default().to_owned();
        let next = numbers.len() as u64;
        trajectory.group = *numbers.entry((step, trajectory.group)).or_insert(next);
    }
    all
}
