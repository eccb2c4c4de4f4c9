//! External calls of a script (clock, HTTP, programs, models) and their results: the record that a replay reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ErrorRecord;

/// One question of a script to the host whose answer is not a function of state, action and seed: a program run, a page
/// fetched, the clock read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Completed steps of the trajectory at the time of the call.
    pub step: u64,
    /// Where it was called: the function of the script (`reset`, `context`, `step`, `reward`), and behind a slash the number
    /// of each branch that ran beside others, such as a tool call (`step/2`).
    pub at: String,
    /// `tool`, `http`, `process`, `clock`, `generate`, `fs`.
    pub kind: String,
    pub request: Value,
    /// `None`: none came before a limit cut the wait.
    pub answer: Option<Answer>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ok(Value),
    /// The host refused, which the script sees as an error.
    Error(ErrorRecord),
}
