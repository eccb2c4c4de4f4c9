//! Evaluation: every held-out task once, with the evaluation's own temperature.

use std::collections::BTreeMap;
use std::time::Instant;

use super::session::Session;
use crate::error::Result;
pub use crate::mdp::Evaluation;
use crate::mdp::{Split, StreamSeed, Trajectory};
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
            tasks: trajectories.len(),
            accuracy: mean(&|trajectory| solved(trajectory, accuracy)),
            reward: mean(&Trajectory::total_reward),
            tool_call_share: mean(&|trajectory| f64::from(u8::from(trajectory.tool_calls() > 0))),
            tool_calls: mean(&|trajectory| trajectory.tool_calls() as f64),
            steps: mean(&|trajectory| trajectory.steps.len() as f64),
            response_tokens: mean(&|trajectory| trajectory.response_tokens() as f64),
            failures: trajectories.iter().filter(|trajectory| trajectory.status.is_failure()).count(),
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
    match trajectory.reward_parts.get(accuracy) {
        Some(value) => *value,
        None => f64::from(u8::from(trajectory.total_reward() > 0.0)),
    }
}

/// Indices of the trajectories of an evaluation that are stored: `most` of `count`, evenly spaced,
/// the same ones every time.
pub(super) fn stored(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(most);
    (0..shown).map(move |place| place * count / shown)
}

/// Evaluates the held-out tasks after training step `step`; `None` if the recipe has none.
pub(super) fn evaluate(
    session: &mut Session,
    reporter: &Reporter,
    label: &str,
    step: u64,
) -> Result<Option<(Evaluation, Vec<Trajectory>)>> {
    let settings = &session.settings;
    let Some(rows) = &session.rows.eval else { return Ok(None) };
    let sampling = session.with_stop(settings.eval.sampling(&settings.sampling));
    let specs: Vec<Spec> = rows
        .first(settings.eval.limit as u64)
        .into_iter()
        .map(|index| Spec {
            id: format!("eval-{step}-{index}-0"),
            split: Split::Eval,
            task_index: index,
            group: index,
            sample: 0,
            env_seed: index,
            // A separate random stream, so that more evaluations do not change training.
            seed: StreamSeed { seed: !settings.seed, trajectory: index, step: 0 },
            sampling: std::sync::Arc::clone(&sampling),
            max_steps: settings.eval.max_steps,
            max_context: session.max_context,
            next_prompt: false,
        })
        .collect();
    let accuracy = settings.eval.accuracy.clone();
    let started = Instant::now();
    let (trajectories, _) = session.rollout(specs, reporter, &format!("evaluating {label}"))?;
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
