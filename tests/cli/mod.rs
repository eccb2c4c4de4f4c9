//! Snapshots of what a person sees: arguments in, exit code, stdout and stderr out.

mod basics;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `r1` with `args` in `dir`, without colour, a terminal or the caller's settings.
pub(crate) fn r1(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_r1"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR_FORCE", "RUST_BACKTRACE", "LANG", "LC_ALL", "LC_CTYPE", "COLUMNS"] {
        command.env_remove(variable);
    }
    command
}

/// How a command ended and what it printed, with what changes from run to run taken out.
pub(crate) fn shown(dir: &Path, output: &Output) -> String {
    let code = output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string());
    let mut text = format!("exit: {code}");
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            text.push_str(&["\n--- ", name, "\n", String::from_utf8_lossy(bytes).trim_end()].concat());
        }
    }
    text.replace(&format!("{}/", dir.display()), "[dir]/").replace(&dir.display().to_string(), "[dir]")
}

/// `cli_snapshot!(["run", "x.lua"], @"…")`, or with files to put in the directory first:
/// `cli_snapshot!({ "x.lua" => "return 1" }, ["run", "x.lua"], @"…")`. Exit code, stdout and stderr are compared.
macro_rules! cli_snapshot {
    ([$($arg:expr),* $(,)?], @$expected:literal) => {
        $crate::cli::cli_snapshot!({}, [$($arg),*], @$expected)
    };
    ({ $($file:expr => $text:expr),* $(,)? }, [$($arg:expr),* $(,)?], @$expected:literal) => {{
        let dir = tempfile::tempdir().unwrap();
        $( std::fs::write(dir.path().join($file), $text).unwrap(); )*
        let output = $crate::cli::r1(dir.path(), &[$($arg),*]).output().unwrap();
        insta::with_settings!({ filters => vec![
            (r"\b\d+\.\d+\.\d+ \(libtorch \S+\)", "[version] (libtorch [version])"),
            (r"\b[0-9a-f]{64}\b", "[hash]"),
            (r"\b\d+(\.\d+)? s\b", "[time]"),
        ]}, {
            insta::assert_snapshot!($crate::cli::shown(dir.path(), &output), @$expected);
        });
    }};
}
pub(crate) use cli_snapshot;
