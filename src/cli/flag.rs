//! Suggestions for unknown flags: `--lr 3` is `trainer.lr=3`, `--num_generations 8` of TRL is
//! `trainer.group_size=8`, and `--tools` of Agent-R1's chat is `--script RECIPE`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::counterparts;
use crate::error::{Error, Kind};
use crate::script::setting_keys;

/// Commands with settings, and the algorithm of those settings.
const COMMANDS: [(&str, &str); 4] = [("run", "grpo"), ("sft", "sft"), ("check", "grpo"), ("repl", "grpo")];

/// Flags of Agent-R1's chat scripts (`agent_r1/vllm_infer/{chat,run}.py`, `inference.sh`) that `r1
/// infer` lacks. `--question`, `--max-tokens` and the sampling flags are accepted.
const CHAT_FLAGS: [(&str, &str); 11] = [
    ("tools", "tools belong to a recipe: r1 infer --script RECIPE"),
    ("env", "the environment belongs to a recipe: r1 infer --script RECIPE"),
    ("config", "settings and tools belong to a recipe: r1 infer --script RECIPE"),
    ("api-key", "set the variable OPENAI_API_KEY; other users of the machine can read command lines"),
    ("checkpoint-dir", "the directory of a run or a checkpoint is a model: r1 infer --model DIR"),
    ("hf-model-path", "a model from the Hub: r1 infer --hf ORG/NAME"),
    ("use-hf-model", "a model from the Hub: r1 infer --hf ORG/NAME"),
    ("model-name-or-path", "r1 infer --model NAME"),
    ("target-dir", "leave it out: checkpoints need no conversion"),
    ("backend", "leave it out: checkpoints need no conversion"),
    ("tensor-parallel-size", "leave it out: one process uses one device"),
];

/// The error for an unknown flag with a suggestion; `None` for other errors.
pub(super) fn meant(error: &clap::Error, typed: &[OsString]) -> Option<Error> {
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
        let (_, instead) = CHAT_FLAGS.iter().find(|(legacy, _)| legacy.replace('-', "_") == name)?;
        return Some(refused.hint(*instead));
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
    let given = typed.iter().find_map(|word| word.strip_prefix(flag.as_str())?.strip_prefix('='));
    let next = typed.iter().position(|word| *word == flag).and_then(|place| typed.get(place + 1));
    let value = given.or(next.copied().filter(|word| !word.starts_with('-'))).unwrap_or("VALUE");
    Some(refused.hint(format!("settings are written as key=value: {key}={value}")))
}
