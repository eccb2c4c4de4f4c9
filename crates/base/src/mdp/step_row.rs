//! A step as numbers, which a script writes as a table: the input of estimators and losses.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use super::{Status, Step, Trajectory};
use crate::error::{Error, Kind, Result, suggest};

/// One step. Reward shaping, estimators and losses over plain data read it. Lists have one entry
/// for each of the T tokens of its response. Lists that are not needed may be empty.
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
    /// Named parts of the reward of this step. The parts of a trajectory are the sums over its
    /// steps.
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

impl StepRow {
    /// A step of `tokens` sampled tokens with one reward.
    pub fn new(group: u64, trajectory: u64, step: u64, tokens: usize, reward: f64) -> Self {
        Self { group, trajectory, step, mask: vec![true; tokens], rewards: vec![reward], ..Self::default() }
    }

    /// The steps of a stored trajectory, which is given the number `index`.
    pub fn of(trajectory: &Trajectory, index: usize) -> Vec<Self> {
        let row = |(position, step): (usize, &Step)| Self {
            logp_old: step.logprobs.iter().map(|&logp| f64::from(logp)).collect(),
            terminated: step.terminated,
            truncated: step.truncated,
            status: Some(trajectory.status),
            ..Self::new(trajectory.group, index as u64, position as u64, step.response_ids.len(), step.reward)
        };
        trajectory.steps.iter().enumerate().map(row).collect()
    }

    /// The identity of the decision: the trajectory that sampled it and its place there.
    pub fn decision(&self) -> (u64, u64) {
        (self.shared.unwrap_or(self.trajectory), self.step)
    }

    /// Sum of the rewards.
    pub fn reward(&self) -> f64 {
        self.rewards.iter().sum()
    }

    /// Number of tokens that the policy sampled.
    pub fn sampled(&self) -> usize {
        self.mask.iter().filter(|sampled| **sampled).count()
    }

    /// The reward of every sampled token. A reward of another token is moved to the sampled token
    /// before it, or else to the first one, so that no reward is lost. A step without sampled
    /// tokens has an empty list; estimators over tokens add its reward to the step before it
    /// (`rl::rows::Batch::token_rewards`).
    pub fn token_rewards(&self) -> Vec<f64> {
        self.on_sampled(&self.rewards)
    }

    /// Rewards of this step, given as `rewards` are, on its sampled tokens; see
    /// [`token_rewards`](Self::token_rewards).
    pub fn on_sampled(&self, rewards: &[f64]) -> Vec<f64> {
        let count = self.sampled();
        let mut moved = vec![0.0; count];
        if count > 0 && rewards.len() == 1 {
            moved[count - 1] = rewards[0];
        } else if count > 0 {
            let mut seen = 0_usize;
            for (reward, sampled) in rewards.iter().zip(&self.mask) {
                seen += usize::from(*sampled);
                moved[seen.saturating_sub(1)] += reward;
            }
        }
        moved
    }

    /// V before every sampled token; empty without a critic, and for one number for the whole step.
    pub fn token_values(&self) -> Vec<f64> {
        if self.values.len() != self.mask.len() {
            return Vec::new();
        }
        self.values.iter().zip(&self.mask).filter(|(_, sampled)| **sampled).map(|(value, _)| *value).collect()
    }

    /// V before the step: at its first sampled token.
    pub fn state_value(&self) -> Option<f64> {
        let first = self.mask.iter().position(|sampled| *sampled).unwrap_or(0);
        self.values.get(first).or(self.values.first()).copied()
    }

    /// Whether its trajectory failed.
    pub fn failed(&self) -> bool {
        self.status.is_some_and(Status::is_failure)
    }

    /// Refuses lists of another length, and numbers that are not finite.
    ///
    /// # Errors
    /// [`Kind::Usage`] or [`Kind::Numeric`] with the trajectory and the step.
    pub fn check(&self) -> Result<()> {
        let tokens = self.mask.len();
        let lists = [
            ("rewards", &self.rewards),
            ("process", &self.process),
            ("values", &self.values),
            ("logp", &self.logp),
            ("logp_old", &self.logp_old),
            ("logp_ref", &self.logp_ref),
            ("logp_rollout", &self.logp_rollout),
            ("advantages", &self.advantages),
            ("entropy", &self.entropy),
            ("sum_pi_squared", &self.sum_pi_squared),
        ];
        for (name, list) in lists {
            if !(list.is_empty() || list.len() == tokens || (list.len() == 1 && FOR_ALL.contains(&name))) {
                let message = format!("`{name}` has {} entries for {tokens} tokens", list.len());
                return Err(Error::new(Kind::Usage, message).in_step(self.trajectory, self.step));
            }
            // At tokens that were not sampled, log-probabilities and values may be any number;
            // rewards are always checked.
            let counts = |i: usize| list.len() != tokens || self.mask[i] || matches!(name, "rewards" | "process");
            if let Some((_, bad)) = list.iter().enumerate().find(|&(i, x)| !x.is_finite() && counts(i)) {
                return Err(Error::new(Kind::Numeric, format!("`{name}` contains {bad}"))
                    .in_step(self.trajectory, self.step)
                    .hint("look for divisions by zero in its computation"));
            }
        }
        if let Some((name, bad)) = self.parts.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Error::new(Kind::Numeric, format!("part `{name}` of the reward is {bad}"))
                .in_step(self.trajectory, self.step));
        }
        if self.terminated && self.truncated {
            return Err(
                Error::new(Kind::Usage, "a step is either terminated or truncated").in_step(self.trajectory, self.step)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]

    use super::*;

    #[test]
    fn rewards_of_tokens_that_were_not_sampled_move_back() {
        let row = |mask: &[bool], rewards: &[f64]| StepRow {
            mask: mask.to_vec(),
            rewards: rewards.to_vec(),
            ..StepRow::default()
        };
        let (yes, no) = (true, false);
        assert_eq!(row(&[no, yes, no, yes, no], &[1.0, 2.0, 4.0, 8.0, 16.0]).token_rewards(), [7.0, 24.0]);
        assert_eq!(row(&[yes, yes, no], &[5.0]).token_rewards(), [0.0, 5.0]);
        assert!(row(&[no], &[5.0]).token_rewards().is_empty());
        assert_eq!(row(&[yes, yes], &[]).token_rewards(), [0.0, 0.0]);
    }

    #[test]
    fn values_may_be_one_number() {
        let mut row = StepRow { values: vec![0.5], ..StepRow::new(0, 0, 0, 3, 0.0) };
        assert_eq!((row.state_value(), row.token_values().len()), (Some(0.5), 0));
        row.values = vec![9.0, 0.25, 0.75];
        row.mask[0] = false;
        assert_eq!((row.state_value(), row.token_values()), (Some(0.25), vec![0.25, 0.75]));
    }
}
