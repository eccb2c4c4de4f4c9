//! Evaluation during training: `eval.samples` trajectories of every held-out task, with the
//! sampling settings of `eval`.

use std::sync::Arc;
use std::time::Instant;

use crate::config::Settings;
use crate::error::Result;
use crate::eval;
use crate::mdp::{Evaluation, Sampling, Split, StreamSeed, Trajectory};
use crate::rollout::Spec;
use crate::telemetry::Reporter;
use crate::train::rows::order::Order;
use crate::train::start::session::Session;

/// Indices of the trajectories of an evaluation that are stored: `limit` of `count`, evenly spaced,
/// the same ones every time.
pub(crate) fn stored(count: usize, limit: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(limit);
    (0..shown).map(move |index| index * count / shown)
}

/// The sampling of evaluations.
pub(crate) fn eval_sampling(settings: &Settings) -> Sampling {
    settings.eval.sampling(&settings.sampling)
}

/// The specifications of an evaluation.
pub(crate) struct EvalTasks<'a> {
    pub(crate) settings: &'a Settings,
    /// As [`Spec::max_context`].
    pub(crate) max_context: usize,
    /// The policy is behind a server.
    pub(crate) served: bool,
}

impl EvalTasks<'_> {
    /// `eval.samples` trajectories of each held-out task.
    pub(crate) fn specs(&self, rows: &Order, sampling: &Arc<Sampling>, step: u64) -> Vec<Spec> {
        let settings = self.settings;
        let samples = u32::try_from(settings.eval.samples).unwrap_or(u32::MAX);
        let spec = |index: u64, sample: u32| Spec {
            id: format!("eval-{step}-{index}-{sample}"),
            split: Split::Eval,
            task_index: index,
            group: index,
            sample,
            env_seed: index,
            // A separate random stream, so that more evaluations do not change training.
            seed: StreamSeed { seed: !settings.seed, trajectory: u64::from(sample) << 40 | index, step: 0 },
            sampling: Arc::clone(sampling),
            max_steps: settings.eval.max_steps,
            max_context: self.max_context,
            served: self.served,
            next_prompt: false,
        };
        let rows = rows.first(settings.eval.limit as u64).into_iter();
        rows.flat_map(|index| (0..samples).map(move |sample| (index, sample)))
            .map(|(index, sample)| spec(index, sample))
            .collect()
    }
}

/// Evaluates the held-out tasks after training step `step`; `None` if the recipe has none.
pub(crate) fn evaluate(
    session: &mut Session,
    reporter: &Reporter,
    label: &str,
    step: u64,
) -> Result<Option<(Evaluation, Vec<Trajectory>)>> {
    let sampling = session.with_stop(eval_sampling(&session.settings));
    let Some(rows) = session.rows.eval.as_ref() else { return Ok(None) };
    let tasks = EvalTasks { settings: &session.settings, max_context: session.max_context, served: false };
    let specs = tasks.specs(rows, &sampling, step);
    let accuracy = session.settings.eval.accuracy.clone();
    let started = Instant::now();
    let (trajectories, _) = session.rollout(specs, reporter, &format!("evaluating {label}"))?;
    session.check_accuracy(reporter, &trajectories);
    let mut evaluation = eval::summary(&trajectories, &accuracy);
    evaluation.seconds = started.elapsed().as_secs_f64();
    Ok(Some((evaluation, trajectories)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_trajectories_are_spread_over_the_evaluation() {
        let of = |count, limit| stored(count, limit).collect::<Vec<_>>();
        assert_eq!(of(10, 3), [0, 3, 6]);
        assert_eq!(of(3, 128), [0, 1, 2]);
        assert!(of(3, 0).is_empty() && of(0, 3).is_empty());
    }
}
