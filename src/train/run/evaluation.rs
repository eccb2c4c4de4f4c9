//! The evaluations of a run of reinforcement learning: when, and what is kept of them.

use std::collections::BTreeSet;

use super::training::Training;
use crate::error::{Kind, Result, suggest};
use crate::mdp::{Evaluation, Trajectory};
use crate::store::BEST;
use crate::telemetry::Metrics;
use crate::train::eval::evaluate::{evaluate, stored};
use crate::train::options::due;
use crate::train::start::best::{self, EVALUATED};
use crate::train::watch::failures::replay_command;
use crate::train::watch::{metrics, report, tensorboard};

impl Training {
    /// The evaluation before the first step, or the one after the newest step that a killed run did
    /// not complete. A resumed run does not repeat one that is in its metrics.
    pub(crate) fn evaluate_first(&mut self) -> Result<Option<Evaluation>> {
        let step = self.run.state.step;
        let eval = &self.session.settings.eval;
        if self.run.options.ranks.of_first(self.run.log.has(step, EVALUATED))? {
            return Ok(None);
        }
        if step == 0 {
            return if eval.before { self.evaluate("before", true) } else { Ok(None) };
        }
        self.evaluate_if_due()?;
        Ok(None)
    }

    /// The evaluation of every `eval.every` steps.
    pub(crate) fn evaluate_if_due(&mut self) -> Result<()> {
        if due(self.run.state.step, self.session.settings.eval.every, self.learner.steps) {
            self.evaluate("held out", false)?;
        }
        Ok(())
    }

    /// Evaluates, and logs and prints the result; `examples` also stores a few trajectories as
    /// text.
    pub(crate) fn evaluate(&mut self, label: &str, examples: bool) -> Result<Option<Evaluation>> {
        self.session.refresh()?;
        self.session.rollouts.patience.set(1);
        let evaluated = evaluate(&mut self.session, &self.run.reporter, label, self.run.state.step);
        self.session.rollouts.patience.set(2);
        let (evaluation, trajectories) = match evaluated {
            Ok(Some(evaluated)) => evaluated,
            Ok(None) => return Ok(None),
            // The run ends before its next step.
            Err(error) if error.kind == Kind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        };
        let stored = self.store_evaluation(&trajectories)?;
        self.keep_best(&evaluation)?;
        let (script, run) = (&self.run.script.path, self.run.dir.path());
        let again =
            |trajectory: &Trajectory| stored.contains(&trajectory.id).then(|| replay_command(script, run, trajectory));
        let what = format!("the evaluation ({label})");
        self.failures.report(&self.run.reporter, &what, &trajectories, again);
        tensorboard::samples(&mut self.run.log, self.run.state.step, "eval", &trajectories)?;
        if examples {
            let (at, verbose) = ((label, self.run.state.step), self.run.options.verbose);
            report::examples(&self.run.reporter, at, &trajectories, &self.run.dir, verbose)?;
        }
        // Its line in the metrics comes last: an evaluation without one is repeated.
        report::evaluation(&self.run.reporter, &mut self.run.log, self.run.state.step, label, &evaluation)?;
        Ok(Some(evaluation))
    }

    /// Keeps the model in `RUN/best` if its evaluation is the best one.
    fn keep_best(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.run.writer.finish()?;
        let Self { session, run, best, .. } = self;
        let settings = &run.script.settings.checkpoint;
        let mut values = Metrics::new();
        metrics::evaluation(&mut values, evaluation);
        let Some(value) = values.get(&settings.best) else {
            if session.warned.insert("best") {
                let candidates: Vec<&str> = values.iter().map(|(name, _)| name).collect();
                run.reporter.warn(&format!(
                    "checkpoint.best is `{}`, which evaluations do not have, so no model is kept in {BEST}; {}",
                    settings.best,
                    suggest(&settings.best, candidates)
                ));
            }
            return Ok(());
        };
        let (is_saved, dir) = (run.standing.is_saved(run.state.step), run.writes().then_some(&*run.dir));
        *best = best::keep(*best, (value, settings.best_mode), &run.state, dir, is_saved, |dir| {
            session.model.save_trained(dir)?;
            session.files.write(dir)
        })?;
        Ok(())
    }

    /// Stores the trajectories of an evaluation that `eval.store` selects, and returns their ids.
    fn store_evaluation(&self, trajectories: &[Trajectory]) -> Result<BTreeSet<String>> {
        let places = stored(trajectories.len(), self.session.settings.eval.store);
        let chosen: Vec<Trajectory> = places.map(|index| trajectories[index].clone()).collect();
        if !chosen.is_empty() && self.run.writes() {
            self.run.dir.write_evaluation(self.run.state.step, self.run.state.policy_version, &chosen)?;
        }
        Ok(chosen.into_iter().map(|trajectory| trajectory.id).collect())
    }
}
