//! The results of an environment's `step` and a recipe's `reward`, which `lua/results.lua` reads.

use std::collections::BTreeMap;

use mlua::{FromLua, Lua, LuaString, Table, Value};

use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Limit, ToolRecord};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// The environment's step reward plus the process rewards of the tool calls.
    pub reward: f64,
    /// The environment ended the task.
    pub done: bool,
    /// A limit of the environment ended the task. `done` takes precedence.
    pub truncated: bool,
    /// Named parts, which are logged.
    pub parts: BTreeMap<String, f64>,
    /// Rewards that a flow set for earlier steps: (step from 0, reward).
    pub earlier: Vec<(usize, f64)>,
    pub tools: Vec<ToolRecord>,
}

/// The end of a trajectory; argument of the reward function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrajectoryOutcome {
    /// The last response.
    pub text: String,
    /// The sampled ids of all responses.
    pub token_ids: Vec<u32>,
    pub steps: usize,
    /// Number of tool calls, including those that were not run.
    pub calls: usize,
    pub terminated: bool,
    pub truncated: bool,
    pub truncated_by: Option<Limit>,
}

/// Result of a reward function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reward {
    pub total: f64,
    /// Named parts before weighting.
    pub parts: BTreeMap<String, f64>,
}

impl FromLua for StepResult {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Self> {
        let result = Table::from_lua(value, lua)?;
        let (reward, done) = (result.raw_get("reward")?, result.raw_get("done")?);
        let (truncated, parts) = (result.raw_get("truncated")?, named_numbers(&result.raw_get("parts")?)?);
        Ok(Self { reward, done, truncated, parts, ..Self::default() })
    }
}

impl FromLua for Reward {
    fn from_lua(value: Value, lua: &Lua) -> mlua::Result<Self> {
        let result = Table::from_lua(value, lua)?;
        Ok(Self { total: result.raw_get("total")?, parts: named_numbers(&result.raw_get("parts")?)? })
    }
}

fn named_numbers(parts: &Table) -> mlua::Result<BTreeMap<String, f64>> {
    parts.pairs().map(|pair| pair.map(|(name, value): (LuaString, f64)| (name.to_string_lossy(), value))).collect()
}

/// What `lua/results.lua` returns: the result, or the reason why it is refused, and the field that
/// the reason is about.
pub(crate) type ReaderReturns<T> = (Option<T>, Option<LuaString>, Option<LuaString>);

/// The result of `function`: `step`, `flow` or `reward`.
///
/// # Errors
/// [`Kind::Script`] about the field that is wrong, without a place.
pub(crate) fn read<T>(function: &str, (result, why, field): ReaderReturns<T>) -> Result<T> {
    result.ok_or_else(|| {
        let text = |text: Option<LuaString>| text.map(|text| text.to_string_lossy()).unwrap_or_default();
        let field = Some(text(field)).filter(|field| !field.is_empty());
        let subject = Subject::Returned { function: function.to_owned(), field };
        Error::new(Kind::Script, text(why)).about(subject)
    })
}
