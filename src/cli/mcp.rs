//! `r1 mcp`: serves the tools of a recipe to any MCP client.
//!
//! A client starts the program and uses the protocol on its standard input and output; messages
//! for people go to standard error. The session has one state, the result of `reset` for one task,
//! so that tools find what earlier calls left in `call.state`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::error::{Error, Kind, Result};
use crate::script::{Script, Split, State, Worker};
use crate::services::Loaded;
use crate::telemetry::{Reporter, ctrl_c};
use crate::tools::mcp::{RemoteTool, Reply, ServedCall, serve_stdio};

/// Calls that may wait for the one that runs.
const WAITING: usize = 64;

/// Serve the tools of a recipe to MCP clients, over standard input and output
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 mcp scripts/retool.lua                    a client's entry: \"command\": \"r1\", \"args\": [\"mcp\", \"…/retool.lua\"]
  r1 mcp scripts/gsm8k_tool.lua --row 3        tools that work on the state of a task

The session has one state: the result of `reset` for a row of data.train. Tools run one after the
other. Errors of a tool are results with isError; what the script logs goes to standard error.")]
pub(super) struct McpArgs {
    /// A recipe: a Lua file that returns `r1.recipe { … }`
    #[arg(value_hint = ValueHint::FilePath)]
    script: PathBuf,
    /// Settings of the recipe to change, such as limits.wait=600
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The row of data.train whose task the session has, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    row: u64,
    /// Seed of the session's random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// `reporter` must not print on standard output, which belongs to the protocol.
pub(super) fn run(args: &McpArgs, reporter: &Reporter) -> Result<ExitCode> {
    // A session saves nothing, so Ctrl-C ends it at once.
    ctrl_c().at_once(true);
    let loaded = Loaded::new(Script::load(&args.script, &args.overrides)?, reporter)?;
    let worker = &loaded.worker;
    worker.prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Internal, format!("can't start the runtime: {error}")))?;
    let task = task(worker, args.row)?;
    let state = runtime.block_on(worker.reset(&task, args.seed)).map_err(|failure| {
        failure.error.hint("`reset` makes the state of the session; --row N takes the task of another row")
    })?;
    let tools: Vec<RemoteTool> = state.tools().iter().map(tool).collect();
    if tools.is_empty() {
        return Err(Error::new(Kind::Script, "the recipe has no tools to serve")
            .at_path(&args.script)
            .hint("give its env tools: r1.env { tools = { r1.tools.python {} } }"));
    }
    print_log(worker, reporter);
    let about = format!("Tools of the r1 recipe {}", args.script.display());
    let (calls, queue) = mpsc::channel(WAITING);
    let served = async { tokio::join!(serve_stdio(tools, about, calls), answer(worker, &state, queue, reporter)).0 };
    let served = runtime.block_on(served);
    // A read of standard input can't be cancelled.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

/// The task of the session.
fn task(worker: &Worker, row: u64) -> Result<Value> {
    if worker.rows(Split::Train)?.is_some() {
        return worker.row(Split::Train, row);
    }
    let mut task = json!({ "prompt": "", "problem": "", "question": "" });
    if let Some(env) = worker.first_env() {
        task["env"] = env.into();
    }
    Ok(task)
}

/// A tool from its schema in the format of the OpenAI API.
fn tool(schema: &Value) -> RemoteTool {
    let own = &schema["function"];
    let text = |name: &str| own[name].as_str().unwrap_or_default().to_owned();
    RemoteTool { name: text("name"), description: text("description"), parameters: own["parameters"].clone() }
}

/// Runs calls in their order, until the client disconnects.
async fn answer(worker: &Worker, state: &State, mut queue: mpsc::Receiver<ServedCall>, reporter: &Reporter) {
    while let Some(ServedCall { tool, arguments, mut reply }) = queue.recv().await {
        let arguments = Value::Object(arguments);
        let called = tokio::select! {
            called = worker.call_tool(state, &tool, &arguments) => called,
            () = reply.closed() => continue,
        };
        print_log(worker, reporter);
        let result = match called {
            Ok(record) => Reply { text: record.output, ok: record.ok, ..Reply::default() },
            Err(failure) => {
                reporter.warn(&failure.error.to_string());
                Reply { text: format!("Error: {}", failure.error.message), ..Reply::default() }
            }
        };
        // The client may be gone.
        let _ = reply.send(result);
    }
}

/// Shows what the script logged.
fn print_log(worker: &Worker, reporter: &Reporter) {
    for line in worker.take_log() {
        reporter.info(&format!("{}: {}", line.place, line.text));
    }
}
