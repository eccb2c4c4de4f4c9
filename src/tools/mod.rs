//! Host tools: sandboxed interpreters for programs of the policy, and network and process access
//! for scripts.
//!
//! - [`Python`]: CPython in separate, confined processes (Linux)
//! - [`Rhai`]: an embedded interpreter without dependencies (every system)
//! - [`run_program`]: any program of the machine, confined (Linux)
//! - [`mcp`]: tools of MCP servers, which run outside the sandbox
//! - [`connection`]: connections that stay open between requests
//!
//! A policy optimises against these tools, so every program counts as hostile: it may loop,
//! allocate, fork, print without end, read files, or try to forge its own result. A failing program
//! is an ordinary result ([`Output`] with `ok: false`), not an [`Error`](crate::Error); an error
//! means that the tool can't be set up.

use std::sync::atomic::{AtomicBool, Ordering};

mod background;
mod capture;
mod child;
pub mod connection;
mod endpoint;
mod lines;
pub mod mcp;
pub(crate) mod process;
pub mod python;
pub mod rhai;
#[cfg(target_os = "linux")]
mod sandbox;
pub mod table;
pub(crate) mod thread;

pub use child::{die_with_parent, kill_servers};
pub use endpoint::Endpoint;
pub use process::{Program, ProgramOutput, find_program, run_program};
pub use python::{Python, PythonOptions, Traceback};
pub use rhai::{Rhai, RhaiOptions};

/// A Python interpreter was started without namespaces although they are enabled.
static WITHOUT_NAMESPACES: AtomicBool = AtomicBool::new(false);

/// Whether the system refuses namespaces to Python interpreters that should have them. Landlock,
/// seccomp and resource limits still confine their programs.
pub fn is_without_namespaces() -> bool {
    WITHOUT_NAMESPACES.load(Ordering::Relaxed)
}

pub use crate::mdp::InterpreterOutput as Output;
