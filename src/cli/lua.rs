//! `r1 lua`: runs any script in the host, with access to models.

use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use serde_json::Value as Json;

use super::args::OutputArgs;
use super::launch::launch;
use super::lua_args::LuaArgs;
use super::{print, print_json, set_threads};
use crate::error::{Error, Kind, Result};
use crate::programs::{Executor, Programs};
use crate::script::{End, LogStream, ScriptProgram, unreadable_script};

pub(super) fn run(args: &LuaArgs, output: OutputArgs) -> Result<ExitCode> {
    set_threads(args.threads);
    let (path, source, arguments) = source(args)?;
    let launched = launch(args.processes)?;
    set_threads(args.threads);
    let is_first = launched.is_first();
    let reporter = launched.reporter(|| output.reporter());
    let program = ScriptProgram {
        path: &path,
        source: &source,
        arguments,
        seed: args.seed,
        api: Some(Rc::new(Programs { reporter, processes: launched.program() })),
        echo: Box::new(move |line, stream| match stream {
            _ if !is_first => {}
            // A closed pipe means that the reader is done; the program may continue.
            LogStream::Out => drop(print(&line.text)),
            LogStream::Log if output.quiet => {}
            LogStream::Log => drop(writeln!(io::stderr(), "{}: {}", line.place, line.text)),
        }),
    };
    let done = Executor::new().and_then(|executor| executor.block_on(program.run()));
    match launched.finish(done)? {
        End::Exited(code) => Ok(ExitCode::from(code)),
        End::Returned(values) => {
            for value in values.iter().filter(|_| is_first) {
                match value {
                    Json::String(text) if !output.json => print(&format!("{text}\n"))?,
                    value => print_json(value)?,
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The source of the program, and the program's own arguments.
fn source(args: &LuaArgs) -> Result<(PathBuf, String, &[String])> {
    if let Some(code) = &args.code {
        return Ok((PathBuf::from("-e"), code.clone(), &args.rest));
    }
    match args.rest.split_first() {
        Some((file, rest)) if file != "-" => {
            let path = Path::new(file);
            let source = std::fs::read_to_string(path).map_err(|error| unreadable_script(path, &error))?;
            Ok((path.to_owned(), source, rest))
        }
        None if io::stdin().is_terminal() => {
            Err(Error::new(Kind::Usage, "there is nothing to run")
                .hint("give a file, -e CODE, or - for standard input"))
        }
        _ if args.processes.are_several() => {
            Err(Error::new(Kind::Usage, "several processes can't read a program from standard input")
                .hint("give a file, or -e CODE"))
        }
        split => {
            let mut source = String::new();
            io::stdin()
                .read_to_string(&mut source)
                .map_err(|error| Error::io(Kind::Script, "read the script", "stdin", &error))?;
            Ok((PathBuf::from("stdin"), source, split.map_or(&[], |(_, rest)| rest)))
        }
    }
}
