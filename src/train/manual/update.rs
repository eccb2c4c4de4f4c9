//! What a training loop asks of models: advantages, updates, supervised steps, log-probabilities and values.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};

use super::{Manual, SupervisedOptions, UpdateOptions};
use crate::config::{Choice, Learner, Sft};
use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Demonstration, Trajectory};
use crate::rl::advantages::Need;
use crate::rl::pack::Row;
use crate::rl::rows::StepRow;
use crate::telemetry::Metrics;
use crate::train::learn::{How, Learnt, credit, learn};
use crate::train::objective::Objective;
use crate::train::score::score;
use crate::train::steps::Steps;
use crate::train::value::Values;
use crate::train::written::Learned;
use crate::train::{demonstrations, lesson, metrics, sft};

impl Manual {
    /// The recipe's settings with those of a call over them.
    fn way(&self, asked: &UpdateOptions) -> Result<(Learner, Objective)> {
        let mut learner = self.it.learner.clone();
        if let Some(estimator) = &asked.estimator {
            learner.estimator = estimator.clone();
        }
        let mut custom = self.it.objective.custom.clone();
        if let Some(loss) = &asked.loss {
            learner.loss = loss.clone();
            custom = None;
        }
        if let Some(graph) = &asked.graph {
            learner.loss = Choice::new("custom");
            custom = Some(Arc::new(graph.clone()));
        }
        // What the recipe says of another loss does not hold for this one.
        if asked.loss.is_some() || asked.graph.is_some() {
            (learner.clip, learner.loss_agg) = (None, None);
        }
        learner.epochs = asked.epochs.unwrap_or(learner.epochs);
        learner.mini_batches = asked.mini_batches.unwrap_or(learner.mini_batches);
        let critic = self.it.critic.is_some();
        let objective = Objective::new(&learner, &self.it.session.settings.sampling, critic)?.with_loss(custom)?;
        Ok((learner, objective))
    }

    /// Trajectories with those that are baselines for their groups behind them, and how many there are without.
    fn with_companions(&self, ids: &[String], objective: &Objective) -> Result<(Vec<Trajectory>, usize)> {
        let mut all = self.find(ids)?;
        let own = all.len();
        if objective.needs(Need::Greedy) {
            let groups: Vec<u64> = all.iter().map(|trajectory| trajectory.group).collect();
            all.extend(self.companions.iter().filter(|other| groups.contains(&other.group)).cloned());
        }
        Ok((all, own))
    }

    /// For each trajectory a list with the advantages of the sampled tokens of each step; null for one that does not count.
    pub fn advantages(&mut self, ids: &[String], estimator: Option<Choice>) -> Result<Value> {
        let (learner, objective) = self.way(&UpdateOptions { estimator, ..UpdateOptions::default() })?;
        let (all, own) = self.with_companions(ids, &objective)?;
        let all = regroup(all, None);
        // What the host keeps of rewards moves on with updates only.
        let returns = self.it.returns;
        let learned = Learned::of(&all);
        let values = self.critic_values(learned.trajectories(), &learner)?;
        let how = How::new(&learner, &objective, 0.0);
        let fill = |steps: &mut Steps| {
            if let Some((rows, values)) = &values {
                values.fill(steps, rows);
            }
        };
        let credit = credit(&mut self.it, &learned, &|index| index >= own, how, fill);
        self.it.returns = returns;
        let credit = credit.map_err(|error| crate::train::credit::named(error, &all))?;
        if let Some(error) = credit.skipped {
            return Err(error);
        }
        Ok(learned.own(credit.by_token(learned.trajectories())).into_iter().take(own).map(|one| json!(one)).collect())
    }

    /// Learns from trajectories; gives the metrics of the updates.
    pub fn update(&mut self, ids: &[String], asked: &UpdateOptions) -> Result<Map<String, Value>> {
        let started = Instant::now();
        let (learner, objective) = self.way(asked)?;
        let counts = [
            ("advantages", asked.advantages.as_ref().map(Vec::len)),
            ("returns", asked.returns.as_ref().map(Vec::len)),
            ("groups", asked.groups.as_ref().map(Vec::len)),
        ];
        for (what, count) in counts {
            if let Some(count) = count.filter(|count| *count != ids.len()) {
                let message = format!("there are {count} {what} for {} trajectories", ids.len());
                return Err(Error::new(Kind::Usage, message));
            }
        }
        let of_critic = [("returns", asked.returns.is_some()), ("policy = false", asked.policy == Some(false))];
        if let Some((what, _)) = of_critic.into_iter().find(|(_, given)| *given)
            && self.it.critic.is_none()
        {
            return Err(no_critic(&format!("`{what}` is for the critic")));
        }
        if objective.has_reference() {
            self.it.load_reference(&self.reporter)?;
        }
        let (all, own) = match asked.advantages {
            Some(_) => (self.find(ids)?, ids.len()),
            None => self.with_companions(ids, &objective)?,
        };
        let all = regroup(all, asked.groups.as_deref());
        let lr = self.rate(asked.lr)?;
        let how = How {
            advantages: asked.advantages.as_deref(),
            returns: asked.returns.as_deref(),
            policy: asked.policy != Some(false),
            ..How::new(&learner, &objective, lr)
        };
        let Learnt { learned, lesson, scores, credit, updates, critic_updates, kl } =
            learn(&mut self.it, &all, &|index| index >= own, how, &self.reporter)?;
        let by_step = learned.own(credit.by_step(learned.trajectories()));
        for (trajectory, advantages) in all.iter().zip(by_step) {
            if let Some(advantages) = advantages {
                self.advantages.insert(trajectory.id.clone(), advantages);
            }
        }
        let mut values = Metrics::new();
        metrics::advantages(&mut values, &credit);
        metrics::update(&mut values, &updates, lr, self.it.state.policy_version + 1);
        metrics::packing(&mut values, learned.trajectories(), &lesson.rows);
        if credit.skipped.is_some() {
            values.set("policy/skipped", (learner.epochs * learner.mini_batches) as f64);
        }
        metrics::leash(&mut values, &self.it.kl, kl, objective.kl_coef.coef() > 0.0);
        if self.it.critic.is_some() {
            metrics::critic(&mut values, &critic_updates, &lesson);
        }
        scores.log(&mut values, &lesson.rows, &updates);
        for (name, value) in values.iter() {
            self.values.set(name, value);
        }
        self.changed |= updates.iter().any(|update| update.stepped);
        self.updates.extend(updates);
        self.training_seconds += started.elapsed().as_secs_f64();
        Ok(values.to_json())
    }

    /// The learning rate of a call, or the recipe's at this step.
    fn rate(&self, asked: Option<f64>) -> Result<f64> {
        let lr = asked.unwrap_or_else(|| self.it.schedule.at(self.it.state.step as usize));
        if lr >= 0.0 && lr.is_finite() {
            return Ok(lr);
        }
        Err(Error::new(Kind::Usage, format!("the learning rate is {lr}")).hint("give a number from 0 up"))
    }

    /// A supervised step on conversations, rows `{ messages, tools, format }`; the loss is a mean over the assistant's tokens.
    pub fn supervised(&mut self, examples: &[Value], asked: &SupervisedOptions) -> Result<Map<String, Value>> {
        let started = Instant::now();
        let renderer = Arc::clone(&self.it.session.renderer);
        let mut rows = Vec::with_capacity(examples.len());
        for (place, example) in examples.iter().enumerate() {
            let named = |error: Error| {
                let subject = Some(Box::new(Subject::Example(place + 1)));
                Error { place: Some(format!("example {}", place + 1)), subject, kind: Kind::Usage, ..error }
            };
            let example = Demonstration::read(example).map_err(|why| named(Error::new(Kind::Usage, why)))?;
            let row = demonstrations::row(&example, &renderer).map_err(named)?;
            let (tokens, longest) = (row.len(), self.it.session.max_context);
            if tokens > longest {
                let message = format!("the conversation has {tokens} tokens and the model's context holds {longest}");
                return Err(named(Error::new(Kind::Usage, message).hint("shorten it or leave it out")));
            }
            rows.push(Row { trajectory: place, ..row });
        }
        let (learner, lr) = (&self.it.learner, self.rate(asked.lr)?);
        let settings =
            Sft { tokens_per_batch: learner.tokens_per_batch, max_grad_norm: learner.max_grad_norm, ..Sft::default() };
        let model = Rc::clone(&self.it.session.model);
        let done = sft::update(&model, &mut self.it.optimizer, &rows, &settings, lr)?;
        self.it.average()?;
        self.it.state.optimizer_step += 1;
        self.changed = true;
        let mut values = Metrics::new();
        metrics::supervised(&mut values, &done, lr, started.elapsed().as_secs_f64());
        for (name, value) in values.iter() {
            self.values.set(name, value);
        }
        self.training_seconds += started.elapsed().as_secs_f64();
        Ok(values.to_json())
    }

    /// For each trajectory a list with the log-probabilities of the sampled tokens of each step, under the policy as it is now
    /// or under the reference policy.
    pub fn logprobs(&mut self, ids: &[String], reference: bool) -> Result<Value> {
        let all = self.find(ids)?;
        let rows = lesson::rows_for(&self.it.learner, &all, |_| false)?;
        let temperature = self.it.session.settings.sampling.temperature;
        let tokens = self.it.learner.tokens_per_batch;
        let scores = if reference {
            self.it.load_reference(&self.reporter)?;
            match &self.it.reference {
                Some(reference) => reference.score(&rows, temperature, tokens)?,
                None => return Err(Error::new(Kind::Internal, "there is no reference policy")),
            }
        } else {
            score(&self.it.session.model, &rows, temperature, tokens)?
        };
        let mut steps = Steps::of(&all, |_| false);
        for row in &mut steps.rows {
            row.logp.clear();
        }
        steps.fill(&rows, &scores, |row| &mut row.logp);
        let of =
            |index: usize| -> Vec<&Vec<f64>> { steps.of_trajectory(index).map(|row| &steps.rows[row].logp).collect() };
        Ok((0..all.len()).map(|index| json!(of(index))).collect())
    }

    /// For each trajectory a list with the values of the sampled tokens of each step under the critic as it is now; and the
    /// value of what would have come next, null where the trajectory was not cut.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a recipe whose trainer has no critic.
    pub fn values(&mut self, ids: &[String]) -> Result<Value> {
        let all = self.find(ids)?;
        let Some((rows, values)) = self.critic_values(&all, &self.it.learner)? else {
            return Err(no_critic("t:values asks a critic"));
        };
        let mut steps = Steps::of(&all, |_| false);
        values.fill(&mut steps, &rows);
        let of = |index: usize| -> Vec<Vec<f64>> {
            steps.of_trajectory(index).map(|row| sampled(&steps.rows[row])).collect()
        };
        let all: Vec<_> = (0..all.len()).map(of).collect();
        Ok(json!({ "values": all, "next": values.next }))
    }

    /// The rows of trajectories and the critic's values of their states; `None` without a critic.
    fn critic_values(&self, all: &[Trajectory], learner: &Learner) -> Result<Option<(Vec<Row>, Values)>> {
        let Some(critic) = &self.it.critic else { return Ok(None) };
        let rows = lesson::rows_for(learner, all, |_| false)?;
        let tokenizer = self.it.session.renderer.tokenizer();
        let values = critic.values(&self.it.session.model, &rows, all, tokenizer, learner)?;
        Ok(Some((rows, values)))
    }

    /// Makes the policy as it is now the reference policy, which checkpoints hold from then on.
    pub fn renew_reference(&mut self) -> Result<()> {
        self.it.renew_reference(&self.reporter)
    }
}

/// The values of a step's sampled tokens; none where nothing was asked.
fn sampled(row: &StepRow) -> Vec<f64> {
    if row.values.len() == row.mask.len() { row.values.clone() } else { Vec::new() }
}

fn no_critic(what: &str) -> Error {
    Error::new(Kind::Usage, format!("{what}, and this recipe's trainer has none")).hint("use r1.ppo")
}

/// Groups numbered one after the other: trajectories of different steps are of different groups, unless `given` says
/// otherwise.
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
