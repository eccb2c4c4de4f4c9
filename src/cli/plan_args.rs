//! The arguments of `r1 plan`.

use std::path::PathBuf;

use clap::Args;

use super::completers::{lua_files, recipe_settings, runs};

/// Predict memory and time of a training step on a device, by parts
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 plan scripts/retool.lua                              this machine, one process
  r1 plan scripts/retool.lua --device h200 --world 64     64 GPUs, 8 in a machine
  r1 plan scripts/retool.lua --device h200 --like retool  with the lengths of a run
  r1 plan scripts/retool.lua --device h100 --prompt-tokens 300 --response-tokens 2000

Without --like and the numbers of tokens, every trajectory has the maximum length of the settings.
docs/guide/scale.md has the assumptions, and predictions beside measurements.")]
pub(super) struct PlanArgs {
    /// The recipe: a Lua file that returns `r1.recipe { … }`
    #[arg(add = lua_files())]
    pub(super) script: PathBuf,
    /// Settings of the recipe to change, such as trainer.group_size=16
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    pub(super) overrides: Vec<String>,
    /// Number of processes (ranks): one for each GPU, or all on this machine's CPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) world: u32,
    /// Device of a rank: a100-80, b200, h100, h200, or cpu, this machine, which is measured
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: String,
    /// Take lengths, steps and tool times from the metrics of a run: its directory, or its name
    #[arg(long, value_name = "RUN", add = runs())]
    pub(super) like: Option<PathBuf>,
    /// Tokens of a trajectory that are not sampled: the prompt, with --like also tool results
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) prompt_tokens: Option<u64>,
    /// Sampled tokens of a trajectory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) response_tokens: Option<u64>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
    /// CPU threads of all ranks together, for --device cpu [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
}
