//! The loops: reinforcement learning (`policy_loop`), supervised training (`sft`), loops of
//! programs (`manual`), and the state of a run that they share (`training`). `plan` and `masks`
//! show what a run would do.

pub(crate) mod checks;
pub(crate) mod cold_start;
pub(crate) mod collect;
pub(crate) mod evaluation;
pub(crate) mod manual;
pub(crate) mod masks;
pub(crate) mod plan;
pub(crate) mod policy_loop;
pub(crate) mod reload;
pub(crate) mod sft;
pub(crate) mod training;
