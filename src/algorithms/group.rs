//! The first argument of a function `advantage`: the trajectories of a group as a list. The list
//! has the fields `failed`, `greedy` and `batch` (all groups), and the functions `states` and
//! `refuse`.

use std::collections::BTreeMap;

use mlua::{Lua, Table, Value};
use serde_json::Value as Json;

use super::lua::raise;
use super::similarity::similarity as text_similarity;
use crate::error::{Error, Kind};
use crate::mdp::{Status, Trajectory};

/// A trajectory of a group. Lists have one entry per step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupMember {
    /// Its number in the batch, for errors.
    pub number: u64,
    /// Sum of `rewards`.
    pub total: f64,
    /// Reward of each step, after `trainer.shaping`.
    pub rewards: Vec<f64>,
    /// Number of sampled tokens of each step.
    pub tokens: Vec<usize>,
    pub status: Option<Status>,
    /// Named parts of the reward, unweighted.
    pub parts: BTreeMap<String, f64>,
    /// The dataset row.
    pub task: Json,
    pub terminated: bool,
    pub truncated: bool,
    /// Index of the parent in the group (from 0; `None` if it failed) and the number of shared
    /// steps.
    pub fork: Option<(Option<usize>, usize)>,
    /// The critic's value before each step.
    pub values: Option<Vec<f64>>,
    /// The critic's bootstrap value after a truncated trajectory.
    pub next_value: Option<f64>,
    /// The decision of each step, numbered from 1 in the group: trajectories that share a step
    /// share its decision.
    pub decisions: Vec<usize>,
    /// The state before each step; empty for functions that do not need it.
    pub anchors: Vec<Anchor>,
    /// Mean log-probability of its sampled tokens.
    pub logp: Option<f64>,
    /// For functions whose advantages belong to tokens.
    pub by_token: Option<TokenLists>,
}

/// Lists with one entry per sampled token of a trajectory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLists {
    pub rewards: Vec<f64>,
    /// Positions in the responses, from 1; tokens of the environment count.
    pub positions: Vec<usize>,
    /// Log-probabilities before the update; like `squares`, empty for functions that do not need
    /// them.
    pub logp: Vec<f64>,
    /// The sum of squared probabilities over the vocabulary.
    pub squares: Vec<f64>,
}

/// The criterion for two states to be equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anchor {
    /// The observation of the policy.
    Seen(String),
    /// A state that trajectories were forked at, which equals only itself: the decision before it.
    After(usize),
}

impl GroupMember {
    /// A sampled trajectory without values and forks.
    pub fn of(trajectory: &Trajectory) -> Self {
        let last = trajectory.steps.last();
        Self {
            total: trajectory.total_reward(),
            rewards: trajectory.steps.iter().map(|step| step.reward).collect(),
            tokens: trajectory.steps.iter().map(|step| step.response_ids.len()).collect(),
            status: Some(trajectory.status),
            parts: trajectory.reward_parts.clone(),
            task: trajectory.task.clone(),
            terminated: last.is_some_and(|step| step.terminated),
            truncated: last.is_some_and(|step| step.truncated),
            decisions: (1..=trajectory.steps.len()).collect(),
            ..Self::default()
        }
    }

    fn table(&self, lua: &Lua, task: ReadJson) -> mlua::Result<Table> {
        let table = lua.create_table()?;
        table.raw_set("total", self.total)?;
        table.raw_set("rewards", list(lua, &self.rewards)?)?;
        table.raw_set("tokens", list(lua, &self.tokens)?)?;
        table.raw_set("status", self.status.map(Status::name))?;
        table
            .raw_set("parts", lua.create_table_from(self.parts.iter().map(|(name, value)| (name.as_str(), *value)))?)?;
        table.raw_set("task", task(lua, &self.task)?)?;
        table.raw_set("terminated", self.terminated)?;
        table.raw_set("truncated", self.truncated)?;
        table.raw_set("decisions", list(lua, &self.decisions)?)?;
        table.raw_set("logp", self.logp)?;
        if let Some((parent, step)) = self.fork {
            let fork = lua.create_table()?;
            fork.raw_set("parent", parent.map(|index| index + 1))?;
            fork.raw_set("step", step)?;
            table.raw_set("fork", fork)?;
        }
        if let Some(values) = &self.values {
            table.raw_set("values", list(lua, values)?)?;
            table.raw_set("next_value", self.next_value)?;
        }
        if let Some(TokenLists { rewards, positions, logp, squares }) = &self.by_token {
            table.raw_set("token_rewards", list(lua, rewards)?)?;
            table.raw_set("token_positions", list(lua, positions)?)?;
            if !logp.is_empty() {
                table.raw_set("token_logp", list(lua, logp)?)?;
                table.raw_set("token_squares", list(lua, squares)?)?;
            }
        }
        Ok(table)
    }
}

/// The trajectories of a group that are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupInput {
    pub members: Vec<GroupMember>,
    /// Number of other trajectories, which failed.
    pub failed: usize,
    /// The return of the greedy rollout.
    pub greedy: Option<f64>,
}

/// Converts a dataset row to Lua.
pub(super) type ReadJson = fn(&Lua, &Json) -> mlua::Result<Value>;

fn list<T: Copy + mlua::IntoLua>(lua: &Lua, entries: &[T]) -> mlua::Result<Table> {
    lua.create_sequence_from(entries.iter().copied())
}

/// The arguments for all groups of a batch.
pub(super) fn tables(lua: &Lua, batch: &[GroupInput], task: ReadJson) -> mlua::Result<Vec<Table>> {
    let all = lua.create_table()?;
    let mut groups = Vec::with_capacity(batch.len());
    for GroupInput { members, failed, greedy } in batch {
        let group = lua.create_table_with_capacity(members.len(), 0)?;
        for member in members {
            group.raw_push(member.table(lua, task)?)?;
        }
        let fields = lua.create_table()?;
        fields.raw_set("failed", *failed)?;
        fields.raw_set("greedy", *greedy)?;
        fields.raw_set("batch", &all)?;
        let numbers: Vec<u64> = members.iter().map(|member| member.number).collect();
        let refuse = move |_: &Lua, (_, index, message, hint): (Value, usize, String, Option<String>)| {
            let number = index.checked_sub(1).and_then(|index| numbers.get(index)).copied().unwrap_or_default();
            let error = Error::new(Kind::Usage, message).in_trajectories(vec![number], None);
            Err::<(), _>(raise(Error { hint, ..error }))
        };
        fields.raw_set("refuse", lua.create_function(refuse)?)?;
        let states = states_before(members);
        let clusters = move |lua: &Lua, (_, least): (Value, Value)| list(lua, &cluster(&states, least.as_number()));
        fields.raw_set("states", lua.create_function(clusters)?)?;
        let meta = lua.create_table()?;
        meta.raw_set("__index", fields)?;
        meta.raw_set("__metatable", false)?;
        group.set_metatable(Some(meta))?;
        all.raw_push(&group)?;
        groups.push(group);
    }
    Ok(groups)
}

/// The state before each decision of a group.
fn states_before(members: &[GroupMember]) -> Vec<Anchor> {
    let mut states = BTreeMap::new();
    for member in members {
        for (decision, anchor) in member.decisions.iter().zip(&member.anchors) {
            states.entry(*decision).or_insert_with(|| anchor.clone());
        }
    }
    states.into_values().collect()
}

/// A number for each state, from 1; equal states have the same. With `least`, observations of at
/// least this similarity are equal: each distinct text, in alphabetical order, joins the first one
/// to which it is similar, unless that has joined another.
fn cluster(states: &[Anchor], least: Option<f64>) -> Vec<usize> {
    let mut numbers: BTreeMap<&Anchor, usize> = states.iter().map(|state| (state, 0)).collect();
    let mut founders: Vec<&Anchor> = Vec::new();
    for (state, number) in &mut numbers {
        let alike = |founder: &&Anchor| match (founder, state, least) {
            (Anchor::Seen(founder), Anchor::Seen(seen), Some(least)) => text_similarity(founder, seen, least) >= least,
            _ => false,
        };
        *number = founders.iter().position(alike).unwrap_or(founders.len()) + 1;
        if *number > founders.len() {
            founders.push(state);
        }
    }
    states.iter().map(|state| numbers[state]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_state_equals_only_itself() {
        let states = [Anchor::After(1), Anchor::After(2), Anchor::After(1), Anchor::Seen(String::new())];
        for least in [None, Some(0.0)] {
            let numbers = cluster(&states, least);
            assert!(
                numbers[0] == numbers[2]
                    && numbers[0] != numbers[1]
                    && numbers[3] != numbers[0]
                    && numbers[3] != numbers[1]
            );
        }
    }

    #[test]
    fn similar_observations_are_one_state_with_the_option_similarity() {
        let texts = ["you are in a dark room with a lamp", "you are in a dark room with a lamp.", "elsewhere"];
        let states = texts.map(|text| Anchor::Seen(text.to_owned()));
        assert_eq!(cluster(&states, None), [2, 3, 1]);
        assert_eq!(cluster(&states, Some(0.95)), [2, 2, 1]);
    }
}
