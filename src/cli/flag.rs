//! Suggestions for unknown commands and flags: `r1 chat` is `r1 infer`, `--lr 3` is
//! `trainer.lr=3`, `--num_generations 8` of TRL is `trainer.group_size=8`, and `--tools` of
//! Agent-R1's chat is `--script RECIPE`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::counterparts;
use crate::error::{Error, Kind};
use crate::script::setting_keys;

/// Commands with settings, and the algorithm of those settings.
const COMMANDS: [(&str, &str); 5] =
    [("run", "grpo"), ("sft", "sft"), ("check", "grpo"), ("repl", "grpo"), ("eval", "grpo")];

/// Words of other tools that r1 lacks, with what takes their place: commands, and flags of
/// Agent-R1's chat scripts (`agent_r1/vllm_infer/{chat,run}.py`, `inference.sh`). Its `--question`,
/// `--max-tokens` and sampling flags are accepted.
fn instead(kind: &str, word: &str) -> Option<&'static str> {
    let mut lines = include_str!("other_words.tsv").lines().map(|line| line.split('\t'));
    lines.find_map(|mut fields| {
        let is_kind = fields.next() == Some(kind);
        let has_word = fields.next()?.split(' ').any(|other| other == word);
        fields.next().filter(|_| is_kind && has_word)
    })
}

/// The error for an unknown command with what takes its place.
fn other_command(error: &clap::Error) -> Option<Error> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let hint = instead("command", typed)?;
    Some(Error::new(Kind::Usage, format!("there is no command `{typed}`")).hint(hint))
}

/// The error for an unknown command or flag with a suggestion; `None` for other errors.
pub(super) fn meant(error: &clap::Error, typed: &[OsString]) -> Option<Error> {
    if error.kind() == ErrorKind::InvalidSubcommand {
        return other_command(error);
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let typed: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let flag = flag.split('=').next().unwrap_or_default().to_owned();
    let name = flag.trim_start_matches('-').replace('-', "_");
    let refused = Error::new(Kind::Usage, format!("unexpected argument `{flag}`"));
    let runs = |command: &str| typed.iter().skip(1).any(|word| *word == command);
    if runs("infer") {
        return Some(refused.hint(instead("infer flag", &name.replace('_', "-"))?));
    }
    let (_, algorithm) = COMMANDS.iter().find(|(command, _)| runs(command))?;
    let keys = setting_keys(algorithm);
    let of_trainer = format!("trainer.{name}");
    let key = keys.iter().find(|key| **key == name || **key == of_trainer);
    let Some(key) = key.or_else(|| keys.iter().find(|key| key.ends_with(&format!(".{name}")))) else {
        let hint = counterparts::hint(&name)?;
        return Some(refused.hint(format!("{hint}; settings are written as key=value")));
    };
    // `--lr 3` or `--lr=3`.
    let inline = typed.iter().find_map(|word| word.strip_prefix(flag.as_str())?.strip_prefix('='));
    let next = typed.iter().position(|word| *word == flag).and_then(|index| typed.get(index + 1));
    let value = inline.or(next.copied().filter(|word| !word.starts_with('-'))).unwrap_or("VALUE");
    Some(refused.hint(format!("settings are written as key=value: {key}={value}")))
}
