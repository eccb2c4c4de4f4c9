//! The location of a server of the recipe, for `r1.tools.mcp` and `r1.connection`: a program that
//! r1 starts, or a URL. The declared needs are checked before a run, and secrets are inserted when
//! the server is used.

use std::rc::Rc;

use mlua::{Lua, Value};
use serde_json::{Value as Json, json};

use super::args::{FromField, TableFields, fail, refused};
use super::arguments::arguments;
use super::secret::{NamedTexts, Secrets};
use crate::error::{Error, Kind, Result};
use crate::net::host_and_port;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::servers::{OpenedPlace, ServerAccess};
use crate::tools::Endpoint;

/// A program and its arguments.
pub(super) struct ServerCommand(pub(super) Vec<String>);

impl FromField for ServerCommand {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let argv = argv(&fields.plain(name, value)?);
        let wanted = "a list, the program and its arguments: { \"npx\", \"-y\", \"PACKAGE\" }";
        argv.map(Self).ok_or_else(|| fields.refuse(name, wanted, value))
    }
}

/// A program and its arguments; `None` for other data.
pub(super) fn argv(command: &Json) -> Option<Vec<String>> {
    let word = |word: &Json| match word {
        Json::String(text) if !text.contains('\0') => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let argv: Vec<String> = command.as_array()?.iter().map(word).collect::<Option<_>>()?;
    Some(argv).filter(|argv| !argv.is_empty())
}

arguments! {
    /// The location of a server.
    pub(super) struct PlaceArguments {
        command: Option<ServerCommand>;
        url: Option<String>;
        env: Option<NamedTexts>;
        headers: Option<NamedTexts>;
        directory: Option<String>;
    }
}

/// The transport of a server, without the values of its secrets.
pub(super) enum Place {
    Command { argv: Vec<String>, env: NamedTexts, directory: String },
    Url { url: String, headers: NamedTexts, host: String, port: u16 },
}

/// The URLs that a function takes.
#[derive(Clone, Copy)]
pub(super) struct UrlScheme {
    /// The schemes, for messages.
    pub(super) wanted: &'static str,
    /// The URL with the scheme of HTTP; `None` for another scheme.
    pub(super) as_http: fn(&str) -> Option<String>,
}

/// URLs of HTTP.
pub(super) const HTTP: UrlScheme = UrlScheme { wanted: "http:// or https://", as_http: |url| Some(url.to_owned()) };

impl Place {
    /// Reads the fields of `function`. `example` is an example of a `command`.
    ///
    /// # Errors
    /// No location or two, fields of the other kind of location, an invalid URL.
    pub(super) fn read(
        lua: &Lua,
        function: &'static str,
        scheme: UrlScheme,
        fields: PlaceArguments,
        example: &str,
    ) -> mlua::Result<Self> {
        let refuse = |name: &str, why: String| Err(refused(lua, function, name, why));
        let only = |name: &str, with: &str| refuse(name, format!("`{name}` is for a server with `{with}`"));
        let PlaceArguments { command, url, env, headers, directory } = fields;
        match (command, url) {
            (None, None) => Err(fail(lua, function, format!("needs `command`, a list such as {example}, or `url`"))),
            (Some(_), Some(_)) => Err(fail(lua, function, "has both `command` and `url`: a server is one of them")),
            (None, Some(_)) if env.is_some() => only("env", "command"),
            (None, Some(_)) if directory.is_some() => only("directory", "command"),
            (Some(_), None) if headers.is_some() => only("headers", "url"),
            (None, Some(url)) => {
                let Some((host, port)) = (scheme.as_http)(&url).as_deref().and_then(host_and_port) else {
                    return refuse("url", format!("`{url}` is not a URL: it must begin with {}", scheme.wanted));
                };
                Ok(Self::Url { url, headers: headers.unwrap_or_default(), host, port })
            }
            (Some(ServerCommand(argv)), None) => {
                let env = env.unwrap_or_default();
                if let Some(name) = env.invalid_variable() {
                    return refuse("env", format!("`env` has the variable {name:?}, which is not a valid name"));
                }
                Ok(Self::Command { argv, env, directory: directory.unwrap_or_default() })
            }
        }
    }

    /// The program's name or the host.
    pub(super) fn usual_name(&self) -> String {
        match self {
            Self::Command { argv, .. } => {
                let program = &argv[0];
                program.rsplit('/').next().unwrap_or(program).to_owned()
            }
            Self::Url { host, .. } => host.clone(),
        }
    }

    /// The identity of the server, without secrets.
    pub(super) fn definition(&self) -> Json {
        match self {
            Self::Command { argv, env, directory } => {
                json!({ "command": argv, "env": env.shown(), "directory": directory })
            }
            Self::Url { url, headers, .. } => json!({ "url": url, "headers": headers.shown() }),
        }
    }

    /// Checks that the recipe declares the server's needs. `name` names the server in messages:
    /// "MCP server `files`".
    ///
    /// # Errors
    /// [`Kind::Script`], with the need that would allow it.
    fn check(&self, name: &str, grants: &Grants) -> Result<()> {
        let named = match self {
            Self::Command { argv, env, .. } => {
                if !grants.starts(&argv[0]) {
                    let what = format!("starts {} (outside the sandbox)", argv[0]);
                    return Err(undeclared(name, &what, &format!("process:{}", argv[0])));
                }
                env
            }
            Self::Url { host, port, headers, .. } => {
                if !grants.reaches(host, *port) {
                    return Err(undeclared(name, &format!("connects to {host}"), &format!("http:{host}")));
                }
                headers
            }
        };
        let mut variables = named.0.iter().flat_map(|(_, text)| text.variables());
        match variables.find(|variable| !grants.reads_variable(variable)) {
            Some(variable) => {
                Err(undeclared(name, &format!("uses the variable {variable}"), &format!("env:{variable}")))
            }
            None => Ok(()),
        }
    }

    /// The functions that a virtual machine keeps of the place; `name` as in [`Place::check`].
    pub(super) fn access(self, name: String) -> ServerAccess {
        let opened = Rc::new((self, name));
        let checked = Rc::clone(&opened);
        ServerAccess {
            check: Box::new(move |grants| checked.0.check(&checked.1, grants)),
            open: Box::new(move |grants| opened.0.open(&opened.1, grants)),
        }
    }

    /// The endpoint with its secrets.
    ///
    /// # Errors
    /// As [`Place::check`]; [`Kind::Usage`] for a variable that is not set.
    fn open(&self, name: &str, grants: &Grants) -> Result<OpenedPlace> {
        self.check(name, grants)?;
        let mut secrets = Secrets::default();
        let mut reveal = |named: &NamedTexts| -> Result<Vec<(String, String)>> {
            named.0.iter().map(|(key, text)| Ok((key.clone(), text.reveal(&mut secrets)?))).collect()
        };
        let endpoint = match self {
            Self::Command { argv, env, directory } => {
                let directory = grants.directory().join(directory);
                Endpoint::Command { argv: argv.clone(), env: reveal(env)?, directory }
            }
            Self::Url { url, headers, host, port } => {
                Endpoint::Url { url: url.clone(), headers: reveal(headers)?, reach: grants.reach(host, *port) }
            }
        };
        Ok(OpenedPlace { endpoint, mask: Box::new(move |text| secrets.mask(text)) })
    }
}

/// The error for a server whose need the recipe does not declare.
fn undeclared(name: &str, what: &str, need: &str) -> Error {
    let why = format!("{name}: the recipe does not declare that it {what}");
    Error::new(Kind::Script, why).hint(format!("add needs = {{ \"{need}\" }} to r1.recipe"))
}
