//! A step and a trajectory with default fields, for tests.

use super::{FinishReason, Routing, Split, Status, Step, Support, Trajectory};

/// A step that sampled `response_ids` after `prompt_ids`, each with log-probability -1.
pub fn step(prompt_ids: &[u32], response_ids: &[u32]) -> Step {
    Step {
        prompt_ids: prompt_ids.to_vec(),
        response_ids: response_ids.to_vec(),
        logprobs: vec![-1.0; response_ids.len()],
        support: Support::default(),
        text: String::new(),
        finish_reason: FinishReason::Stop,
        reward: 0.0,
        terminated: false,
        truncated: false,
        tools: Vec::new(),
        prefilled: 0,
        new_row: false,
        routing: Routing::default(),
        privileged: None,
        next_privileged: None,
        next_prompt_ids: Vec::new(),
        server: None,
        generated: false,
    }
}

/// The first trajectory of a run, with these steps and no reward.
pub fn trajectory(steps: Vec<Step>) -> Trajectory {
    Trajectory {
        id: "0-0-0".to_owned(),
        split: Split::Train,
        task_index: 0,
        task: serde_json::Value::Null,
        group: 0,
        sample: 0,
        fork: None,
        seed: 0,
        script_hash: String::new(),
        status: Status::Terminated,
        truncated_by: None,
        retries: 0,
        seconds: 0.0,
        error: None,
        steps,
        outcome_reward: 0.0,
        reward_parts: std::collections::BTreeMap::new(),
        messages: Vec::new(),
        record: Vec::new(),
    }
}
