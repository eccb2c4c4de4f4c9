//! r1: an embedded-scripting runtime for training and running LLM agents with reinforcement
//! learning.
//!
//! A Rust host owns model execution, optimisation and storage. Lua scripts own environments,
//! context policies, tools and rewards. This file lists the modules; ARCHITECTURE.md follows one
//! training step through them.
//!
//! - [`mdp`]: plain data of the step-level MDP: message, observation, action, step, trajectory; the
//!   [`mdp::Policy`] trait
//! - [`algorithms`]: the Lua files of algorithms: losses as graphs, estimators
//! - [`config`]: typed settings of recipes with their defaults
//! - `data`: rows of dataset files, published datasets, operations on datasets
//! - [`answers`]: final answers of responses, and their comparison
//! - [`text`]: tokenizers, chat templates, tool-call formats; token-in, token-out rendering
//! - [`net`]: HTTP client with progress and cancellation
//! - [`hub`]: models and datasets from the Hugging Face Hub, and their cache
//! - [`model`]: transformer architectures over libtorch, their weights and key-value caches
//! - [`native`]: C++ over libtorch: operations that `tch` does not bind, and CPU kernels
//! - [`encoders`]: the models of searches: text encoders and cross-encoders
//! - [`adamw`]: the optimiser
//! - [`engine`]: continuous-batching generation, sampling, prefix reuse
//! - [`remote`]: models behind servers: clients of OpenAI's and Anthropic's APIs, and the policy
//! - [`rl`]: pure tensor maths: advantages, losses, masks, packing, schedules
//! - [`schema`]: declarations of settings, one for struct, defaults, reader, reference and reload
//! - [`eval`]: reports of evaluations: figures at k, intervals, paired tests
//! - `host_lua`: Lua files of r1 that the host calls: rules about settings, warnings about metrics
//! - [`script`]: Lua: VM, limits, sandbox, the `r1` API
//! - [`search`]: search indexes on disk: BM25 and vectors of passages
//! - [`tools`]: host tools: sandboxed interpreters
//! - [`rollout`]: rollouts: trajectories of an environment and a policy
//! - [`load`]: scripts and models by name: found, fetched, loaded
//! - [`store`]: run directory, trajectories in Parquet, checkpoints
//! - [`train`]: the training loops: GRPO, PPO, SFT
//! - [`programs`]: what Lua programs have in addition to recipes: models, scripts, runs
//! - [`view`]: the pages of `r1 view` about runs
//! - [`telemetry`]: metric names, progress bars, JSONL and TensorBoard
//! - [`cli`]: one file per subcommand
//! - [`units`]: times and sizes as text
//! - `json`: JSON of other programs
//! - [`error`]: the error type, exit codes, hints
//!
//! Shape letters: B trajectories (or rows), G group size, T tokens, H heads, D head dimension,
//! E hidden size, V vocabulary.

pub mod algorithms;
pub mod cli;
pub mod config;
mod data;
pub mod encoders;
pub mod eval;
mod host_lua;
pub mod hub;
pub mod load;
pub mod programs;
#[cfg(test)]
mod reference_data;
pub mod remote;
pub mod rl;
pub mod rollout;
pub mod script;
pub mod store;
pub mod telemetry;
pub mod tools;
pub mod train;
pub mod view;

pub use r1_answers as answers;
pub use r1_base::{Error, Kind, Result, error, mdp, schema, units};
use r1_base::{clock, glob, json, timeline};
pub use r1_model::{adamw, engine, model, native, process_group};
pub use r1_net as net;
pub use r1_search as search;
pub use r1_text as text;
pub use r1_vision as vision;
