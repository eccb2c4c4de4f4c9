//! Definitions made while a script is loaded: a recipe, environments, tool-call formats, tests.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Function, UserData};
use serde_json::Value as Json;

use super::servers::EnvTool;
use crate::algorithms::AlgorithmFile;
use crate::config::Settings;
use crate::text::OwnOptions;

/// A recipe: settings as plain data, and its functions, which stay in the VM.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) settings: Json,
    /// The same, read.
    pub(crate) typed: Box<Settings>,
    /// By name; the name of a single `env` is empty.
    pub(crate) envs: Vec<(String, Env)>,
    pub(crate) context: Option<Function>,
    pub(crate) reward: Option<Function>,
    /// Observation for the critic only.
    pub(crate) privileged: Option<Function>,
    /// The key by which training rows are sorted.
    pub(crate) row_order: Option<Function>,
    /// The probability that a training row is drawn on its turn.
    pub(crate) row_weight: Option<Function>,
    /// The estimator `custom`, if defined.
    pub(crate) advantage: Option<Function>,
    /// The loss `custom`, if defined.
    pub(crate) loss: Option<Function>,
    /// What `r1.algorithm` declares about its functions.
    pub(crate) algorithm: Option<Box<AlgorithmFile>>,
    /// Supervised training before the RL loop.
    pub(crate) cold_start: Option<Box<Recipe>>,
    /// Overrides for evaluation.
    pub(crate) eval: EvalEnv,
    /// Row functions of `data.train` and `data.eval`, by the dataset's name.
    pub(crate) rows: [BTreeMap<String, Function>; 2],
}

/// Environment and functions that replace the recipe's own in evaluation.
#[derive(Clone, Default)]
pub(crate) struct EvalEnv {
    pub(crate) env: Option<Env>,
    pub(crate) context: Option<Function>,
    pub(crate) reward: Option<Function>,
}

impl EvalEnv {
    /// Whether it replaces functions of the environments.
    pub(crate) fn has_functions(&self) -> bool {
        self.context.is_some() || self.reward.is_some()
    }

    /// An environment with the functions of evaluation.
    pub(crate) fn changed(&self, env: &Env) -> Env {
        Env {
            context: self.context.as_ref().or(env.context.as_ref()).cloned(),
            reward: self.reward.as_ref().or(env.reward.as_ref()).cloned(),
            ..env.clone()
        }
    }
}

impl UserData for Recipe {}

/// `r1.env { … }`, read once when the script is loaded.
#[derive(Clone, Default)]
pub(crate) struct Env {
    pub(crate) settings: Json,
    pub(crate) tools: Vec<EnvTool>,
    pub(crate) reset: Option<Function>,
    pub(crate) step: Option<Function>,
    /// Replaces `reset` and `step`.
    pub(crate) flow: Option<Function>,
    /// Replaces the recipe's context function.
    pub(crate) context: Option<Function>,
    pub(crate) reward: Option<Function>,
    /// Called once when a trajectory has ended.
    pub(crate) close: Option<Function>,
}

impl UserData for Env {}

/// A tool-call format defined by the script.
pub(crate) struct RecipeFormat {
    pub(crate) options: OwnOptions,
    pub(crate) parse: Function,
    /// Calls `parse` and checks its result (`lua/format.lua`).
    pub(crate) check: Function,
    pub(crate) write: Option<Function>,
    pub(crate) result: Option<Function>,
    pub(crate) schema: Option<Function>,
}

/// A format as a Lua value.
#[derive(Clone)]
pub(crate) struct FormatHandle(pub(crate) Rc<RecipeFormat>);

impl UserData for FormatHandle {}

/// The tests that a file has defined so far, and the values compared by the last failed assertion.
#[derive(Default)]
pub(crate) struct Cases {
    pub(crate) tests: Vec<(String, Function)>,
    /// Expected and actual value, one entry per line.
    pub(crate) sides: Option<(String, String)>,
}
