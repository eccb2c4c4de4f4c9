//! Settings of tree sampling: `branch = { roots = 2, at = "entropy" }`.

use serde::Serialize;
use serde_json::Value;

use crate::schema::{Field, Misfit, choices, section};

section! {
    /// Tree sampling: some trajectories of a group start at the task, the others continue from
    /// intermediate states of those.
    pub struct Branch: "trainer.branch.", needs("trainer.branch.roots", Is::Positive) {
        /// Tree sampling: trajectories of a group that start at the task; the others continue from
        /// their states. 0 is off.
        roots: usize = 0, unit("trajectories"), range("0 to group_size");
        /// States to branch from: any, those with the least certain responses, the one after the
        /// first
        /// tool call, or those after these numbers of steps.
        at: BranchAt = BranchAt::Random;
        /// Branches per state.
        width: usize = 1, unit("trajectories"), range("≥ 1");
        /// Rounds of branching; branches of one round can be branched from in the next.
        rounds: usize = 1, range("≥ 1");
    }
}

/// States of a trajectory to branch from. Candidates are the states after its first step where it
/// does not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchAt {
    /// Any state, chosen uniformly (Tree-GRPO, arXiv:2509.21240).
    Random,
    /// The states with the least certain responses: mean of `-logp` over the response tokens
    /// (TreeRL, arXiv:2506.11902, which ranks tokens).
    Entropy,
    /// The state after the first step with a tool call (ARPO, arXiv:2507.19849).
    FirstTool,
    /// The states after these numbers of steps.
    #[serde(untagged)]
    Steps(Vec<u32>),
}

impl Field for BranchAt {
    type Value = Self;

    fn kind() -> String {
        format!("{} | list", BranchName::kind())
    }

    fn lua() -> String {
        format!("{} | {{number}}", BranchName::kind())
    }

    fn read(key: &str, json: &Value, _: Option<&Self>) -> Result<Self, Misfit> {
        match json {
            Value::String(_) => Ok(match BranchName::read(key, json, None)? {
                BranchName::Random => Self::Random,
                BranchName::Entropy => Self::Entropy,
                BranchName::FirstTool => Self::FirstTool,
            }),
            steps @ Value::Array(_) => Vec::<u32>::read(key, steps, None).map(Self::Steps),
            _ => Err(Misfit::wanted(key, "a name or a list of steps", json)),
        }
    }
}

choices! {
    /// Those with a name.
    enum BranchName {
        Random = "random",
        Entropy = "entropy",
        FirstTool = "first_tool",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_names_or_steps() {
        let read = |value: Value| BranchAt::read("at", &value, None).map_err(|error| error.to_string());
        for (value, at) in [
            (json!("random"), BranchAt::Random),
            (json!("entropy"), BranchAt::Entropy),
            (json!("first_tool"), BranchAt::FirstTool),
            (json!([1, 3]), BranchAt::Steps(vec![1, 3])),
        ] {
            assert_eq!(read(value.clone()), Ok(at.clone()));
            assert_eq!(serde_json::to_value(at).unwrap(), value);
        }
        assert_eq!(
            read(json!("entropi")).unwrap_err(),
            "`at` is \"entropi\"; it is one of `random`, `entropy`, `first_tool`"
        );
        assert!(read(json!(3)).unwrap_err().contains("a name or a list of steps"));
        assert!(read(json!([1, -1])).unwrap_err().contains("`at[2]` must be a whole number, 0 or more"));
        assert!(read(json!(["x"])).is_err());
    }
}
