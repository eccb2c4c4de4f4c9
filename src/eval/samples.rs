//! Trajectories as scored samples of tasks.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::answers::{last_boxed, tagged_answer};
use crate::mdp::{Status, Trajectory};

/// The score of a finished trajectory: the reward part `accuracy`, or whether the reward is above 0
/// if that is empty or the trajectory lacks the part.
pub fn score(trajectory: &Trajectory, accuracy: &str) -> f64 {
    match trajectory.reward_parts.get(accuracy) {
        Some(value) => *value,
        None => f64::from(u8::from(trajectory.total_reward() > 0.0)),
    }
}

/// Whether a trajectory is not a result of the policy: its environment, a tool or the script
/// failed, or it was stopped. A prompt that outgrew the context is a result of the policy.
pub fn is_missing(status: Status) -> bool {
    status.is_failure() && status != Status::ContextOverflow
}

/// The final answer of a reply, for majority votes: the last `<answer>…</answer>`, the last
/// `\boxed{…}`, or the first line after the last `####`; white space is one space, without case.
pub fn final_answer(text: &str) -> Option<String> {
    let text = text.rsplit_once("</think>").map_or(text, |(_, rest)| rest);
    let marked = || Some(text.rsplit_once("####")?.1.trim_start().lines().next().unwrap_or_default());
    let answer = tagged_answer(text).or_else(|| last_boxed(text)).or_else(marked)?;
    let plain = answer.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    (!plain.is_empty()).then_some(plain)
}

/// A sample that counts.
pub(super) struct Sample<'a> {
    pub(super) trajectory: &'a Trajectory,
    pub(super) score: f64,
    pub(super) answer: Option<String>,
}

pub(super) struct TaskSamples<'a> {
    pub(super) columns: &'a Value,
    pub(super) samples: Vec<Sample<'a>>,
}

impl TaskSamples<'_> {
    /// The mean score of its samples; there is at least one.
    pub(super) fn mean(&self) -> f64 {
        self.samples.iter().map(|sample| sample.score).sum::<f64>() / self.samples.len() as f64
    }
}

/// Samples by the number of their task; a task whose samples are all missing has none.
pub(super) fn tasks<'a>(trajectories: &'a [Trajectory], accuracy: &str) -> BTreeMap<u64, TaskSamples<'a>> {
    let mut tasks: BTreeMap<u64, TaskSamples<'a>> = BTreeMap::new();
    for trajectory in trajectories {
        let task = tasks
            .entry(trajectory.task_index)
            .or_insert_with(|| TaskSamples { columns: &trajectory.task, samples: Vec::new() });
        if is_missing(trajectory.status) {
            continue;
        }
        let failed = trajectory.status.is_failure();
        let score = if failed { 0.0 } else { score(trajectory, accuracy) };
        let answer = trajectory.steps.last().filter(|_| !failed).and_then(|step| final_answer(&step.text));
        task.samples.push(Sample { trajectory, score, answer });
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_answers_of_replies() {
        for (text, answer) in [
            ("so <answer> Paris \n France</answer>.", Some("paris france")),
            ("\\boxed{1} then \\boxed{\\frac{1}{2}}", Some("\\frac{1}{2}")),
            ("5 * 3 = 15\n#### 15\n", Some("15")),
            ("#### 15\nI hope it is correct.", Some("15")),
            ("####\n\n15\nDone", Some("15")),
            ("<think><answer>1</answer></think> I do not know", None),
            ("<answer></answer>", None),
            ("the answer is 4", None),
        ] {
            assert_eq!(final_answer(text).as_deref(), answer, "{text}");
        }
    }
}
