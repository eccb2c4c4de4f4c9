//! `r1 traj`: lists, searches, compares, exports and checks stored trajectories.

mod account;
mod compared;
mod export;
mod grep;
mod list;
mod selected;
mod show;
mod stats;
mod tokens;
mod verify;

use std::process::ExitCode;

use super::args::OutputArgs;
use super::traj_args::{TrajArgs, TrajCommand};
use crate::error::Result;

pub(super) fn run(args: &TrajArgs, output: OutputArgs) -> Result<ExitCode> {
    match &args.command {
        TrajCommand::Ls(args) => list::ls(args, output),
        TrajCommand::Show(args) => show::run(args, output),
        TrajCommand::Where(args) => list::matching(args, output),
        TrajCommand::Grep(args) => grep::run(args, output),
        TrajCommand::Diff(args) => compared::run(args, output),
        TrajCommand::Top(args) => list::top(args, output),
        TrajCommand::Stats(args) => stats::run(args, output),
        TrajCommand::Export(args) => export::run(args, output),
        TrajCommand::Verify(args) => return verify::run(args, output),
        TrajCommand::Account(args) => return account::run(args, output),
    }
    .map(|()| ExitCode::SUCCESS)
}
