//! The checks of a step's trajectories and metrics: what stops a run, and what the user is warned
//! of.

use super::training::Training;
use crate::error::{Error, Result};
use crate::mdp::Trajectory;
use crate::telemetry::Metrics;
use crate::train::start::checkpoint::with_note;
use crate::train::start::session::Session;
use crate::train::watch::failures::replay_command;
use crate::train::watch::report;

impl Training {
    /// Reports the failures of the step, and stops the run if most of its trajectories failed.
    pub(crate) fn check_failures(&mut self, trajectories: &[Trajectory]) -> Result<()> {
        let (script, run, step) = (&self.run.script.path, &self.run.dir, self.run.state.step + 1);
        let again = |trajectory: &Trajectory| Some(replay_command(script, run.path(), trajectory));
        let store = || run.write_trajectories(step, self.run.state.policy_version, trajectories).map(drop);
        let limit = self.session.settings.rollout.max_failure_rate;
        self.failures.check(&self.run.reporter, step, trajectories, limit, again, store)
    }

    /// Warns if a trajectory of the step depended on others.
    pub(crate) fn check_shared_state(&mut self, trajectories: &[Trajectory]) {
        let Session { renderer, max_context, .. } = &self.session;
        self.sharing.check(trajectories, &self.run.script, renderer, *max_context, &self.run.reporter);
    }

    /// Warns of tools that never work, of an unknown accuracy, and of steps without a learning
    /// signal; `metrics` are given for a step with an update.
    pub(crate) fn check_signal(&mut self, trajectories: &[Trajectory], metrics: Option<&Metrics>) -> Result<()> {
        let reporter = &self.run.reporter;
        let (step, critic) = (self.run.state.step, self.policy.critic.is_some());
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
    pub(crate) fn keep(&self, error: Error, trajectories: &[Trajectory]) -> Error {
        let (step, run) = (self.run.state.step + 1, self.run.dir.path().display());
        let error = report::in_step(error, step);
        let kept = match self.run.dir.write_trajectories(step, self.run.state.policy_version, trajectories) {
            Ok(_) => {
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
