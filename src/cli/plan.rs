//! `r1 plan`: memory and time of a training step on a device, before anything is loaded.

use std::path::PathBuf;

use clap::Args;

use super::args::OutputArgs;
use super::completers::{lua_files, recipe_settings, runs};
use super::{print_json, set_threads};
use crate::error::Result;
use crate::telemetry::{ReportStyle, ctrl_c, report};
use crate::train::{RunOptions, StepPlanOptions, plan_step};

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
    script: PathBuf,
    /// Settings of the recipe to change, such as trainer.group_size=16
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    overrides: Vec<String>,
    /// Number of processes (ranks): one for each GPU, or all on this machine's CPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    world: u32,
    /// Device of a rank: a100-80, b200, h100, h200, or cpu, this machine, which is measured
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// Take lengths, steps and tool times from the metrics of a run: its directory, or its name
    #[arg(long, value_name = "RUN", add = runs())]
    like: Option<PathBuf>,
    /// Tokens of a trajectory that are not sampled: the prompt, with --like also tool results
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    prompt_tokens: Option<u64>,
    /// Sampled tokens of a trajectory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    response_tokens: Option<u64>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// CPU threads of all ranks together, for --device cpu [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

pub(super) fn run(args: PlanArgs, output: OutputArgs) -> Result<()> {
    set_threads(args.threads);
    let reporter = output.reporter_beside_json();
    let PlanArgs { script, overrides, runs_dir, world, device, like, prompt_tokens, response_tokens, .. } = args;
    let options = RunOptions { script, overrides, runs_dir, interrupt: Some(ctrl_c()), ..RunOptions::default() };
    let wanted = StepPlanOptions { device, world, like, prompt_tokens, response_tokens };
    let plan = plan_step(&options, &wanted, &reporter)?;
    if output.json {
        return print_json(plan.result);
    }
    reporter.table(&plan.memory.table());
    let text = report(include_str!("../../lua/reports/plan.lua"), &plan.result, ReportStyle::of(&reporter))?;
    reporter.text(text.trim_end_matches('\n'));
    Ok(())
}
