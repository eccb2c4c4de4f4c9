//! The MCP servers of a recipe: their declaration, their lists of tools, the running servers.
//!
//! A recipe names servers while it is loaded; their tools are known when a server has listed them.
//! The lists belong to the script ([`Listings`]): a run stores them, so that its trajectories are
//! replayed without the servers, and a resumed run shows its policy the same tools.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mlua::UserData;
use serde_json::{Map, Value as Json, json};

use super::grants::Grants;
use super::tool::{CallLimits, McpTool, Run, Tool, ToolRewards};
use crate::error::{Error, Kind, Result, suggest};
use crate::tools::mcp::{Listing, McpOptions, McpReply, McpServer, RemoteTool};
use crate::tools::{Endpoint, Output};

/// Maximum length of a tool's name, the limit of models' own formats.
const NAME: usize = 64;

/// A server as the recipe declares it.
pub(crate) struct ToolServer {
    /// Name in messages.
    pub(crate) name: String,
    /// Prefix of the names of its tools.
    pub(crate) prefix: String,
    /// The tools that the policy may use; `None` for all.
    pub(crate) allow: Option<Vec<String>>,
    pub(crate) scope: ServerScope,
    pub(crate) max_result_tokens: Option<usize>,
    pub(crate) rewards: ToolRewards,
    pub(crate) limits: CallLimits,
    /// Its identity: command or URL, without secrets.
    pub(crate) definition: Json,
    /// The line of its declaration.
    pub(crate) place: Option<String>,
    pub(crate) access: ServerAccess,
    /// Longest wait for the result of a call.
    pub(crate) timeout: Duration,
    /// The wait begins again with each progress notification.
    pub(crate) progress: bool,
    /// Longest wait until it has started and listed its tools.
    pub(crate) start_timeout: Duration,
    /// Number of restarts after it has ended.
    pub(crate) restarts: u32,
}

/// How a server is reached: a program that r1 starts, or a URL.
pub(crate) struct ServerAccess {
    /// Refuses needs that the recipe does not declare.
    pub(crate) check: WithGrants<()>,
    /// Checks the grants and fills in the secrets.
    pub(crate) open: WithGrants<OpenedPlace>,
}

type WithGrants<T> = Box<dyn Fn(&Grants) -> Result<T>>;

/// An endpoint with its secrets, and the function that hides them in a text.
pub(crate) struct OpenedPlace {
    pub(crate) endpoint: Endpoint,
    pub(crate) mask: SecretMask,
}

pub(crate) type SecretMask = Box<dyn Fn(String) -> String>;

/// The calls that share a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerScope {
    /// All calls of this process.
    Run,
    /// Calls of one trajectory.
    Trajectory,
}

/// A server as a Lua value.
#[derive(Clone)]
pub(crate) struct ServerHandle(pub(crate) Rc<ToolServer>);

impl UserData for ServerHandle {}

/// A tool or a server in `env.tools`.
#[derive(Clone)]
pub(crate) enum EnvTool {
    One(Rc<Tool>),
    Server(Rc<ToolServer>),
}

/// The lists of tools of a script's servers, by the servers' definitions.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    all: Mutex<BTreeMap<String, Arc<Listing>>>,
    /// Servers that have other tools than their list of the run, a line each.
    changed: Mutex<BTreeSet<String>>,
}

impl Listings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Listing>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the list that a server gives now with the run's.
    fn compare(&self, server: &ToolServer, now: &Listing) {
        let before = self.all().get(&server.definition.to_string()).cloned();
        if let Some(change) = before.and_then(|before| difference(&before.tools, &now.tools)) {
            let name = &server.name;
            let kept = "the policy sees the tools of the run's first start";
            self.changes().insert(format!("the MCP server `{name}` has changed its tools ({change}); {kept}"));
        }
    }

    /// Servers that have other tools than their list of the run, a line each.
    pub(crate) fn changes_in_words(&self) -> Vec<String> {
        self.changes().iter().cloned().collect()
    }

    /// The list of a server, from the server itself on the first request.
    fn of(&self, server: &ToolServer, grants: &Grants) -> Result<Arc<Listing>> {
        // The lock is held while a server starts, so that a second worker does not start another.
        let mut all = self.all();
        let key = server.definition.to_string();
        if let Some(earlier) = all.get(&key) {
            return Ok(Arc::clone(earlier));
        }
        let (options, mask) = server.open(grants)?;
        let running = match server.scope {
            ServerScope::Run => shared(options),
            ServerScope::Trajectory => McpServer::new(options),
        };
        let listing = running.list().map_err(|error| Error { message: mask(error.message), ..error })?;
        let listing = Arc::new(listing);
        all.insert(key, Arc::clone(&listing));
        Ok(listing)
    }

    /// The lists as plain data, for a run's directory; null until a worker has requested them.
    pub(crate) fn to_json(&self) -> Json {
        let all = self.all();
        if all.is_empty() { Json::Null } else { json!(&*all) }
    }

    /// Takes lists that a run has stored, instead of requesting them from the servers; lists that
    /// can't be read are requested again.
    pub(crate) fn extend(&self, stored: &Json) {
        let lists = stored.as_object().into_iter().flatten();
        self.all().extend(
            lists.filter_map(|(key, list)| Some((key.clone(), Arc::new(serde_json::from_value(list.clone()).ok()?)))),
        );
    }

    /// One line per server: its name, its tools.
    pub(crate) fn in_words(&self) -> Vec<String> {
        const SHOWN: usize = 8;
        let line = |(key, listing): (&String, &Arc<Listing>)| {
            let Listing { server, tools, unusable, .. } = &**listing;
            let count = tools.len();
            let names: Vec<&str> = tools.iter().take(SHOWN).map(|tool| tool.name.as_str()).collect();
            let more = if count > SHOWN { ", …" } else { "" };
            let definition: Json = serde_json::from_str(key).unwrap_or_default();
            let parts = definition["command"].as_array().into_iter().flatten().filter_map(Json::as_str);
            let target = if let Some(url) = definition["url"].as_str() {
                format!("MCP server {server} at {url}")
            } else {
                let command: Vec<&str> = parts.collect();
                format!("MCP server {server}, outside the sandbox: {}", command.join(" "))
            };
            let plural = if count == 1 { "" } else { "s" };
            let without: Vec<String> =
                unusable.iter().map(|(name, why)| format!("; without `{name}`: {why}")).collect();
            let without = without.concat();
            format!("{target} ({count} tool{plural}: {}{more}{without})", names.join(", "))
        };
        self.all().iter().map(line).collect()
    }
}

/// The tools that two lists do not share, or that differ; `None` for equal lists.
fn difference(before: &[RemoteTool], now: &[RemoteTool]) -> Option<String> {
    const SHOWN: usize = 8;
    let mut changes = Vec::new();
    for tool in before {
        match now.iter().find(|listed| listed.name == tool.name) {
            None => changes.push(format!("without `{}`", tool.name)),
            Some(listed) if listed != tool => changes.push(format!("`{}` differs", tool.name)),
            Some(_) => {}
        }
    }
    let new = now.iter().filter(|tool| !before.iter().any(|listed| listed.name == tool.name));
    changes.extend(new.map(|tool| format!("new: `{}`", tool.name)));
    let more = changes.len().saturating_sub(SHOWN);
    changes.truncate(SHOWN);
    if more > 0 {
        changes.push(format!("{more} more"));
    }
    (!changes.is_empty()).then(|| changes.join(", "))
}

/// The tools of `env.tools`, and of its servers.
///
/// # Errors
/// [`Kind::Tool`] for a server that does not start; [`Kind::Script`] for an unknown name in
/// `allow`, and for two tools of the same name.
pub(crate) fn expand(list: &[EnvTool], listings: &Listings, grants: &Grants) -> Result<Vec<Rc<Tool>>> {
    let mut tools: Vec<(Rc<Tool>, Option<&Rc<ToolServer>>)> = Vec::new();
    for entry in list {
        let (new, server) = match entry {
            EnvTool::One(tool) => (vec![Rc::clone(tool)], None),
            EnvTool::Server(server) => {
                let tools = listings.of(server, grants).and_then(|listing| of_server(server, &listing));
                (tools.map_err(|error| server.placed(error))?, Some(server))
            }
        };
        for tool in new {
            if let Some((_, other)) = tools.iter().find(|(other_tool, _)| other_tool.name == tool.name) {
                return Err(clash(&tool.name, *other, server));
            }
            tools.push((tool, server));
        }
    }
    Ok(tools.into_iter().map(|(tool, _)| tool).collect())
}

/// The error for two tools of the same name.
fn clash(name: &str, first: Option<&Rc<ToolServer>>, second: Option<&Rc<ToolServer>>) -> Error {
    let from = |server: Option<&Rc<ToolServer>>| {
        server.map_or_else(|| "the recipe".to_owned(), |server| format!("the MCP server `{}`", server.name))
    };
    let same = match (first, second) {
        (Some(first), Some(second)) => Rc::ptr_eq(first, second),
        _ => false,
    };
    let message = if same {
        format!("{} has two tools whose names become `{name}`", from(second))
    } else {
        format!("two tools are called `{name}`: of {} and of {}", from(first), from(second))
    };
    let hint = if same {
        "`allow` names those that the policy may use".to_owned()
    } else {
        let short = second.or(first).map_or("mcp", |server| server.name.as_str());
        format!("give one server a prefix: r1.tools.mcp {{ …, prefix = \"{}_\" }}", clean(short))
    };
    let location = second.or(first).and_then(|server| server.place.clone());
    Error { place: location, ..Error::new(Kind::Script, message).hint(hint) }
}

/// The tools of a server that the policy may use, under their names in prompts.
fn of_server(server: &Rc<ToolServer>, listing: &Listing) -> Result<Vec<Rc<Tool>>> {
    let remote = &listing.tools;
    let unusable =
        listing.unusable.iter().find(|(name, _)| server.allow.as_ref().is_some_and(|all| all.contains(name)));
    if let Some((name, why)) = unusable {
        let message = format!("`allow` names `{name}` of the MCP server `{}`, which can't be used: {why}", server.name);
        return Err(Error::new(Kind::Tool, message).hint("leave it out of `allow`; the fault is in the server"));
    }
    if let Some(allow) = &server.allow
        && let Some(unknown) = allow.iter().find(|name| !remote.iter().any(|tool| tool.name == **name))
    {
        let names: Vec<&str> = remote.iter().map(|tool| tool.name.as_str()).collect();
        let message = format!("`allow` names `{unknown}`, which is not a tool of the MCP server `{}`", server.name);
        return Err(Error::new(Kind::Script, message).hint(suggest(unknown, names)));
    }
    let allowed = |tool: &&RemoteTool| server.allow.as_ref().is_none_or(|allow| allow.contains(&tool.name));
    let tool = |remote: &RemoteTool| {
        Rc::new(Tool {
            name: clean(&format!("{}{}", server.prefix, remote.name)),
            description: remote.description.clone(),
            parameters: remote.parameters.clone(),
            max_result_tokens: server.max_result_tokens,
            rewards: server.rewards,
            limits: server.limits.clone(),
            hidden: false,
            place: server.place.clone(),
            run: Run::Mcp(McpTool { server: Rc::clone(server), tool: remote.name.clone() }),
        })
    };
    Ok(remote.iter().filter(allowed).map(tool).collect())
}

/// A name that every tool-call format can write: letters, digits, `_` and `-`, at most [`NAME`].
fn clean(name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    name.chars().take(NAME).map(|letter| if fits(letter) { letter } else { '_' }).collect()
}

/// The server with these options, shared by all workers of the process.
fn shared(options: McpOptions) -> McpServer {
    static SERVERS: Mutex<Vec<McpServer>> = Mutex::new(Vec::new());
    let mut all = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = all.iter().find(|server| *server.options() == options) {
        return running.clone();
    }
    let server = McpServer::new(options);
    all.push(server.clone());
    server
}

impl ToolServer {
    /// Refuses a server that the recipe does not declare.
    pub(crate) fn check(&self, grants: &Grants) -> Result<()> {
        (self.access.check)(grants).map_err(|error| self.placed(error))
    }

    /// The error at the server's declaration.
    fn placed(&self, error: Error) -> Error {
        Error { place: self.place.clone().or(error.place), ..error }
    }

    /// The options of the server with its secrets, and the function that hides them.
    fn open(&self, grants: &Grants) -> Result<(McpOptions, SecretMask)> {
        let OpenedPlace { endpoint, mask } = (self.access.open)(grants)?;
        let &Self { timeout, progress, start_timeout, restarts, .. } = self;
        Ok((McpOptions { name: self.name.clone(), endpoint, timeout, progress, start_timeout, restarts }, mask))
    }

    /// The program that is started here; `None` for a URL.
    pub(crate) fn program(&self) -> Option<&str> {
        self.definition["command"][0].as_str()
    }

    /// Starts a server that all trajectories share, unless it was started before, and compares its
    /// tools with the run's.
    pub(crate) fn prepare(&self, listings: &Listings, grants: &Grants) -> Result<()> {
        if self.scope == ServerScope::Trajectory {
            return Ok(());
        }
        let (options, mask) = self.open(grants)?;
        let placed = |error: Error| Error { message: mask(error.message), place: self.place.clone(), ..error };
        if let Some(listing) = shared(options).prepare().map_err(placed)? {
            listings.compare(self, &listing);
        }
        Ok(())
    }

    /// Calls a tool. `session` has the servers of a trajectory.
    ///
    /// # Errors
    /// Undeclared needs, and variables that are not set. A failed call is not an error.
    pub(crate) async fn call(
        &self,
        grants: &RefCell<Grants>,
        session: Option<&SessionServers>,
        tool: &str,
        arguments: &Json,
    ) -> Result<(Output, Vec<Vec<u8>>)> {
        let (options, mask) = self.open(&grants.borrow())?;
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let reply = match (self.scope, session) {
            (ServerScope::Trajectory, Some(session)) => {
                session.call(self.definition.to_string(), options, tool, arguments).await?
            }
            _ => shared(options).call(tool, arguments).await?,
        };
        let McpReply { text, images, ok, timed_out, seconds } = reply;
        Ok((Output { text: mask(text), ok, timed_out, seconds, ..Output::default() }, images))
    }
}

/// The servers of one trajectory; they end with it.
#[derive(Default)]
pub(crate) struct SessionServers(RefCell<BTreeMap<String, Rc<SessionServer>>>);

struct SessionServer {
    server: McpServer,
    /// Answered calls of the running server, in order, so that a fork can repeat them.
    done: RefCell<Vec<RemoteCall>>,
    /// In a fork: calls that must run before any other.
    behind: tokio::sync::Mutex<Vec<RemoteCall>>,
}

type RemoteCall = (String, Map<String, Json>);

impl SessionServers {
    /// Servers in the same state: the calls so far are repeated on a new server when it is used.
    pub(crate) fn fork(&self) -> Self {
        let fork = |running: &SessionServer| {
            let done = running.done.borrow().clone();
            let server = McpServer::new(running.server.options().clone());
            Rc::new(SessionServer { server, done: RefCell::default(), behind: tokio::sync::Mutex::new(done) })
        };
        Self(RefCell::new(self.0.borrow().iter().map(|(key, running)| (key.clone(), fork(running))).collect()))
    }

    async fn call(
        &self,
        key: String,
        options: McpOptions,
        tool: &str,
        arguments: Map<String, Json>,
    ) -> Result<McpReply> {
        let new = || {
            let server = McpServer::new(options);
            Rc::new(SessionServer { server, done: RefCell::default(), behind: tokio::sync::Mutex::default() })
        };
        let running = Rc::clone(self.0.borrow_mut().entry(key).or_insert_with(new));
        {
            // A concurrent call waits until the earlier calls have run.
            let mut behind = running.behind.lock().await;
            for (tool, arguments) in std::mem::take(&mut *behind) {
                running.run(&tool, arguments).await?;
            }
        }
        running.run(tool, arguments).await
    }
}

impl SessionServer {
    async fn run(&self, tool: &str, arguments: Map<String, Json>) -> Result<McpReply> {
        let before = self.server.starts().await;
        let reply = self.server.call(tool, arguments.clone()).await?;
        if before > 0 && self.server.starts().await != before {
            // It was restarted and has lost its state.
            self.done.borrow_mut().clear();
        }
        self.done.borrow_mut().push((tool.to_owned(), arguments));
        Ok(reply)
    }
}
