//! Tests that need more than one file, and what the others are built from.
#![allow(clippy::unwrap_used)]

mod cases;
mod custom;
mod golden;
mod invariants;
mod losses;
mod measures;
mod padded;
mod parity;
mod trained_model;
mod trees;
mod verl_cases;
mod whole_update;

use std::collections::BTreeMap;

use crate::mdp::{FinishReason, Status, Step, Support, Trajectory};

/// A step whose log-probabilities are the negated ids.
pub(super) fn step(prompt_ids: &[u32], response_ids: &[u32]) -> Step {
    Step {
        prompt_ids: prompt_ids.to_vec(),
        response_ids: response_ids.to_vec(),
        logprobs: response_ids.iter().map(|&id| -(id as f32)).collect(),
        text: String::new(),
        finish_reason: FinishReason::Stop,
        reward: 0.0,
        terminated: false,
        truncated: false,
        tools: Vec::new(),
        prefilled: 0,
        new_row: false,
        support: Support::default(),
        routing: crate::mdp::Routing::default(),
        privileged: None,
        next_privileged: None,
        next_prompt_ids: Vec::new(),
    }
}

pub(super) fn trajectory(steps: Vec<Step>) -> Trajectory {
    Trajectory {
        id: "0-0-0".to_owned(),
        split: crate::mdp::Split::Train,
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
        error: None,
        steps,
        outcome_reward: 0.0,
        reward_parts: BTreeMap::new(),
        messages: Vec::new(),
        record: Vec::new(),
    }
}
