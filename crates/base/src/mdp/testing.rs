//! A step and a trajectory with default fields, for tests.

use super::{Step, Trajectory};

/// A step that sampled `response_ids` after `prompt_ids`, each with log-probability -1.
pub fn step(prompt_ids: &[u32], response_ids: &[u32]) -> Step {
    Step {
        prompt_ids: prompt_ids.to_vec(),
        response_ids: response_ids.to_vec(),
        logprobs: vec![-1.0; response_ids.len()],
        ..Step::default()
    }
}

/// The first trajectory of a run, with these steps and no reward.
pub fn trajectory(steps: Vec<Step>) -> Trajectory {
    Trajectory { id: "0-0-0".to_owned(), steps, ..Trajectory::default() }
}
