//! What can be typed, and what it means: clap's structures turned into the options of the other modules.

use clap::{Args, Parser, Subcommand};

use super::version;

/// Train and run LLM agents with reinforcement learning, scripted in Lua
#[derive(Debug, Parser)]
#[command(
    name = "r1",
    version = version::line(),
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Examples:
  r1 run scripts/retool.lua                    train the embedded model to use a tool
  r1 run scripts/retool.lua trainer.lr=2e-6    the same with another learning rate
  r1 infer --model runs/retool                 talk to what was trained"
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print the versions of r1 and libtorch
    Version,
}

/// How much is printed, and how. Every subcommand has these.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Print warnings and errors only
    #[arg(long, short, global = true)]
    pub(super) quiet: bool,
    /// Print one JSON object a line on stdout, for programs
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print without colour (NO_COLOR does the same)
    #[arg(long, global = true)]
    pub(super) no_color: bool,
}
