//! `r1.process.run`: runs programs of this machine in the sandbox. Only the calling trajectory
//! waits; results are recorded.

use std::rc::Rc;
use std::time::Duration;

use mlua::{Lua, Table, Value};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::args::{answer, fail, json_of, plain, undeclared};
use super::argument::{Bytes, Mebibytes};
use super::arguments::{Arguments, arguments};
use super::outcome::{NilReason, OutsideCall, failed};
use super::secret::{NamedTexts, Secrets};
use super::server_place::argv;
use crate::mdp::Outcome;
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::host::{Call, Host};
use crate::tools::{Program, run_program};

const NAME: &str = "r1.process.run";
/// Default and maximum bytes kept of each output.
const OUTPUT: usize = 64 << 10;
pub(super) const MOST_OUTPUT: u64 = 16 << 20;

arguments! {
    /// Options of `r1.process.run`.
    pub(super) struct RunOptions {
        input: Vec<u8> = Vec::new();
        timeout: Duration = Duration::from_secs(10);
        memory: Mebibytes = Mebibytes(512);
        disk: Mebibytes = Mebibytes(64);
        output: Bytes<MOST_OUTPUT> = Bytes(OUTPUT);
        env: NamedTexts = NamedTexts::default();
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let process = lua.create_table()?;
    let shared_host = host.clone();
    bind_async(lua, &process, "run", move |lua, (argv, options): (Value, Value)| {
        let call = shared_host.current();
        let program = program(&lua, &shared_host, &argv, &options);
        let outside = OutsideCall::new(&lua, NAME, None);
        async move { run(&lua, &call, outside, program?).await }
    })?;
    super::namespace(lua, r1, "r1.process", process)
}

/// Parses and validates the program to run.
fn program(lua: &Lua, host: &Host, command: &Value, options: &Value) -> mlua::Result<(Program, NamedTexts)> {
    let command = plain(lua, NAME, "argv", command)?;
    let Some(argv) = argv(&command) else {
        let why = "takes a list, the program and its arguments: { \"sort\", \"-r\" }; a shell is a program: { \"sh\", \"-c\", \"…\" }";
        return Err(fail(lua, NAME, why));
    };
    if !host.grants.borrow().runs(&argv[0]) {
        return Err(undeclared(lua, host, NAME, &format!("process:{}", argv[0])));
    }
    let RunOptions { input, timeout, memory, disk, output, env } = RunOptions::read_optional(lua, NAME, options)?;
    env.check(lua, host, NAME)?;
    if let Some(name) = env.invalid_variable() {
        return Err(fail(lua, NAME, format!("`env` has the variable {name:?}, which is not a valid name")));
    }
    let program = Program {
        argv,
        env: Vec::new(),
        input,
        timeout,
        memory_mb: memory.0,
        disk_mb: disk.0,
        output: output.0,
        read: host.grants.borrow().readable(),
    };
    Ok((program, env))
}

/// Runs the program; its result is a table.
async fn run(
    lua: &Lua,
    call: &Call,
    outside: OutsideCall,
    (mut program, variables): (Program, NamedTexts),
) -> mlua::Result<Result<Value, NilReason>> {
    let mut request = json!({
        "argv": program.argv, "input": json_of(&program.input), "timeout": program.timeout.as_secs_f64(),
        "memory": program.memory_mb, "disk": program.disk_mb, "output": program.output,
    });
    if !variables.0.is_empty() {
        request["env"] = variables.shown().into();
    }
    let live = async move {
        let mut secrets = Secrets::default();
        for (name, value) in variables.0 {
            program.env.push((name, value.reveal(&mut secrets)?));
        }
        Ok(match run_program(program).await {
            Ok(done) => Outcome::Ok(Ended {
                code: done.code,
                out: secrets.mask(done.out),
                err: secrets.mask(done.err),
                timed_out: done.timed_out,
                seconds: done.seconds,
            }),
            Err(error) => failed(secrets.mask(error.to_string())),
        })
    };
    outside.answer(call, ("process", request), live, |ended| answer(lua, &ended)).await
}

/// The result of a program, as recorded and as the script sees it.
#[derive(Serialize, Deserialize)]
struct Ended {
    code: i32,
    out: String,
    err: String,
    timed_out: bool,
    seconds: f64,
}
