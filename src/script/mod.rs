//! Scripts: the only module that uses Lua (Luau through `mlua`).
//!
//! - `runtime`: one virtual machine: calls in both directions under limits ([`State`] of a
//!   trajectory, [`Record`] of its external calls), the sandbox, modules and files, conversion of
//!   values and errors
//! - `api`: the global `r1`, one file per part; parts written in Lua are in `lua/`
//! - `recipe`: [`Script`] (a loaded recipe as plain data: settings, hash, sources), [`Worker`] (one
//!   virtual machine on one thread: rows, reset, observe, step, reward), [`Watcher`] (reload on
//!   change)
//! - `program`: scripts that are not recipes ([`ScriptProgram`], `r1 lua`) and test files in Lua
//!   ([`Suite`], `r1 test`)
//! - `debug`: code typed at the REPL of a loaded script, breakpoints, completion ([`Console`], `r1
//!   repl`)
//! - [`docs`]: the reference, read from Lua files: help, completion, editor types,
//!   docs/reference/lua.md
//!
//! The host keeps the state between calls, never a function: `reset(task) -> state`, `step(state,
//! action) -> result`, `context(state, budget) -> observation`, `reward(state, outcome) -> number
//! or parts`.

pub(crate) mod api;
mod debug;
pub mod docs;
mod program;
mod recipe;
pub(crate) mod runtime;
pub(crate) mod settings;

pub use api::store::{add_notes, trajectory_table};
pub use debug::{AfterHalt, Breakpoint, Candidate, Console, Halt, OnHalt, is_open};
pub use program::condition::Condition;
pub use program::suite::{Suite, TestVerdict};
pub use program::{End, ScriptProgram};
pub use recipe::curriculum::RowKey;
pub use recipe::load::{Script, unreadable_script};
pub use recipe::reload::{ReloadedScript, Take, Watcher, WatcherOptions, reloaded};
pub use recipe::rows::{DataPart, Split};
pub use recipe::worker::Worker;
pub use runtime::budget;
pub use runtime::failure::Failure;
pub use runtime::grants::needs_in_words;
pub use runtime::log::{Echo, LogLine, LogSink, LogStream};
pub use runtime::named_models::{self, NamedModels, share_models};
pub use runtime::policy_request::{
    GenerateOptions, GenerateRequest, LogprobsRequest, PolicyRequest, PolicyRequests, SampledText,
};
pub use runtime::record::{Record, RecordDifference, Strictness};
pub use runtime::results::{Reward, StepResult, TrajectoryOutcome};
pub use runtime::show::{ShowLimits, ShowStyle, Shown, ShownSpan};
pub use runtime::state::State;
pub use settings::reload::{Change, changes};
pub use settings::setting_keys;

#[cfg(test)]
mod tests;
