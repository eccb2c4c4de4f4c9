//! `r1.tools.mcp`: the tools of an MCP server, which is started when its tools are needed.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use mlua::{Lua, Value};

use super::super::args::{FromField, TableFields};
use super::super::argument::Whole;
use super::super::arguments::{Arguments, arguments};
use super::super::server_place::{HTTP, Place, PlaceArguments};
use super::host_tool::{AttemptResult, CallAttempt, HostTool};
use super::limits::LimitArguments;
use crate::error::{Error, Kind, Result, suggest};
use crate::script::runtime::convert::kind;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::place;
use crate::script::runtime::servers::{Listings, ServerHandle, ServerScope, ToolServer};
use crate::script::runtime::tool::{McpTool, Tool, ToolRewards};
use crate::tools::Output;

const NAME: &str = "r1.tools.mcp";
/// Maximum number of restarts.
const RESTARTS: u64 = 1000;

arguments! {
    /// Arguments of `r1.tools.mcp`.
    pub(crate) struct McpArguments {
        name: Option<String>;
        prefix: Prefix = Prefix(String::new());
        allow: Option<Allow>;
        scope: McpScope = McpScope(ServerScope::Run);
        timeout: Duration = Duration::from_secs(30);
        progress: bool = false;
        start_timeout: Duration = Duration::from_mins(1);
        restarts: Whole<0, RESTARTS> = Whole(3);
        max_result_tokens: Option<usize>;
        rewards: ToolRewards = ToolRewards::default();
        + place: PlaceArguments;
        + limits: LimitArguments;
    }
}

/// The prefix of the names of a server's tools.
pub(crate) struct Prefix(String);

impl FromField for Prefix {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
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
pub(crate) struct McpScope(ServerScope);

impl FromField for McpScope {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
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
pub(crate) struct Allow(Vec<String>);

impl FromField for Allow {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let wanted = "a list of names of tools: { \"read_file\", \"list_directory\" }";
        let Value::Table(list) = value else { return Err(fields.refuse(name, wanted, value)) };
        let refuse = |why: String| Err(fields.refused(name, Error::new(Kind::Script, why)));
        let mut names = Vec::new();
        for pair in list.pairs::<Value, Value>() {
            let (_, item) = pair?;
            let Value::String(tool) = &item else {
                return refuse(format!("`{name}` must be {wanted}, and contains {}", kind(&item)));
            };
            names.push(tool.to_string_lossy());
        }
        if names.is_empty() {
            return refuse(format!("`{name}` is empty: the policy could use no tool; leave it out to allow all"));
        }
        Ok(Self(names))
    }
}

pub(super) fn declare(lua: &Lua, value: &Value) -> mlua::Result<ServerHandle> {
    let arguments = McpArguments::read(lua, NAME, value)?;
    let endpoint = Place::read(lua, NAME, HTTP, arguments.place, "{ \"npx\", \"-y\", \"PACKAGE\" }")?;
    let McpArguments { name, prefix, allow, scope, timeout, progress, start_timeout, restarts, .. } = arguments;
    let name = name.unwrap_or_else(|| endpoint.usual_name());
    Ok(ServerHandle(Rc::new(ToolServer {
        prefix: prefix.0,
        allow: allow.map(|allow| allow.0),
        scope: scope.0,
        max_result_tokens: arguments.max_result_tokens,
        rewards: arguments.rewards,
        limits: arguments.limits.into(),
        definition: endpoint.definition(),
        place: place(lua),
        access: endpoint.access(format!("MCP server `{name}`")),
        timeout,
        progress,
        start_timeout,
        restarts: restarts.0 as u32,
        name,
    })))
}

impl HostTool for McpTool {
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>> {
        Box::pin(async move {
            let session = attempt.call.session.as_ref().map(|session| &session.servers);
            let live = async {
                let arguments = &attempt.of.arguments;
                let (output, images) = self.server.call(&attempt.host.grants, session, &self.tool, arguments).await?;
                // Cut before it is recorded: a server may answer with megabytes.
                let output = Output { text: attempt.cut(output.text), ..output };
                let named = (1..).zip(images).map(|(number, file)| (format!("image {number}"), Some(file)));
                attempt.with_images(output, named.collect())
            };
            attempt.recorded("", &[], live).await
        })
    }

    fn check(&self, _: &Tool, grants: &Grants) -> Result<()> {
        self.server.check(grants)
    }

    fn program(&self) -> Option<&str> {
        self.server.program()
    }

    fn prepare(&self, _: &Tool, listings: &Listings, grants: &Grants) -> Result<()> {
        self.server.prepare(listings, grants)
    }

    fn takes_code_blocks(&self) -> bool {
        false
    }
}
