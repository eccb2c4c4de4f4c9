//! A recipe's own estimator: the arguments and results of its function `advantage`.

use std::collections::BTreeMap;

use mlua::Value;
use serde_json::{Value as Json, json};

use crate::error::{Error, Kind, Result, Subject};
use crate::mdp::{Status, Trajectory};
use crate::script::runtime::convert::{float, show};

/// The argument of `advantage` for a trajectory of a group. Lists have one entry per step.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMember<'a> {
    /// Sum of `rewards`.
    pub total: f64,
    /// Reward of each step, after `trainer.shaping`.
    pub rewards: Vec<f64>,
    /// Number of sampled tokens of each step.
    pub tokens: Vec<usize>,
    pub status: Status,
    /// Named parts of the reward, unweighted.
    pub parts: &'a BTreeMap<String, f64>,
    /// The dataset row.
    pub task: &'a Json,
    pub terminated: bool,
    pub truncated: bool,
    /// Index of the parent in the group (from 0; `None` if it failed) and the number of shared
    /// steps.
    pub fork: Option<(Option<usize>, usize)>,
    /// The critic's value before each step.
    pub values: Option<Vec<f64>>,
    /// The critic's bootstrap value after a truncated trajectory.
    pub next_value: Option<f64>,
}

impl<'a> GroupMember<'a> {
    /// A sampled trajectory without values and forks.
    pub fn of(trajectory: &'a Trajectory) -> Self {
        let last = trajectory.steps.last();
        Self {
            total: trajectory.total_reward(),
            rewards: trajectory.steps.iter().map(|step| step.reward).collect(),
            tokens: trajectory.steps.iter().map(|step| step.response_ids.len()).collect(),
            status: trajectory.status,
            parts: &trajectory.reward_parts,
            task: &trajectory.task,
            terminated: last.is_some_and(|step| step.terminated),
            truncated: last.is_some_and(|step| step.truncated),
            fork: None,
            values: None,
            next_value: None,
        }
    }

    pub(crate) fn to_json(&self) -> Json {
        let mut table = json!({
            "total": self.total,
            "rewards": self.rewards,
            "tokens": self.tokens,
            "status": self.status.name(),
            "parts": self.parts,
            "task": self.task,
            "terminated": self.terminated,
            "truncated": self.truncated,
        });
        if let Some((parent, step)) = self.fork {
            table["fork"] = json!({ "parent": parent.map(|index| index + 1), "step": step });
        }
        if let Some(values) = &self.values {
            table["values"] = json!(values);
            table["next_value"] = json!(self.next_value);
        }
        table
    }
}

/// The arguments of a call of `advantage`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupInput {
    /// The arguments for the members of the group that did not fail.
    pub(crate) members: Json,
    /// Number of other failed trajectories.
    pub(crate) failed: usize,
    /// Steps of each member.
    steps: Vec<usize>,
}

impl GroupInput {
    /// The trajectories of a group that did not fail; `failed` others did.
    pub fn new(group: &[GroupMember<'_>], failed: usize) -> Self {
        let members = Json::Array(group.iter().map(GroupMember::to_json).collect());
        Self { members, failed, steps: group.iter().map(|member| member.rewards.len()).collect() }
    }
}

/// The result of `advantage` for a group: a list by step for each of its members. Numbers may be
/// NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimated {
    pub advantages: Vec<Vec<f64>>,
    /// The critic's targets, if the function returned a second list.
    pub returns: Option<Vec<Vec<f64>>>,
}

impl Estimated {
    /// Whether all numbers have the same bits.
    pub fn is_same(&self, other: &Self) -> bool {
        let bits = |result: &Self| -> Vec<Vec<u64>> {
            let lists = result.advantages.iter().chain(result.returns.iter().flatten());
            lists.map(|list| list.iter().map(|number| number.to_bits()).collect()).collect()
        };
        bits(self) == bits(other)
    }
}

/// A returned list: for each member a number, or a list with a number for each of its steps.
///
/// # Errors
/// `Kind::Script` about the list, or the entry of a member.
pub(crate) fn by_step(what: &str, value: &Value, group: &GroupInput) -> Result<Vec<Vec<f64>>> {
    let refused = |field: String, message: String| {
        let subject = Subject::Returned { function: "advantage".to_owned(), field: Some(field) };
        Error::new(Kind::Script, message).about(subject)
    };
    let Value::Table(list) = value else {
        let message = format!("advantage must return {what} as a list with an entry for each trajectory");
        return Err(refused(what.to_owned(), message));
    };
    let count = group.steps.len();
    if list.raw_len() != count {
        let message = format!("advantage returned {} {what} for {count} trajectories", list.raw_len());
        return Err(refused(what.to_owned(), message));
    }
    let entry = |(index, &steps): (usize, &usize)| {
        let field = format!("{what}[{}]", index + 1);
        let entry: Value = list.raw_get(index + 1).map_err(|error| refused(field.clone(), error.to_string()))?;
        let numbers = match &entry {
            Value::Table(many) if many.raw_len() == steps => {
                (1..=steps).map(|step| many.raw_get(step).ok().and_then(|number: Value| float(&number))).collect()
            }
            one => float(one).map(|one| vec![one; steps]),
        };
        numbers.ok_or_else(|| {
            let message = format!(
                "advantage returned {} as {what} of trajectory {}, which has {steps} steps; give a number or a list of \
                 one per step",
                show(&entry),
                index + 1
            );
            refused(field, message)
        })
    };
    group.steps.iter().enumerate().map(entry).collect()
}
