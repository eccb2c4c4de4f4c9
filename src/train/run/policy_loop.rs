//! The training loop of reinforcement learning over multi-step trajectories: GRPO and related
//! algorithms, and PPO with a critic.
//!
//! Differences from the GRPO of arXiv:2402.03300:
//! 1. A trajectory has steps, each with its own prompt. Steps that extend each other are trained as
//!    one row (token in, token out). Advantages compare trajectories of a group, never rows.
//! 2. The loss is PPO-clip with a mean over the sampled tokens of the batch (`trainer.loss_agg`
//!    sets another).
//! 3. There is no KL term unless `trainer.kl.coef` is above 0.
//! 4. Behaviour log-probabilities are those of the sampler. Sampler and learner share weights and
//!    arithmetic; their remaining difference is measured at every step (`mismatch/max_abs`).
//! 5. Failed trajectories (a tool or script that broke, not a wrong answer) are excluded from
//!    statistics and loss.
//!
//! With a critic (PPO, arXiv:1707.06347):
//! 1. A model with a value head, initialised from the policy's weights, or a head on the policy
//!    itself, predicts the value of states. By default a step is one decision: its value is that of
//!    the prompt's last token.
//! 2. Advantages are those of generalised advantage estimation. A truncated trajectory bootstraps
//!    from the value of its next observation; a terminated one does not.
//! 3. Every mini-batch makes one optimiser step of the policy and one of the critic. In the first
//!    `critic.warmup` steps only the critic is updated.

use std::time::Instant;

use super::collect::{Draw, RolloutExtras, collect};
use super::reload::Reloads;
use super::training::Training;
use crate::error::{Kind, Result};
use crate::eval::solved;
use crate::rl::advantages::Need;
use crate::telemetry::{Metrics, Reporter};
use crate::train::learn::profile::RunProfile;
use crate::train::learn::stages::{TrainingData, advantage_config, compute_advantages};
use crate::train::learn::update::UpdateSettings;
use crate::train::options::{Summary, due};
use crate::train::start::resume::Opened;
use crate::train::watch::metrics;
use crate::train::watch::report;
use crate::train::watch::tensorboard;

/// Trains the recipe's policy and returns a summary of the run.
pub(crate) fn run(opened: Opened, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let options = &opened.options.clone();
    let mut training = Training::open(opened, reporter)?;
    let before = training.evaluate_first(reporter)?;
    let mut summary = Summary { run_dir: training.run.path().to_owned(), before, ..Summary::default() };

    let mut reloads = Reloads::start(&training, options, reporter)?;
    let mut curves = report::Curves::default();
    let mut profile = options.profile.then(|| RunProfile::new(training.run.path()));
    while training.state.step < training.learner.steps as u64 {
        if training.is_stopping() {
            summary.interrupted = true;
            break;
        }
        let step_started = Instant::now();
        let mut values = Metrics::new();

        // 0. A changed script.
        reloads.apply(&mut training, options)?;
        let (learner, objective) = (&training.learner.clone(), training.objective.clone());
        let lr = training.schedule.at(training.state.step as usize);
        let temperature = training.session.settings.sampling.temperature;
        let settings = UpdateSettings::new(learner, &objective, lr, temperature);

        // 1. Rollout: `group_size` trajectories of each of `groups_per_step` tasks, with the
        //    current weights.
        training.session.engine.clear_cache();
        if let Some(profile) = &profile {
            profile.begin(&mut training.session.engine)?;
        }
        let extras =
            RolloutExtras { greedy: objective.needs(Need::Greedy), next_prompt: training.policy.critic.is_some() };
        let collected =
            match collect(&mut training.session, learner, &training.state, extras, Draw::default(), reporter) {
                Ok(collected) => collected,
                Err(error) if error.kind == Kind::Interrupted => {
                    summary.interrupted = true;
                    break;
                }
                Err(error) => return Err(training.save_before(report::in_step(error, training.state.step + 1))),
            };
        if let Some(profile) = &mut profile {
            profile.sampled(&mut training.session.engine)?;
        }
        let trajectories = &collected.trajectories;
        training.check_failures(trajectories, reporter).map_err(|error| training.save_before(error))?;
        training.check_shared_state(trajectories, reporter);
        let sampling_seconds = step_started.elapsed().as_secs_f64();

        training.session.release_cache()?;

        // 2. Rows of tokens, with log-probabilities under learner and reference and the critic's
        //    values.
        let update_started = Instant::now();
        let mut data =
            TrainingData::compute(&training.policy, trajectories, |index| collected.is_baseline(index), settings)
                .map_err(|error| training.keep(error, trajectories))?;

        // 3. Advantages: one number for each sampled token. GRPO compares the return R of a
        //    trajectory with its group, A = (R - mean(R)) / (std(R) + 1e-6), without failed
        //    trajectories (rl/advantages/grpo.rs).
        let steps = data.steps(&objective, &training.session.renderer);
        let advantages = advantage_config(&mut training.policy, &training.script, settings, &data.trainable)
            .and_then(|config| compute_advantages(steps, config, data.trajectories()))
            .map_err(|error| training.keep(error, trajectories))?;

        // 4. Optimiser steps: `epochs` passes in `mini_batches` each.
        let outcome = match training.update(&mut data, &advantages, settings, reporter) {
            Ok(outcome) => outcome,
            Err(error) if error.kind == Kind::Interrupted => {
                summary.interrupted = true;
                break;
            }
            Err(error) => return Err(training.keep(error, trajectories)),
        };
        if let Some(profile) = profile.take() {
            profile.end(reporter)?;
        }
        let training_seconds = update_started.elapsed().as_secs_f64();

        // 5. Records: the sampled trajectories first, then the counters that mark the step as done.
        let changed = outcome.updates.iter().any(|update| update.stepped);
        if let Some(curriculum) = &training.session.curriculum {
            curriculum.log(&mut values);
        }
        let by_step = data.trainable.without_generated(advantages.by_step(data.trajectories()));
        training.record(trajectories, &by_step, collected.groups, changed)?;
        let accuracy = &training.session.settings.eval.accuracy;
        let sampled = &trajectories[..collected.baselines_from];
        metrics::rollout(&mut values, sampled, |trajectory| solved(trajectory, accuracy));
        metrics::groups(&mut values, collected.groups, collected.dropped);
        metrics::branches(&mut values, sampled, learner);
        let version = training.state.policy_version;
        metrics::outcome(&mut values, &outcome, &training.policy, &data, &advantages, settings, version);
        reloads.log(&mut values, &training.session);
        metrics::time(&mut values, &collected.stats, &outcome.updates, sampling_seconds, training_seconds);
        metrics::memory(&mut values, training.session.model.device());
        values.set("time/step", step_started.elapsed().as_secs_f64());
        training.log.log(training.state.step, &values)?;
        tensorboard::step(&mut training.log, training.state.step, learner.steps, sampled, Some(&advantages))?;
        curves.push(training.state.step, &values);
        reporter.step(training.state.step, learner.steps as u64, &values);
        training.watch.check(reporter, training.state.step, &values);
        training.check_signal(trajectories, &values, reporter)?;
        training.report_row_check(reporter);

        if due(training.state.step, training.session.settings.checkpoint.every, learner.steps) {
            training.save()?;
        }
        if due(training.state.step, training.session.settings.eval.every, learner.steps) {
            training.evaluate(reporter, "held out", false)?;
        }
    }

    let checkpoint = training.save()?;
    training.failures.sum_up(reporter);
    summary.seconds = started.elapsed().as_secs_f64();
    training.close(summary, checkpoint, &curves, options, reporter)
}
