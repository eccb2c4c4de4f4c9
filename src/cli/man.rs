//! `r1 man`: manual pages, generated from the command-line definitions.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use super::args::Cli;
use super::print;
use crate::error::{Error, Kind, Result, suggest};

/// Print the manual page of r1 or of a command, or write all pages
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 man run | man -l -                            one page
  r1 man --dir ~/.local/share/man/man1             all pages, for man r1 and man r1-run")]
pub(super) struct ManArgs {
    /// A command, such as run [default: r1 itself]
    #[arg(conflicts_with = "dir")]
    pub(super) command: Option<String>,
    /// Write the pages of r1 and of all commands to this directory
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
}

pub(super) fn run(args: &ManArgs) -> Result<()> {
    let mut command = Cli::command().display_name("r1");
    command.build();
    if let Some(dir) = &args.dir {
        let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the manual pages", dir, error);
        std::fs::create_dir_all(dir).map_err(|error| failed(&error))?;
        return clap_mangen::generate_to(command, dir).map_err(|error| failed(&error));
    }
    let page = match &args.command {
        None => command,
        Some(name) => command.find_subcommand(name).cloned().ok_or_else(|| {
            let commands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
            Error::new(Kind::Usage, format!("there is no command `{name}`"))
                .hint(suggest(name, commands.iter().copied()))
        })?,
    };
    let mut text = Vec::new();
    let failed = |error: std::io::Error| Error::new(Kind::Internal, format!("can't write the page: {error}"));
    Man::new(page).render(&mut text).map_err(failed)?;
    print(&String::from_utf8_lossy(&text))
}
