//! `r1 mcp`: serves the tools of a recipe to any MCP client.
//!
//! A client starts the program and uses the protocol on its standard input and output; messages
//! for people go to standard error. With `--http` clients connect to an address instead. A session
//! has one state, the result of `reset` for one task, so that tools find what earlier calls left in
//! `call.state`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Args;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};

use super::completers::{recipe_settings, scripts_and_runs};
use super::listen_on;
use crate::error::{Error, Kind, Result};
use crate::load::Loaded;
use crate::script::{Split, State, Worker};
use crate::telemetry::{Reporter, ctrl_c};
use crate::tools::mcp::{
    McpReply, PATH, RemoteTool, SESSIONS, Served, ServedCall, ServedTools, serve_http, serve_stdio,
};
use crate::train::Agent;

/// Calls that may wait for the one that runs.
const WAITING: usize = 64;

/// Environment variable with the token that clients over HTTP must send.
const TOKEN: &str = "R1_MCP_TOKEN";

/// Serve the tools of a recipe to MCP clients, over standard input and output or HTTP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  r1 mcp scripts/retool.lua                    a client's entry: \"command\": \"r1\", \"args\": [\"mcp\", \"…/retool.lua\"]
  r1 mcp runs/retool                           with the settings of a run
  r1 mcp scripts/gsm8k_tool.lua --row 3        tools that work on the state of a task
  r1 mcp scripts/retool.lua --http 8080        clients connect to http://127.0.0.1:8080/mcp

A session has one state: the result of `reset` for a row of data.train. Its calls run one after the
other. Errors of a tool are results with isError; what the script logs goes to standard error.
With --http every user of this machine can run the tools, and on another address than a loopback
one everyone who can reach it, unless the environment variable R1_MCP_TOKEN is set: then clients
must send `Authorization: Bearer` with its value. There is no TLS.")]
pub(super) struct McpArgs {
    /// A recipe: a Lua file that returns `r1.recipe { … }`; or a run (its directory, its name, a
    /// checkpoint), for its script and settings
    #[arg(value_name = "SCRIPT|RUN", add = scripts_and_runs())]
    script: PathBuf,
    /// Settings of the recipe to change, such as limits.wait=600
    #[arg(value_name = "KEY=VALUE", add = recipe_settings())]
    overrides: Vec<String>,
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
    /// The row of data.train whose task the session has, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    row: u64,
    /// Serve over streamable HTTP at PORT of 127.0.0.1, or at ADDRESS:PORT; port 0 is a free one
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = address)]
    http: Option<SocketAddr>,
    /// Seed of the session's random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// An address, or a port of the loopback address.
fn address(text: &str) -> std::io::Result<SocketAddr> {
    let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let parsed = text.parse().map(local).or_else(|_| text.parse::<SocketAddr>());
    let message = "must be a port, such as 8080, or ADDRESS:PORT, such as 127.0.0.1:8080";
    parsed.map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidInput, message))
}

/// `reporter` must not print on standard output, which belongs to the protocol.
pub(super) fn run(args: &McpArgs, reporter: &Reporter) -> Result<()> {
    let interrupt = ctrl_c();
    // A session saves nothing, so Ctrl-C ends it at once.
    interrupt.at_once(true);
    let agent = Agent::find(&args.script, &args.runs_dir)?;
    let opened = agent.open(&args.overrides)?;
    agent.in_words(&opened).iter().for_each(|line| reporter.info(line));
    let loaded = Loaded::new(opened.script, reporter)?;
    let worker = &loaded.worker;
    worker.prepare()?;
    let runtime = Worker::runtime()?;
    let sessions =
        Sessions { worker, task: task(worker, args.row)?, seed: args.seed, reporter, states: RefCell::default() };
    let first = runtime.block_on(sessions.reset())?;
    let tools: Vec<RemoteTool> = first.tools().iter().map(tool).collect();
    if tools.is_empty() {
        return Err(Error::new(Kind::Script, "the recipe has no tools to serve")
            .at_path(&args.script)
            .hint("give its env tools: r1.env { tools = { r1.tools.python {} } }"));
    }
    print_log(worker, reporter);
    sessions.states.borrow_mut().insert(String::new(), Rc::new(Mutex::new(Some(first))));
    let about = format!("Tools of the r1 recipe {}", args.script.display());
    let (calls, queue) = mpsc::channel(WAITING);
    let tools = ServedTools { tools, about, calls };
    let served = runtime.block_on(async {
        let Some(address) = args.http else {
            return tokio::join!(serve_stdio(tools), sessions.answer(queue)).0;
        };
        let (listener, address) = listen_on(address, "--http 0 takes a free port").await?;
        let token = token()?;
        if token.is_none() {
            let who =
                if address.ip().is_loopback() { "every user of this machine" } else { "everyone who can reach it" };
            reporter.warn(&format!("{who} can run the tools: set {TOKEN} to a secret that clients must send"));
        }
        let count = tools.tools.len();
        let plural = if count == 1 { "" } else { "s" };
        reporter.info(&format!("serving {count} tool{plural} at http://{address}{PATH}; Ctrl-C ends it"));
        tokio::select! {
            () = serve_http(tools, listener, token, super::interrupted(interrupt)) => {}
            () = sessions.answer(queue) => {}
        }
        Ok(())
    });
    // A read of standard input can't be cancelled.
    runtime.shutdown_background();
    served
}

/// The token of clients over HTTP.
///
/// # Errors
/// [`Kind::Usage`] for one that a header can't have.
fn token() -> Result<Option<String>> {
    let Some(token) = std::env::var_os(TOKEN).filter(|token| !token.is_empty()) else { return Ok(None) };
    let token = token.into_string().ok().filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    let why = format!("{TOKEN} may have only letters, digits and punctuation of ASCII");
    token.map(Some).ok_or_else(|| Error::new(Kind::Usage, why))
}

fn task(worker: &Worker, row: u64) -> Result<Value> {
    if worker.rows(Split::Train)?.is_some() {
        return worker.row(Split::Train, row);
    }
    let mut task = json!({ "prompt": "", "problem": "", "question": "" });
    if let Some(env) = worker.envs.first_named(Split::Train) {
        task["env"] = env.into();
    }
    Ok(task)
}

/// A tool from its schema in the format of the OpenAI API.
fn tool(schema: &Value) -> RemoteTool {
    let function = &schema["function"];
    let text = |name: &str| function[name].as_str().unwrap_or_default().to_owned();
    RemoteTool { name: text("name"), description: text("description"), parameters: function["parameters"].clone() }
}

/// The sessions of clients, with their states.
struct Sessions<'a> {
    worker: &'a Worker,
    task: Value,
    seed: u64,
    reporter: &'a Reporter,
    /// By id; a state is made with the first call of its session.
    states: RefCell<BTreeMap<String, SessionState>>,
}

/// Locked by the call that runs.
type SessionState = Rc<Mutex<Option<State>>>;

impl Sessions<'_> {
    async fn reset(&self) -> Result<State> {
        self.worker.reset(&self.task, self.seed).await.map_err(|failure| {
            failure.error.hint("`reset` makes the state of the session; --row N takes the task of another row")
        })
    }

    /// Runs calls until the queue is closed; the calls of one session keep their order.
    async fn answer(&self, mut queue: mpsc::Receiver<Served>) {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                served = queue.recv() => match served {
                    None => return,
                    Some(Served::Call(call)) => running.push(self.call(call)),
                    Some(Served::End(id)) => drop(self.states.borrow_mut().remove(&id)),
                },
                Some(()) = running.next() => {}
            }
        }
    }

    fn state(&self, session: &str) -> SessionState {
        let mut states = self.states.borrow_mut();
        if states.len() > SESSIONS
            && !states.contains_key(session)
            && let Some(idle) = states.iter().find(|(id, state)| !id.is_empty() && Rc::strong_count(state) == 1)
        {
            let idle = idle.0.clone();
            states.remove(&idle);
        }
        Rc::clone(states.entry(session.to_owned()).or_default())
    }

    async fn call(&self, call: ServedCall) {
        let ServedCall { session, tool, arguments, mut reply } = call;
        let arguments = Value::Object(arguments);
        let state = self.state(&session);
        let called = async {
            let mut state = state.lock().await;
            let state = match &mut *state {
                Some(state) => state,
                empty => empty.insert(self.reset().await?),
            };
            self.worker.call_tool(state, &tool, &arguments).await.map_err(|failure| failure.error)
        };
        let called = tokio::select! {
            called = called => called,
            () = reply.closed() => return,
        };
        print_log(self.worker, self.reporter);
        let result = match called {
            Ok(record) => McpReply { text: record.output, ok: record.ok, ..McpReply::default() },
            Err(error) => {
                self.reporter.warn(&error.to_string());
                McpReply { text: format!("Error: {}", error.message), ..McpReply::default() }
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
