//! The environment of a task in one virtual machine: functions, tools, arguments.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use mlua::Function;
use serde_json::{Map, Value as Json};

use super::tool::Tool;
use crate::config::EnvSettings;
use crate::text::Renderer;
use crate::tools::table::Tables;

/// A function of the script, and its wrapper that measures the size of its data.
pub(crate) struct MeasuredFunction {
    pub(crate) function: Function,
    pub(crate) measured: Function,
}

/// An environment with the recipe's additions.
pub(crate) struct LoadedEnv {
    /// Its name in `envs`; empty for a single `env`.
    pub(crate) name: String,
    pub(crate) settings: EnvSettings,
    pub(crate) reset: MeasuredFunction,
    pub(crate) own_reset: bool,
    pub(crate) step: MeasuredFunction,
    /// Replaces `reset` and `step`.
    pub(crate) flow: Option<Function>,
    pub(crate) context: Option<MeasuredFunction>,
    pub(crate) reward: Option<Function>,
    /// Called once when a trajectory has ended.
    pub(crate) close: Option<Function>,
    pub(crate) tools: Vec<Rc<Tool>>,
    /// The environment's own renderer, if it differs from the recipe's.
    pub(crate) renderer: Option<Arc<Renderer>>,
}

pub(crate) struct TaskEnv {
    pub(crate) env: Rc<LoadedEnv>,
    pub(crate) tools: Vec<Rc<Tool>>,
    /// In the OpenAI shape, for the chat template.
    pub(crate) schemas: Arc<[Json]>,
    /// Arguments of `reset`.
    pub(crate) kwargs: Map<String, Json>,
    /// Arguments of tools, by tool name.
    pub(crate) tool_kwargs: Map<String, Json>,
    /// Tables of the task, by tool name.
    pub(crate) tables: BTreeMap<String, Arc<Tables>>,
    /// Maximum steps of the task.
    pub(crate) max_steps: usize,
    /// The dataset columns with the values above; null if there are none.
    pub(crate) columns: Json,
    /// The environment belongs to evaluation.
    pub(crate) eval: bool,
}
