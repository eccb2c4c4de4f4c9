//! What a tool does: [`HostTool`], and the call that it receives.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use mlua::{Lua, Value};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::super::args::raise;
use crate::error::Result;
use crate::mdp::InterpreterRequest;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::host::{Call, Host};
use crate::script::runtime::servers::Listings;
use crate::script::runtime::tool::{Run, Tool};
use crate::tools::Output;
use crate::tools::python::InputFile;
use crate::tools::table::Tables;

/// What a kind of tool does; a file of this folder for each.
pub(crate) trait HostTool {
    /// Runs one attempt of a call. A failure that the policy caused is an output.
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>>;

    /// The columns of the task that the tool needs.
    fn task_columns(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Checks what `tool` needs of a task. Returns the tables that its calls query.
    ///
    /// # Errors
    /// [`Kind::Data`](crate::error::Kind::Data) for a column that is missing or damaged.
    fn read_task(&self, _tool: &str, _task: &Json) -> Result<Option<Arc<Tables>>> {
        Ok(None)
    }

    /// The tables of a task, as a part of the description.
    fn describe_task(&self, _tables: &Tables) -> String {
        String::new()
    }

    /// Refuses a program or a server that the recipe does not declare.
    fn check(&self, _tool: &Tool, _grants: &Grants) -> Result<()> {
        Ok(())
    }

    /// The program that the tool starts outside the sandbox.
    fn program(&self) -> Option<&str> {
        None
    }

    /// Starts the tool's resources; done before the first trajectory, so that a missing sandbox is
    /// reported once. Tables are read when the script is loaded, or with their task.
    fn prepare(&self, _tool: &Tool, _listings: &Listings, _grants: &Grants) -> Result<()> {
        Ok(())
    }

    /// Whether a code block of a reply can be a call, if the tool has a parameter `code`.
    fn takes_code_blocks(&self) -> bool {
        true
    }
}

impl Tool {
    pub(crate) fn host_tool(&self) -> &dyn HostTool {
        match &self.run {
            Run::Lua(tool) => tool,
            Run::Python(tool) => tool,
            Run::Rhai(tool) => tool,
            Run::Mcp(tool) => tool,
            Run::Table(tool) => tool,
            Run::Search(tool) => tool,
        }
    }

    /// The schema with the tables of a task.
    pub(crate) fn schema_with(&self, tables: Option<&Tables>) -> Json {
        let mut schema = self.schema();
        if let Some(tables) = tables {
            let tables = self.host_tool().describe_task(tables);
            schema["function"]["description"] = format!("{}{tables}", self.description).into();
        }
        schema
    }

    /// Whether a code block can be a call of the tool.
    pub(crate) fn takes_code(&self) -> bool {
        self.host_tool().takes_code_blocks() && self.parameters.pointer("/properties/code").is_some()
    }
}

pub(crate) struct ValidatedCall {
    pub(crate) tool: Rc<Tool>,
    /// As the policy wrote them, and as the script passed them.
    pub(crate) arguments: Json,
    pub(crate) lua_arguments: Value,
    pub(crate) prelude: String,
    /// Files that the script passes to programs.
    pub(crate) files: Rc<Vec<InputFile>>,
    /// The script's own call, whose result the policy does not see.
    pub(crate) hidden: bool,
    /// Second argument of a tool in Lua.
    pub(crate) options: Value,
    /// Arguments of the task for the tool.
    pub(crate) kwargs: Option<Json>,
}

pub(crate) struct CallAttempt<'a> {
    pub(crate) lua: &'a Lua,
    pub(crate) call: &'a Rc<Call>,
    pub(crate) host: &'a Host,
    pub(crate) of: &'a ValidatedCall,
}

pub(crate) struct AttemptResult {
    pub(crate) output: Output,
    /// The process reward, if the tool returned one.
    pub(crate) reward: Option<f64>,
    /// The tool marked the error as retryable.
    pub(crate) retryable: bool,
}

impl CallAttempt<'_> {
    pub(crate) fn tool(&self) -> &Tool {
        &self.of.tool
    }

    pub(crate) fn text(&self, argument: &str) -> String {
        self.of.arguments.get(argument).and_then(Json::as_str).unwrap_or_default().to_owned()
    }

    /// A result for the policy, truncated with the number of omitted bytes.
    pub(crate) fn cut(&self, text: String) -> String {
        if text.len() <= self.call.result {
            return text;
        }
        let end = text.floor_char_boundary(self.call.result);
        format!("{}\n… ({} more bytes)", &text[..end], text.len() - end)
    }

    /// Runs a program, or takes its result from the record.
    pub(crate) async fn recorded(
        &self,
        prelude: &str,
        files: &[InputFile],
        live: impl Future<Output = Result<Output>>,
    ) -> mlua::Result<AttemptResult> {
        let request = InterpreterRequest {
            tool: self.of.tool.name.clone(),
            arguments: self.of.arguments.clone(),
            prelude: prelude.to_owned(),
            files: digests(files),
        };
        let output = self.call.external("tool", request, live).await.map_err(raise)?;
        Ok(AttemptResult { output, reward: None, retryable: false })
    }
}

/// SHA-256 (hex) of files by name, for the record.
pub(crate) fn digests(files: &[InputFile]) -> BTreeMap<String, String> {
    files.iter().map(|file| (file.name.clone(), format!("{:x}", Sha256::digest(&file.content)))).collect()
}
