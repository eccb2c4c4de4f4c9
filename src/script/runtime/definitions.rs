//! What a script defines while it is loaded: a recipe, environments, tool-call formats, tests.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Function, UserData};
use serde_json::Value as Json;

use super::tool::Tool;
use crate::text::OwnOptions;

/// A recipe: settings as plain data, and the functions that stay in the VM.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) settings: Json,
    /// By name; the name of `env`, which is the only one, is empty.
    pub(crate) envs: Vec<(String, Env)>,
    pub(crate) context: Option<Function>,
    pub(crate) reward: Option<Function>,
    /// What a critic alone is shown of a state.
    pub(crate) privileged: Option<Function>,
    /// The estimator `custom`.
    pub(crate) advantage: Option<Function>,
    /// The loss `custom`.
    pub(crate) loss: Option<Function>,
    /// Supervised training that comes first.
    pub(crate) cold_start: Option<Box<Recipe>>,
    /// What evaluation has for itself.
    pub(crate) eval: EvalEnv,
    /// Row functions of `data.train` and `data.eval`, by the dataset's name.
    pub(crate) rows: [BTreeMap<String, Function>; 2],
}

/// What evaluation has in place of the recipe's own.
#[derive(Clone, Default)]
pub(crate) struct EvalEnv {
    pub(crate) env: Option<Env>,
    pub(crate) context: Option<Function>,
}

impl UserData for Recipe {}

/// An environment.
#[derive(Clone, Default)]
pub(crate) struct Env {
    pub(crate) settings: Json,
    pub(crate) tools: Vec<Rc<Tool>>,
    pub(crate) reset: Option<Function>,
    pub(crate) step: Option<Function>,
    /// In place of `reset` and `step`.
    pub(crate) flow: Option<Function>,
    /// In place of the recipe's.
    pub(crate) context: Option<Function>,
    pub(crate) reward: Option<Function>,
}

impl UserData for Env {}

/// A format of the script.
pub(crate) struct RecipeFormat {
    pub(crate) options: OwnOptions,
    pub(crate) parse: Function,
    pub(crate) write: Option<Function>,
    pub(crate) result: Option<Function>,
    pub(crate) schema: Option<Function>,
}

/// A format as a Lua value.
pub(crate) struct FormatHandle(pub(crate) Rc<RecipeFormat>);

impl UserData for FormatHandle {}

/// The tests that a file has named so far, and what the last failed assertion compared.
#[derive(Default)]
pub(crate) struct Cases {
    pub(crate) found: Vec<(String, Function)>,
    /// Expected and actual, entry by line.
    pub(crate) sides: Option<(String, String)>,
}
