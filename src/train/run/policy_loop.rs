//! The training loop of reinforcement learning over multi-step trajectories: GRPO and related
//! algorithms, and PPO with a critic.
//!
//! Differences from the GRPO of arXiv:2402.03300:
//! 1. A trajectory has steps, each with its own prompt. Steps that extend each other are trained as
//!    one row (token in, token out). Advantages compare trajectories of a group, never rows.
//! 2. The loss is PPO-clip with a mean over the sampled tokens of the batch (`trainer.loss_agg`
//!    sets another).
//! 3. There is no KL term unless `trainer.kl.coef` is above 0.
//! 4. Behaviour log-probabilities are the sampler's. Sampler and learner share weights and
//!    arithmetic; their remaining difference is measured at every step (`mismatch/max_abs`).
//! 5. Failed trajectories (a tool or script that broke, not a wrong answer) are excluded from
//!    statistics and loss.
//!
//! With a critic (PPO, arXiv:1707.06347):
//! 1. A model with a value head, initialised from the policy's weights, or a head on the policy
//!    itself, predicts the value of states. By default a step is one decision: its value is the
//!    value of the prompt's last token.
//! 2. Advantages are computed by generalised advantage estimation. A truncated trajectory
//!    bootstraps from the value of its next observation; a terminated one does not.
//! 3. Every mini-batch makes one optimiser step of the policy and one of the critic. In the first
//!    `critic.warmup` steps only the critic is updated.

use std::time::Instant;

use tch::Tensor;

use super::calls::{MetricValues, RolloutOptions, UpdateOptions};
use super::cold_start;
use super::collect::{Draw, begin_ahead, collect};
use super::open_step::{UpdateTrajectories, put_trained};
use super::training::Training;
use crate::error::{Error, Kind, Result};
use crate::eval::solved;
use crate::rl::advantages::AlgorithmNeed;
use crate::telemetry::{Metrics, Reporter};
use crate::timeline::{self, TimelineSpan};
use crate::train::learn::advantages::{by_token, compute_advantages, of_tokens};
use crate::train::learn::generated::without_generated;
use crate::train::learn::stages::{TrainingData, advantage_config, update_weights};
use crate::train::learn::update::{UpdateSettings, report_skipped};
use crate::train::learn::weights::trained;
use crate::train::options::{RunOptions, Summary};
use crate::train::rows::order::Order;
use crate::train::start::resume::StartState;
use crate::train::watch::metrics;
use crate::train::watch::report;
use crate::train::watch::tensorboard;

/// Trains the recipe's policy by reinforcement learning; returns a summary.
pub fn run(options: &RunOptions, reporter: &Reporter) -> Result<Summary> {
    let mut opened = StartState::new(options, reporter)?;
    if opened.script.settings.trainer.learner().is_none() {
        return Err(Error::new(Kind::Usage, "this recipe's trainer is r1.sft")
            .at_path(&options.script)
            .hint(format!("run it with `r1 sft {}`", options.script.display())));
    }
    if let Some(run_dir) = cold_start::run(&mut opened, reporter)? {
        return Ok(Summary { run_dir, interrupted: true, ..Summary::default() });
    }
    let started = Instant::now();
    let mut training = Training::open(opened, reporter)?;
    let before = training.evaluate_first()?;
    let mut summary = Summary { run_dir: training.run.dir.path().to_owned(), before, ..Summary::default() };
    let trained = train(&mut training);
    training.session.discard_ahead();
    match trained {
        Err(error) if error.kind == Kind::Interrupted => summary.interrupted = true,
        trained => trained?,
    }
    let checkpoint = training.save()?;
    training.sum_up_failures();
    summary.seconds = started.elapsed().as_secs_f64();
    training.close(summary, checkpoint)
}

/// The loop. In Lua it is `while t.step < t.steps do t:update(t:rollout()) t:next_step() end`.
fn train(training: &mut Training) -> Result<()> {
    while training.run.goes_on(training.learner.steps)? {
        let batch = training.rollout(&RolloutOptions::default())?;
        training.update(&batch, &UpdateOptions::default())?;
        training.next_step()?;
        training.save_if_due()?;
        training.evaluate_if_due()?;
    }
    Ok(())
}

/// A span of the training thread.
fn learner_span(name: &'static str) -> Option<TimelineSpan> {
    timeline::span(name, || "training".to_owned())
}

/// The operations of a training step. A step may have several rollouts and updates.
impl Training {
    /// Samples `group_size` trajectories of each of `groups_per_step` tasks with the current
    /// weights; returns the ids of the trajectories.
    ///
    /// # Errors
    /// `Kind::Interrupted` after the second signal. Other errors name the checkpoint of the steps
    /// before.
    pub(crate) fn rollout(&mut self, wanted: &RolloutOptions) -> Result<Vec<String>> {
        self.begin_step()?;
        let started = Instant::now();
        let learner = self.rollout_settings(wanted)?;
        self.step.begun.chosen |= wanted.rows.is_some();

        // 1. Rollout.
        self.session.refresh()?;
        if let Some(profile) = &self.profile {
            profile.begin(&mut self.session.rollouts.engine())?;
        }
        let draw = Draw {
            first: self.step.groups,
            rows: wanted.rows.as_deref(),
            greedy: self.objective.needs(AlgorithmNeed::Greedy),
            next_prompt: self.has_critic,
        };
        let span = learner_span("rollout");
        let begun = begin_ahead(&mut self.session, &learner, &self.run.state, draw);
        let collected =
            begun.and_then(|()| collect(&mut self.session, &learner, &self.run.state, draw, &self.run.reporter));
        let collected = collected.map_err(|error| self.save_before(report::in_step(error, self.run.state.step + 1)))?;
        drop(span);
        if let Some(profile) = &mut self.profile {
            profile.sampled(&mut self.session.rollouts.engine())?;
        }
        self.check_failures(&collected).map_err(|error| self.save_before(error))?;
        self.check_shared_state(&collected.trajectories);
        self.step.sampling_seconds += started.elapsed().as_secs_f64();
        Ok(self.step.add(collected))
    }

    /// Updates the weights with trajectories; returns the metrics of the update.
    ///
    /// # Errors
    /// `Kind::Interrupted` if the user stops the run at once; nothing was changed then. After other
    /// errors the trajectories are stored.
    pub(crate) fn update(&mut self, ids: &[String], wanted: &UpdateOptions) -> Result<MetricValues> {
        self.begin_step()?;
        let started = Instant::now();
        let mut values = Ok(Metrics::new());
        if self.session.ranks.learns() {
            values = self.compute_update(ids, wanted);
        }
        if self.session.ranks.have_roles() {
            let weights: Vec<Tensor> = trained(&self.session.model).into_iter().map(|(_, weight)| weight).collect();
            let changed = values.as_ref().map(|_| self.step.changed).map_err(Clone::clone);
            self.step.changed = self.session.end_update(changed, &weights)?;
        }
        let values = values?;
        self.session.weights_changed(self.run.state.policy_version + u64::from(self.step.changed))?;
        let waited = self.session.rollouts.take_waited();
        self.step.sampling_seconds += waited;
        self.step.training_seconds += started.elapsed().as_secs_f64() - waited;
        self.step.values.extend(values.clone());
        Ok(values.into())
    }

    /// The update in a process that takes part in it.
    fn compute_update(&mut self, ids: &[String], wanted: &UpdateOptions) -> Result<Metrics> {
        let (learner, objective) = self.update_settings(wanted, ids.len())?;
        if objective.has_reference() {
            self.load_reference()?;
        }
        let settings = UpdateSettings {
            advantages: wanted.advantages.as_deref(),
            returns: wanted.returns.as_deref(),
            policy: wanted.policy != Some(false),
            ..UpdateSettings::new(&learner, &objective, self.learning_rate(wanted.lr)?, self.temperature())
        };
        let greedy = objective.needs(AlgorithmNeed::Greedy) && wanted.advantages.is_none();
        let batch = self.step.batch((&self.run.dir, &self.session.ranks), ids, greedy, wanted.groups.as_deref())?;
        let updated = self.update_with(&batch, settings);
        self.step.put_back(batch);
        updated
    }

    fn update_with(&mut self, batch: &UpdateTrajectories, settings: UpdateSettings<'_>) -> Result<Metrics> {
        let trajectories = &batch.trajectories;
        self.session.release_cache()?;

        // 2. Rows of tokens, with log-probabilities under learner and reference and the critic's
        //    values.
        let span = learner_span("log-probabilities and values");
        let mut data = TrainingData::compute(&self.policy, trajectories, batch.baselines_from, settings)
            .map_err(|error| self.keep(error, batch))?;

        drop(span);

        // 3. Advantages: one number for each sampled token. GRPO compares the return R of a
        //    trajectory with its group, A = (R - mean(R)) / (std(R) + 1e-6), without failed
        //    trajectories (rl/advantages/grpo.rs).
        let span = learner_span("advantages");
        let advantages = advantage_config(&mut self.policy, &self.run.script, settings)
            .and_then(|config| compute_advantages(&mut data.steps, config, &data.trajectories))
            .map_err(|error| self.keep(error, batch))?;

        drop(span);

        // 4. Optimiser steps: `epochs` passes in `mini_batches` each.
        report_skipped(&self.run.reporter, self.run.state.step + 1, advantages.skipped.as_ref());
        self.step.updating = true;
        self.run.begin_update()?;
        let outcome =
            update_weights(&mut self.policy, &mut self.run.state, &mut data, &advantages, settings, &self.run.reporter)
                .map_err(|error| self.keep(error, batch))?;

        let all_advantages = by_token(&advantages, &data.steps, data.trajectories.len());
        let trained = outcome.records.by_step(&data.trajectories, &data.rows, all_advantages);
        let trained = without_generated(&data.trajectories, trained.into_iter().map(Some).collect());
        self.step.keep_trained(trajectories, trained);
        self.step.token_advantages.extend(of_tokens(&advantages, &data.steps));
        self.step.token_ratios.extend(outcome.records.ratios(&data.rows));
        self.step.changed |= outcome.updates.iter().any(|update| update.stepped);
        let mut values = Metrics::new();
        let version = self.run.state.policy_version + u64::from(self.step.changed);
        metrics::outcome(&mut values, &outcome, &self.policy, &data, &advantages, settings, version);
        self.step.update_stats.extend(outcome.updates);
        Ok(values)
    }

    /// Ends a step: stores its trajectories, advances the counters, writes the metrics and warns of
    /// what they show. Returns the metrics.
    pub(crate) fn next_step(&mut self) -> Result<MetricValues> {
        self.begin_step()?;
        let mut step = std::mem::take(&mut self.step);
        let (count, rolled_out) = (step.sampled.len(), step.groups > 0);
        let mut trajectories = step.sampled;
        trajectories.append(&mut step.baselines);
        let used = trajectories.len();
        trajectories.append(&mut step.dropped);
        put_trained(&mut trajectories, &mut step.trained);
        let sampled = &trajectories[..count];
        let mut values = Metrics::new();

        // 5. Records: the sampled trajectories first, then the counters that mark the step as done.
        if rolled_out {
            let _span = learner_span("write trajectories");
            self.write_step(&step.begun, &trajectories)?;
            if let Some(curriculum) = &self.session.curriculum {
                curriculum.log(&mut values);
            }
        }
        if self.session.rollouts.crosses_updates() {
            metrics::staleness(&mut values, sampled, self.run.state.policy_version);
        }
        if self.session.settings.rollout.oversample.groups > 0 {
            values.set("rollout/carried_groups", self.run.state.carried.len() as f64);
            values.set("rollout/unfinished_groups", (step.begun.unfinished.len() + step.begun.stopped.len()) as f64);
        }
        // Lines of the function `advantage`.
        self.session.log.flush()?;
        self.advance(step.groups, step.begun.unfinished, step.changed);
        if rolled_out {
            let accuracy = &self.session.settings.eval.accuracy;
            metrics::rollout(&mut values, sampled, |trajectory| solved(trajectory, accuracy));
            metrics::groups(&mut values, &trajectories);
            let rows = self.session.rows.train.as_ref().map_or(0, Order::rows);
            metrics::epoch(&mut values, self.run.state.data_position, rows);
            metrics::branches(&mut values, sampled, &self.learner);
            metrics::time(&mut values, &step.stats, &step.update_stats, step.sampling_seconds, step.training_seconds);
            if self.session.rollouts.is_async() {
                // Most of them were sampled while the run did not wait.
                let seconds = step.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
                values.set("throughput/tokens_per_s", step.stats.sampled_tokens as f64 / seconds.max(1e-9));
            }
        }
        self.log_reloads(&mut values);
        metrics::memory(&mut values, self.session.model.device());
        values.extend(step.values);
        self.run.writer.report(&mut values);
        self.session.ranks.log(&mut values);
        values.set("time/step", step.began.map_or(0.0, |began| began.elapsed().as_secs_f64()));
        let (number, steps) = (self.run.state.step, self.learner.steps);
        self.run.log.log(number, &values)?;
        let of_tokens = [("advantage", step.token_advantages), ("ratio", step.token_ratios)];
        tensorboard::step(&mut self.run.log, number, steps, sampled, of_tokens)?;
        self.curves.push(&values);
        self.run.reporter.step(number, steps as u64, &values);
        self.warnings.check(&self.run.reporter, number, &values)?;
        if rolled_out {
            self.check_signal(&trajectories[..used], step.compared.then_some(&values))?;
        }
        self.report_row_check();
        if let Some(profile) = self.profile.take_if(|_| rolled_out) {
            profile.end(&self.run.reporter)?;
        }
        Ok(values.into())
    }
}
