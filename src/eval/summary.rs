//! Means over the trajectories of an evaluation during training, and their sources.

use std::collections::{BTreeMap, BTreeSet};

use super::{at_k, score};
use crate::mdp::{Evaluation, Trajectory};

/// Means over `trajectories`, together and by source; a failed one counts as wrong.
pub fn summary(trajectories: &[Trajectory], accuracy: &str) -> Evaluation {
    let all: Vec<&Trajectory> = trajectories.iter().collect();
    let sources =
        by_source(&all).into_iter().map(|(name, of_source)| (name.to_owned(), summary_over(&of_source, accuracy)));
    Evaluation { sources: sources.collect(), ..summary_over(&all, accuracy) }
}

fn summary_over(trajectories: &[&Trajectory], accuracy: &str) -> Evaluation {
    let count = trajectories.len().max(1) as f64;
    let mean = |of: &dyn Fn(&Trajectory) -> f64| trajectories.iter().map(|it| of(it)).sum::<f64>() / count;
    let mut parts: BTreeMap<String, f64> = BTreeMap::new();
    for trajectory in trajectories {
        for (name, value) in &trajectory.reward_parts {
            *parts.entry(name.clone()).or_insert(0.0) += value / count;
        }
    }
    Evaluation {
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

/// Trajectories by the source of their tasks; trajectories whose task has none are left out.
pub fn by_source<'a>(trajectories: &[&'a Trajectory]) -> BTreeMap<&'a str, Vec<&'a Trajectory>> {
    let mut groups: BTreeMap<&str, Vec<&Trajectory>> = BTreeMap::new();
    for trajectory in trajectories {
        if let Some(source) = source(trajectory) {
            groups.entry(source).or_default().push(trajectory);
        }
    }
    groups
}

/// The source of a trajectory's task: its column `data_source`, which a dataset with a name fills.
fn source(trajectory: &Trajectory) -> Option<&str> {
    trajectory.task.get("data_source").and_then(serde_json::Value::as_str).filter(|name| !name.is_empty())
}

/// 1 for a solved task, 0 for any other; an accuracy part may also be in between.
pub fn solved(trajectory: &Trajectory, accuracy: &str) -> f64 {
    if trajectory.status.is_failure() {
        return 0.0;
    }
    score(trajectory, accuracy)
}
