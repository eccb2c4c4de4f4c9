//! `r1 completions`: the completion script of a shell, and the completions that it requests at each
//! TAB.
//!
//! The script calls `r1` with the variable `R1_COMPLETE`, so that completions match the installed
//! version.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args, CommandFactory};
use clap_complete::env::{CompleteEnv, Shells};

use super::args::Cli;
use super::print;
use crate::error::{Error, Kind, Result};

/// The shell's name when it requests completions.
const VARIABLE: &str = "R1_COMPLETE";

/// Print a shell's completion script for commands, flags, files and settings
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(r1 completions bash)                                    in this shell; in ~/.bashrc for all
  r1 completions zsh > ~/.zfunc/_r1                                a folder of $fpath
  r1 completions fish > ~/.config/fish/completions/r1.fish")]
pub(super) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(super) shell: clap_complete::Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<()> {
    let shell = args.shell.to_string();
    let failed = |why: &str| Error::new(Kind::Internal, format!("there are no completions for {shell}: {why}"));
    let shells = Shells::builtins();
    let completer = shells.completer(&shell).ok_or_else(|| failed("unknown shell"))?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "r1", "r1", &own_name(), &mut script)
        .map_err(|error| failed(&error.to_string()))?;
    if args.shell == clap_complete::Shell::Bash {
        script.extend_from_slice(BASH_SETTINGS.as_bytes());
    }
    print(&String::from_utf8_lossy(&script))
}

/// In bash `key=value` is three words, and only the last one is replaced. This function passes
/// one word, and completes the text after its `=`.
const BASH_SETTINGS: &str = include_str!("completions.bash");

/// The command by which the shell calls this program: by name if it was called by name, else by
/// path.
fn own_name() -> String {
    let typed = std::env::args_os().next().unwrap_or_default();
    let typed = Path::new(&typed);
    if typed.components().count() > 1
        && let Ok(path) = std::path::absolute(typed)
    {
        return path.to_string_lossy().into_owned();
    }
    "r1".to_owned()
}

/// Prints completions if a shell requests them; otherwise returns `false`.
pub(super) fn answer(typed: &[OsString]) -> Result<bool> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .try_complete(typed, here.as_deref())
        .map_err(|error| Error::new(Kind::Usage, error.to_string().trim_start_matches("error: ").trim().to_owned()))
}
