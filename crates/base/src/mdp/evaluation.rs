//! The results of an evaluation.

use std::collections::BTreeMap;

use serde::Serialize;

/// The results on the held-out tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evaluation {
    pub tasks: usize,
    /// `eval.samples` for each task.
    pub trajectories: usize,
    /// The recipe's `eval.accuracy` part, or the share of tasks with a positive reward.
    pub accuracy: f64,
    pub reward: f64,
    /// Share of trajectories with at least one tool call.
    pub tool_call_share: f64,
    pub tool_calls: f64,
    pub steps: f64,
    pub response_tokens: f64,
    pub failures: usize,
    /// With several samples of each task; failed trajectories count as wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_k: Option<AtK>,
    /// Mean of each named part of the reward.
    pub parts: BTreeMap<String, f64>,
    pub seconds: f64,
    /// The same for the tasks of each source (the column `data_source`), where tasks have one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, Evaluation>,
}

/// Figures of k samples of each task, as means over tasks (docs/guide/evaluation.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AtK {
    /// The number of samples that every task has.
    pub k: usize,
    /// Largest score.
    pub best: f64,
    /// Smallest score.
    pub worst: f64,
    /// Share of tasks with a solved sample.
    pub pass: f64,
    /// Score of the most frequent final answer; `None` if no response has one.
    pub majority: Option<f64>,
}
