//! `r1 index`: builds, inspects, verifies, searches and serves indexes of passages.

mod build;
mod corpus;
mod serve;
mod show;

use std::process::ExitCode;

use super::args::OutputArgs;
use super::index_args::{IndexArgs, IndexCommand};
use crate::error::Result;

pub(super) fn run(args: &IndexArgs, output: OutputArgs) -> Result<ExitCode> {
    match &args.command {
        IndexCommand::Build(args) => build::run(args, output).map(|()| ExitCode::SUCCESS),
        IndexCommand::Info(args) => show::info(&args.directory, output).map(|()| ExitCode::SUCCESS),
        IndexCommand::Verify(args) => show::verified(&args.directory, output).map(|()| ExitCode::SUCCESS),
        IndexCommand::Search(args) => show::search(args, output).map(|()| ExitCode::SUCCESS),
        IndexCommand::Serve(args) => serve::run(args, output).map(|()| ExitCode::SUCCESS),
    }
}
