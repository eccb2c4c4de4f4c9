//! Evaluation on held-out tasks: during training, and by `r1 eval`.

pub(crate) mod command;
pub(crate) mod evaluate;
pub(crate) mod held_out;
pub(crate) mod parts;
pub(crate) mod policy;
pub(crate) mod samples;
pub(crate) mod server;
