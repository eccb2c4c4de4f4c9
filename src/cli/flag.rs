//! Flags that do not exist and are meant for settings: `--lr 3` is `trainer.lr=3`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::error::{Error, Kind};
use crate::script::setting_keys;

/// Commands that take settings, and the algorithm whose settings are meant.
const COMMANDS: [(&str, &str); 4] = [("run", "grpo"), ("sft", "sft"), ("check", "grpo"), ("repl", "grpo")];

/// The error for an unknown flag that has the name of a setting; `None` for any other error.
pub(super) fn meant(error: &clap::Error, typed: &[OsString]) -> Option<Error> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let typed: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let (_, algorithm) = COMMANDS.iter().find(|(command, _)| typed.iter().skip(1).any(|word| word == command))?;
    let flag = flag.split('=').next().unwrap_or_default().to_owned();
    let name = flag.trim_start_matches('-').replace('-', "_");
    let keys = setting_keys(algorithm);
    let of_trainer = format!("trainer.{name}");
    let key = keys.iter().find(|key| **key == name || **key == of_trainer);
    let key = key.or_else(|| keys.iter().find(|key| key.ends_with(&format!(".{name}"))))?;
    // `--lr 3` or `--lr=3`.
    let given = typed.iter().find_map(|word| word.strip_prefix(flag.as_str())?.strip_prefix('='));
    let next = typed.iter().position(|word| *word == flag).and_then(|place| typed.get(place + 1));
    let value = given.or(next.copied().filter(|word| !word.starts_with('-'))).unwrap_or("VALUE");
    Some(
        Error::new(Kind::Usage, format!("unexpected argument `{flag}`"))
            .hint(format!("settings are written as key=value: {key}={value}")),
    )
}
