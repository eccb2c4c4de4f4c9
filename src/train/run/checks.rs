//! The checks of a step's trajectories and metrics: what stops a run, and what the user is warned
//! of.

use std::borrow::Borrow;

use super::collect::{Collected, extra_samples};
use super::open_step::{BegunGroups, UpdateTrajectories};
use super::training::Training;
use crate::error::{Error, Result};
use crate::mdp::Trajectory;
use crate::store::{StepTasks, TaskOrder};
use crate::telemetry::Metrics;
use crate::train::rows::order::Order;
use crate::train::start::checkpoint::with_note;
use crate::train::start::session::Session;
use crate::train::watch::failures::replay_command;
use crate::train::watch::report;

impl Training {
    /// Reports the failures of the step, and stops the run if most of its trajectories failed.
    pub(crate) fn check_failures(&mut self, collected: &Collected) -> Result<()> {
        let mut failures = std::mem::take(&mut self.failures);
        let (script, run, step) = (&self.run.script.path, &self.run.dir, self.run.state.step + 1);
        let again = |trajectory: &Trajectory| Some(replay_command(script, run.path(), trajectory));
        let Collected { trajectories, dropped, .. } = collected;
        let store = || self.write_step(&self.step.begun, &self.step.all(&[trajectories, dropped]));
        let limit = self.session.settings.rollout.max_failure_rate;
        let checked = failures.check(&self.run.reporter, step, trajectories, limit, again, store);
        self.failures = failures;
        checked
    }

    /// Writes the file of the step in progress.
    pub(crate) fn write_step<T: Borrow<Trajectory>>(&self, begun: &BegunGroups, trajectories: &[T]) -> Result<()> {
        if !self.run.writes() {
            return Ok(());
        }
        let (state, data) = (&self.run.state, self.session.rows.train.as_ref());
        let order = match (data, &self.session.curriculum) {
            _ if begun.chosen => TaskOrder::Chosen,
            (_, Some(_)) => TaskOrder::Curriculum,
            (Some(data), None) if data.is_mixed() => TaskOrder::Mixed,
            _ => TaskOrder::Epochs,
        };
        let tasks = StepTasks {
            position: state.data_position,
            rows: data.map_or(0, Order::rows),
            order,
            carried: state.carried.clone(),
            unfinished: begun.unfinished.clone(),
            stopped: begun.stopped.clone(),
            extra_samples: extra_samples(&self.session),
        };
        self.run.dir.write_trajectories(state.step + 1, state.policy_version, Some(&tasks), trajectories).map(drop)
    }

    /// Warns if a trajectory of the step depended on others.
    pub(crate) fn check_shared_state(&mut self, trajectories: &[Trajectory]) {
        // The other processes print nothing.
        if !self.run.writes() {
            return;
        }
        let Session { renderer, max_context, .. } = &self.session;
        self.sharing.check(trajectories, &self.run.script, renderer, *max_context, &self.run.reporter);
    }

    /// Warns of tools that never work, of an unknown accuracy, and of steps without a learning
    /// signal; `metrics` are given for a step with an update.
    pub(crate) fn check_signal(&mut self, trajectories: &[Trajectory], metrics: Option<&Metrics>) -> Result<()> {
        let reporter = &self.run.reporter;
        let (step, critic) = (self.run.state.step, self.has_critic);
        self.warnings.check_tools(reporter, step, trajectories);
        if self.session.rows.eval.is_none() {
            self.session.check_accuracy(reporter, trajectories);
        }
        let Some(metrics) = metrics else { return Ok(()) };
        let warming = critic && step <= self.learner.critic.warmup as u64;
        self.warnings.check_signal(reporter, step, metrics, &self.run.script, (critic, warming))
    }

    /// Reports the failures of the run at its end.
    pub(crate) fn sum_up_failures(&self) {
        self.failures.sum_up(&self.run.reporter);
    }

    /// Warns of a row that can't be read, among those that were not checked before step 1.
    pub(crate) fn report_row_check(&self) {
        if let Some(rest) = &self.session.rows.rest {
            rest.report(&self.run.reporter);
        }
    }

    /// Stores the trajectories of a step that ends with an error, so that the user can find the
    /// reason. The counters are unchanged, so a resumed run repeats the step.
    pub(crate) fn keep(&self, error: Error, batch: &UpdateTrajectories) -> Error {
        let (step, run) = (self.run.state.step + 1, self.run.dir.path().display());
        let error = report::in_step(error, step);
        let all = self.step.all(&[batch.taken()]);
        // Trajectories of earlier steps are stored already.
        let written = if all.is_empty() { Ok(()) } else { self.write_step(&self.step.begun, &all) };
        let kept = match written {
            Ok(()) => {
                let trajectories = &batch.trajectories;
                let named = error.trajectories().first().and_then(|number| trajectories.get(*number as usize));
                let id = named.or(trajectories.first()).map_or("", |trajectory| &trajectory.id);
                let script = self.run.script.path.display();
                format!("the sampled trajectories are stored: r1 repl {script} --replay {run}:{id}")
            }
            Err(failed) => format!("the sampled trajectories could not be stored: {}", failed.message),
        };
        with_note(error, kept)
    }
}
