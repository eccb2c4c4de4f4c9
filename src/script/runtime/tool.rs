//! A tool as plain data: a declaration of `r1.tool` or `r1.tools.*`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function, UserData, UserDataFields};
use serde_json::{Map, Value as Json, json};

use super::convert::from_json;
use super::grants::Grants;
use super::interpreters;
use super::passages::Passages;
use super::servers::{Listings, ToolServer};
use super::tables::{self, TableTool};
use crate::error::{Error, Kind, Result, suggest};
use crate::net::{AllowedAddresses, is_private_host, url_target};
use crate::schema::section;
use crate::search::SearchOptions;
use crate::tools::python::InputFile;
use crate::tools::table::Tables;
use crate::tools::{PythonOptions, RhaiOptions};

/// A tool of an environment.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of the arguments.
    pub(crate) parameters: Json,
    /// Maximum tokens of a result; `None` for the environment's limit, 0 for no limit.
    pub(crate) max_result_tokens: Option<usize>,
    pub(crate) rewards: ToolRewards,
    pub(crate) limits: CallLimits,
    /// It is for the script, not shown to the policy, and refused in its calls.
    pub(crate) hidden: bool,
    /// The line of its declaration.
    pub(crate) place: Option<String>,
    pub(crate) run: Run,
}

section! {
    /// Process rewards of a tool's calls; `None` for those of `env.call_rewards`.
    pub(crate) struct ToolRewards: "" {
        /// The call succeeded.
        ok: Option<f64> = None;
        /// The call failed or timed out.
        failed: Option<f64> = None;
        /// The arguments were invalid, or there were too many calls.
        refused: Option<f64> = None;
    }
}

impl Copy for ToolRewards {}

/// The way in which a call is run.
pub(crate) enum Run {
    /// `run(arguments, options) -> text [, reward]`, or `nil, message [, reward [, retry]]`; waits
    /// at most `timeout`.
    Lua {
        run: Function,
        timeout: Option<Duration>,
    },
    /// `session` keeps variables and files between calls of one trajectory.
    Python {
        options: PythonOptions,
        session: bool,
        /// Files in the directory of its programs.
        files: Vec<ToolFile>,
    },
    Rhai(RhaiOptions),
    /// The tool of an MCP server, by its name on the server.
    Mcp {
        server: Rc<ToolServer>,
        tool: String,
    },
    /// SQL over tables.
    Table(TableTool),
    /// A search of an index or a retrieval server.
    Search(SearchTool),
}

/// The source of the passages of a search tool.
#[derive(Clone, Debug)]
pub(crate) enum SearchSource {
    Index(Passages),
    /// A retrieval server.
    Url(String),
}

/// Options of `r1.tools.search`.
#[derive(Clone, Debug)]
pub(crate) struct SearchTool {
    pub(crate) source: SearchSource,
    pub(crate) options: SearchOptions,
    /// As the script wrote the options that are not defaults, for the record.
    pub(crate) written: Map<String, Json>,
    /// Maximum time of one attempt.
    pub(crate) timeout: Duration,
}

/// A file that a tool gives to its programs.
pub(crate) struct ToolFile {
    pub(crate) name: String,
    pub(crate) source: FileSource,
}

pub(crate) enum FileSource {
    /// A file, or text of the script.
    Content(Arc<[u8]>),
    /// A column of the task: text, a table for names such as `t.csv`, or JSON.
    Column(String),
}

impl ToolFile {
    /// The file for a task. `columns` are those of [`Tool::task_columns`].
    ///
    /// # Errors
    /// [`Kind::Data`] for a column that is missing, or not a table where the name needs one.
    pub(crate) fn read(&self, tool: &str, columns: &Json) -> Result<InputFile> {
        let content = match &self.source {
            FileSource::Content(content) => content.clone(),
            FileSource::Column(column) => {
                let value = columns.get(column).filter(|value| !value.is_null()).ok_or_else(|| {
                    let known = columns.as_object().into_iter().flat_map(|task| task.keys()).map(String::as_str);
                    let message = format!("tool `{tool}`: the task has no column `{column}`");
                    Error::new(Kind::Data, message).hint(suggest(column, known))
                })?;
                let read = tables::file_of(&self.name, value);
                read.map_err(|error| Error { message: format!("tool `{tool}`: {}", error.message), ..error })?.into()
            }
        };
        Ok(InputFile { name: self.name.clone(), content })
    }
}

/// A tool as a Lua value.
#[derive(Clone)]
pub(crate) struct ToolHandle(pub(crate) Rc<Tool>);

impl UserData for ToolHandle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("name", |_, tool| Ok(tool.0.name.clone()));
        fields.add_field_method_get("schema", |lua, tool| from_json(lua, &tool.0.schema()));
    }
}

impl Tool {
    /// The OpenAI schema, for chat templates.
    pub(crate) fn schema(&self) -> Json {
        json!({
            "type": "function",
            "function": { "name": self.name, "description": self.description, "parameters": self.parameters },
        })
    }

    /// The schema with the tables of a task.
    pub(crate) fn schema_with(&self, tables: Option<&Tables>) -> Json {
        let mut schema = self.schema();
        if let (Run::Table(tool), Some(tables)) = (&self.run, tables) {
            schema["function"]["description"] = format!("{}{}", self.description, tool.describe(tables)).into();
        }
        schema
    }

    /// The columns of the task that the tool needs.
    pub(crate) fn task_columns(&self) -> impl Iterator<Item = &str> {
        let (table, files): (_, &[ToolFile]) = match &self.run {
            Run::Table(tool) => (Some(tool), &[]),
            Run::Python { files, .. } => (None, files),
            _ => (None, &[]),
        };
        let files = files.iter().filter_map(|file| match &file.source {
            FileSource::Column(column) => Some(column.as_str()),
            FileSource::Content(_) => None,
        });
        table.into_iter().flat_map(TableTool::columns).chain(files)
    }

    /// Refuses an interpreter given by path that the recipe does not declare: the interpreter runs
    /// unconfined once to read its version and library path. A bare name is searched on the PATH,
    /// as `python3` is.
    pub(crate) fn check(&self, grants: &Grants) -> Result<()> {
        if let Run::Mcp { server, .. } = &self.run {
            return server.check(grants);
        }
        if let Run::Search(SearchTool { source: SearchSource::Url(url), .. }) = &self.run {
            return self.check_url(url, grants);
        }
        let Run::Python { options, .. } = &self.run else { return Ok(()) };
        let path = options.interpreter.to_string_lossy();
        if !path.contains('/') || grants.runs(&path) {
            return Ok(());
        }
        let why = format!("tool `{}`: the recipe does not declare that it runs the interpreter {path}", self.name);
        Err(self
            .placed(Error::new(Kind::Script, why).hint(format!("add needs = {{ \"process:{path}\" }} to r1.recipe"))))
    }

    /// Refuses a search server that the recipe does not declare.
    fn check_url(&self, url: &str, grants: &Grants) -> Result<()> {
        let (host, port) = url_target(url).unwrap_or_default();
        let allowed = match grants.reach(&host, port) {
            AllowedAddresses::Anywhere => true,
            AllowedAddresses::Public => !is_private_host(&host),
            AllowedAddresses::Nowhere => false,
        };
        if allowed {
            return Ok(());
        }
        let why = format!("tool `{}`: the recipe does not declare that it sends requests to {host}:{port}", self.name);
        Err(self.placed(
            Error::new(Kind::Script, why).hint(format!("add needs = {{ \"http:{host}:{port}\" }} to r1.recipe")),
        ))
    }

    /// The error at the tool's declaration.
    fn placed(&self, error: Error) -> Error {
        Error { place: self.place.clone().or(error.place), ..error }
    }

    /// The program that the tool starts outside the sandbox.
    pub(crate) fn program(&self) -> Option<&str> {
        match &self.run {
            Run::Mcp { server, .. } => server.program(),
            Run::Python { options, .. } => options.interpreter.to_str(),
            _ => None,
        }
    }

    /// Starts the tool's resources; done before the first trajectory, so that a missing sandbox is
    /// reported once.
    pub(crate) fn prepare(&self, listings: &Listings, grants: &Grants) -> Result<()> {
        match &self.run {
            // Tables are read when the script is loaded, or with their task.
            Run::Lua { .. } | Run::Table(_) | Run::Search(SearchTool { source: SearchSource::Url(_), .. }) => Ok(()),
            Run::Mcp { server, .. } => server.prepare(listings, grants),
            Run::Search(SearchTool { source: SearchSource::Index(passages), options, .. }) => {
                passages.open().and_then(|index| index.check(options))
            }
            Run::Python { options, .. } => {
                let named =
                    |error: Error| Error { message: format!("tool `{}`: {}", self.name, error.message), ..error };
                interpreters::python(options).map(drop).map_err(|error| self.placed(named(error)))
            }
            Run::Rhai(options) => interpreters::rhai(options).map(drop),
        }
    }

    /// Whether a code block can be a call of the tool.
    pub(crate) fn takes_code(&self) -> bool {
        !matches!(self.run, Run::Mcp { .. }) && self.parameters.pointer("/properties/code").is_some()
    }
}

/// Limits and retries of a tool's calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallLimits {
    /// Maximum retries after a timeout or an error that the tool marks as retryable.
    pub(crate) retries: u32,
    /// Wait before the first retry; doubles with each.
    pub(crate) backoff: Duration,
    pub(crate) cache: Option<CacheScope>,
    /// Maximum concurrent calls over the whole run; 0 for no limit.
    pub(crate) concurrency: usize,
}

/// The calls that share cached results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheScope {
    /// Calls of one trajectory.
    Trajectory,
    /// Calls of all trajectories of the process.
    Run,
}
