//! Training by single calls, for loops that programs write (`r1.training`): sampling, advantages, updates, supervised steps,
//! evaluation and checkpoints. Each call is what `r1 run` does at its place, over the same run directory. What changes
//! weights or reads them is in `update`.

mod update;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::cold_start::Started;
use super::collect::{Draw, Wants, collect};
use super::evaluate::{Evaluation, solved};
use super::learn::Given;
use super::resume::Opened;
use super::setup::Training;
use super::update::UpdateStats;
use super::{RunOptions, cold_start, files, metrics, report, tensorboard};
use crate::config::{Choice, Filter, LossGraph};
use crate::engine::Stats;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Split, Trajectory};
use crate::rl::advantages::Need;
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
    /// The same of returns, for the critic to predict.
    pub returns: Option<Vec<Given>>,
    /// Whether the policy learns (it does unless said), or the critic alone.
    pub policy: Option<bool>,
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
    /// As `r1 run`.
    pub fn open(options: &RunOptions, reporter: Reporter) -> Result<Self> {
        let opened = Opened::new(options, &reporter)?;
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
            "step": self.it.state.step, "steps": self.it.learner.steps, "run_dir": self.it.run.path(), "rows": self.it.session.pool.rows(Split::Train),
            "settings": self.it.session.settings, "critic": self.it.critic.is_some(),
        })
    }

    /// Samples the next tasks, `group_size` trajectories each, with the current weights; gives the new trajectories.
    pub fn rollout(&mut self, asked: &Rollout) -> Result<&[Trajectory]> {
        let started = Instant::now();
        let mut learner = self.it.learner.clone();
        learner.group_size = asked.samples.unwrap_or(learner.group_size);
        learner.groups_per_step = asked.groups.unwrap_or(learner.groups_per_step);
        if let Some(rows) = &asked.rows {
            let count = self.it.session.pool.rows(Split::Train).unwrap_or(0);
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
        let wants = Wants { greedy: self.it.objective.needs(Need::Greedy), next_prompt: self.it.critic.is_some() };
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
        let mut earlier: BTreeMap<(Split, u64), Vec<Trajectory>> = BTreeMap::new();
        ids.iter()
            .map(|id| {
                if let Some(own) = self.sampled.iter().find(|own| own.id == *id) {
                    return Ok(own.clone());
                }
                let missing = || {
                    let known = self.sampled.iter().map(|own| own.id.as_str()).collect::<Vec<_>>();
                    Error::new(Kind::Usage, format!("this run has no trajectory `{id}`")).hint(suggest(id, known))
                };
                let (split, step) = Split::of_id(id).ok_or_else(missing)?;
                let path = self.it.run.trajectories_path(split, step);
                if let std::collections::btree_map::Entry::Vacant(place) = earlier.entry((split, step)) {
                    place.insert(if path.is_file() { read_trajectories(&path)? } else { Vec::new() });
                }
                earlier[&(split, step)].iter().find(|own| own.id == *id).cloned().ok_or_else(missing)
            })
            .collect()
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
        tensorboard::step(&mut it.log, it.state.step, it.learner.steps, &all[..tries], None)?;
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
        let checkpoint = self.it.save()?;
        if let Some(out) = out {
            let kind = self.it.session.model.kind();
            let (settings, origin) = (&self.it.script.settings.checkpoint, self.it.origins.model.as_ref());
            files::export(&checkpoint, out, settings, kind, origin, self.options.fetching(&self.reporter))?;
        }
        Ok(checkpoint)
    }
}
