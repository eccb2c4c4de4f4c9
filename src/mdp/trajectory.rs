//! Steps and trajectories: what is stored, trained on and replayed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ErrorRecord, Exchange, FinishReason, Message, Routing, Split, Support};

/// How a trajectory ended. Everything but the first two is a failure: recorded, counted, and by default left out
/// of the advantage statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The environment ended the task.
    Terminated,
    /// A limit ended the task before the environment did; [`Trajectory::truncated_by`] says which.
    Truncated,
    /// The script raised an error or broke its contract.
    EnvError,
    /// A tool or another wait took too long.
    ToolTimeout,
    /// The script ran into its CPU or memory limit.
    ScriptLimit,
    /// The prompt left no room for a reply, before anything was sampled or with `env.on_overflow = "fail"`.
    ContextOverflow,
    /// Stopped from outside.
    Aborted,
}

impl Status {
    pub const ALL: [Self; 7] = [
        Self::Terminated,
        Self::Truncated,
        Self::EnvError,
        Self::ToolTimeout,
        Self::ScriptLimit,
        Self::ContextOverflow,
        Self::Aborted,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::Truncated => "truncated",
            Self::EnvError => "env_error",
            Self::ToolTimeout => "tool_timeout",
            Self::ScriptLimit => "script_limit",
            Self::ContextOverflow => "context_overflow",
            Self::Aborted => "aborted",
        }
    }

    /// Whether the trajectory says anything about the policy.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Terminated | Self::Truncated)
    }
}

/// What became of a tool call before it could run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// It ran; [`ToolRecord::ok`] says with what result.
    #[default]
    Ran,
    /// It named a tool, and the arguments did not fit the tool's schema.
    BadArguments,
    /// It was one too many for `env.max_calls`.
    Excess,
    /// It named no tool of the recipe.
    Unknown,
    /// It could not be parsed.
    Malformed,
}

impl CallKind {
    /// Whether the call was parsed and named a tool of the recipe.
    pub fn is_known(self) -> bool {
        matches!(self, Self::Ran | Self::BadArguments | Self::Excess)
    }

    /// For `skip_serializing_if`, which passes a reference.
    #[expect(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::Ran
    }
}

/// The limit that truncated a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// `env.max_steps` steps were made.
    MaxSteps,
    /// `env.max_tokens` tokens were sampled.
    MaxTokens,
    /// The next prompt left no room for a reply (`env.on_overflow = "end"`).
    ContextOverflow,
    /// The last reply reached its longest, and `step` returned `truncated = true`.
    Length,
    /// The last reply ran out of time, and `step` returned `truncated = true`.
    Deadline,
    /// `step` returned `truncated = true` for a whole reply: a limit of the environment's own.
    Env,
}

impl Limit {
    pub const ALL: [Self; 6] =
        [Self::MaxSteps, Self::MaxTokens, Self::ContextOverflow, Self::Length, Self::Deadline, Self::Env];

    pub fn name(self) -> &'static str {
        match self {
            Self::MaxSteps => "max_steps",
            Self::MaxTokens => "max_tokens",
            Self::ContextOverflow => "context_overflow",
            Self::Length => "length",
            Self::Deadline => "deadline",
            Self::Env => "env",
        }
    }

    /// What `step` meant by `truncated = true` after a reply that ended for this reason.
    pub fn of_reply(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::Deadline => Self::Deadline,
            FinishReason::Stop | FinishReason::StopString => Self::Env,
        }
    }
}

/// One tool call and its result, as the environment made it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolRecord {
    pub name: String,
    pub arguments: Value,
    #[serde(default, skip_serializing_if = "CallKind::is_usual")]
    pub kind: CallKind,
    /// What the policy was shown.
    pub output: String,
    /// False for an unknown tool, bad arguments, a failed program or a timeout.
    pub ok: bool,
    /// Process reward of the call.
    pub reward: f64,
    pub seconds: f64,
    /// Tries behind the first one.
    #[serde(default, skip_serializing_if = "none")]
    pub retries: u32,
    /// The result came from the tool's cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // what serde calls
fn none(count: &u32) -> bool {
    *count == 0
}

/// One transition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The exact ids the policy saw.
    pub prompt_ids: Vec<u32>,
    /// The exact ids it sampled, end-of-turn token included.
    pub response_ids: Vec<u32>,
    /// Behaviour log-probability of each response id.
    pub logprobs: Vec<f32>,
    /// What they were drawn from, where sampling cut the distribution.
    #[serde(default, skip_serializing_if = "Support::is_whole")]
    pub support: Support,
    /// The reply as text (for people; never tokenised again).
    pub text: String,
    pub finish_reason: FinishReason,
    /// Environment step reward plus process rewards; the outcome reward is added to the last step.
    pub reward: f64,
    pub terminated: bool,
    pub truncated: bool,
    pub tools: Vec<ToolRecord>,
    /// Prompt tokens that were computed, not found in the cache.
    pub prefilled: u32,
    /// True when this prompt does not extend the last step's prompt and reply: it starts a new training row.
    pub new_row: bool,
    /// The experts that prompt and reply were routed to, from the first token that the record of the step before does not
    /// have. Empty unless they are recorded (`trainer.routing_replay`).
    #[serde(default, skip_serializing_if = "Routing::is_empty")]
    pub routing: Routing,
    /// What the critic alone read of the state, by the recipe's function `privileged`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileged: Option<String>,
    /// The same of the state behind this step, where `next_prompt_ids` are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_privileged: Option<String>,
    /// What the policy would have seen next, where a limit cut the trajectory here and somebody asked
    /// ([`Spec::next_prompt`](crate::rollout::Spec)): a critic bootstraps from it. Else empty.
    pub next_prompt_ids: Vec<u32>,
}

/// Where a trajectory left another one: its first steps are those of its parent, copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fork {
    /// The parent's id.
    pub parent: String,
    /// How many steps they share; the first of its own goes on from the state after them.
    pub step: u32,
}

/// The steps of one try at one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Unique within the run: `step-group-sample`; that of an evaluation begins with `eval-`.
    pub id: String,
    /// The dataset that its task is a row of.
    #[serde(default)]
    pub split: Split,
    /// Which dataset row.
    pub task_index: u64,
    pub task: Value,
    /// Trajectories with the same number try the same task in the same step.
    pub group: u64,
    pub sample: u32,
    /// What it was forked from, if it did not begin at the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    pub seed: u64,
    /// SHA-256 of the script (and the modules it required) that made it.
    pub script_hash: String,
    pub status: Status,
    /// The limit that truncated it; `None` for any other status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<Limit>,
    /// Failed attempts at this trajectory before this one (`rollout.retries`). Each drew its replies from a random stream
    /// of its own, which this number names.
    #[serde(default)]
    pub retries: u32,
    /// Why it failed, when it did.
    pub error: Option<ErrorRecord>,
    pub steps: Vec<Step>,
    /// Outcome reward; already inside the last step's reward.
    pub outcome_reward: f64,
    /// Named parts of the reward, for the logs.
    pub reward_parts: BTreeMap<String, f64>,
    /// The conversation at the end, for people.
    pub messages: Vec<Message>,
    /// External calls of the script and their results, in order.
    pub record: Vec<Exchange>,
}

impl Trajectory {
    /// Sum of step rewards.
    pub fn total_reward(&self) -> f64 {
        // Not `sum()`: of nothing it is -0.0.
        self.steps.iter().fold(0.0, |sum, step| sum + step.reward)
    }

    /// Why it failed, as text: message, place, line, hint, frames.
    pub fn error_text(&self) -> Option<String> {
        self.error.as_ref().map(ToString::to_string)
    }

    /// How many of its first steps it shares with its parent.
    pub fn shared_steps(&self) -> usize {
        self.fork.as_ref().map_or(0, |fork| self.steps.len().min(fork.step as usize))
    }

    /// The steps that were sampled for it, not for its parent.
    pub fn own_steps(&self) -> &[Step] {
        &self.steps[self.shared_steps()..]
    }

    /// Calls that were parsed and named a tool of the recipe.
    pub fn tool_calls(&self) -> usize {
        self.steps.iter().flat_map(|step| &step.tools).filter(|tool| tool.kind.is_known()).count()
    }

    /// Calls that could not be parsed, or named no tool of the recipe.
    pub fn malformed_calls(&self) -> usize {
        self.steps.iter().flat_map(|step| &step.tools).filter(|tool| !tool.kind.is_known()).count()
    }

    pub fn response_tokens(&self) -> usize {
        self.steps.iter().map(|step| step.response_ids.len()).sum()
    }
}
