//! `r1 completions`: the completion script of a shell, and the completions that it requests at each
//! TAB.
//!
//! The script calls `r1` with the variable `R1_COMPLETE`, so that completions match the installed
//! version.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter};
use clap_complete::env::{CompleteEnv, Shells};

use super::args::Cli;
use super::print;
use crate::config::{ALGORITHMS, settings};
use crate::error::{Error, Kind, Result};
use crate::rl::advantages::Estimator;
use crate::rl::objective::Objective;

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

pub(super) fn run(args: &CompletionsArgs) -> Result<ExitCode> {
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
    print(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
}

/// In bash `key=value` is three words, and only the last one is replaced. This function passes
/// one word, and completes the text after its `=`.
const BASH_SETTINGS: &str = r#"
_r1_settings() {
    local typed="${COMP_LINE:0:COMP_POINT}"
    typed="${typed##*[[:space:]]}"
    if [[ "$typed" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        local before="${COMP_LINE:0:COMP_POINT - ${#typed}}"
        local -a COMP_WORDS
        read -ra COMP_WORDS <<< "$before"
        local COMP_CWORD=${#COMP_WORDS[@]}
        COMP_WORDS+=("$typed")
        _clap_complete_r1 "$1" "$typed" "${COMP_WORDS[COMP_CWORD - 1]}"
        COMPREPLY=("${COMPREPLY[@]#"${typed%%=*}="}")
    else
        _clap_complete_r1 "$@"
    fi
}
complete -o nospace -o bashdefault -F _r1_settings r1
"#;

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

/// Completes a Lua file.
pub(super) fn lua_files() -> ArgValueCompleter {
    ArgValueCompleter::new(
        PathCompleter::file().filter(|path| path.is_dir() || path.extension() == Some("lua".as_ref())),
    )
}

/// Completes `key=value`: names of settings, then values of those with a fixed set.
pub(super) fn recipe_settings() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| typed.to_str().map(of_settings).unwrap_or_default())
}

fn of_settings(typed: &str) -> Vec<CompletionCandidate> {
    if let Some((key, begun)) = typed.split_once('=') {
        let values = values(key);
        return values
            .iter()
            .filter(|value| value.starts_with(begun))
            .map(|value| CompletionCandidate::new(format!("{key}={value}")))
            .collect();
    }
    let mut seen = BTreeSet::new();
    settings()
        // Parts in capitals stand for names of the recipe's own.
        .filter(|setting| setting.path.starts_with(typed) && !setting.path.contains(char::is_uppercase))
        .filter(|setting| seen.insert(setting.path))
        .map(|setting| CompletionCandidate::new(format!("{}=", setting.path)).help(Some(setting.doc.into())))
        .collect()
}

/// The values of a setting with a fixed set: its literals, `true` and `false`.
fn values(key: &str) -> BTreeSet<String> {
    if key == "trainer.algorithm" {
        return ALGORITHMS.iter().map(|name| (*name).to_owned()).collect();
    }
    let mut found = BTreeSet::new();
    match key {
        "trainer.estimator" => found.extend(Estimator::NAMES.map(str::to_owned)),
        "trainer.loss" => found.extend(Objective::NAMES.map(str::to_owned)),
        _ => {}
    }
    for setting in settings().filter(|setting| setting.path == key) {
        for kind in setting.kind.split('|').map(str::trim) {
            match kind.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                Some(literal) => drop(found.insert(literal.to_owned())),
                None if kind == "boolean" => found.extend(["false".to_owned(), "true".to_owned()]),
                None => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(typed: &str) -> Vec<String> {
        of_settings(typed).iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn settings_complete_by_name_and_value() {
        assert_eq!(names("policy.lora.r"), ["policy.lora.rank=", "policy.lora.rank_stabilized="]);
        assert_eq!(names("policy.dtype="), ["policy.dtype=auto", "policy.dtype=bf16", "policy.dtype=f32"]);
        assert_eq!(names("policy.cuda_graphs=t"), ["policy.cuda_graphs=true"]);
        assert_eq!(names("trainer.algorithm=gs"), ["trainer.algorithm=gspo"]);
        assert_eq!(names("trainer.estimator=rl"), ["trainer.estimator=rloo"]);
        assert_eq!(names("trainer.loss=dppo"), ["trainer.loss=dppo_kl", "trainer.loss=dppo_tv"]);
        assert!(names("trainer.lr=").is_empty() && names("trainer.lrr").is_empty());
        assert!(names("").len() > 100);
    }
}
