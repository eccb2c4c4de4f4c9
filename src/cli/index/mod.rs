//! `r1 index`: builds, inspects, verifies, searches and serves indexes of passages.

mod build;
mod corpus;
mod divided;
mod serve;
mod show;

use super::args::OutputArgs;
use super::index_args::{IndexArgs, IndexCommand};
use crate::error::Result;

pub(super) fn run(args: &IndexArgs, output: OutputArgs) -> Result<()> {
    match &args.command {
        IndexCommand::Build(args) => build::run(args, output),
        IndexCommand::Info(args) => show::info(&args.directory, output),
        IndexCommand::Verify(args) => show::verified(&args.directory, output),
        IndexCommand::Search(args) => show::search(args, output),
        IndexCommand::Serve(args) => serve::run(args, output),
    }
}
