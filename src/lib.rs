//! r1: an embedded-scripting runtime for training and running LLM agents with reinforcement learning.
//!
//! A Rust host owns model execution, optimisation and storage; Lua scripts own environments, context policies,
//! tools and rewards. This file is the map of the house; ARCHITECTURE.md tells how one step flows through it.
//!
//! - [`mdp`]: plain data of the step-level decision process: message, observation, action, step, trajectory
//! - [`config`]: a recipe's settings, typed, with defaults; what a script and the command line may set
//! - [`answers`]: final answers of replies, and whether two of them are equal
//! - [`text`]: tokenizers, chat templates, tool-call formats; text to ids and back, token in / token out
//! - [`net`]: HTTP exchanges that can be watched and stopped
//! - [`hub`]: models of the Hugging Face hub, fetched into its cache
//! - [`model`]: transformer architectures over libtorch, their weights and key-value caches
//! - [`native`]: the small C++ file over libtorch for what `tch` does not bind, and its safe face
//! - [`engine`]: continuous-batching generation, sampling, prefix reuse; the [`engine::Policy`] trait
//! - [`rl`]: pure tensor maths: advantages, losses, masks, packing, schedules, the optimiser
//! - [`script`]: the only module that knows Lua: VM, limits, sandbox, the `r1` API
//! - [`tools`]: host tools: sandboxed interpreters
//! - [`rollout`]: drives trajectories, environment on one side and policy on the other
//! - [`store`]: run directory, trajectories in Parquet, checkpoints
//! - [`train`]: the loops, read top to bottom
//! - [`services`]: models for scripts, on the thread that owns their tensors
//! - [`telemetry`]: metric names, progress bars, JSONL and TensorBoard
//! - [`cli`]: one file per subcommand
//! - [`units`]: times and sizes as text
//! - [`error`]: the error type, exit codes, hints
//!
//! Shape letters used everywhere: B trajectories (or rows), G group size, T tokens, H heads, D head dimension,
//! E hidden size, V vocabulary.

pub mod answers;
pub mod cli;
mod clock;
pub mod config;
pub mod engine;
pub mod error;
pub mod hub;
pub mod mdp;
pub mod model;
pub mod native;
pub mod net;
#[cfg(test)]
mod reference_data;
pub mod rl;
pub mod rollout;
pub mod script;
pub mod services;
pub mod store;
pub mod telemetry;
pub mod text;
pub mod tools;
pub mod train;
pub mod units;

pub use error::{Error, Kind, Result};
