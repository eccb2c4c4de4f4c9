//! Scripts: the only module that knows Lua (Luau through `mlua`).
//!
//! - [`Script`] (`load`): a script read once: settings, hash, sources. Plain data.
//! - [`Worker`]: one virtual machine on one thread; rows, reset, observe, step, reward
//! - [`State`]: a trajectory's plain data; snapshot, restore, fork
//! - `flow`: a function that drives its own loop, run as an environment
//! - [`Record`]: what a trajectory's script asked of the world and was told; what a replay answers from
//! - [`Console`]: typed code beside a loaded script, breakpoints, completion
//! - `vm`, `limits`, `host`: calls in and out under CPU, wait and memory limits
//! - `sandbox`, `require`, `grants`: what a script can see, and what it may reach outside
//! - [`Watcher`]: new versions of the script while it runs; `reload_settings`: what they may change
//! - `settings`: from a recipe's data and `key=value` to [`crate::config::Settings`]
//! - `envs`: the environments of a recipe, and which one a task runs in; `columns`: the columns that say so
//! - `own_format`: tool-call formats that the recipe defines
//! - `dataset`: rows of files; `resource`: files that a script reads whole, once per process
//! - `convert`, `messages`, `results`, `failure`: values in and out, errors with their lines
//! - `habits`: hints for what other languages write differently
//! - `rank`, `interpreters`, `shared_calls`: texts by likeness, tool pools, what calls of a tool share
//! - [`Program`]: a script that is no recipe (`r1 lua`); [`Services`]: models and tensors for it, as plain data
//! - [`Suite`]: a file of tests in Lua (`r1 test`)
//! - [`budget`]: the errors for contexts that are too long, with the sizes of their parts
//! - [`docs`]: every host function declared: help, types for editors, the reference
//! - `api`: the global `r1`, one file per part; what is better written in Lua lies in `lua/`
//!
//! What lasts is the state, never a function: `reset(task) -> state`, `step(state, action) -> result`,
//! `context(state, budget) -> observation`, `reward(state, outcome) -> number | parts`.

mod advantage;
mod api;
mod ask;
pub mod budget;
mod cold_start;
mod columns;
mod convert;
mod data_settings;
mod dataset;
pub mod docs;
mod envs;
mod failure;
mod flow;
mod grants;
mod habits;
mod host;
mod interpreters;
mod keys;
mod limits;
mod load;
mod messages;
mod own_format;
mod program;
mod rank;
mod record;
mod reload;
mod reload_settings;
mod repl;
mod require;
mod resource;
mod results;
mod rows;
mod sandbox;
mod services;
mod settings;
mod shared_calls;
mod source_map;
mod state;
mod suite;
mod suspended;
mod vm;
mod worker;
mod written;

pub use advantage::{Estimated, GroupMember};
pub use api::store::trajectory_table;
pub use ask::{Ask, AskOptions, Asks, Question, Score, Written};
pub use failure::Failure;
pub use grants::needs_in_words;
pub use host::{LogLine, LogSink};
pub use load::Script;
pub use program::{Echo, End, Program, Stream};
pub use record::{Difference, Record, Strictness};
pub use reload::{Reload, Take, Watcher, Watching};
pub use reload_settings::{Change, changes};
pub use repl::{Breakpoint, Candidate, Console, Halt, Layout, OnHalt, Resume, Shown, Span, Style, is_open};
pub use results::{Outcome, Reward, StepResult};
pub use rows::{DataPart, OfTask, Split};
pub use services::{Services, share_services};
pub use settings::setting_keys;
pub(crate) use settings::{policy as policy_settings, section, section_over};
pub use state::State;
pub use suite::{Suite, Verdict};
pub use worker::Worker;

#[cfg(test)]
mod tests;
