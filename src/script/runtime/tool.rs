//! A tool as plain data: a declaration of `r1.tool` or `r1.tools.*`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Function, UserData, UserDataFields};
use serde_json::{Map, Value as Json, json};

use super::convert::from_json;
use super::passages::Passages;
use super::servers::ToolServer;
use super::tables::{self, TableTool};
use crate::error::{Error, Result};
use crate::schema::section;
use crate::search::SearchOptions;
use crate::tools::python::InputFile;
use crate::tools::{PythonOptions, RhaiOptions};

/// A tool as the policy sees it, and how its calls run.
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
    /// Process rewards of a tool's calls; `None` for `env.call_rewards`.
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

/// The kinds of tools. What each does is in a file of `src/script/api/tools`.
pub(crate) enum Run {
    Lua(LuaTool),
    Python(PythonTool),
    Rhai(RhaiOptions),
    Mcp(McpTool),
    Table(TableTool),
    Search(SearchTool),
}

/// `run(arguments, options) -> text [, reward]`, or `nil, message [, reward [, retry]]`; waits at
/// most `timeout`.
pub(crate) struct LuaTool {
    pub(crate) run: Function,
    pub(crate) timeout: Option<Duration>,
}

/// A Python interpreter.
pub(crate) struct PythonTool {
    pub(crate) options: PythonOptions,
    /// Keeps variables and files between calls of one trajectory.
    pub(crate) session: bool,
    /// Files in the directory of its programs.
    pub(crate) files: Vec<ToolFile>,
}

pub(crate) struct McpTool {
    pub(crate) server: Rc<ToolServer>,
    /// Its name on the server.
    pub(crate) tool: String,
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
    /// The file for a task. `columns` are those that its tools need.
    ///
    /// # Errors
    /// `Kind::Data` for a column that is missing, or not a table where the name needs one.
    pub(crate) fn read(&self, tool: &str, columns: &Json) -> Result<InputFile> {
        let content = match &self.source {
            FileSource::Content(content) => content.clone(),
            FileSource::Column(column) => {
                let value = tables::task_column(tool, columns, column)?;
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

    /// The error at the tool's declaration.
    pub(crate) fn placed(&self, error: Error) -> Error {
        Error { place: self.place.clone().or(error.place), ..error }
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
