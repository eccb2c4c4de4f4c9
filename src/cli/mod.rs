//! The command line: one file per subcommand. Arguments become options of other modules only here.

mod args;
mod check;
mod compare;
mod compare_args;
mod completers;
mod completions;
mod data;
mod data_args;
mod diff;
mod doc;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod documented_defaults;
mod editor;
mod eval;
mod eval_args;
mod failure;
mod flag;
mod generation;
mod index;
mod index_args;
mod infer;
mod infer_args;
mod launch;
mod line_editor;
mod lua;
mod lua_args;
mod man;
mod masks;
mod mcp;
mod new;
mod number;
mod plan;
mod plan_args;
mod recorded;
mod repl;
mod replay;
mod rerun;
mod rescore;
mod resume_arg;
mod run;
mod test;
mod traj;
mod traj_args;
mod version;
mod view;
mod view_args;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ColorChoice, CommandFactory, FromArgMatches};
use tokio::net::TcpListener;

use crate::error::{Error, Kind, Result};
use crate::hub;
use crate::native;
use crate::programs::NamedModelThread;
use crate::script;
use crate::telemetry::{Interrupt, ReportStyle, ignore_file_size_signal, is_interrupted, report};
use args::{Cli, Command, OutputArgs};
use failure::ErrorFormat;

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let has = |flag: &str| typed.iter().take_while(|arg| *arg != "--").any(|arg| arg == flag);
    // Before parsing, because a parsing error is printed in the same format.
    let voice = ErrorFormat::new(has("--json"), !has("--no-color"));
    let done =
        failure::catch(|| if completions::answer(&typed)? { Ok(ExitCode::SUCCESS) } else { dispatch(&typed, voice) });
    // Each is in a separate process group.
    crate::tools::kill_servers();
    match done {
        Ok(code) => code,
        Err(error) => voice.fail(&error),
    }
}

fn dispatch(typed: &[OsString], voice: ErrorFormat) -> Result<ExitCode> {
    let color = if voice.colour { ColorChoice::Auto } else { ColorChoice::Never };
    let parsed =
        Cli::command().color(color).try_get_matches_from(typed).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help and version go to stdout.
            return printed(error.print()).map(|()| ExitCode::SUCCESS);
        }
        Err(error) => return flag::meant(&error, typed).map_or_else(|| Ok(voice.refuse(&error)), Err),
    };
    native::return_memory();
    native::set_default_threads();
    ignore_file_size_signal();
    hub::stop_with(is_interrupted);
    let models = Arc::new(NamedModelThread::new(cli.output.reporter()));
    script::share_models(models.clone());
    let success = |()| ExitCode::SUCCESS;
    let done = match cli.command {
        Command::Run(args) => run::run(args, cli.output),
        Command::Sft(args) => run::sft(args, cli.output),
        Command::Eval(args) => eval::run(args, cli.output),
        Command::Plan(args) => plan::run(args, cli.output).map(success),
        Command::Compare(args) => compare::run(&args, cli.output).map(success),
        Command::Check(args) => check::run(args, cli.output),
        Command::Infer(args) => infer::run(&args, cli.output),
        Command::Lua(args) => lua::run(&args, cli.output),
        Command::Repl(args) => repl::run(args, cli.output),
        Command::Mcp(args) => mcp::run(&args, &OutputArgs { json: false, ..cli.output }.reporter()).map(success),
        Command::New(args) => new::run(&args, cli.output).map(success),
        Command::Replay(args) => replay::run(args, cli.output),
        Command::Rerun(args) => rerun::run(args, cli.output),
        Command::Rescore(args) => rescore::run(args, cli.output).map(success),
        Command::Test(args) => test::run(&args, cli.output),
        Command::View(args) => view::run(&args, cli.output).map(success),
        Command::Traj(args) => traj::run(&args, cli.output),
        Command::Data(args) => data::run(&args, cli.output).map(success),
        Command::Index(args) => index::run(&args, cli.output).map(success),
        Command::Doc(args) => doc::run(&args, cli.output).map(success),
        Command::Completions(args) => completions::run(&args).map(success),
        Command::Man(args) => man::run(&args).map(success),
        Command::Version => version::run(cli.output.json).map(success),
    };
    models.stop();
    done
}

/// Computes with this number of threads; without one, with the default.
fn set_threads(threads: Option<u16>) {
    if let Some(threads) = threads {
        native::set_threads(usize::from(threads));
    }
}

/// Interval at which an interrupt is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits for Ctrl-C.
async fn interrupted(interrupt: Interrupt) {
    while !interrupt.is_set() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Listens on an address; `hint` says how to choose another port. Returns the address with its
/// port.
///
/// # Errors
/// [`Kind::Usage`] if the address can't be used.
async fn listen_on(address: SocketAddr, hint: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error: io::Error| Error::io(Kind::Usage, "listen on", address.to_string(), &error).hint(hint);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// How to choose another port with `--port`.
const PORT_HINT: &str = "--port N is another port, --port 0 a free one";

/// Writes a result to stdout.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints the text of a result, written by a function in Lua (lua/reports).
fn print_report(source: &'static str, result: &serde_json::Value, style: ReportStyle) -> Result<()> {
    print(&report(source, result, style)?)
}

/// Writes a result as a line of JSON.
fn print_json(result: impl std::fmt::Display) -> Result<()> {
    print(&format!("{result}\n"))
}

/// The result of writing to stdout. A closed pipe means that the reader is done.
fn printed(written: io::Result<()>) -> Result<()> {
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::io(Kind::Store, "write to stdout", "stdout", &e)),
        _ => Ok(()),
    }
}
