//! Training by single calls, for the training loops of programs (`r1.training`): sampling,
//! advantages, updates, supervised steps, evaluation and checkpoints. Each call does the same as
//! this part of `r1 run`, with the same run directory. Calls that read or change weights are in
//! `update`.

mod update;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::cold_start;
use super::cold_start::Started;
use super::collect::{Draw, RolloutExtras, collect};
use super::training::Training;
use crate::config::Filter;
use crate::engine::Stats;
use crate::error::{Error, Kind, Result, suggest};
use crate::eval::solved;
use crate::mdp::{Evaluation, Split, Trajectory};
use crate::rl::advantages::Need;
use crate::script::services::training::{AboutTraining, MetricValues, RolloutOptions};
use crate::store::read_trajectories;
use crate::telemetry::{Metrics, Reporter};
use crate::train::learn::update::UpdateStats;
use crate::train::options::RunOptions;
use crate::train::start::files;
use crate::train::start::resume::Opened;
use crate::train::watch::metrics;
use crate::train::watch::report;
use crate::train::watch::tensorboard;

/// A run of reinforcement learning whose loop is written by a program.
pub struct Manual {
    training: Training,
    options: RunOptions,
    reporter: Reporter,
    /// The trajectories that were sampled since the last step, and their greedy baselines.
    sampled: Vec<Trajectory>,
    baselines: Vec<Trajectory>,
    /// Groups drawn from the data since then.
    groups: usize,
    dropped: usize,
    stats: Stats,
    /// The advantages of the updates since then, by id: a number per step.
    advantages: BTreeMap<String, Vec<f64>>,
    updates: Vec<UpdateStats>,
    /// Whether the weights have changed since then.
    changed: bool,
    values: Metrics,
    sampling_seconds: f64,
    training_seconds: f64,
    began: Instant,
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
        let training = Training::open(opened, &reporter)?;
        Ok(Self {
            training,
            options,
            reporter,
            sampled: Vec::new(),
            baselines: Vec::new(),
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

    /// Directory, step and settings of the run.
    pub fn about(&self) -> AboutTraining {
        let Training { state, learner, run, session, policy, .. } = &self.training;
        AboutTraining {
            step: state.step,
            steps: learner.steps,
            run_dir: run.path().to_owned(),
            rows: session.pool.rows(Split::Train),
            settings: Box::new(session.settings.clone()),
            critic: policy.critic.is_some(),
        }
    }

    /// Completed steps.
    pub fn step(&self) -> u64 {
        self.training.state.step
    }

    /// Samples the next tasks, `group_size` trajectories each, with the current weights; returns
    /// the new trajectories.
    pub fn rollout(&mut self, options: &RolloutOptions) -> Result<&[Trajectory]> {
        let started = Instant::now();
        let mut learner = self.training.learner.clone();
        learner.group_size = options.samples.unwrap_or(learner.group_size);
        learner.groups_per_step = options.groups.unwrap_or(learner.groups_per_step);
        if let Some(rows) = &options.rows {
            let count = self.training.session.pool.rows(Split::Train).unwrap_or(0);
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
        let extras = RolloutExtras {
            greedy: self.training.objective.needs(Need::Greedy),
            next_prompt: self.training.policy.critic.is_some(),
        };
        let draw = Draw { first: self.groups, rows: options.rows.as_deref() };
        self.training.session.engine.clear_cache();
        let mut collected =
            collect(&mut self.training.session, &learner, &self.training.state, extras, draw, &self.reporter)
                .map_err(|error| report::in_step(error, self.training.state.step + 1))?;
        self.training.check_failures(&collected.trajectories, &self.reporter)?;
        let baselines = collected.trajectories.split_off(collected.baselines_from);
        self.groups += collected.groups;
        self.dropped += collected.dropped;
        self.stats.add(&collected.stats);
        let first = self.sampled.len();
        self.sampled.append(&mut collected.trajectories);
        self.baselines.extend(baselines);
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
                let path = self.training.run.trajectories_path(split, step);
                if let std::collections::btree_map::Entry::Vacant(place) = earlier.entry((split, step)) {
                    place.insert(if path.is_file() { read_trajectories(&path)? } else { Vec::new() });
                }
                earlier[&(split, step)].iter().find(|own| own.id == *id).cloned().ok_or_else(missing)
            })
            .collect()
    }

    /// Evaluates on the held-out tasks and logs the result; `None` if there are none.
    pub fn evaluate(&mut self) -> Result<Option<Evaluation>> {
        self.training.evaluate(&self.reporter, "held out", false)
    }

    /// Metrics for the line of this step.
    pub fn log(&mut self, values: &BTreeMap<String, f64>) {
        for (name, value) in values {
            self.values.set(name.clone(), *value);
        }
    }

    /// Ends a step: stores the trajectories with the advantages of their updates, writes the
    /// metrics and advances the counters.
    pub fn next_step(&mut self) -> Result<MetricValues> {
        let mut all = std::mem::take(&mut self.sampled);
        let sampled = all.len();
        all.append(&mut self.baselines);
        let advantages = std::mem::take(&mut self.advantages);
        let known: Vec<Option<Vec<f64>>> = all.iter().map(|own| advantages.get(&own.id).cloned()).collect();
        let training = &mut self.training;
        let mut values = Metrics::new();
        if let Some(curriculum) = training.session.curriculum.as_ref().filter(|_| !all.is_empty()) {
            curriculum.log(&mut values);
        }
        if all.is_empty() {
            training.advance(0, self.changed);
        } else {
            training.record(&all, &known, self.groups, self.changed)?;
        }
        self.changed = false;
        if !all.is_empty() {
            let accuracy = &training.session.settings.eval.accuracy;
            metrics::rollout(&mut values, &all[..sampled], |trajectory| solved(trajectory, accuracy));
            metrics::groups(&mut values, self.groups, self.dropped);
            metrics::branches(&mut values, &all[..sampled], &training.learner);
            metrics::time(&mut values, &self.stats, &self.updates, self.sampling_seconds, self.training_seconds);
        }
        metrics::memory(&mut values, training.session.model.device());
        values.set("time/step", self.began.elapsed().as_secs_f64());
        for (name, value) in std::mem::take(&mut self.values).iter() {
            values.set(name, value);
        }
        training.log.log(training.state.step, &values)?;
        tensorboard::step(&mut training.log, training.state.step, training.learner.steps, &all[..sampled], None)?;
        self.reporter.step(training.state.step, training.learner.steps as u64, &values);
        self.groups = 0;
        self.dropped = 0;
        self.stats = Stats::default();
        self.updates.clear();
        (self.sampling_seconds, self.training_seconds, self.began) = (0.0, 0.0, Instant::now());
        Ok(values.into())
    }

    /// Writes a checkpoint of the steps that have ended; with `out` also the model alone, in the
    /// layout of Hugging Face.
    ///
    /// # Errors
    /// [`Kind::Usage`] within a step: a resumed run would sample the trajectories of the step
    /// again.
    pub fn save(&mut self, out: Option<&Path>) -> Result<PathBuf> {
        if self.groups > 0 || self.changed {
            let message = "a checkpoint is written between steps, and this one has begun";
            return Err(Error::new(Kind::Usage, message).hint("call t:next_step() before t:save()"));
        }
        let checkpoint = self.training.save()?;
        if let Some(out) = out {
            let kind = self.training.session.model.kind();
            let (settings, origin) = (&self.training.script.settings.checkpoint, self.training.origins.model.as_ref());
            files::export(&checkpoint, out, settings, kind, origin, self.options.fetching(&self.reporter))?;
        }
        Ok(checkpoint)
    }
}
