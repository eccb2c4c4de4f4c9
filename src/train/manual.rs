//! Training by single calls, for loops that programs write (`r1.training`): sampling, advantages, updates, supervised steps,
//! evaluation and checkpoints. Each call is what `r1 run` does at its place, over the same run directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::checked::checked;
use super::cold_start::Started;
use super::collect::{Draw, Wants, collect};
use super::evaluate::{Evaluation, solved};
use super::learn::{Given, How, Learnt, credit, learn};
use super::objective::Objective;
use super::resume::Opened;
use super::score::{Reference, score};
use super::setup::Training;
use super::steps::Steps;
use super::update::UpdateStats;
use super::written::Learned;
use super::{RunOptions, cold_start, demonstrations, files, lesson, metrics, report, sft};
use crate::config::{Choice, Filter, Learner, LossGraph, Sft};
use crate::engine::Stats;
use crate::error::{Error, Kind, Result, Subject, suggest};
use crate::mdp::{Demonstration, Trajectory};
use crate::rl::advantages::Need;
use crate::rl::pack::Row;
use crate::store::read_trajectories;
use crate::telemetry::{Metrics, Reporter};

/// A run of reinforcement learning whose loop somebody else writes.
pub struct Manual {
    it: Training,
    options: RunOptions,
    reporter: Reporter,
    /// What was sampled since the last step ended, and what baselines came with it.
    sampled: Vec<Trajectory>,
    companions: Vec<Trajectory>,
    /// Groups drawn from the data since then.
    groups: usize,
    dropped: usize,
    stats: Stats,
    /// The advantages that were learned from since then, by step, by id.
    advantages: BTreeMap<String, Vec<f64>>,
    updates: Vec<UpdateStats>,
    /// Whether the weights have changed since then.
    changed: bool,
    values: Metrics,
    sampling_seconds: f64,
    training_seconds: f64,
    began: Instant,
}

/// Which tasks to try, and how often.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// Tasks; `trainer.groups_per_step` by default.
    pub groups: Option<usize>,
    /// Trajectories of each; `trainer.group_size` by default.
    pub samples: Option<usize>,
    /// Rows of the training data, from 0, in place of the next ones.
    pub rows: Option<Vec<u64>>,
}

/// How to learn; what is left out is as the recipe says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpdateOptions {
    /// For each trajectory a number, or a list with a number or a list of numbers for each step.
    pub advantages: Option<Vec<Given>>,
    pub estimator: Option<Choice>,
    pub loss: Option<Choice>,
    /// A loss of the program's own.
    pub graph: Option<LossGraph>,
    /// For each trajectory the number of the group that it is compared in.
    pub groups: Option<Vec<u64>>,
    pub lr: Option<f64>,
    pub epochs: Option<usize>,
    pub mini_batches: Option<usize>,
}

/// A supervised step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupervisedOptions {
    pub lr: Option<f64>,
}

impl Manual {
    /// Opens a run as `r1 run` does.
    ///
    /// # Errors
    /// As `r1 run`; [`Kind::Usage`] for a trainer with a critic.
    pub fn open(options: &RunOptions, reporter: Reporter) -> Result<Self> {
        let opened = Opened::new(options, &reporter)?;
        if checked(&opened.script)?.critic {
            let message = "r1.training drives trainers without a critic, and this recipe trains one";
            return Err(Error::new(Kind::Usage, message)
                .at_path(&options.script)
                .hint("use r1.grpo, or `r1 run` for r1.ppo"));
        }
        let options = opened.options.clone();
        let opened = match cold_start::run(opened, &reporter)? {
            Started::Ready(opened) => *opened,
            Started::Interrupted(_) => return Err(Error::new(Kind::Interrupted, "stopped during the cold start")),
        };
        let it = Training::open(opened, &reporter)?;
        Ok(Self {
            it,
            options,
            reporter,
            sampled: Vec::new(),
            companions: Vec::new(),
            groups: 0,
            dropped: 0,
            stats: Stats::default(),
            advantages: BTreeMap::new(),
            updates: Vec::new(),
            changed: false,
            values: Metrics::new(),
            sampling_seconds: 0.0,
            training_seconds: 0.0,
            began: Instant::now(),
        })
    }

    /// Where the run is: `{ step, steps, run_dir, rows, settings }`.
    pub fn about(&self) -> Value {
        json!({
            "step": self.it.state.step, "steps": self.it.learner.steps, "run_dir": self.it.run.path(), "rows": self.it.session.pool.rows(crate::script::Split::Train),
            "settings": self.it.session.settings,
        })
    }

    /// Samples the next tasks, `group_size` trajectories each, with the current weights; gives the new trajectories.
    pub fn rollout(&mut self, asked: &Rollout) -> Result<&[Trajectory]> {
        let started = Instant::now();
        let mut learner = self.it.learner.clone();
        learner.group_size = asked.samples.unwrap_or(learner.group_size);
        learner.groups_per_step = asked.groups.unwrap_or(learner.groups_per_step);
        if let Some(rows) = &asked.rows {
            let count = self.it.session.pool.rows(crate::script::Split::Train).unwrap_or(0);
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
        let wants = Wants { greedy: self.it.objective.needs(Need::Greedy), next_prompt: false };
        let draw = Draw { first: self.groups, rows: asked.rows.as_deref() };
        self.it.session.engine.clear_cache();
        let mut collected = collect(&mut self.it.session, &learner, &self.it.state, wants, draw, &self.reporter)
            .map_err(|error| report::in_step(error, self.it.state.step + 1))?;
        self.it.look_at_failures(&collected.trajectories, &self.reporter)?;
        let companions = collected.trajectories.split_off(collected.companions_from);
        self.groups += collected.groups;
        self.dropped += collected.dropped;
        self.stats.add(&collected.stats);
        let first = self.sampled.len();
        self.sampled.append(&mut collected.trajectories);
        self.companions.extend(companions);
        self.sampling_seconds += started.elapsed().as_secs_f64();
        Ok(&self.sampled[first..])
    }

    /// The trajectories of these ids: of this step, or of an earlier one of this run.
    fn find(&self, ids: &[String]) -> Result<Vec<Trajectory>> {
        let mut earlier: BTreeMap<u64, Vec<Trajectory>> = BTreeMap::new();
        ids.iter()
            .map(|id| {
                if let Some(own) = self.sampled.iter().find(|own| own.id == *id) {
                    return Ok(own.clone());
                }
                let missing = || {
                    let known = self.sampled.iter().map(|own| own.id.as_str()).collect::<Vec<_>>();
                    Error::new(Kind::Usage, format!("this run has no trajectory `{id}`")).hint(suggest(id, known))
                };
                let step: u64 = id.split('-').next().and_then(|step| step.parse().ok()).ok_or_else(missing)?;
                let path = self.it.run.trajectories_path(step);
                if let std::collections::btree_map::Entry::Vacant(place) = earlier.entry(step) {
                    place.insert(if path.is_file() { read_trajectories(&path)? } else { Vec::new() });
                }
                earlier[&step].iter().find(|own| own.id == *id).cloned().ok_or_else(missing)
            })
            .collect()
    }

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
        let objective = Objective::new(&learner, &self.it.session.settings.sampling, false)?.with_loss(custom)?;
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
        let how = How { learner: &learner, objective: &objective, lr: 0.0, advantages: None };
        let credit = credit(&mut self.it, &learned, &|index| index >= own, how, |_| ());
        self.it.returns = returns;
        let credit = credit.map_err(|error| super::credit::named(error, &all))?;
        if let Some(error) = credit.skipped {
            return Err(error);
        }
        Ok(learned.own(credit.by_token(learned.trajectories())).into_iter().take(own).map(|one| json!(one)).collect())
    }

    /// Learns from trajectories; gives the metrics of the updates.
    pub fn update(&mut self, ids: &[String], asked: &UpdateOptions) -> Result<Map<String, Value>> {
        let started = Instant::now();
        let (learner, objective) = self.way(asked)?;
        for (what, count) in
            [("advantages", asked.advantages.as_ref().map(Vec::len)), ("groups", asked.groups.as_ref().map(Vec::len))]
        {
            if let Some(count) = count.filter(|count| *count != ids.len()) {
                let message = format!("there are {count} {what} for {} trajectories", ids.len());
                return Err(Error::new(Kind::Usage, message));
            }
        }
        if objective.has_reference() {
            self.reference()?;
        }
        let (all, own) = match asked.advantages {
            Some(_) => (self.find(ids)?, ids.len()),
            None => self.with_companions(ids, &objective)?,
        };
        let all = regroup(all, asked.groups.as_deref());
        let lr = self.rate(asked.lr)?;
        let how = How { learner: &learner, objective: &objective, lr, advantages: asked.advantages.as_deref() };
        let Learnt { learned, lesson, scores, credit, updates, kl } =
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
        let rows = lesson::rows(&all, |_| false)?;
        let temperature = self.it.session.settings.sampling.temperature;
        let tokens = self.it.learner.tokens_per_batch;
        let scores = if reference {
            self.reference()?;
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

    /// Loads the reference policy, the recipe's model as it was before the run, unless it is there.
    fn reference(&mut self) -> Result<()> {
        if self.it.reference.is_none() {
            let (model, base) = (&self.it.session.model, &self.it.base);
            self.it.reference = Some(Reference::load(model, base, &self.options, &self.reporter)?);
        }
        Ok(())
    }

    /// Evaluates on the held-out tasks and logs it; `None` without any.
    pub fn evaluate(&mut self) -> Result<Option<Evaluation>> {
        self.it.evaluate(&self.reporter, "held out", false)
    }

    /// Metrics for the line of this step.
    pub fn log(&mut self, values: &BTreeMap<String, f64>) {
        for (name, value) in values {
            self.values.set(name.clone(), *value);
        }
    }

    /// Ends a step: what was sampled is stored with the advantages it was learned from, the metrics are written, and the
    /// counters move on.
    pub fn next_step(&mut self) -> Result<Map<String, Value>> {
        let mut all = std::mem::take(&mut self.sampled);
        let tries = all.len();
        all.append(&mut self.companions);
        let advantages = std::mem::take(&mut self.advantages);
        let known: Vec<Option<Vec<f64>>> = all.iter().map(|own| advantages.get(&own.id).cloned()).collect();
        let it = &mut self.it;
        if all.is_empty() {
            it.advance(0, self.changed);
        } else {
            it.record(&all, &known, self.groups, self.changed)?;
        }
        self.changed = false;
        let mut values = Metrics::new();
        if !all.is_empty() {
            let accuracy = &it.session.settings.eval.accuracy;
            metrics::rollout(&mut values, &all[..tries], |trajectory| solved(trajectory, accuracy));
            metrics::drawn(&mut values, self.groups, self.dropped);
            metrics::branches(&mut values, &all[..tries], &it.learner);
            metrics::time(&mut values, &self.stats, &self.updates, self.sampling_seconds, self.training_seconds);
        }
        metrics::memory(&mut values, it.session.model.device());
        values.set("time/step", self.began.elapsed().as_secs_f64());
        for (name, value) in std::mem::take(&mut self.values).iter() {
            values.set(name, value);
        }
        it.log.log(it.state.step, &values)?;
        self.reporter.step(it.state.step, it.learner.steps as u64, &values);
        self.groups = 0;
        self.dropped = 0;
        self.stats = Stats::default();
        self.updates.clear();
        (self.sampling_seconds, self.training_seconds, self.began) = (0.0, 0.0, Instant::now());
        Ok(values.to_json())
    }

    /// Writes a checkpoint of the steps that have ended; with `out` also the model alone, in the layout of Hugging Face.
    ///
    /// # Errors
    /// [`Kind::Usage`] within a step: a resumed run would sample what is not stored again.
    pub fn save(&mut self, out: Option<&Path>) -> Result<PathBuf> {
        if self.groups > 0 || self.changed {
            let message = "a checkpoint is written between steps, and this one has begun";
            return Err(Error::new(Kind::Usage, message).hint("call t:next_step() before t:save()"));
        }
        let checkpoint = self.it.save(|_| Ok(()))?;
        if let Some(out) = out {
            let kind = self.it.session.model.kind();
            let (settings, origin) = (&self.it.script.settings.checkpoint, self.it.origins.model.as_ref());
            files::export(&checkpoint, out, settings, kind, origin, self.options.fetching(&self.reporter))?;
        }
        Ok(checkpoint)
    }
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
