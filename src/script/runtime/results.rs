//! Strict parsing of the results of an environment's `step` and a recipe's `reward`.

use std::collections::BTreeMap;

use mlua::{Table, Value};

use super::convert::{self, kind, show};
use crate::error::suggest;
use crate::mdp::{Limit, ToolRecord};

/// Maximum number of reward parts, and bytes of a part's name: each part is a metric of the run.
const FIELDS: usize = 64;
const NAME: usize = 64;

/// Result of a step.
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

/// How a trajectory ended; argument of the reward function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The last response.
    pub text: String,
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

/// The result of a flow: nothing, a reward, or a table as `step` returns it. The task is done
/// unless `truncated` is set.
pub(crate) fn flow_result(value: &Value) -> Result<StepResult, String> {
    let mut result = match value {
        Value::Nil => StepResult::default(),
        Value::Integer(_) | Value::Number(_) => {
            StepResult { reward: number("flow: reward", value)?, ..StepResult::default() }
        }
        Value::Table(table) if matches!(table.raw_get("done"), Ok(Value::Boolean(false))) => {
            return Err("the flow returned with done = false; it goes on with policy:generate, and ends early with \
                        truncated = true"
                .to_owned());
        }
        Value::Table(_) => result_of("flow", value)?,
        other => return Err(format!("the flow returned {}; it must return a number, a table or nothing", kind(other))),
    };
    result.done = result.done || !result.truncated;
    Ok(result)
}

pub(crate) fn step_result(value: &Value) -> Result<StepResult, String> {
    result_of("step", value)
}

/// What a function of that name returned.
fn result_of(function: &str, value: &Value) -> Result<StepResult, String> {
    let Value::Table(table) = value else {
        return Err(format!("{function} returned {}; it must return {{ reward = …, done = … }}", kind(value)));
    };
    let mut result = StepResult::default();
    each(table, |name, value| {
        match name {
            "reward" => result.reward = number(&format!("{function}: reward"), value)?,
            "done" | "truncated" => match value {
                Value::Boolean(done) if name == "done" => result.done = *done,
                Value::Boolean(truncated) => result.truncated = *truncated,
                other => return Err(format!("{function}: {name} is {}; it must be true or false", kind(other))),
            },
            "parts" => match value {
                Value::Table(parts) => each(parts, |name, value| {
                    result.parts.insert(name.to_owned(), number(&format!("{function}: part `{name}`"), value)?);
                    Ok(())
                })?,
                other => return Err(format!("{function}: parts is {}; it must be a table of numbers", kind(other))),
            },
            other => {
                let help = suggest(other, ["reward", "done", "truncated", "parts"]);
                return Err(format!("{function} returned the unknown field `{other}` ({help})"));
            }
        }
        Ok(())
    })?;
    Ok(result)
}

/// A number, or a table of named parts, of which `total` is the reward if present. Otherwise the
/// parts are summed; `{ value =, weight = }` counts as value times weight (weight 0: only logged).
pub(crate) fn reward(value: &Value) -> Result<Reward, String> {
    let table = match value {
        Value::Integer(_) | Value::Number(_) => {
            return Ok(Reward { total: number("reward", value)?, parts: BTreeMap::new() });
        }
        Value::Table(table) => table,
        other => {
            return Err(format!("reward returned {}; it must return a number or a table of named parts", kind(other)));
        }
    };
    let (mut total, mut sum) = (None, 0.0);
    let mut parts = BTreeMap::new();
    each(table, |name, value| {
        let at = format!("reward part `{name}`");
        if name == "total" {
            total = Some(number("reward: total", value)?);
            return Ok(());
        }
        let (value, weight) = match value {
            Value::Table(weighted) => weighted_part(&at, weighted)?,
            plain => (number(&at, plain)?, 1.0),
        };
        if weight != 0.0 {
            sum += value * weight;
        }
        parts.insert(name.to_owned(), value);
        Ok(())
    })?;
    if parts.is_empty() && total.is_none() {
        return Err("reward returned an empty table; it must return a number or a table of named parts".to_owned());
    }
    let total = total.unwrap_or(sum);
    if !total.is_finite() {
        return Err(format!("the sum of the reward's parts is {}", show(&Value::Number(total))));
    }
    Ok(Reward { total, parts })
}

fn weighted_part(at: &str, table: &Table) -> Result<(f64, f64), String> {
    let (mut value, mut weight) = (None, 1.0);
    each(table, |name, field| {
        match name {
            "value" => value = Some(number(at, field)?),
            "weight" => weight = number(&format!("{at}: weight"), field)?,
            other => {
                return Err(format!("{at} has the unknown field `{other}` ({})", suggest(other, ["value", "weight"])));
            }
        }
        Ok(())
    })?;
    value.map(|value| (value, weight)).ok_or_else(|| format!("{at} has no value (nil)"))
}

fn number(at: &str, value: &Value) -> Result<f64, String> {
    match value {
        Value::Integer(_) | Value::Number(_) => {
            let number = convert::float(value).unwrap_or(f64::NAN);
            if number.is_finite() { Ok(number) } else { Err(format!("{at} is {}", show(value))) }
        }
        Value::Boolean(truth) => Err(format!("{at} is {truth}; it must be a number: write `x and 1 or 0`")),
        other => Err(format!("{at} is {}; it must be a number", kind(other))),
    }
}

/// Named fields sorted by name, so that sums are deterministic.
fn each(table: &Table, mut f: impl FnMut(&str, &Value) -> Result<(), String>) -> Result<(), String> {
    let mut fields = BTreeMap::new();
    table
        .for_each(|key: Value, value: Value| match key {
            Value::String(_) if fields.len() == FIELDS => {
                Err(mlua::Error::runtime(format!("there are more than {FIELDS} named fields or parts")))
            }
            Value::String(name) if name.as_bytes().len() > NAME => Err(mlua::Error::runtime(format!(
                "the name of a field is longer than {NAME} bytes: {}",
                show(&Value::String(name))
            ))),
            Value::String(name) => {
                fields.insert(name.to_string_lossy(), value);
                Ok(())
            }
            other => Err(mlua::Error::runtime(format!("a field has a name, got the key {}", show(&other)))),
        })
        .map_err(|error| match error {
            mlua::Error::RuntimeError(message) => message,
            other => other.to_string(),
        })?;
    fields.iter().try_for_each(|(name, value)| f(name, value))
}
