//! Tests of several files together, and their shared helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod cases;
mod custom;
mod estimators;
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

pub(super) use crate::mdp::testing::trajectory;
use crate::mdp::{Step, testing};

/// A step whose log-probabilities are the negated ids.
pub(super) fn step(prompt_ids: &[u32], response_ids: &[u32]) -> Step {
    let logprobs = response_ids.iter().map(|&id| -(id as f32)).collect();
    Step { logprobs, ..testing::step(prompt_ids, response_ids) }
}
