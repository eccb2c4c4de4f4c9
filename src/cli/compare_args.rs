//! The arguments of `r1 compare`.

use std::path::PathBuf;

use clap::Args;

/// Compare the metrics of runs: curves and final figures, in the terminal and as a picture
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 compare retool retool-2 retool-3
  r1 compare runs/grpo runs/ppo --metric eval/accuracy --metric kl/mean
  r1 compare grpo ppo --out curves.svg          a panel for each metric
  r1 compare grpo ppo --json                    values of every metric

`end` is the mean of the last tenth of the steps. docs/reference/metrics.md lists the metrics.")]
pub(super) struct CompareArgs {
    /// Runs: their directories, or their names
    #[arg(value_name = "RUN", required = true)]
    pub(super) runs: Vec<PathBuf>,
    /// A metric, such as reward/mean; repeatable [default: the most important ones]
    #[arg(long, short, value_name = "NAME")]
    pub(super) metric: Vec<String>,
    /// Every metric of the runs
    #[arg(long, conflicts_with = "metric")]
    pub(super) all: bool,
    /// Also draw the curves into this file (SVG)
    #[arg(long, value_name = "FILE.svg")]
    pub(super) out: Option<PathBuf>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}
