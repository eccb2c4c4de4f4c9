//! The loops: reinforcement learning (`policy_loop`), with the operations that the loops of
//! programs use too (more of them in `calls`), and supervised training (`sft`). `training` is the
//! state of a run, `open_step` the state of its current step. `plan`, `step_plan` and `masks`
//! show what a run would do.

pub(crate) mod calls;
pub(crate) mod checks;
pub(crate) mod cold_start;
pub(crate) mod collect;
pub(crate) mod evaluation;
pub(crate) mod masks;
pub(crate) mod open_step;
pub(crate) mod plan;
pub(crate) mod policy_loop;
pub(crate) mod reload;
pub(crate) mod rerun;
pub(crate) mod run_state;
pub(crate) mod sft;
pub(crate) mod step_groups;
pub(crate) mod step_plan;
pub(crate) mod training;
