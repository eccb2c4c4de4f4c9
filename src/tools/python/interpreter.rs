//! Finds the interpreter and the files it needs.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde::Deserialize;

use super::super::background::block_on;
use super::PythonOptions;
use crate::error::{Error, Kind, Result};

/// A CPython installation, with shims, links and virtual environments resolved.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Interpreter {
    pub executable: PathBuf,
    version: (u32, u32, u32),
    implementation: String,
    /// Directories it reads: the standard library, time zones, and site-packages if enabled.
    pub read: Vec<PathBuf>,
    /// Directories that imports search.
    pub list: Vec<PathBuf>,
    /// `sys.path` of the server.
    pub path: Vec<String>,
    problem: Option<String>,
    /// Packages of the options that are not installed.
    missing: Vec<String>,
    /// Modules of the packages that are.
    pub modules: Vec<String>,
}

impl Interpreter {
    /// Queries the configured interpreter, or `python3` on the PATH. The result is cached, since
    /// the query is slow.
    pub(super) fn find(options: &PythonOptions) -> Result<Self> {
        type Key = (PathBuf, bool, Vec<String>, Vec<String>);
        static CACHE: Mutex<Option<HashMap<Key, Interpreter>>> = Mutex::new(None);
        let name = if options.interpreter.as_os_str().is_empty() { Path::new("python3") } else { &options.interpreter };
        let key = (name.to_path_buf(), options.sees_packages(), options.preload.clone(), options.all_packages());
        let mut cache = CACHE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cache = cache.get_or_insert_default();
        if let Some(interpreter) = cache.get(&key) {
            return Ok(interpreter.clone());
        }
        let interpreter = describe(name, options)?;
        cache.insert(key, interpreter.clone());
        Ok(interpreter)
    }
}

/// Time for an interpreter to describe itself: it imports every module of its library and the
/// preloaded ones.
const DESCRIBE_TIMEOUT: Duration = Duration::from_mins(2);

/// Runs a command to its end, or kills it.
fn output_within(command: Command, limit: Duration) -> Result<io::Result<Output>> {
    block_on(async move {
        let output = tokio::process::Command::from(command).kill_on_drop(true).output();
        tokio::time::timeout(limit, output).await.unwrap_or_else(|_| {
            let why = format!("it gave no answer within {} s", limit.as_secs_f64());
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        })
    })
}

fn describe(name: &Path, options: &PythonOptions) -> Result<Interpreter> {
    let fail = |message: String| Error::new(Kind::Tool, message).at_path(name);
    let question = serde_json::json!([options.preload, options.sees_packages(), options.all_packages()]).to_string();
    let mut command = Command::new(name);
    command.args(["-s", "-B"]);
    if !options.sees_packages() {
        command.arg("-S");
    }
    command.args(["-c", include_str!("inspect.py"), &question]).stdin(Stdio::null());
    // An interpreter that is started without PATH does not know its own path.
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
    // Clears the caller's Python settings; version managers read PATH and HOME.
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("PYTHON") && variable != "PYTHONHOME" {
            command.env_remove(variable);
        }
    }
    let output = output_within(command, DESCRIBE_TIMEOUT)?.map_err(|error| {
        fail(format!("can't run the Python interpreter {}: {error}", name.display()))
            .hint("install python3 (3.8 or later), or name one with the tool's `interpreter` option; the rhai tool needs none")
    })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.trim().lines().last().unwrap_or("no message").to_owned();
        return Err(fail(format!("the Python interpreter {} failed: {last}", name.display()))
            .hint("python3 3.8 or later with the ctypes module is needed; name another with `interpreter`"));
    }
    let interpreter: Interpreter = serde_json::from_slice(&output.stdout)
        .map_err(|_| fail(format!("the Python interpreter {} returned an invalid description", name.display())))?;
    if interpreter.implementation != "cpython" || interpreter.version < (3, 8, 0) {
        let (major, minor, patch) = interpreter.version;
        return Err(fail(format!(
            "CPython 3.8 or later is needed, this is {} {major}.{minor}.{patch}",
            interpreter.implementation
        ))
        .hint("name another interpreter with the tool's `interpreter` option"));
    }
    if !interpreter.missing.is_empty() {
        let ((major, minor, patch), missing) = (interpreter.version, &interpreter.missing);
        let (noun, verb) = if missing.len() == 1 { ("package", "is") } else { ("packages", "are") };
        let names = missing.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!("the Python {noun} {names} {verb} not installed for Python {major}.{minor}.{patch}");
        let hint = format!(
            "{} -m pip install {}; or name another interpreter with `interpreter`, such as that of a virtual environment",
            name.display(),
            missing.join(" ")
        );
        return Err(fail(message).hint(hint));
    }
    if let Some(problem) = &interpreter.problem {
        return Err(fail(problem.clone())
            .hint("install it for this interpreter; outside the standard library, `site_packages = true` is needed"));
    }
    Ok(interpreter)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_interpreter_that_does_not_respond_times_out() {
        let started = std::time::Instant::now();
        let run = |arguments: &[&str], limit| {
            let mut command = Command::new(arguments[0]);
            command.args(&arguments[1..]);
            output_within(command, limit).unwrap()
        };
        let error = run(&["sleep", "60"], Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "it gave no answer within 0.2 s");
        assert!(started.elapsed() < Duration::from_secs(30));
        let output = run(&["sh", "-c", "echo out; echo err >&2; exit 3"], DESCRIBE_TIMEOUT).unwrap();
        assert_eq!(
            (output.stdout, output.stderr, output.status.code()),
            (b"out\n".to_vec(), b"err\n".to_vec(), Some(3))
        );
    }
}
