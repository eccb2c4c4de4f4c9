//! Host tools: interpreters for programs that a policy wrote, each in a sandbox of its own, and ways out for scripts.
//!
//! - [`Python`]: CPython in separate, confined processes (Linux)
//! - [`Rhai`]: an embedded interpreter that needs nothing installed (everywhere)
//! - [`run_program`]: any program of the machine, confined (Linux)
//! - [`http()`]: one exchange, public addresses unless a host is allowed by name
//!
//! A policy optimises against these tools, so every program counts as hostile: it may loop, allocate, fork, print
//! without end, read what it should not, or try to forge its own result. A failing program is an ordinary result
//! ([`Output`] with `ok: false`), never an [`Error`](crate::Error); an error means that the tool can't be set up.

use std::sync::atomic::{AtomicBool, Ordering};

mod capture;
mod http;
pub(crate) mod process;
pub mod python;
pub mod rhai;
#[cfg(target_os = "linux")]
mod sandbox;

pub use http::{
    HttpAnswer, HttpRequest, METHODS, NoAnswer, Reach, http, is_inside, url_escape, url_target, url_with_query,
};
pub use process::{Program, ProgramOutput, run_program};
pub use python::{Python, PythonOptions, Traceback};
pub use rhai::{Rhai, RhaiOptions};

/// A Python interpreter was started without namespaces, though they were wanted.
static WITHOUT_NAMESPACES: AtomicBool = AtomicBool::new(false);

/// Whether the system allows no namespaces to Python interpreters that should have them. Their programs are confined by
/// Landlock, seccomp and resource limits alone then.
pub fn is_without_namespaces() -> bool {
    WITHOUT_NAMESPACES.load(Ordering::Relaxed)
}

/// What a program left behind, ready to be shown to the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// What was printed, then the error if there is one; without the last line break. If nothing was printed and
    /// the last statement is an expression whose value is not nothing, that value.
    pub text: String,
    /// The program ended by itself and without an error.
    pub ok: bool,
    /// The program was stopped because it ran too long.
    pub timed_out: bool,
    /// Wall time of the program in seconds, without waiting for a free interpreter.
    pub seconds: f64,
}
