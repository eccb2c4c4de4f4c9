//! Scripts: the only module that knows Lua (Luau through `mlua`).
//!
//! - `runtime`: one virtual machine: calls in and out under limits ([`State`] of a trajectory, [`Record`] of its
//!   external calls), the sandbox, modules and files, values and errors in both directions
//! - `dataset`: rows of files
//! - `api`: the global `r1`, one file per part; what is better written in Lua lies in `lua/`
//! - `recipe`: [`Script`] (a recipe that is loaded: settings, hash, sources; plain data), [`Worker`] (one virtual
//!   machine on one thread: rows, reset, observe, step, reward), [`Watcher`] (new versions while it runs)
//! - `program`: a script that is no recipe ([`Program`], `r1 lua`) and a file of tests in Lua ([`Suite`], `r1 test`)
//! - `debug`: typed code beside a loaded script, breakpoints, completion ([`Console`], `r1 repl`)
//! - [`docs`]: every host function declared: help, types for editors, the reference
//!
//! What lasts is the state, never a function: `reset(task) -> state`, `step(state, action) -> result`,
//! `context(state, budget) -> observation`, `reward(state, outcome) -> number | parts`.

mod api;
mod dataset;
mod debug;
pub mod docs;
mod program;
mod recipe;
mod runtime;
mod settings;

pub use api::store::trajectory_table;
pub use debug::{Breakpoint, Candidate, Console, Halt, OnHalt, Resume, is_open};
pub use program::suite::{Suite, Verdict};
pub use program::{End, Program};
pub use recipe::advantage::{Estimated, GroupInput, GroupMember};
pub use recipe::load::Script;
pub use recipe::reload::{Reload, Take, Watcher, Watching};
pub use recipe::rows::{DataPart, OfTask, Split};
pub use recipe::worker::Worker;
pub use runtime::ask::{Ask, AskOptions, Asks, Question, Score, Written};
pub use runtime::budget;
pub use runtime::failure::Failure;
pub use runtime::grants::needs_in_words;
pub use runtime::log::{Echo, LogLine, LogSink, Stream};
pub use runtime::record::{Difference, Record, Strictness};
pub use runtime::results::{Outcome, Reward, StepResult};
pub use runtime::services::{Services, share_services};
pub use runtime::show::{Layout, Shown, Span, Style};
pub use runtime::state::State;
pub use settings::reload::{Change, changes};
pub use settings::setting_keys;
pub(crate) use settings::{policy as policy_settings, section, section_over};

#[cfg(test)]
mod tests;
