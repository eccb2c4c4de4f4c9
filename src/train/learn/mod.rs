//! From trajectories to new weights: rows of tokens, advantages, loss, optimiser step.
//!
//! `stages` has the order. Each other file is one part of it. Nothing here reads the settings of a
//! run, its directory or its engine: functions take what they need.

pub(crate) mod advantages;
pub(crate) mod critic;
pub(crate) mod custom_estimator;
pub(crate) mod generated;
pub(crate) mod given_advantages;
pub(crate) mod logprobs;
pub(crate) mod mini_batches;
pub(crate) mod policy;
pub(crate) mod privileged;
pub(crate) mod profile;
pub(crate) mod score;
pub(crate) mod stages;
pub(crate) mod steps;
pub(crate) mod supervised;
pub(crate) mod tensors;
pub(crate) mod token_records;
pub(crate) mod training_rows;
pub(crate) mod update;
pub(crate) mod value;
pub(crate) mod weights;
