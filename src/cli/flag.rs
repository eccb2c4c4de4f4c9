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

/// Commands of other tools, or words for a task, with r1's.
const OTHER_COMMANDS: [(&[&str], &str); 14] = [
    (&["chat", "ask", "generate", "predict", "inference"], "r1 infer --model RUN chats with a model"),
    (&["train", "fit", "grpo", "ppo", "rl"], "r1 run SCRIPT trains; trainer.algorithm selects the algorithm"),
    (
        &["finetune", "fine-tune", "tune"],
        "r1 sft SCRIPT is supervised fine-tuning; r1 run SCRIPT is reinforcement learning",
    ),
    (
        &["dpo", "orpo", "kto", "reward"],
        "there is no preference training; r1 run SCRIPT trains on rewards, r1 sft SCRIPT on conversations",
    ),
    (
        &["show", "view", "logs", "inspect"],
        "r1 compare RUN shows metrics, r1 repl --replay RUN:ID a trajectory, RUN/examples.txt some of them",
    ),
    (&["runs", "ls", "list"], "the runs are the folders of runs/; r1 compare RUN … compares them"),
    (&["plot", "curves", "diff"], "r1 compare RUN … draws curves"),
    (
        &["serve", "server"],
        "vllm serve RUN/checkpoints/step-… serves a checkpoint; r1 mcp serves tools, r1 index serve an index",
    ),
    (&["resume", "continue"], "r1 run SCRIPT --resume RUN"),
    (&["evaluate", "benchmark", "validate"], "r1 eval SCRIPT, or r1 eval RUN"),
    (&["debug", "step", "shell"], "r1 repl SCRIPT"),
    (&["init", "create"], "r1 new NAME writes a script"),
    (&["download", "pull", "fetch", "get"], "r1 data get NAME gets a dataset; models are downloaded on first use"),
    (
        &["merge", "export", "convert"],
        "checkpoints are in Hugging Face layout; checkpoint.merge=true merges an adapter",
    ),
];

/// The error for an unknown command with what takes its place.
fn other_command(error: &clap::Error) -> Option<Error> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (_, instead) = OTHER_COMMANDS.iter().find(|(names, _)| names.contains(&typed.as_str()))?;
    Some(Error::new(Kind::Usage, format!("there is no command `{typed}`")).hint(*instead))
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
    let inline = typed.iter().find_map(|word| word.strip_prefix(flag.as_str())?.strip_prefix('='));
    let next = typed.iter().position(|word| *word == flag).and_then(|index| typed.get(index + 1));
    let value = inline.or(next.copied().filter(|word| !word.starts_with('-'))).unwrap_or("VALUE");
    Some(refused.hint(format!("settings are written as key=value: {key}={value}")))
}
