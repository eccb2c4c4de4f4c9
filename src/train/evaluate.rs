//! Evaluation during training: `eval.samples` trajectories of every held-out task, with sampling
//! settings of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::order::Order;
use super::session::Session;
use crate::config::Settings;
use crate::error::Result;
use crate::eval::{at_k, score};
pub use crate::mdp::Evaluation;
use crate::mdp::{Sampling, Split, StreamSeed, Trajectory};
use crate::rollout::Spec;
use crate::telemetry::Reporter;

impl Evaluation {
    /// Means over `trajectories`, together and by source; a failed one counts as wrong.
    pub fn of(trajectories: &[Trajectory], accuracy: &str) -> Self {
        let all: Vec<&Trajectory> = trajectories.iter().collect();
        let sources = by_source(&all).into_iter().map(|(name, own)| (name.to_owned(), Self::over(&own, accuracy)));
        Self { sources: sources.collect(), ..Self::over(&all, accuracy) }
    }

    fn over(trajectories: &[&Trajectory], accuracy: &str) -> Self {
        let count = trajectories.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Trajectory) -> f64| trajectories.iter().map(|it| of(it)).sum::<f64>() / count;
        let mut parts: BTreeMap<String, f64> = BTreeMap::new();
        for trajectory in trajectories {
            for (name, value) in &trajectory.reward_parts {
                *parts.entry(name.clone()).or_insert(0.0) += value / count;
            }
        }
        Self {
            tasks: trajectories.iter().map(|trajectory| trajectory.task_index).collect::<BTreeSet<_>>().len(),
            trajectories: trajectories.len(),
            accuracy: mean(&|trajectory| solved(trajectory, accuracy)),
            reward: mean(&Trajectory::total_reward),
            tool_call_share: mean(&|trajectory| f64::from(u8::from(trajectory.tool_calls() > 0))),
            tool_calls: mean(&|trajectory| trajectory.tool_calls() as f64),
            steps: mean(&|trajectory| trajectory.steps.len() as f64),
            response_tokens: mean(&|trajectory| trajectory.response_tokens() as f64),
            failures: trajectories.iter().filter(|trajectory| trajectory.status.is_failure()).count(),
            at_k: at_k(trajectories, |trajectory| solved(trajectory, accuracy)),
            parts,
            seconds: 0.0,
            sources: BTreeMap::new(),
        }
    }
}

/// Trajectories by the source of their tasks; trajectories whose task has none are left out.
pub(super) fn by_source<'a>(trajectories: &[&'a Trajectory]) -> BTreeMap<&'a str, Vec<&'a Trajectory>> {
    let mut found: BTreeMap<&str, Vec<&Trajectory>> = BTreeMap::new();
    for trajectory in trajectories {
        if let Some(source) = source(trajectory) {
            found.entry(source).or_default().push(trajectory);
        }
    }
    found
}

/// The source of a trajectory's task: its column `data_source`, which a dataset with a name fills.
pub(super) fn source(trajectory: &Trajectory) -> Option<&str> {
    trajectory.task.get("data_source").and_then(serde_json::Value::as_str).filter(|name| !name.is_empty())
}

/// 1 for a solved task, 0 for any other; an accuracy part may also be in between.
pub(super) fn solved(trajectory: &Trajectory, accuracy: &str) -> f64 {
    if trajectory.status.is_failure() {
        return 0.0;
    }
    score(trajectory, accuracy)
}

/// Indices of the trajectories of an evaluation that are stored: `most` of `count`, evenly spaced,
/// the same ones every time.
pub(super) fn stored(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(most);
    (0..shown).map(move |place| place * count / shown)
}

/// The sampling of evaluations.
pub(super) fn eval_sampling(settings: &Settings) -> Sampling {
    settings.eval.sampling(&settings.sampling)
}

/// The specifications of an evaluation.
pub(super) struct EvalTasks<'a> {
    pub(super) settings: &'a Settings,
    /// As [`Spec::max_context`].
    pub(super) max_context: usize,
    /// The policy is behind a server.
    pub(super) served: bool,
}

impl EvalTasks<'_> {
    /// `eval.samples` trajectories of each held-out task.
    pub(super) fn specs(&self, rows: &Order, sampling: &Arc<Sampling>, step: u64) -> Vec<Spec> {
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
pub(super) fn evaluate(
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
    let mut evaluation = Evaluation::of(&trajectories, &accuracy);
    evaluation.seconds = started.elapsed().as_secs_f64();
    Ok(Some((evaluation, trajectories)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_trajectories_are_spread_over_the_evaluation() {
        let of = |count, most| stored(count, most).collect::<Vec<_>>();
        assert_eq!(of(10, 3), [0, 3, 6]);
        assert_eq!(of(3, 128), [0, 1, 2]);
        assert!(of(3, 0).is_empty() && of(0, 3).is_empty());
    }
}
