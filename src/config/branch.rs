//! Settings of tree sampling: `branch = { roots = 2, at = "entropy" }`.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// Tree sampling: some trajectories of a group start at the task, the others continue from
/// intermediate states of those.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Branch {
    /// Trajectories of a group that start at the task; the others branch off from them. 0: no tree
    /// sampling.
    pub roots: usize,
    /// States to branch from.
    pub at: BranchAt,
    /// Branches from one state.
    pub width: usize,
    /// Rounds of branching; branches of one round can be branched from in the next.
    pub rounds: usize,
}

impl Default for Branch {
    fn default() -> Self {
        Self { roots: 0, at: BranchAt::Random, width: 1, rounds: 1 }
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

/// The names of [`BranchAt`]; serde lists them in the error for an unknown name.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum BranchName {
    Random,
    Entropy,
    FirstTool,
}

impl<'de> Deserialize<'de> for BranchAt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let invalid = || de::Error::custom("expected a name or a list of steps");
        match Value::deserialize(deserializer)? {
            name @ Value::String(_) => Ok(match BranchName::deserialize(name).map_err(de::Error::custom)? {
                BranchName::Random => Self::Random,
                BranchName::Entropy => Self::Entropy,
                BranchName::FirstTool => Self::FirstTool,
            }),
            steps @ Value::Array(_) => Vec::<u32>::deserialize(steps).map(Self::Steps).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn branch_at_is_a_name_or_a_list_of_steps() {
        let read = |value: Value| serde_json::from_value::<BranchAt>(value).map_err(|error| error.to_string());
        for (value, at) in [
            (json!("random"), BranchAt::Random),
            (json!("entropy"), BranchAt::Entropy),
            (json!("first_tool"), BranchAt::FirstTool),
            (json!([1, 3]), BranchAt::Steps(vec![1, 3])),
        ] {
            assert_eq!(read(value.clone()), Ok(at.clone()));
            assert_eq!(serde_json::to_value(at).unwrap(), value);
        }
        assert!(read(json!("entropi")).unwrap_err().starts_with("unknown variant `entropi`, expected one of `random`"));
        for odd in [json!(3), json!([-1]), json!(["x"])] {
            assert!(read(odd).unwrap_err().contains("expected a name or a list of steps"));
        }
    }
}
