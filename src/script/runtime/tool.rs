//! A tool as data: what a declaration of `r1.tool` or `r1.tools.*` says.

use std::rc::Rc;
use std::time::Duration;

use mlua::{Function, UserData};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::grants::Grants;
use super::interpreters;
use crate::error::{Error, Kind, Result};
use crate::tools::{PythonOptions, RhaiOptions};

/// A tool of an env.
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON Schema of the arguments.
    pub(crate) parameters: Json,
    /// Longest result in tokens of the policy; the env's own limit unless said, 0 for none.
    pub(crate) max_result_tokens: Option<usize>,
    pub(crate) rewards: ToolRewards,
    pub(crate) limits: CallLimits,
    pub(crate) run: Run,
}

/// Process rewards of a tool's calls, where they are not those of `env.call_rewards`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolRewards {
    /// It succeeded.
    pub(crate) ok: Option<f64>,
    /// It failed or timed out.
    pub(crate) failed: Option<f64>,
    /// Its arguments did not fit, or there were too many calls.
    pub(crate) refused: Option<f64>,
}

/// How a call is carried out.
pub(crate) enum Run {
    /// `run(arguments, options) -> text [, reward]`, or `nil, message [, reward [, again]]`; waits at most `timeout`.
    Lua {
        run: Function,
        timeout: Option<Duration>,
    },
    /// `session` keeps names and files from call to call of one trajectory.
    Python {
        options: PythonOptions,
        session: bool,
    },
    Rhai(RhaiOptions),
}

/// A tool as a Lua value.
pub(crate) struct ToolHandle(pub(crate) Rc<Tool>);

impl UserData for ToolHandle {}

impl Tool {
    /// The OpenAI schema, for chat templates.
    pub(crate) fn schema(&self) -> Json {
        json!({
            "type": "function",
            "function": { "name": self.name, "description": self.description, "parameters": self.parameters },
        })
    }

    /// Refuses an interpreter by path that the recipe does not declare: the program itself is run to ask for its
    /// version and library, before it is confined. A bare name is looked for on the PATH, as `python3` is.
    pub(crate) fn check(&self, grants: &Grants) -> Result<()> {
        let Run::Python { options, .. } = &self.run else { return Ok(()) };
        let path = options.interpreter.to_string_lossy();
        if !path.contains('/') || grants.runs(&path) {
            return Ok(());
        }
        let why = format!("tool `{}`: the recipe does not declare that it runs the interpreter {path}", self.name);
        Err(Error::new(Kind::Script, why).hint(format!("add needs = {{ \"process:{path}\" }} to r1.recipe")))
    }

    /// Starts what the tool needs; done before the first trajectory, so that a missing sandbox is one clear error.
    pub(crate) fn prepare(&self) -> Result<()> {
        match &self.run {
            Run::Lua { .. } => Ok(()),
            Run::Python { options, .. } => interpreters::python(options).map(drop),
            Run::Rhai(options) => interpreters::rhai(options).map(drop),
        }
    }

    /// Whether a code block can be a call of it.
    pub(crate) fn takes_code(&self) -> bool {
        self.parameters.pointer("/properties/code").is_some()
    }
}

/// How calls of a tool are carried out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallLimits {
    /// Tries behind a first one that timed out, or that the tool says may succeed.
    pub(crate) retries: u32,
    /// The wait before the first of them; it doubles with each.
    pub(crate) backoff: Duration,
    pub(crate) cache: Option<CacheScope>,
    /// Most calls under way at the same time, over the whole run; 0 is no limit.
    pub(crate) concurrency: usize,
}

/// Whose calls share results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheScope {
    /// Those of one trajectory.
    Trajectory,
    /// Those of all trajectories of the process.
    Run,
}
