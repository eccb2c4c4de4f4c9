//! External calls of a script (clock, HTTP, programs, models) and their results, for replays.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ErrorRecord;

/// One call of a script whose result is not a function of state, action and seed: a program run, an
/// HTTP request, the clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Completed steps of the trajectory at the time of the call.
    pub step: u64,
    /// The location of the call: the function of the script (`reset`, `context`, `step`, `reward`),
    /// and after a slash the number of each concurrent branch, such as a tool call (`step/2`).
    pub at: String,
    /// `tool`, `http`, `process`, `clock`, `generate`, `fs`.
    pub kind: String,
    pub request: Value,
    /// `None`: no result before a time limit.
    pub answer: Option<Answer>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ok(Value),
    /// The host failed; the script sees an error.
    Error(ErrorRecord),
}
