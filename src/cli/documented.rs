//! Tests of the commands in README.md and docs: the parser accepts each of them, and recipes accept
//! their settings. tests/cli/documented.rs runs those that need no network.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::args::Cli;
use crate::config::Trainer;
use crate::script::Script;
use crate::train;

/// README.md, the other pages in the repository's root, and docs.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)).into();
    pages.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// Commands of fenced blocks, and `r1 …` in the text (with `whole` false: they may be incomplete),
/// with page and line.
struct Documented {
    place: String,
    command: String,
    whole: bool,
}

fn commands() -> Vec<Documented> {
    let mut found = Vec::new();
    for path in pages() {
        let text = std::fs::read_to_string(&path).unwrap();
        let page = path.file_name().unwrap().to_string_lossy().into_owned();
        let (mut fenced, mut shell, mut begun) = (false, false, String::new());
        for (number, line) in (1..).zip(text.lines()) {
            let place = format!("{page}:{number}");
            if let Some(language) = line.trim_start().strip_prefix("```") {
                fenced = !fenced;
                shell = ["", "sh", "bash", "console", "text"].contains(&language);
            } else if fenced {
                if !shell {
                    continue;
                }
                let line = line.trim().trim_start_matches("$ ");
                if begun.is_empty() && !line.starts_with("r1 ") {
                    continue;
                }
                begun.push_str(line.trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    found.push(Documented { place, command: std::mem::take(&mut begun), whole: true });
                }
            } else {
                let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("r1 "));
                found.extend(spans.map(|span| Documented {
                    place: place.clone(),
                    command: span.to_owned(),
                    whole: false,
                }));
            }
        }
    }
    found
}

/// Splits a command into words as a shell does, without a comment: `# …`, or a remark after several
/// spaces.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut open) = (Vec::new(), String::new(), None, false);
    let mut spaces = 0;
    for letter in command.chars() {
        if quote.is_none() && letter == ' ' {
            spaces += 1;
            if open {
                words.push(std::mem::take(&mut word));
                open = false;
            }
            continue;
        }
        if spaces > 1 || (spaces == 1 && letter == '#') || (quote.is_none() && matches!(letter, '|' | '>' | ';' | '&'))
        {
            return words;
        }
        (spaces, open) = (0, true);
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(end), _) if end == letter => quote = None,
            _ => word.push(letter),
        }
    }
    if open {
        words.push(word);
    }
    words
}

#[test]
fn commands_are_split_as_a_shell_does() {
    assert_eq!(words("r1 infer -p \"a b\"   # a question"), ["r1", "infer", "-p", "a b"]);
    assert_eq!(words("r1 lua -e 'return \"x\"' | cat"), ["r1", "lua", "-e", "return \"x\""]);
    assert_eq!(words("r1 run a.lua --resume      the newest run"), ["r1", "run", "a.lua", "--resume"]);
}

#[test]
fn documented_commands_are_accepted_by_the_parser() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Documented { place, command, whole } in commands() {
        if command.contains('…') {
            continue;
        }
        checked += 1;
        let words = words(&command);
        if !Cli::command().get_subcommands().any(|known| words.get(1).is_some_and(|word| word == known.get_name())) {
            wrong.push(format!("{place}: {command}: there is no such command"));
            continue;
        }
        let Err(error) = Cli::command().try_get_matches_from(words) else { continue };
        // `r1 infer` and `r1 check --masks` inside a sentence only name a command and a flag.
        let part = matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument
                | ErrorKind::InvalidValue
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
        if whole || !part {
            wrong.push(format!("{place}: {command}\n{error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 60, "only {checked} commands were found");
}

#[test]
fn documented_settings_are_accepted_by_their_recipes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Documented { place, command, .. } in commands() {
        let words = words(&command);
        let Some(script) = words.iter().find(|word| {
            Path::new(word).extension().is_some_and(|ending| ending == "lua") && root.join(word).is_file()
        }) else {
            continue;
        };
        if !matches!(words.get(1).map(String::as_str), Some("run" | "sft" | "check" | "repl")) {
            continue;
        }
        let settings: Vec<String> =
            words.iter().skip(2).filter(|word| word.contains('=') && !word.starts_with('-')).cloned().collect();
        let refused = settings.iter().any(|setting| setting.starts_with("actor_rollout_ref."));
        let loaded = Script::load(&root.join(script), &settings).and_then(|script| {
            if matches!(script.settings.trainer, Trainer::Sft(_)) {
                Ok(())
            } else {
                train::validate(&script).map(|_| ())
            }
        });
        match loaded {
            Err(error) if !refused => wrong.push(format!("{place}: {command}\n{error}")),
            Ok(()) if refused => wrong.push(format!("{place}: {command}: is documented as refused")),
            _ => checked += 1,
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 10, "only {checked} commands name a recipe");
}
