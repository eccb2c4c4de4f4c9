//! A step as numbers, which a script writes as a table: the input of estimators and losses.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use super::Status;
use crate::error::{Error, Kind, Result, suggest};

/// One step. Lists have one entry for each of the T tokens of its response. Lists that are not
/// needed may be empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepRow {
    /// Trajectories with the same number are samples of the same task.
    pub group: u64,
    pub trajectory: u64,
    /// Place in the trajectory. Numbers may have gaps.
    pub step: u64,
    /// True (or 1) on sampled tokens. Others have advantage 0 and no estimator counts them as a
    /// decision.
    #[serde(deserialize_with = "flags")]
    pub mask: Vec<bool>,
    /// `[T]`, or one number for the whole step, which is given to its last sampled token.
    pub rewards: Vec<f64>,
    /// Process rewards, separate from `rewards` so that they can be normalised separately. Shaped
    /// like them; empty is none.
    pub process: Vec<f64>,
    /// The critic's value of the state before each token `[T]`, or one number: the value before the
    /// step.
    pub values: Vec<f64>,
    /// The critic's value of the observation after a truncated trajectory's last step.
    pub next_value: Option<f64>,
    /// Log-probability of each token under the current, the behaviour and the reference policy
    /// `[T]`.
    pub logp: Vec<f64>,
    pub logp_old: Vec<f64>,
    pub logp_ref: Vec<f64>,
    /// Log-probabilities of the sampler, if the learner recomputed `logp_old` `[T]`.
    pub logp_rollout: Vec<f64>,
    /// Entropy at each token `[T]`, nats.
    pub entropy: Vec<f64>,
    /// The sum of squared probabilities over the vocabulary at each token `[T]`, under the
    /// behaviour policy.
    pub sum_pi_squared: Vec<f64>,
    /// Named parts of the reward that this step earned; those of a trajectory's steps are added up.
    pub parts: BTreeMap<String, f64>,
    /// For a loss: the advantage of each token `[T]`, or of all.
    pub advantages: Vec<f64>,
    /// The environment ended the task with this step.
    pub terminated: bool,
    /// A limit truncated the task after this step.
    pub truncated: bool,
    /// The end of the trajectory. A failure is not caused by the policy and is left out of all
    /// statistics. `None`: it did not fail.
    pub status: Option<Status>,
    /// A step of the greedy baseline rollout of its group, which is not trained on.
    pub greedy: bool,
    /// The observation, for estimators that compare steps with the same one.
    pub anchor: Option<String>,
    /// The trajectory that sampled this step, where a fork shares it: the step with the same number
    /// there. It is one decision, trained once.
    pub shared: Option<u64>,
    /// Kind of task, for normalisation across groups of one kind.
    pub tag: u64,
}

/// Lists that may be given as one number.
const FOR_ALL: [&str; 4] = ["rewards", "process", "values", "advantages"];

impl StepRow {
    /// Rows from a list of tables.
    ///
    /// # Errors
    /// [`Kind::Usage`] names the row (counted from 1) and the reason.
    pub fn read_all(list: Value) -> Result<Vec<Self>> {
        let list = match list {
            Value::Array(list) => list,
            Value::Object(table) if table.is_empty() => Vec::new(),
            other => return Err(Error::new(Kind::Usage, format!("the rows are a list of tables, not {other}"))),
        };
        let names = Self::names();
        let location = |index: usize| format!("row {}", index + 1);
        let read = |(index, row)| Self::read(row, &names).map_err(|error| error.at(location(index)));
        list.into_iter().enumerate().map(read).collect()
    }

    fn names() -> Vec<String> {
        let fields = serde_json::to_value(Self::default()).unwrap_or_default();
        fields.as_object().into_iter().flat_map(Map::keys).cloned().collect()
    }

    fn read(row: Value, names: &[String]) -> Result<Self> {
        let Value::Object(mut fields) = row else {
            return Err(Error::new(Kind::Usage, format!("a row is a table, not {row}")));
        };
        if let Some(field) = fields.keys().find(|field| !names.contains(field)) {
            let hint = suggest(field, names.iter().map(String::as_str));
            return Err(Error::new(Kind::Usage, format!("unknown field `{field}`")).hint(hint));
        }
        if !fields.contains_key("mask") {
            let hint = "a list with 1 for each token that the policy sampled and 0 for others";
            return Err(Error::new(Kind::Usage, "there is no `mask`").hint(hint));
        }
        for (name, value) in &mut fields {
            // An empty Lua table is a list and a table.
            match value {
                Value::Object(table) if table.is_empty() && name != "parts" => *value = Value::Array(Vec::new()),
                Value::Array(list) if list.is_empty() && name == "parts" => *value = Value::Object(Map::new()),
                Value::Number(_) if FOR_ALL.contains(&name.as_str()) => *value = Value::Array(vec![value.take()]),
                _ => {}
            }
        }
        serde_path_to_error::deserialize(Value::Object(fields.clone())).map_err(|error| misfit(&fields, &error))
    }
}

/// The error of the first invalid field.
fn misfit(fields: &Map<String, Value>, error: &serde_path_to_error::Error<serde_json::Error>) -> Error {
    let Some(Segment::Map { key: name }) = error.path().iter().next() else {
        return Error::new(Kind::Usage, error.to_string());
    };
    let value = fields.get(name).unwrap_or(&Value::Null);
    let wanted = match name.as_str() {
        "group" | "trajectory" | "step" | "shared" | "tag" => "a whole number, 0 or more",
        "next_value" => "a number",
        "terminated" | "truncated" | "greedy" => "true or false",
        "anchor" => "text",
        "parts" => "a table of numbers by name",
        name if FOR_ALL.contains(&name) => "a number, or a list of one for each token",
        "mask" | "status" => return Error::new(Kind::Usage, error.inner().to_string()),
        _ => "a list with a number for each token",
    };
    Error::new(Kind::Usage, format!("`{name}` must be {wanted}, got {value}"))
}

/// A mask written with booleans or with 0 and 1.
fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<bool>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Flag {
        Is(bool),
        Number(f64),
    }
    let truth = |flag| match flag {
        Flag::Is(truth) => Ok(truth),
        Flag::Number(0.0) => Ok(false),
        Flag::Number(1.0) => Ok(true),
        Flag::Number(other) => {
            Err(D::Error::custom(format!("`mask` contains {other}; it must contain 0 and 1, or booleans")))
        }
    };
    Vec::<Flag>::deserialize(deserializer)?.into_iter().map(truth).collect()
}
