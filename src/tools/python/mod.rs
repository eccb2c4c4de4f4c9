//! Runs Python programs in confined CPython processes; a call takes about a millisecond.
//!
//! A *server* interpreter (`driver.py`, confined by `sandbox`) has the common modules imported and
//! only forks. Each call gets a forked child that confines itself further, reads the program from
//! its own pipe, runs it, and is killed. The host (`pool`) reads the output, measures time and
//! bytes, and decides what the caller receives. The server never receives a program or its output,
//! so a child inherits nothing from other calls. A child has only its own three pipes. A report
//! carries a nonce, so that neither a write to the report pipe nor an early exit counts as success
//! (`protocol`).

#[cfg(target_os = "linux")]
mod call;
#[cfg(target_os = "linux")]
mod interpreter;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod probe;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod scratch;
#[cfg(target_os = "linux")]
mod server;

mod files;

use std::path::PathBuf;

pub use files::{InputFile, check_name as check_file_name, check_names as check_file_names};

use super::Output;
use crate::error::{Error, Kind, Result};
use crate::schema::{choices, section};

section! {
    /// Settings of `r1.tools.python`.
    pub struct PythonOptions: "" {
        /// Wall time of one call in seconds; CPU time has the same limit, rounded up.
        timeout: f64 = 5.0;
        /// Address space of a program, MiB. The interpreter itself takes about 40.
        memory_mb: u64 = 512;
        /// Printed bytes that are kept; of longer output the start and the end.
        output_bytes: usize = 8192;
        /// Programs that run at once; 0 is the number of cores.
        pool: usize = 0;
        /// Size of a program's scratch directory and of its largest file, MiB; 0 forbids writing.
        disk_mb: u64 = 16;
        /// Maximum number of open sessions.
        max_sessions: usize = 256;
        /// Seconds after which an unused session is ended.
        session_idle: f64 = 600.0;
        /// The interpreter to run; `python3` on the PATH if empty.
        interpreter: PathBuf = PathBuf::new();
        /// Allows imports of the interpreter's installed packages (numpy, sympy), not only of the
        /// standard library.
        site_packages: bool = false;
        /// Modules to import before the first call, in addition to the common ones of the standard
        /// library.
        preload: Vec<String> = Vec::new();
        /// Packages of the interpreter that programs need, named as for `import` or for `pip
        /// install`. They are imported before the first call.
        packages: Vec<String> = Vec::new();
        /// Files that a program writes are part of its result.
        keep_files: bool = false;
        /// Bytes of files that one result keeps.
        files_bytes: usize = 1 << 20;
        /// Figures of matplotlib are written to plot_1.png, plot_2.png … and kept as files.
        plots: bool = false;
        /// The condition under which the value of a last expression is shown.
        last_value: LastValue = LastValue::Auto;
        /// The format of errors.
        traceback: Traceback = Traceback::Short;
        /// Adds namespaces to the sandbox if the system allows them: forbidden files are then also
        /// invisible, and the scratch directory is in memory. Without them landlock, seccomp and
        /// limits confine programs.
        namespaces: bool = true;
    }
}

choices! {
    /// The format of errors.
    #[derive(Default)]
    pub enum Traceback {
        /// The last line: `NameError: name 'x' is not defined`.
        #[default]
        /// The last line: `NameError: name 'x' is not defined`.
        Short = "short",
        /// As Python prints it, with the program's lines.
        Full = "full",
    }
}

choices! {
    /// The condition under which the value of a program's last expression is shown.
    #[derive(Default)]
    pub enum LastValue {
        /// If nothing was printed.
        #[default]
        Auto = "auto",
        /// After what was printed, as in a notebook.
        Always = "always",
        /// Not at all.
        Never = "never",
    }
}

impl PythonOptions {
    /// Whether programs can import installed packages.
    fn sees_packages(&self) -> bool {
        self.site_packages || !self.all_packages().is_empty()
    }

    /// The packages, with the package for plots.
    fn all_packages(&self) -> Vec<String> {
        let plots = self.plots.then(|| "matplotlib.pyplot".to_owned());
        self.packages.iter().cloned().chain(plots).collect()
    }

    /// Whether results have files.
    fn keeps_files(&self) -> bool {
        self.keep_files || self.plots
    }

    fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Kind::Tool, format!("python: {what}")));
        let rules = [
            (self.timeout > 0.0 && self.timeout <= 86_400.0, "timeout must be more than 0 and at most 86400 seconds"),
            (self.session_idle > 0.0 && self.session_idle <= 1e9, "session_idle must be more than 0 seconds"),
            ((64..=1 << 20).contains(&self.memory_mb), "memory_mb must be at least 64 and at most 1048576"),
            ((64..=1 << 28).contains(&self.output_bytes), "output_bytes must be at least 64 and at most 268435456"),
            (self.pool <= 4096, "pool must be at most 4096"),
            (self.disk_mb <= 1 << 20, "disk_mb must be at most 1048576"),
            (self.files_bytes <= files::MAX_FILES / 4, "files_bytes must be at most 16777216"),
        ];
        if let Some((_, broken)) = rules.iter().find(|(holds, _)| !holds) {
            return bad(broken);
        }
        let is_package =
            |name: &&String| name.replace(['-', '.'], "_").chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if let Some(name) = self.packages.iter().find(|name| name.is_empty() || !is_package(name)) {
            return bad(&format!("packages: {name:?} is not the name of a package"));
        }
        if let Some(name) = self.preload.iter().find(|name| !is_module_name(name)) {
            return bad(&format!("preload: `{name}` is not a module name"));
        }
        Ok(())
    }
}

fn is_module_name(name: &str) -> bool {
    name.split('.').all(|part| {
        !part.is_empty()
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    })
}

/// One call of [`Python::call`].
#[derive(Clone, Copy, Debug, Default)]
pub struct PythonCall<'a> {
    pub code: &'a str,
    pub prelude: &'a str,
    pub files: &'a [InputFile],
    /// The session; `None` for a fresh interpreter.
    pub session: Option<u64>,
    /// Bytes of output to keep if they are more than [`PythonOptions::output_bytes`].
    pub output_bytes: usize,
}

/// Sandboxed Python interpreters. Cheap to clone; clones share the interpreters and their limits.
/// The interpreters end when the last clone is dropped.
///
/// Futures may be awaited on any runtime, and dropping one stops its program.
#[derive(Clone, Debug)]
pub struct Python {
    #[cfg(target_os = "linux")]
    pool: std::sync::Arc<pool::PythonPool>,
    #[cfg(not(target_os = "linux"))]
    never: std::convert::Infallible,
}

impl Python {
    /// Runs `prelude`, then `code`, in one namespace of a fresh interpreter.
    ///
    /// Output of the prelude is discarded; an error in it is reported as `prelude: …`. Line numbers
    /// refer to `code`. Standard input is empty, `random` has seed 0, hashes are deterministic. As
    /// in a notebook, the value of a last expression is shown if nothing was printed.
    ///
    /// # Errors
    /// [`Kind::Tool`] if the tool could not run the program: no process, no confinement, or an
    /// interpreter that was killed from outside. A failing program is not an error.
    pub async fn run(&self, code: &str, prelude: &str) -> Result<Output> {
        self.call(PythonCall { code, prelude, ..PythonCall::default() }).await
    }

    /// Like [`Python::run`], but names, imports and files stay for the next call with the same
    /// `session`.
    ///
    /// Calls of one session run one after the other. A session whose program is stopped, crashes or
    /// exits is reset at the next call, as is one that was not used for
    /// [`PythonOptions::session_idle`] seconds.
    ///
    /// # Errors
    /// As [`Python::run`]; also if [`PythonOptions::max_sessions`] are open.
    pub async fn run_in_session(&self, session: u64, code: &str, prelude: &str) -> Result<Output> {
        self.call(PythonCall { code, prelude, session: Some(session), ..PythonCall::default() }).await
    }
}

#[cfg(target_os = "linux")]
impl Python {
    /// Starts the server and checks with hostile programs that files, processes and the network
    /// can't be reached. Takes a few hundred milliseconds; blocks.
    ///
    /// # Errors
    /// [`Kind::Tool`] if there is no usable Python or the sandbox can't be set up. Nothing runs
    /// unconfined.
    pub fn new(options: PythonOptions) -> Result<Self> {
        options.check()?;
        let pool = pool::PythonPool::start(options)?;
        Ok(Self { pool: std::sync::Arc::new(pool) })
    }

    /// [`Python::run`] or [`Python::run_in_session`], with files in the program's directory. A
    /// session gets them when its interpreter starts.
    ///
    /// # Errors
    /// As those; also for files that are larger than [`PythonOptions::disk_mb`].
    pub async fn call(&self, call: PythonCall<'_>) -> Result<Output> {
        self.pool.run(call).await
    }

    /// Ends a session and its running program. Does nothing if there is none.
    pub fn end_session(&self, session: u64) {
        self.pool.end_session(session);
    }
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unused_async)]
impl Python {
    /// Fails: the sandbox needs Linux.
    ///
    /// # Errors
    /// Always, with [`Kind::Tool`].
    pub fn new(options: PythonOptions) -> Result<Self> {
        options.check()?;
        Err(Error::new(Kind::Tool, "the Python tool needs Linux: its sandbox is made of landlock and seccomp")
            .hint("use the rhai tool, which works everywhere, or run in a Linux container or virtual machine"))
    }

    /// Runs a program.
    ///
    /// # Errors
    /// Never reached.
    pub async fn call(&self, _call: PythonCall<'_>) -> Result<Output> {
        match self.never {}
    }

    pub fn end_session(&self, _session: u64) {
        match self.never {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_refuse_unknown_keys_and_bad_values() {
        let parse = |text: &str| serde_json::from_str::<PythonOptions>(text);
        assert_eq!(parse("{}").unwrap(), PythonOptions::default());
        assert!(parse(r#"{"time_out": 1}"#).unwrap_err().to_string().contains("unknown field `time_out`"));
        for text in [
            r#"{"timeout": 0}"#,
            r#"{"memory_mb": 1}"#,
            r#"{"output_bytes": 0}"#,
            r#"{"preload": ["os; evil"]}"#,
            r#"{"session_idle": -1}"#,
        ] {
            let error = parse(text).unwrap().check().unwrap_err();
            assert_eq!(error.kind, Kind::Tool, "{text}");
        }
    }
}
