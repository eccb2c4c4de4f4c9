//! The loop of reinforcement learning over multi-step trajectories: GRPO and its relatives, and PPO with a critic.
//!
//! Where the defaults differ from the GRPO of arXiv:2402.03300:
//! 1. A trajectory has steps, each with its own prompt; steps that extend each other train as one row (token in, token
//!    out). Advantages compare trajectories of a group, never rows.
//! 2. The loss is PPO-clip with a mean over the sampled tokens of the batch (`trainer.loss_agg` chooses another).
//! 3. There is no KL term unless `trainer.kl.coef` asks for one.
//! 4. Behaviour log-probabilities are the sampler's own. Sampler and learner share weights and arithmetic; what
//!    difference is left is measured on every step (`mismatch/max_abs`).
//! 5. Failed trajectories (a tool or script that broke, not a wrong answer) are left out of statistics and loss.
//!
//! With a critic (PPO, arXiv:1707.06347):
//! 1. A model with a value head, started from the policy's weights, or a head on the policy itself, predicts the value of
//!    states. By default a step is one decision: its value is that of the prompt's last token.
//! 2. Advantages are those of generalised advantage estimation. A trajectory that a limit cut bootstraps from the value of
//!    what would have come next; one that the environment ended does not.
//! 3. Every mini-batch makes one optimiser step of the policy and one of the critic; in the first `critic.warmup` steps
//!    only the critic learns.

use std::time::Instant;

use super::collect::{Draw, Wants, collect};
use super::evaluate::solved;
use super::learn::{How, Learnt, learn};
use super::reload::Reloads;
use super::resume::Opened;
use super::setup::Training;
use super::{Summary, due, metrics, report, tensorboard};
use crate::error::{Kind, Result};
use crate::rl::advantages::Need;
use crate::telemetry::{Metrics, Reporter};

/// Trains the recipe's policy; returns what it came to.
pub(super) fn run(opened: Opened, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let options = &opened.options.clone();
    let mut it = Training::open(opened, reporter)?;
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
        let mut values = Metrics::new();

        // 0. What has changed in the script.
        reloads.apply(&mut it, options)?;
        let (learner, objective) = (&it.learner.clone(), it.objective.clone());
        let wants = Wants { greedy: objective.needs(Need::Greedy), next_prompt: it.critic.is_some() };

        // 1. Roll out: `groups_per_step` tasks, `group_size` tries each, with the current weights.
        it.session.engine.clear_cache();
        let collected = match collect(&mut it.session, learner, &it.state, wants, Draw::default(), reporter) {
            Ok(collected) => collected,
            Err(error) if error.kind == Kind::Interrupted => {
                summary.interrupted = true;
                break;
            }
            Err(error) => return Err(it.save_before(report::in_step(error, it.state.step + 1))),
        };
        let trajectories = &collected.trajectories;
        it.look_at_failures(trajectories, reporter).map_err(|error| it.save_before(error))?;
        it.look_for_sharing(trajectories, reporter);
        let sampling_seconds = step_started.elapsed().as_secs_f64();

        // 2. Learn: rows, what reference and learner think of them, advantages, and `epochs` passes over them.
        let update_started = Instant::now();
        let lr = it.schedule.at(it.state.step as usize);
        let how = How::new(learner, &objective, lr);
        let companion = |index| collected.is_companion(index);
        let learnt = match learn(&mut it, trajectories, &companion, how, reporter) {
            Ok(learnt) => learnt,
            Err(error) if error.kind == Kind::Interrupted => {
                summary.interrupted = true;
                break;
            }
            Err(error) => return Err(error),
        };
        let Learnt { learned, lesson, scores, credit, updates, critic_updates, kl } = learnt;
        let taught = learned.trajectories();
        let training_seconds = update_started.elapsed().as_secs_f64();

        // 3. Records: first what was sampled, then the counters that say it is done.
        let changed = updates.iter().any(|update| update.stepped);
        it.record(trajectories, &learned.own(credit.by_step(taught)), collected.groups, changed)?;
        let accuracy = &it.session.settings.eval.accuracy;
        let tries = &trajectories[..collected.companions_from];
        metrics::rollout(&mut values, tries, |trajectory| solved(trajectory, accuracy));
        metrics::groups(&mut values, &collected);
        metrics::branches(&mut values, tries, learner);
        metrics::advantages(&mut values, &credit);
        metrics::update(&mut values, &updates, lr, it.state.policy_version);
        metrics::packing(&mut values, taught, &lesson.rows);
        if credit.skipped.is_some() {
            values.set("policy/skipped", (learner.epochs * learner.mini_batches) as f64);
        }
        metrics::leash(&mut values, &it.kl, kl, objective.kl_coef.coef() > 0.0);
        if it.critic.is_some() {
            metrics::critic(&mut values, &critic_updates, &lesson);
        }
        scores.log(&mut values, &lesson.rows, &updates);
        reloads.log(&mut values, &it.session);
        metrics::time(&mut values, &collected.stats, &updates, sampling_seconds, training_seconds);
        metrics::memory(&mut values, it.session.model.device());
        values.set("time/step", step_started.elapsed().as_secs_f64());
        it.log.log(it.state.step, &values)?;
        tensorboard::step(&mut it.log, it.state.step, learner.steps, tries, Some(&credit))?;
        curves.push(it.state.step, &values);
        reporter.step(it.state.step, learner.steps as u64, &values);
        it.watch.look(reporter, it.state.step, &values);
        it.look_at_signal(reporter, &values)?;
        it.look_at_rows(reporter);

        if due(it.state.step, it.session.settings.checkpoint.every, learner.steps) {
            it.save()?;
        }
        if due(it.state.step, it.session.settings.eval.every, learner.steps) {
            it.evaluate(reporter, "held out", false)?;
        }
    }

    let checkpoint = it.save()?;
    it.session.failures.sum_up(reporter);
    summary.seconds = started.elapsed().as_secs_f64();
    it.close(summary, checkpoint, &curves, options, reporter)
}
