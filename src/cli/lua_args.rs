//! The arguments of `r1 lua`.

use clap::Args;

use super::launch::ProcessArgs;

/// Run a Lua program with access to tokenizers, templates, models and files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 lua -e 'return r1.math_equal(\"1/2\", \"0.5\")'
  r1 lua report.lua runs/retool                  runs a file; the rest is its own: ... and arg
  echo '[1, 2]' | r1 lua -e 'return #r1.json.decode(io.read(\"a\"))'
  r1 lua --nproc 2 loop.lua                      a training loop on two processes

What the program returns is printed, data as JSON; os.exit(3) ends with that exit code.")]
pub(super) struct LuaArgs {
    /// Run this text instead of a file
    #[arg(short = 'e', long = "eval", value_name = "CODE")]
    pub(super) code: Option<String>,
    /// A file, or - for standard input, followed by the program's own arguments
    #[arg(value_name = "FILE", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) rest: Vec<String>,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,
    /// Seed of math.random
    #[arg(long, value_name = "N", default_value = "0")]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) processes: ProcessArgs,
}
