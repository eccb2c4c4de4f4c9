//! Settings of tree sampling: `branch = { roots = 2, at = "entropy" }`.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// How a group becomes trees: some of its tries begin at the beginning, the others in the middle of those.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Branch {
    /// Tries of a group that begin at the beginning; the rest of it branches off them. 0: all do, and nothing branches.
    pub roots: usize,
    /// Which states are branched from.
    pub at: BranchAt,
    /// Branches from one state.
    pub width: usize,
    /// In how many rounds: what branches off in one may be branched from in the next.
    pub rounds: usize,
}

impl Default for Branch {
    fn default() -> Self {
        Self { roots: 0, at: BranchAt::Random, width: 1, rounds: 1 }
    }
}

/// Which states of a trajectory are branched from, of those after its first step in which it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchAt {
    /// Any, all equally likely (Tree-GRPO, arXiv:2509.21240).
    Random,
    /// Those whose replies were least sure: the mean of `-logp` over a reply's tokens (TreeRL, arXiv:2506.11902, by tokens).
    Entropy,
    /// The one after the first step that called a tool (ARPO, arXiv:2507.19849, looks there).
    FirstTool,
    /// Those after so many steps.
    #[serde(untagged)]
    Steps(Vec<u32>),
}

/// The names, for serde's words about one that is none.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Named {
    Random,
    Entropy,
    FirstTool,
}

impl<'de> Deserialize<'de> for BranchAt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let odd = || de::Error::custom("expected a name or a list of steps");
        match Value::deserialize(deserializer)? {
            name @ Value::String(_) => Ok(match Named::deserialize(name).map_err(de::Error::custom)? {
                Named::Random => Self::Random,
                Named::Entropy => Self::Entropy,
                Named::FirstTool => Self::FirstTool,
            }),
            steps @ Value::Array(_) => Vec::<u32>::deserialize(steps).map(Self::Steps).map_err(|_| odd()),
            _ => Err(odd()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_names_or_steps() {
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
