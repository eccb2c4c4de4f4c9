//! The reward part that is reported as accuracy: `eval.accuracy` names it.

use std::collections::BTreeSet;

use crate::error::suggest;
use crate::mdp::Trajectory;

/// Why `eval.accuracy` names no reward part of these trajectories; `None` if one has it, or if none
/// has a reward. Trajectories of another environment may lack the part.
pub fn unknown_accuracy<'a>(accuracy: &str, trajectories: impl IntoIterator<Item = &'a Trajectory>) -> Option<String> {
    let rewarded: Vec<&Trajectory> = trajectories.into_iter().filter(|one| !one.status.is_failure()).collect();
    let parts: BTreeSet<&str> = rewarded.iter().flat_map(|one| one.reward_parts.keys()).map(String::as_str).collect();
    if accuracy.is_empty() || rewarded.is_empty() || parts.contains(accuracy) {
        return None;
    }
    let parts = if parts.is_empty() { "rewards have no parts".to_owned() } else { suggest(accuracy, parts) };
    Some(format!(
        "eval.accuracy is `{accuracy}`, and no reward has such a part: a task counts as solved if its reward is above 0; \
         {parts}"
    ))
}
