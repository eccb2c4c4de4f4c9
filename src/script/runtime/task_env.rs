//! The environment of a task in one virtual machine: functions, tools, arguments.

use std::rc::Rc;
use std::sync::Arc;

use mlua::Function;
use serde_json::{Map, Value as Json};

use super::tool::Tool;
use crate::config::EnvSettings;
use crate::text::Renderer;

/// A function of the script, and what is called: the same with its data measured.
pub(crate) struct Entered {
    pub(crate) own: Function,
    pub(crate) measured: Function,
}

/// An environment with what the recipe adds to it.
pub(crate) struct LoadedEnv {
    /// Its name in `envs`; empty for the only one.
    pub(crate) name: String,
    pub(crate) settings: EnvSettings,
    pub(crate) reset: Entered,
    pub(crate) own_reset: bool,
    pub(crate) step: Entered,
    /// In place of both.
    pub(crate) flow: Option<Function>,
    pub(crate) context: Option<Entered>,
    pub(crate) reward: Option<Function>,
    pub(crate) tools: Vec<Rc<Tool>>,
    /// Where its prompts are written in another way than the recipe's others.
    pub(crate) renderer: Option<Arc<Renderer>>,
}

/// What one task has of its environment.
pub(crate) struct TaskEnv {
    pub(crate) env: Rc<LoadedEnv>,
    pub(crate) tools: Vec<Rc<Tool>>,
    /// In the OpenAI shape, for the chat template.
    pub(crate) schemas: Arc<[Json]>,
    /// Arguments of `reset`.
    pub(crate) kwargs: Map<String, Json>,
    /// Arguments of tools, by tool.
    pub(crate) tool_kwargs: Map<String, Json>,
    /// Steps after which the task is cut off.
    pub(crate) max_steps: usize,
    /// The columns of the task that say so; null if there are none.
    pub(crate) columns: Json,
    /// It is one of those that evaluation has for itself.
    pub(crate) eval: bool,
}
