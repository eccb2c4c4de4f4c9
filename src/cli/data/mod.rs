//! `r1 data`: downloads, converts, inspects, splits and cleans datasets.

mod clean;
mod get;
mod prep;
mod rows;
mod show;
mod split;
mod stats;

use super::args::OutputArgs;
use super::data_args::{DataArgs, DataCommand};
use crate::error::Result;

pub(super) fn run(args: &DataArgs, output: OutputArgs) -> Result<()> {
    match &args.command {
        DataCommand::List => get::list(output),
        DataCommand::Get(args) => get::run(args, output),
        DataCommand::Prep(args) => prep::run(args, output),
        DataCommand::Show(args) => show::run(args, output),
        DataCommand::Stats(args) => stats::run(args, output),
        DataCommand::Split(args) => split::run(args, output),
        DataCommand::Dedup(args) => clean::dedup(args, output),
        DataCommand::Decontaminate(args) => clean::decontaminate(args, output),
    }
}
