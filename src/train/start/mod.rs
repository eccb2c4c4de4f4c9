//! Starting, resuming, stopping and recording a run: its model, engine and workers, its
//! checkpoints and what they are made of.

pub(crate) mod agent;
pub(crate) mod best;
mod changed;
pub(crate) mod checkpoint;
pub(crate) mod checkpoint_parts;
pub(crate) mod checkpoint_writer;
pub(crate) mod cold_start_result;
pub(crate) mod context;
pub(crate) mod files;
pub(crate) mod generation;
pub(crate) mod interrupt;
pub(crate) mod memory;
pub(crate) mod new_model;
pub(crate) mod open_groups;
pub(crate) mod origins;
pub(crate) mod resume;
pub(crate) mod resume_point;
pub(crate) mod rollouts;
pub(crate) mod script_log;
pub(crate) mod session;
