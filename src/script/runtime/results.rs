//! Strict parsing of the results of an environment's `step` and a recipe's `reward`.

use std::collections::BTreeMap;

use mlua::{Table, Value};

use super::convert::{self, Stopped, each_pair, kind, show};
use crate::error::{Error, Kind, Result, Subject, suggest};
use crate::mdp::{Limit, ToolRecord};

/// Maximum number of reward parts, and bytes of a part's name: each part is a metric of the run.
const FIELDS: usize = 64;
const NAME: usize = 64;

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

/// A result of a function of the script while it is read.
#[derive(Clone, Copy)]
struct ResultReader<'a> {
    /// `step`, `reward` or `flow`.
    function: &'a str,
}

impl ResultReader<'_> {
    /// An error about a field, or about the whole result.
    fn refused(self, field: &str, message: String) -> Error {
        let field = (!field.is_empty()).then(|| field.to_owned());
        Error::new(Kind::Script, message).about(Subject::Returned { function: self.function.to_owned(), field })
    }

    /// A finite number; `at` names it in messages.
    fn number(self, field: &str, at: &str, value: &Value) -> Result<f64> {
        let wrong = |what: String| Err(self.refused(field, format!("{at} is {what}")));
        match value {
            Value::Integer(_) | Value::Number(_) => {
                let number = convert::float(value).unwrap_or(f64::NAN);
                if number.is_finite() { Ok(number) } else { wrong(show(value)) }
            }
            Value::Boolean(truth) => wrong(format!("{truth}; it must be a number: write `x and 1 or 0`")),
            other => wrong(format!("{}; it must be a number", kind(other))),
        }
    }

    /// Named fields sorted by name, so that sums are deterministic.
    fn each(self, table: &Table, mut f: impl FnMut(&str, &Value) -> Result<()>) -> Result<()> {
        let mut fields = BTreeMap::new();
        let refused = |message: String| Err(self.refused("", message));
        each_pair(table, |key: Value, value: Value| match key {
            Value::String(_) if fields.len() == FIELDS => {
                refused(format!("there are more than {FIELDS} named fields or parts"))
            }
            Value::String(name) if name.as_bytes().len() > NAME => {
                let name = show(&Value::String(name));
                refused(format!("the name of a field is longer than {NAME} bytes: {name}"))
            }
            Value::String(name) => {
                fields.insert(name.to_string_lossy(), value);
                Ok(())
            }
            other => refused(format!("a field has a name, got the key {}", show(&other))),
        })
        .map_err(|stopped| match stopped {
            Stopped::By(error) => error,
            Stopped::Machine(error) => self.refused("", error.to_string()),
        })?;
        fields.iter().try_for_each(|(name, value)| f(name, value))
    }
}

/// The result of a flow: nothing, a reward, or a table as `step` returns it. The task is done
/// unless `truncated` is set.
///
/// # Errors
/// `Kind::Script` about the field that is wrong, without a place.
pub(crate) fn flow_result(value: &Value) -> Result<StepResult> {
    let flow = ResultReader { function: "flow" };
    let mut result = match value {
        Value::Nil => StepResult::default(),
        Value::Integer(_) | Value::Number(_) => {
            StepResult { reward: flow.number("", "flow: reward", value)?, ..StepResult::default() }
        }
        Value::Table(table) if matches!(table.raw_get("done"), Ok(Value::Boolean(false))) => {
            let message = "the flow returned with done = false; it continues with policy:generate, and ends early with \
                           truncated = true";
            return Err(flow.refused("done", message.to_owned()));
        }
        Value::Table(_) => result_of(flow, value)?,
        other => {
            let message = format!("the flow returned {}; it must return a number, a table or nothing", kind(other));
            return Err(flow.refused("", message));
        }
    };
    result.done = result.done || !result.truncated;
    Ok(result)
}

/// The result of `step`.
///
/// # Errors
/// As [`flow_result`].
pub(crate) fn step_result(value: &Value) -> Result<StepResult> {
    result_of(ResultReader { function: "step" }, value)
}

fn result_of(returned: ResultReader<'_>, value: &Value) -> Result<StepResult> {
    let function = returned.function;
    let Value::Table(table) = value else {
        let message = format!("{function} returned {}; it must return {{ reward = …, done = … }}", kind(value));
        return Err(returned.refused("", message));
    };
    let mut result = StepResult::default();
    returned.each(table, |name, value| {
        let wrong = |what: &str, wanted: &str| {
            Err(returned.refused(name, format!("{function}: {name} is {what}; it must be {wanted}")))
        };
        match name {
            "reward" => result.reward = returned.number(name, &format!("{function}: reward"), value)?,
            "done" | "truncated" => match value {
                Value::Boolean(done) if name == "done" => result.done = *done,
                Value::Boolean(truncated) => result.truncated = *truncated,
                other => return wrong(&kind(other), "true or false"),
            },
            "parts" => match value {
                Value::Table(parts) => returned.each(parts, |name, value| {
                    let (field, at) = (format!("parts.{name}"), format!("{function}: part `{name}`"));
                    result.parts.insert(name.to_owned(), returned.number(&field, &at, value)?);
                    Ok(())
                })?,
                other => return wrong(&kind(other), "a table of numbers"),
            },
            other => {
                let help = suggest(other, ["reward", "done", "truncated", "parts"]);
                let message = format!("{function} returned the unknown field `{other}` ({help})");
                return Err(returned.refused(other, message));
            }
        }
        Ok(())
    })?;
    Ok(result)
}

/// A number, or a table of named parts, of which `total` is the reward if present. Otherwise the
/// parts are summed; `{ value =, weight = }` counts as value times weight (weight 0: only logged).
///
/// # Errors
/// As [`flow_result`].
pub(crate) fn reward(value: &Value) -> Result<Reward> {
    let returned = ResultReader { function: "reward" };
    let table = match value {
        Value::Integer(_) | Value::Number(_) => {
            return Ok(Reward { total: returned.number("", "reward", value)?, parts: BTreeMap::new() });
        }
        Value::Table(table) => table,
        other => {
            let message = format!("reward returned {}; it must return a number or a table of named parts", kind(other));
            return Err(returned.refused("", message));
        }
    };
    let (mut total, mut sum) = (None, 0.0);
    let mut parts = BTreeMap::new();
    returned.each(table, |name, value| {
        let at = format!("reward part `{name}`");
        if name == "total" {
            total = Some(returned.number(name, "reward: total", value)?);
            return Ok(());
        }
        let (value, weight) = match value {
            Value::Table(weighted) => weighted_part(returned, name, &at, weighted)?,
            plain => (returned.number(name, &at, plain)?, 1.0),
        };
        if weight != 0.0 {
            sum += value * weight;
        }
        parts.insert(name.to_owned(), value);
        Ok(())
    })?;
    if parts.is_empty() && total.is_none() {
        let message = "reward returned an empty table; it must return a number or a table of named parts";
        return Err(returned.refused("", message.to_owned()));
    }
    let total = total.unwrap_or(sum);
    if !total.is_finite() {
        let message = format!("the sum of the reward's parts is {}", show(&Value::Number(total)));
        return Err(returned.refused("", message));
    }
    Ok(Reward { total, parts })
}

fn weighted_part(returned: ResultReader<'_>, part: &str, at: &str, table: &Table) -> Result<(f64, f64)> {
    let (mut value, mut weight) = (None, 1.0);
    returned.each(table, |name, field| {
        let path = format!("{part}.{name}");
        match name {
            "value" => value = Some(returned.number(&path, at, field)?),
            "weight" => weight = returned.number(&path, &format!("{at}: weight"), field)?,
            other => {
                let help = suggest(other, ["value", "weight"]);
                return Err(returned.refused(&path, format!("{at} has the unknown field `{other}` ({help})")));
            }
        }
        Ok(())
    })?;
    let missing = || returned.refused(&format!("{part}.value"), format!("{at} has no value (nil)"));
    value.map(|value| (value, weight)).ok_or_else(missing)
}
