//! Policy optimisation with a critic (PPO, arXiv:1707.06347) over multi-step trajectories.
//!
//! The shape is that of [`super::grpo`]; what differs:
//! 1. A critic, a model with a value head started from the policy's weights (or a head on the policy itself), says what
//!    states are worth. By default a step is one decision: its value is that of the prompt's last token.
//! 2. Advantages are those of generalised advantage estimation. A trajectory that a limit cut bootstraps from the value of
//!    what would have come next; one that the environment ended does not.
//! 3. Every mini-batch makes one optimiser step of the policy and one of the critic; in the first `critic.warmup` steps
//!    the policy waits.

use std::path::Path;
use std::time::Instant;

use super::collect::{Draw, Wants, collect};
use super::credit::{Credit, Ways, named};
use super::critic::Learning;
use super::evaluate::solved;
use super::lesson::{self, Lesson};
use super::reload::Reloads;
use super::resume::Opened;
use super::setup::Training;
use super::steps::Steps;
use super::update::{Update, UpdateStats};
use super::value::{CriticStats, values};
use super::written::Learned;
use super::{Summary, due, metrics, privileged, report};
use crate::error::{Kind, Result};
use crate::rl::advantages::Need;
use crate::telemetry::{Metrics, Reporter};

/// Trains the recipe's policy and a critic; returns what it came to.
pub(super) fn run(opened: Opened, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let options = &opened.options.clone();
    let mut it = Training::open(opened, reporter)?;
    let mut critic = Learning::open(&it, options, reporter)?;
    let mut summary = Summary { run_dir: it.run.path().to_owned(), ..Summary::default() };
    if it.session.settings.eval.before {
        summary.before = it.evaluate(reporter, "before", true)?;
    }

    let mut reloads = Reloads::start(&it, options, reporter)?;
    let mut curves = report::Curves::default();
    while it.state.step < it.learner.steps as u64 {
        if it.is_stopping() {
            summary.interrupted = true;
            break;
        }
        let step_started = Instant::now();
        let mut metrics_now = Metrics::new();

        // 0. What has changed in the script.
        reloads.apply(&mut it, options)?;
        let (learner, objective) = (&it.learner.clone(), it.objective.clone());
        let wants = Wants { greedy: objective.needs(Need::Greedy), next_prompt: true };

        // 1. Roll out with the current weights.
        it.session.engine.clear_cache();
        let collected = match collect(&mut it.session, learner, &it.state, wants, Draw::default(), reporter) {
            Ok(collected) => collected,
            Err(error) if error.kind == Kind::Interrupted => {
                summary.interrupted = true;
                break;
            }
            Err(error) => {
                return Err(it.save_before(report::in_step(error, it.state.step + 1), |dir: &Path| critic.save(dir)));
            }
        };
        let trajectories = &collected.trajectories;
        it.look_at_failures(trajectories, reporter)
            .map_err(|error| it.save_before(error, |dir: &Path| critic.save(dir)))?;
        it.look_for_sharing(trajectories, reporter);
        let sampling_seconds = step_started.elapsed().as_secs_f64();

        // 2. Rows, and what reference, learner and critic think of them.
        let update_started = Instant::now();
        let temperature = it.session.settings.sampling.temperature;
        let learned = Learned::of(trajectories);
        let taught = learned.trajectories();
        let rows = lesson::rows(taught, |index| collected.is_companion(index))?;
        let scores = lesson::scores(&rows, &it, learner, &objective, temperature)
            .map_err(|error| it.keep(error, trajectories))?;
        let prefixes = privileged::prefixes(&learner.critic, taught, it.session.renderer.tokenizer())?;
        let before = values(&critic.critic, &it.session.model, &rows, taught, prefixes, learner.tokens_per_batch)
            .map_err(|error| it.keep(error, trajectories))?;

        // 3. Advantages and the critic's targets.
        let mut steps = Steps::of(taught, |index| collected.is_companion(index));
        scores.fill(&mut steps, &rows);
        before.fill(&mut steps, &rows);
        let (shaping, mut returns) = (it.shaping(&objective), it.returns);
        let ways = Ways { shaping: &shaping, returns: &mut returns, on_nan: learner.on_nan };
        let credit = Credit::assign(steps, ways, |steps| it.advantages(&objective, steps, taught), taught)
            .map_err(|error| it.keep(error, trajectories))?;
        it.returns = returns;
        report::skipped(reporter, it.state.step + 1, credit.skipped.as_ref(), trajectories);
        let epochs = if credit.skipped.is_none() { learner.epochs } else { 0 };

        // 4. Update: `epochs` passes in `mini_batches` optimiser steps each, of both.
        let lr = it.schedule.at(it.state.step as usize);
        let warming = it.state.step < learner.critic.warmup as u64;
        let lesson = Lesson {
            advantages: credit.advantages(&rows),
            old: scores.old.clone(),
            reference: scores.reference.clone(),
            weights: scores.weights.clone(),
            targets: Some(before.targets(&credit, &rows)),
            rows,
            ..Lesson::default()
        };
        let lesson = lesson::for_custom(lesson, &objective, taught);
        if !it.standing.update_begins() {
            summary.interrupted = true;
            break;
        }
        let bar = reporter.bar("training", (epochs * learner.mini_batches) as u64, "updates");
        let mut updates: Vec<UpdateStats> = Vec::new();
        let mut critic_updates: Vec<CriticStats> = Vec::new();
        for _ in 0..epochs {
            for part in lesson.split(learner.mini_batches, objective.together()) {
                let update = Update {
                    model: &it.session.model,
                    objective: &objective,
                    learner,
                    temperature,
                    kl_coef: objective.loss_kl(it.kl.coef()),
                    lr,
                };
                let policy = if warming { None } else { Some((&update, &mut it.optimizer)) };
                let (own, of_critic) = critic
                    .update(policy, &it.session.model, &part, learner)
                    .map_err(|error| it.keep(named(error, trajectories), trajectories))?;
                let skipped = own.as_ref().and_then(|stats| stats.skipped.as_ref()).or(of_critic.skipped.as_ref());
                report::skipped(reporter, it.state.step + 1, skipped, trajectories);
                let stepped = own.as_ref().is_some_and(|stats| stats.stepped);
                if stepped {
                    it.average()?;
                }
                it.state.optimizer_step += u64::from(stepped || of_critic.stepped);
                updates.extend(own);
                critic_updates.push(of_critic);
                bar.inc(1);
            }
        }
        bar.finish();
        let training_seconds = update_started.elapsed().as_secs_f64();
        report::refuse_mismatch(scores.mismatch(&updates).unwrap_or(0.0), learner.max_mismatch)
            .map_err(|error| it.keep(error, trajectories))?;
        // A penalty in the reward is measured where it acts, a term of the loss in the updates.
        let kl = match &objective.shaping.kl {
            Some(penalty) => credit.kl(penalty.kind),
            None => metrics::mean_kl(&updates),
        };
        if let Some(kl) = kl {
            it.kl.update(kl, trajectories.len());
        }

        // 5. Records: first what was sampled, then the counters that say it is done.
        let changed = updates.iter().any(|update| update.stepped);
        it.record(trajectories, &learned.own(credit.by_step(taught)), collected.groups, changed)?;
        let accuracy = &it.session.settings.eval.accuracy;
        let tries = &trajectories[..collected.companions_from];
        metrics::rollout(&mut metrics_now, tries, |trajectory| solved(trajectory, accuracy));
        metrics::groups(&mut metrics_now, &collected);
        metrics::branches(&mut metrics_now, tries, learner);
        metrics::advantages(&mut metrics_now, &credit);
        metrics::update(&mut metrics_now, &updates, lr, it.state.policy_version);
        metrics::packing(&mut metrics_now, taught, &lesson.rows);
        if credit.skipped.is_some() {
            metrics_now.set("policy/skipped", (learner.epochs * learner.mini_batches) as f64);
        }
        metrics::leash(&mut metrics_now, &it.kl, kl, objective.kl_coef.coef() > 0.0);
        metrics::critic(&mut metrics_now, &critic_updates, &lesson);
        scores.log(&mut metrics_now, &lesson.rows, &updates);
        reloads.log(&mut metrics_now, &it.session);
        metrics::time(&mut metrics_now, &collected.stats, &updates, sampling_seconds, training_seconds);
        metrics::memory(&mut metrics_now, it.session.model.device());
        metrics_now.set("time/step", step_started.elapsed().as_secs_f64());
        it.log.log(it.state.step, &metrics_now)?;
        curves.push(it.state.step, &metrics_now);
        reporter.step(it.state.step, learner.steps as u64, &metrics_now);
        it.watch.look(reporter, it.state.step, &metrics_now);
        it.look_at_signal(reporter, &metrics_now)?;

        if due(it.state.step, it.session.settings.checkpoint.every, learner.steps) {
            it.save(|dir: &Path| critic.save(dir))?;
        }
        if due(it.state.step, it.session.settings.eval.every, learner.steps) {
            it.evaluate(reporter, "held out", false)?;
        }
    }

    let checkpoint = it.save(|dir: &Path| critic.save(dir))?;
    it.session.failures.sum_up(reporter);
    summary.seconds = started.elapsed().as_secs_f64();
    it.close(summary, checkpoint, &curves, options, reporter)
}
