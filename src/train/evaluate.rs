//! Evaluation: every held-out task once, with the evaluation's own temperature.

use std::collections::BTreeMap;
use std::time::Instant;

use super::session::Session;
use crate::error::Result;
use crate::mdp::{StreamSeed, Trajectory};
use crate::rollout::Spec;
use crate::script::Split;
use crate::telemetry::Reporter;

/// What the held-out tasks came to.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Evaluation {
    pub tasks: usize,
    /// The recipe's `eval.accuracy` part, or the share of tasks with a positive reward.
    pub accuracy: f64,
    pub reward: f64,
    /// Share of trajectories with at least one tool call.
    pub tool_call_share: f64,
    pub tool_calls: f64,
    pub steps: f64,
    pub response_tokens: f64,
    pub failures: usize,
    /// Mean of each named part of the reward.
    pub parts: BTreeMap<String, f64>,
    pub seconds: f64,
}

impl Evaluation {
    /// Means over `trajectories`; a failed one counts as wrong.
    pub fn of(trajectories: &[Trajectory], accuracy: &str) -> Self {
        let count = trajectories.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Trajectory) -> f64| trajectories.iter().map(of).sum::<f64>() / count;
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
        }
    }
}

/// 1 for a solved task, 0 for any other; the accuracy part may also be in between.
pub(super) fn solved(trajectory: &Trajectory, accuracy: &str) -> f64 {
    if trajectory.status.is_failure() {
        return 0.0;
    }
    match trajectory.reward_parts.get(accuracy) {
        Some(value) => *value,
        None => f64::from(u8::from(trajectory.total_reward() > 0.0)),
    }
}

/// Runs the evaluation split; `None` when the recipe has none.
pub(super) fn evaluate(
    session: &mut Session,
    reporter: &Reporter,
    label: &str,
) -> Result<Option<(Evaluation, Vec<Trajectory>)>> {
    let settings = &session.settings;
    let Some(rows) = session.pool.rows(Split::Eval) else { return Ok(None) };
    let count = if settings.eval.limit == 0 { rows } else { rows.min(settings.eval.limit as u64) };
    let mut sampling = settings.sampling.clone();
    sampling.temperature = settings.eval.temperature;
    let sampling = session.with_stop(sampling);
    let specs: Vec<Spec> = (0..count)
        .map(|index| Spec {
            id: format!("{label}-{index}"),
            split: Split::Eval,
            task_index: index,
            group: index,
            sample: 0,
            env_seed: index,
            // A stream of its own, so that evaluating more often changes nothing in training.
            seed: StreamSeed { seed: !settings.seed, trajectory: index, step: 0 },
            sampling: std::sync::Arc::clone(&sampling),
            max_steps: None,
            max_context: session.max_context,
            next_prompt: false,
        })
        .collect();
    let accuracy = settings.eval.accuracy.clone();
    let started = Instant::now();
    let (trajectories, _) = session.rollout(specs, reporter, &format!("evaluating {label}"))?;
    session.failures.tell(reporter, &format!("the evaluation ({label})"), &trajectories, |_| None);
    let mut evaluation = Evaluation::of(&trajectories, &accuracy);
    evaluation.seconds = started.elapsed().as_secs_f64();
    Ok(Some((evaluation, trajectories)))
}
