//! `r1.tools.mcp`: the tools of an MCP server, which is started when its tools are needed.

use std::rc::Rc;
use std::time::Duration;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Value as Json, json};

use super::args::{Fields, FromField, fail, fail_with};
use super::argument::Whole;
use super::arguments::{Arguments, arguments};
use super::secret::{Named, Secrets, Text};
use super::tool_limits::LimitArguments;
use crate::error::{Error, Kind, Result, suggest};
use crate::script::runtime::convert::kind;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::place;
use crate::script::runtime::servers::{Opened, ServerHandle, ServerScope, ToolServer};
use crate::script::runtime::tool::ToolRewards;
use crate::tools::mcp::{Endpoint, ServerOptions};
use crate::tools::{AllowedAddresses, is_private_host, url_target};

const NAME: &str = "r1.tools.mcp";
/// Most restarts.
const RESTARTS: u64 = 1000;

arguments! {
    /// Arguments of `r1.tools.mcp`.
    pub(super) struct McpArguments {
        command: Option<Command>;
        url: Option<String>;
        name: Option<String>;
        prefix: Prefix = Prefix(String::new());
        allow: Option<Allow>;
        env: Option<Named>;
        headers: Option<Named>;
        directory: Option<String>;
        scope: Scope = Scope(ServerScope::Run);
        timeout: Duration = Duration::from_secs(30);
        start_timeout: Duration = Duration::from_mins(1);
        restarts: Whole<0, RESTARTS> = Whole(3);
        max_result_tokens: Option<usize>;
        rewards: ToolRewards = ToolRewards::default();
        + limits: LimitArguments;
    }
}

/// A program and its arguments.
pub(super) struct Command(Vec<String>);

impl FromField for Command {
    fn from_field(fields: &Fields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let words = fields.plain(name, value)?;
        let words = words.as_array().into_iter().flatten().map(|word| match word {
            Json::String(text) if !text.contains('\0') => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        });
        let argv = words.collect::<Option<Vec<String>>>().filter(|argv| !argv.is_empty());
        let wanted = "a list, the program and its arguments: { \"npx\", \"-y\", \"PACKAGE\" }";
        argv.map(Self).ok_or_else(|| fields.refuse(name, wanted, value))
    }
}

/// The start of the names of a server's tools.
pub(super) struct Prefix(String);

impl FromField for Prefix {
    fn from_field(fields: &Fields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let prefix = String::from_field(fields, name, value)?;
        let odd = |letter: &char| !letter.is_ascii_alphanumeric() && !"_-".contains(*letter);
        if let Some(letter) = prefix.chars().find(odd) {
            let why = format!("`{name}` has {letter:?}; names of tools have letters, digits, _ and -");
            return Err(fields.refused(name, Error::new(Kind::Script, why)));
        }
        Ok(Self(prefix))
    }
}

/// `"run"` or `"trajectory"`.
pub(super) struct Scope(ServerScope);

impl FromField for Scope {
    fn from_field(fields: &Fields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        match String::from_field(fields, name, value)?.as_str() {
            "run" => Ok(Self(ServerScope::Run)),
            "trajectory" => Ok(Self(ServerScope::Trajectory)),
            other => {
                let why = format!("`{name}` is \"{other}\"; it is \"run\" (one server for all) or \"trajectory\"");
                let hint = suggest(other, ["run", "trajectory"]);
                Err(fields.refused(name, Error::new(Kind::Script, why).hint(hint)))
            }
        }
    }
}

/// The tools that the policy may use.
pub(super) struct Allow(Vec<String>);

impl FromField for Allow {
    fn from_field(fields: &Fields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let wanted = "a list of names of tools: { \"read_file\", \"list_directory\" }";
        let Value::Table(list) = value else { return Err(fields.refuse(name, wanted, value)) };
        let refuse = |why: String| Err(fields.refused(name, Error::new(Kind::Script, why)));
        let mut names = Vec::new();
        for pair in list.pairs::<Value, Value>() {
            let (_, item) = pair?;
            let Value::String(tool) = &item else {
                return refuse(format!("`{name}` must be {wanted}, and holds {}", kind(&item)));
            };
            names.push(tool.to_string_lossy());
        }
        if names.is_empty() {
            return refuse(format!("`{name}` is empty: the policy could use no tool; leave it out to allow all"));
        }
        Ok(Self(names))
    }
}

pub(super) fn install(lua: &Lua, tools: &Table) -> mlua::Result<()> {
    tools.raw_set("mcp", lua.create_function(|lua, value: Value| server(lua, &value))?)
}

fn server(lua: &Lua, value: &Value) -> mlua::Result<ServerHandle> {
    let mut given = McpArguments::read(lua, NAME, value)?;
    let endpoint = Rc::new(endpoint(lua, &mut given)?);
    let McpArguments { name, prefix, allow, scope, timeout, start_timeout, restarts, .. } = given;
    let name = name.unwrap_or_else(|| endpoint.usual_name());
    let limits = Limits { timeout, start_timeout, restarts: restarts.0 as u32 };
    Ok(ServerHandle(Rc::new(ToolServer {
        prefix: prefix.0,
        allow: allow.map(|allow| allow.0),
        scope: scope.0,
        max_result_tokens: given.max_result_tokens,
        rewards: given.rewards,
        limits: given.limits.into(),
        definition: endpoint.definition(),
        place: place(lua),
        check: {
            let (name, endpoint) = (name.clone(), Rc::clone(&endpoint));
            Box::new(move |grants| check(&name, &endpoint, grants))
        },
        open: {
            let name = name.clone();
            Box::new(move |grants| open(&name, &endpoint, limits, grants))
        },
        name,
    })))
}

#[derive(Clone, Copy)]
struct Limits {
    timeout: Duration,
    start_timeout: Duration,
    restarts: u32,
}

/// Where a server is, with its secrets not filled in.
enum Place {
    Command { argv: Vec<String>, env: Named, directory: String },
    Url { url: String, headers: Named, host: String, port: u16 },
}

impl Place {
    /// The program's name or the host.
    fn usual_name(&self) -> String {
        match self {
            Self::Command { argv, .. } => {
                let program = argv.first().map(String::as_str).unwrap_or_default();
                program.rsplit('/').next().unwrap_or(program).to_owned()
            }
            Self::Url { host, .. } => host.clone(),
        }
    }

    fn definition(&self) -> Json {
        let shown = |named: &Named| -> Map<String, Json> {
            named.0.iter().map(|(name, value)| (name.clone(), value.shown().into())).collect()
        };
        match self {
            Self::Command { argv, env, directory } => {
                json!({ "command": argv, "env": shown(env), "directory": directory })
            }
            Self::Url { url, headers, .. } => json!({ "url": url, "headers": shown(headers) }),
        }
    }
}

fn endpoint(lua: &Lua, given: &mut McpArguments) -> mlua::Result<Place> {
    let refuse = |name: &str, why: String| {
        Err(fail_with(lua, NAME, Error::new(Kind::Script, why).about_setting(name.to_owned())))
    };
    let only = |name: &str, with: &str| refuse(name, format!("`{name}` is for a server with `{with}`"));
    let env = given.env.take();
    match (given.command.take(), given.url.take()) {
        (None, None) => {
            let why = "needs `command`, a list such as { \"npx\", \"-y\", \"PACKAGE\" }, or `url`";
            Err(fail(lua, NAME, why))
        }
        (Some(_), Some(_)) => Err(fail(lua, NAME, "has both `command` and `url`: a server is one of them")),
        (None, Some(_)) if env.is_some() => only("env", "command"),
        (None, Some(_)) if given.directory.is_some() => only("directory", "command"),
        (Some(_), None) if given.headers.is_some() => only("headers", "url"),
        (None, Some(url)) => {
            let Some((host, port)) = url_target(&url) else {
                return refuse("url", format!("`{url}` is not a URL: it must begin with http:// or https://"));
            };
            Ok(Place::Url { url, headers: given.headers.take().unwrap_or_default(), host, port })
        }
        (Some(Command(argv)), None) => {
            let env = env.unwrap_or_default();
            let odd = |(name, value): &&(String, Text)| {
                name.is_empty() || name.contains(['=', '\0']) || value.shown().contains('\0')
            };
            if let Some((name, _)) = env.0.iter().find(odd) {
                return refuse("env", format!("`env` has the variable {name:?}, which is not a valid name"));
            }
            Ok(Place::Command { argv, env, directory: given.directory.take().unwrap_or_default() })
        }
    }
}

/// Refuses what the server needs and the recipe does not declare.
fn check(name: &str, place: &Place, grants: &Grants) -> Result<()> {
    let named = match place {
        Place::Command { argv, env, .. } => {
            if !grants.starts(&argv[0]) {
                let what = format!("starts {} (outside the sandbox)", argv[0]);
                return Err(undeclared(name, &what, &format!("process:{}", argv[0])));
            }
            env
        }
        Place::Url { host, port, headers, .. } => {
            let reach = grants.reach(host, *port);
            if reach == AllowedAddresses::Nowhere || (reach == AllowedAddresses::Public && is_private_host(host)) {
                return Err(undeclared(name, &format!("connects to {host}"), &format!("http:{host}")));
            }
            headers
        }
    };
    let mut variables = named.0.iter().flat_map(|(_, text)| text.variables());
    match variables.find(|variable| !grants.reads_variable(variable)) {
        Some(variable) => Err(undeclared(name, &format!("uses the variable {variable}"), &format!("env:{variable}"))),
        None => Ok(()),
    }
}

/// The options of a server with its secrets, when it is used.
fn open(name: &str, place: &Place, limits: Limits, grants: &Grants) -> Result<Opened> {
    check(name, place, grants)?;
    let mut secrets = Secrets::default();
    let mut reveal = |named: &Named| -> Result<Vec<(String, String)>> {
        named.0.iter().map(|(key, text)| Ok((key.clone(), text.reveal(&mut secrets)?))).collect()
    };
    let endpoint = match place {
        Place::Command { argv, env, directory } => {
            let directory = grants.directory().join(directory);
            Endpoint::Command { argv: argv.clone(), env: reveal(env)?, directory }
        }
        Place::Url { url, headers, host, port } => {
            Endpoint::Url { url: url.clone(), headers: reveal(headers)?, reach: grants.reach(host, *port) }
        }
    };
    let Limits { timeout, start_timeout, restarts } = limits;
    let options = ServerOptions { name: name.to_owned(), endpoint, timeout, start_timeout, restarts };
    Ok(Opened { options, mask: Box::new(move |text| secrets.mask(text)) })
}

/// The error for a server whose need the recipe does not declare.
fn undeclared(name: &str, what: &str, need: &str) -> Error {
    let why = format!("MCP server `{name}`: the recipe does not declare that it {what}");
    Error::new(Kind::Script, why).hint(format!("add needs = {{ \"{need}\" }} to r1.recipe"))
}
