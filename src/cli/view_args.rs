//! The arguments of `r1 view`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::completers::runs;

/// Show runs in a browser: curves, trajectories token by token, evaluations
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 view                                all runs in runs/, also those that begin later
  r1 view retool retool-2                two of them
  r1 view retool --port 0                at a free port
  r1 view retool --export retool-pages   a static copy; open retool-pages/index.html

Open the address that is printed. Other users of this machine cannot guess its token; with
R1_VIEW_TOKEN the address is the same each time. There is no TLS: for another machine use a tunnel,
as in: ssh -L 6060:127.0.0.1:6060 HOST")]
pub(super) struct ViewArgs {
    /// Runs: their directories, or their names [default: all in the directory of runs]
    #[arg(value_name = "RUN", add = runs())]
    pub(super) runs: Vec<PathBuf>,
    /// Write a static copy of the pages to this directory, and exit
    #[arg(long, value_name = "DIR")]
    pub(super) export: Option<PathBuf>,
    /// In the copy, only trajectories of the last N steps can be opened [default: all]
    #[arg(long, value_name = "N", requires = "export", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) last: Option<u32>,
    /// Port; 0: a free one
    #[arg(long, value_name = "N", default_value = "6060", conflicts_with = "export")]
    pub(super) port: u16,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", conflicts_with = "export")]
    pub(super) host: IpAddr,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(super) runs_dir: PathBuf,
}
