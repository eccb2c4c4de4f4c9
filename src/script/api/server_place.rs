//! The location of a server of the recipe, for `r1.tools.mcp` and `r1.connection`: a program that
//! r1 starts, or a URL. The declared needs are checked before a run, and secrets are inserted when
//! the server is used.

use mlua::{Lua, Value};
use serde_json::{Map, Value as Json, json};

use super::args::{FromField, TableFields, fail, fail_with};
use super::secret::{NamedTexts, Secrets, Text};
use crate::error::{Error, Kind, Result};
use crate::net::host_and_port;
use crate::script::runtime::grants::Grants;
use crate::tools::Endpoint;

/// A program and its arguments.
pub(super) struct ServerCommand(pub(super) Vec<String>);

impl FromField for ServerCommand {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let arguments = fields.plain(name, value)?;
        let arguments = arguments.as_array().into_iter().flatten().map(|word| match word {
            Json::String(text) if !text.contains('\0') => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        });
        let argv = arguments.collect::<Option<Vec<String>>>().filter(|argv| !argv.is_empty());
        let wanted = "a list, the program and its arguments: { \"npx\", \"-y\", \"PACKAGE\" }";
        argv.map(Self).ok_or_else(|| fields.refuse(name, wanted, value))
    }
}

/// The fields with the location of a server.
#[derive(Default)]
pub(super) struct PlaceFields {
    pub(super) command: Option<ServerCommand>,
    pub(super) url: Option<String>,
    pub(super) env: Option<NamedTexts>,
    pub(super) headers: Option<NamedTexts>,
    pub(super) directory: Option<String>,
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
        fields: PlaceFields,
        example: &str,
    ) -> mlua::Result<Self> {
        let refuse = |name: &str, why: String| {
            Err(fail_with(lua, function, Error::new(Kind::Script, why).about_setting(name.to_owned())))
        };
        let only = |name: &str, with: &str| refuse(name, format!("`{name}` is for a server with `{with}`"));
        let PlaceFields { command, url, env, headers, directory } = fields;
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
                let odd = |(name, value): &&(String, Text)| {
                    name.is_empty() || name.contains(['=', '\0']) || value.shown().contains('\0')
                };
                if let Some((name, _)) = env.0.iter().find(odd) {
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
                let program = argv.first().map(String::as_str).unwrap_or_default();
                program.rsplit('/').next().unwrap_or(program).to_owned()
            }
            Self::Url { host, .. } => host.clone(),
        }
    }

    /// The identity of the server, without secrets.
    pub(super) fn definition(&self) -> Json {
        let shown = |named: &NamedTexts| -> Map<String, Json> {
            named.0.iter().map(|(name, value)| (name.clone(), value.shown().into())).collect()
        };
        match self {
            Self::Command { argv, env, directory } => {
                json!({ "command": argv, "env": shown(env), "directory": directory })
            }
            Self::Url { url, headers, .. } => json!({ "url": url, "headers": shown(headers) }),
        }
    }

    /// The program of a command.
    pub(super) fn program(&self) -> Option<&str> {
        match self {
            Self::Command { argv, .. } => argv.first().map(String::as_str),
            Self::Url { .. } => None,
        }
    }

    /// The host and port of a URL.
    pub(super) fn host(&self) -> Option<(&str, u16)> {
        match self {
            Self::Command { .. } => None,
            Self::Url { host, port, .. } => Some((host, *port)),
        }
    }

    /// Checks that the recipe declares the server's needs. `name` names the server in messages:
    /// "MCP server `files`".
    ///
    /// # Errors
    /// [`Kind::Script`], with the need that would allow it.
    pub(super) fn check(&self, name: &str, grants: &Grants) -> Result<()> {
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

    /// The endpoint with its secrets, which are added to `secrets`.
    ///
    /// # Errors
    /// As [`Place::check`]; [`Kind::Usage`] for a variable that is not set.
    pub(super) fn open(&self, name: &str, grants: &Grants, secrets: &mut Secrets) -> Result<Endpoint> {
        self.check(name, grants)?;
        let mut reveal = |named: &NamedTexts| -> Result<Vec<(String, String)>> {
            named.0.iter().map(|(key, text)| Ok((key.clone(), text.reveal(secrets)?))).collect()
        };
        Ok(match self {
            Self::Command { argv, env, directory } => {
                let directory = grants.directory().join(directory);
                Endpoint::Command { argv: argv.clone(), env: reveal(env)?, directory }
            }
            Self::Url { url, headers, host, port } => {
                Endpoint::Url { url: url.clone(), headers: reveal(headers)?, reach: grants.reach(host, *port) }
            }
        })
    }
}

/// The error for a server whose need the recipe does not declare.
fn undeclared(name: &str, what: &str, need: &str) -> Error {
    let why = format!("{name}: the recipe does not declare that it {what}");
    Error::new(Kind::Script, why).hint(format!("add needs = {{ \"{need}\" }} to r1.recipe"))
}
