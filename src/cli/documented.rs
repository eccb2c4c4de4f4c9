//! Tests of the commands in README.md, docs and the comments of scripts: the parser accepts each of
//! them, and recipes accept their settings. tests/cli/documented.rs runs the commands of README.md
//! that need no network.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::args::Cli;
use crate::config::Trainer;
use crate::script::Script;
use crate::train;

/// README.md and others in the repository's root, docs without decisions, and scripts, by name.
pub(super) fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)).into();
    let docs = ["docs", "docs/learn", "docs/guide", "docs/guide/recipes", "docs/reference", "docs/lab"];
    for folder in docs.into_iter().chain(["scripts", "scripts/lib"]) {
        paths.extend(std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    paths.retain(|path| path.extension().is_some_and(|end| end == "md" || end == "lua" || end == "sh"));
    paths.sort();
    let page = |path: PathBuf| {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(page).collect()
}

/// Commands of fenced blocks, of the indented lines of a script's comments, and `r1 …` in the text
/// (with `whole` false: they may be incomplete), with page and line.
struct Documented {
    location: String,
    command: String,
    whole: bool,
}

fn commands() -> Vec<Documented> {
    let mut commands = Vec::new();
    for (page, text) in pages() {
        let comment = if page.ends_with(".lua") { "---" } else { "#" };
        let (mut fenced, mut shell, mut begun) = (false, false, String::new());
        for (number, line) in (1..).zip(text.lines()) {
            let location = format!("{page}:{number}");
            let mut line = line;
            if page.ends_with(".md") {
                if let Some(language) = line.trim_start().strip_prefix("```") {
                    fenced = !fenced;
                    shell = ["", "sh", "bash", "console", "text"].contains(&language);
                    continue;
                }
            } else {
                line = line.strip_prefix(comment).unwrap_or_default();
                (fenced, shell) = (line.starts_with("   "), true);
            }
            if fenced {
                let line = line.trim().trim_start_matches("$ ");
                if !shell || (begun.is_empty() && !line.starts_with("r1 ")) {
                    continue;
                }
                begun.push_str(line.trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    commands.push(Documented { location, command: std::mem::take(&mut begun), whole: true });
                }
            } else {
                let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("r1 "));
                commands.extend(spans.map(|span| Documented {
                    location: location.clone(),
                    command: span.to_owned(),
                    whole: false,
                }));
            }
        }
    }
    commands
}

/// Splits a command into words as a shell does, without a comment: `# …`, or a remark after several
/// spaces.
fn split_words(command: &str) -> Vec<String> {
    let (mut parts, mut word, mut quote, mut open) = (Vec::new(), String::new(), None, false);
    let mut spaces = 0;
    for letter in command.chars() {
        if quote.is_none() && letter == ' ' {
            spaces += 1;
            if open {
                parts.push(std::mem::take(&mut word));
                open = false;
            }
            continue;
        }
        if spaces > 1 || (spaces == 1 && letter == '#') || (quote.is_none() && matches!(letter, '|' | '>' | ';' | '&'))
        {
            return parts;
        }
        (spaces, open) = (0, true);
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(end), _) if end == letter => quote = None,
            _ => word.push(letter),
        }
    }
    if open {
        parts.push(word);
    }
    parts
}

#[test]
fn commands_are_split_as_a_shell_does() {
    assert_eq!(split_words("r1 infer -p \"a b\"   # a question"), ["r1", "infer", "-p", "a b"]);
    assert_eq!(split_words("r1 lua -e 'return \"x\"' | cat"), ["r1", "lua", "-e", "return \"x\""]);
    assert_eq!(split_words("r1 run a.lua --resume      the newest run"), ["r1", "run", "a.lua", "--resume"]);
}

#[test]
fn documented_commands_are_accepted_by_the_parser() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Documented { location, command, whole } in commands() {
        if command.contains('…') {
            continue;
        }
        checked += 1;
        let arguments = split_words(&command);
        if !Cli::command()
            .get_subcommands()
            .any(|command| arguments.get(1).is_some_and(|word| word == command.get_name()))
        {
            wrong.push(format!("{location}: {command}: there is no such command"));
            continue;
        }
        let Err(error) = Cli::command().try_get_matches_from(arguments) else { continue };
        // `r1 infer` and `r1 check --masks` inside a sentence only name a command and a flag.
        let part = matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument
                | ErrorKind::InvalidValue
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
        if whole || !part {
            wrong.push(format!("{location}: {command}\n{error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 200, "only {checked} commands were found");
}

#[test]
fn documented_settings_are_accepted_by_their_recipes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    let mut checked = 0;
    for Documented { location, command, .. } in commands() {
        let arguments = split_words(&command);
        let verb = arguments.get(1).map(String::as_str).unwrap_or_default();
        if !["run", "sft", "check", "repl", "eval", "infer", "mcp", "replay", "rescore"].contains(&verb) {
            continue;
        }
        // A run is named as its script.
        let script_of = |word: &String| {
            let name = word
                .strip_prefix("runs/")
                .map(|name| format!("scripts/{}.lua", name.split('/').next().unwrap_or(name)));
            let path = name.unwrap_or_else(|| word.clone());
            (path.ends_with(".lua") && root.join(&path).is_file()).then_some(path)
        };
        let Some(script) = arguments
            .iter()
            .find(|word| word.ends_with(".lua"))
            .or(arguments.iter().find(|word| word.starts_with("runs/")))
            .and_then(script_of)
        else {
            continue;
        };
        let of_setting = |word: &&String| word.contains('=') && !word.starts_with('-');
        let settings: Vec<String> = arguments.iter().skip(2).filter(of_setting).cloned().collect();
        let settings: Vec<String> = settings
            .into_iter()
            .map(|setting| setting.strip_prefix("n=").map_or(setting.clone(), |n| format!("eval.samples={n}")))
            .collect();
        let refused = settings.iter().any(|setting| setting.starts_with("actor_rollout_ref."));
        let loaded = Script::load(&root.join(&script), &settings).and_then(|script| {
            // Only training needs valid combinations of settings.
            if matches!(script.settings.trainer, Trainer::Sft(_)) || !["run", "check"].contains(&verb) {
                Ok(())
            } else {
                train::validate(&script).map(|_| ())
            }
        });
        match loaded {
            // The user's own file.
            Err(error) if error.message.contains("can't read the resource") => checked += 1,
            Err(error) if !refused => wrong.push(format!("{location}: {command}\n{error}")),
            Ok(()) if refused => wrong.push(format!("{location}: {command}: is documented as refused")),
            _ => checked += 1,
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 90, "only {checked} commands name a recipe");
}
