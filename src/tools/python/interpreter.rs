//! Finding the interpreter and what it needs to read.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde::Deserialize;

use super::PythonOptions;
use crate::error::{Error, Kind, Result};

/// A CPython, past all shims, links and virtual environments.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Interpreter {
    pub executable: PathBuf,
    version: (u32, u32, u32),
    implementation: String,
    /// Directories whose contents it reads: the standard library's own, time zones, site-packages if wanted.
    pub read: Vec<PathBuf>,
    /// Directories that imports look through.
    pub list: Vec<PathBuf>,
    /// `sys.path` for the server.
    pub path: Vec<String>,
    problem: Option<String>,
}

impl Interpreter {
    /// Asks the configured interpreter, or `python3` on the PATH. The answer is kept, since asking takes a while.
    pub(super) fn find(options: &PythonOptions) -> Result<Self> {
        type Key = (PathBuf, bool, Vec<String>);
        static KNOWN: Mutex<Option<HashMap<Key, Interpreter>>> = Mutex::new(None);
        let name = if options.interpreter.as_os_str().is_empty() { Path::new("python3") } else { &options.interpreter };
        let key = (name.to_path_buf(), options.site_packages, options.preload.clone());
        let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(found) = known.get(&key) {
            return Ok(found.clone());
        }
        let found = ask(name, options)?;
        known.insert(key, found.clone());
        Ok(found)
    }
}

fn ask(name: &Path, options: &PythonOptions) -> Result<Interpreter> {
    let fail = |message: String| Error::new(Kind::Tool, message).at_path(name);
    let question = serde_json::json!([options.preload, options.site_packages]).to_string();
    let mut command = Command::new(name);
    command.args(["-s", "-B"]);
    if !options.site_packages {
        command.arg("-S");
    }
    command.args(["-c", include_str!("inspect.py"), &question]).stdin(std::process::Stdio::null());
    // Nothing of the caller's Python set-up; PATH and HOME are what version managers look at.
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("PYTHON") && variable != "PYTHONHOME" {
            command.env_remove(variable);
        }
    }
    let output = command.output().map_err(|error| {
        fail(format!("can't run the Python interpreter: {error}"))
            .hint("install python3 (3.8 or later), or name one with the tool's `interpreter` option; the rhai tool needs none")
    })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.trim().lines().last().unwrap_or("it said nothing").to_owned();
        return Err(fail(format!("the Python interpreter failed: {last}"))
            .hint("python3 3.8 or later with the ctypes module is needed; name another with `interpreter`"));
    }
    let found: Interpreter = serde_json::from_slice(&output.stdout)
        .map_err(|_| fail("the Python interpreter gave an answer that makes no sense".to_owned()))?;
    if found.implementation != "cpython" || found.version < (3, 8, 0) {
        let (major, minor, patch) = found.version;
        return Err(fail(format!(
            "CPython 3.8 or later is needed, this is {} {major}.{minor}.{patch}",
            found.implementation
        ))
        .hint("name another interpreter with the tool's `interpreter` option"));
    }
    if let Some(problem) = &found.problem {
        return Err(fail(problem.clone())
            .hint("install it for this interpreter; outside the standard library, `site_packages = true` is needed"));
    }
    Ok(found)
}
