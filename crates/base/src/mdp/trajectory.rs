//! Steps and trajectories, as stored, trained on and replayed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ErrorRecord, ExternalCall, FinishReason, Message, Routing, ServerReply, Split, Support};
use crate::schema::names;

names! {
    /// The end of a trajectory. All but the first two are failures: recorded, counted, and by
    /// default excluded from the advantage statistics.
    #[derive(Default, Hash, PartialOrd, Ord)]
    pub enum Status {
        /// The environment ended the task.
        #[default]
        Terminated = "terminated",
        /// A limit ended the task before the environment did; see [`Trajectory::truncated_by`].
        Truncated = "truncated",
        /// The script raised an error or returned an invalid value.
        EnvError = "env_error",
        /// A tool or another wait timed out.
        ToolTimeout = "tool_timeout",
        /// The script reached its CPU or memory limit.
        ScriptLimit = "script_limit",
        /// The prompt left no room for a reply before the first token was sampled, or with
        /// `env.on_overflow = "fail"`.
        ContextOverflow = "context_overflow",
        /// The server of the policy gave no reply.
        PolicyError = "policy_error",
        /// Stopped by the user.
        Aborted = "aborted",
    }
}

impl Status {
    /// Whether the trajectory is a failure, which does not count for the policy.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Terminated | Self::Truncated)
    }
}

names! {
    /// Whether a tool call ran, and if not why.
    #[derive(Default, Hash)]
    pub enum CallKind {
        /// It ran; see [`ToolRecord::ok`].
        #[default]
        Ran = "ran",
        /// The arguments did not match the tool's schema.
        BadArguments = "bad_arguments",
        /// It exceeded `env.max_calls`.
        Excess = "excess",
        /// The recipe has no tool with this name.
        Unknown = "unknown",
        /// It could not be parsed.
        Malformed = "malformed",
    }
}

impl CallKind {
    /// Whether the call was parsed and named a tool of the recipe.
    pub fn is_known(self) -> bool {
        matches!(self, Self::Ran | Self::BadArguments | Self::Excess)
    }

    /// For `skip_serializing_if`, which passes a reference.
    pub fn has_run(&self) -> bool {
        *self == Self::Ran
    }
}

names! {
    /// The limit that truncated a trajectory.
    #[derive(Hash, PartialOrd, Ord)]
    pub enum Limit {
        /// The limit `env.max_steps`.
        MaxSteps = "max_steps",
        /// The limit `env.max_tokens` on sampled tokens.
        MaxTokens = "max_tokens",
        /// The next prompt left no room for a reply (`env.on_overflow = "end"`).
        ContextOverflow = "context_overflow",
        /// The last reply reached its maximum length, and `step` returned `truncated = true`.
        Length = "length",
        /// The last reply reached its time limit, and `step` returned `truncated = true`.
        Deadline = "deadline",
        /// `step` returned `truncated = true` after a complete reply: a limit of the environment.
        Env = "env",
    }
}

impl Limit {
    /// The limit for `truncated = true` after a reply that ended for this reason.
    pub fn of_reply(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Length => Self::Length,
            FinishReason::Deadline => Self::Deadline,
            FinishReason::Stop | FinishReason::StopString => Self::Env,
        }
    }
}

/// One tool call and its result, as executed by the environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolRecord {
    pub name: String,
    pub arguments: Value,
    #[serde(default, skip_serializing_if = "CallKind::has_run")]
    pub kind: CallKind,
    /// The output for the policy.
    pub output: String,
    /// False for an unknown tool, bad arguments, a failed program or a timeout.
    pub ok: bool,
    /// Process reward of the call.
    pub reward: f64,
    pub seconds: f64,
    /// Attempts after the first one.
    #[serde(default, skip_serializing_if = "none")]
    pub retries: u32,
    /// The result came from the tool's cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// The script called it for itself, such as a grader in `step`: no call of the policy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde requires
fn none(count: &u32) -> bool {
    *count == 0
}

/// One transition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)] // independent facts about a step
pub struct Step {
    /// The exact prompt ids.
    pub prompt_ids: Vec<u32>,
    /// The exact sampled ids, including the end-of-turn token.
    pub response_ids: Vec<u32>,
    /// Log-probability of each response id under the behaviour policy.
    pub logprobs: Vec<f32>,
    /// The version of the weights that each response id was sampled with: the number of training
    /// steps that had changed them. Empty if it is the `policy_version` of the step
    /// (`rollout.async` records it).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy_versions: Vec<u64>,
    /// The tokens they were sampled from, if sampling dropped others.
    #[serde(default, skip_serializing_if = "Support::is_whole")]
    pub support: Support,
    /// The reply as text (for display; never tokenized again).
    pub text: String,
    pub finish_reason: FinishReason,
    /// Environment step reward plus process rewards; the last step includes the outcome reward.
    pub reward: f64,
    pub terminated: bool,
    pub truncated: bool,
    pub tools: Vec<ToolRecord>,
    /// Prompt tokens that were computed, not read from the cache.
    pub prefilled: u32,
    /// True if this prompt does not extend the last step's prompt and reply: it starts a new
    /// training row.
    pub new_row: bool,
    /// The experts of the tokens of prompt and reply, from the first token on that the previous
    /// step did not record. Empty unless routing is recorded (`trainer.routing_replay`).
    #[serde(default, skip_serializing_if = "Routing::is_empty")]
    pub routing: Routing,
    /// The state for the critic alone, from the recipe's function `privileged`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileged: Option<String>,
    /// The same for the state after this step, which has `next_prompt_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_privileged: Option<String>,
    /// The prompt of the next state, if a limit truncated the trajectory here and a critic needs
    /// its bootstrap value (`Spec::next_prompt` of rollouts). Otherwise empty.
    pub next_prompt_ids: Vec<u32>,
    /// The reply of a server as the policy. `prompt_ids`, `response_ids` and `logprobs` are then
    /// empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Box<ServerReply>>,
    #[serde(default)]
    pub seconds: StepSeconds,
    /// What the step changed in the state of the environment, as a merge patch (RFC 7396) for the
    /// state before. `None` if the state is too large or no plain data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// Generated text that is trained on, not an action: a step of the trajectories of an update
    /// alone, which are not stored.
    #[serde(skip)]
    pub generated: bool,
    /// What the update of the training step computed for the sampled tokens.
    #[serde(default, skip_serializing_if = "TrainedTokens::is_empty")]
    pub trained: TrainedTokens,
}

/// Where the time of a step went, wall-clock seconds; 0 where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepSeconds {
    /// The context policy, and rendering the prompt.
    pub context: f64,
    /// From the request to the reply: the policy, and waiting for it.
    pub sampling: f64,
    /// The environment's step, tools included.
    pub environment: f64,
}

/// What an update computed for the sampled tokens of a step. Each list has an entry per token, and
/// is empty if the update did not compute it. The store writes it; programs and viewers read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainedTokens {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advantages: Vec<f64>,
    /// The critic's value of the state before the token, before the update.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<f32>,
    /// The critic's training target; NaN where it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<f32>,
    /// Log-probability under the learner in the first optimiser step that had the token.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learner_logprobs: Vec<f32>,
    /// Log-probability under the reference policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_logprobs: Vec<f32>,
    /// Entropy of the learner's distribution in the optimiser step of `learner_logprobs`, nats.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entropies: Vec<f32>,
    /// Whether the token was in the loss: false in the steps that a fork shares with its parent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loss_mask: Vec<bool>,
    /// Whether the loss clipped the token's ratio in one of the optimiser steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clipped: Vec<bool>,
}

impl TrainedTokens {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Mean of the advantages; `None` without any.
    pub fn advantage(&self) -> Option<f64> {
        let count = self.advantages.len();
        (count > 0).then(|| self.advantages.iter().sum::<f64>() / count as f64)
    }
}

impl Step {
    /// The policy's calls: all but those that the script made for itself.
    pub fn policy_calls(&self) -> impl Iterator<Item = &ToolRecord> {
        self.tools.iter().filter(|tool| !tool.hidden)
    }

    /// Number of sampled tokens; for a server, as it counts them.
    pub fn response_tokens(&self) -> usize {
        match &self.server {
            Some(reply) => reply.usage.response_tokens as usize,
            None => self.response_ids.len(),
        }
    }

    /// Number of prompt tokens, likewise.
    pub fn prompt_tokens(&self) -> usize {
        match &self.server {
            Some(reply) => reply.usage.prompt_tokens as usize,
            None => self.prompt_ids.len(),
        }
    }
}

/// The branch point of a trajectory: its first steps are copies of its parent's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fork {
    /// The parent's id.
    pub parent: String,
    /// Number of shared steps; its own steps continue from the state after them.
    pub step: u32,
}

/// The steps of one sample of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Unique within the run: `step-group-sample`; in an evaluation it begins with `eval-`.
    pub id: String,
    /// The dataset split of its task.
    #[serde(default)]
    pub split: Split,
    /// Index of the dataset row.
    pub task_index: u64,
    pub task: Value,
    /// Trajectories of the same task in the same training step have the same number.
    pub group: u64,
    pub sample: u32,
    /// The branch point, unless it started at `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    pub seed: u64,
    /// SHA-256 of the script and its required modules.
    pub script_hash: String,
    pub status: Status,
    /// The limit that truncated it; `None` for other statuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<Limit>,
    /// `trainer.filter` dropped its group: it is stored, and the step does not use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dropped: bool,
    /// Failed attempts before this one (`rollout.retries`). The number selects the random stream of
    /// the attempt.
    #[serde(default)]
    pub retries: u32,
    /// Wall time of the attempt, from `reset` to the reward; 0 where it was not measured.
    #[serde(default)]
    pub seconds: f64,
    /// The state of the environment after `reset`, without the conversation. `None` if it is too
    /// large or no plain data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_state: Option<Value>,
    /// The reason of the failure.
    pub error: Option<ErrorRecord>,
    pub steps: Vec<Step>,
    /// Outcome reward; already included in the last step's reward.
    pub outcome_reward: f64,
    /// Named components of the reward, for logs.
    pub reward_parts: BTreeMap<String, f64>,
    /// The final conversation, for display.
    pub messages: Vec<Message>,
    /// External calls of the script and their results, in order.
    pub record: Vec<ExternalCall>,
}

impl Trajectory {
    /// Its id and group in another step: a trajectory that was carried over.
    #[must_use]
    pub fn renamed(mut self, step: u64, group: u64) -> Self {
        let id = |sample: &str| format!("{step}-{group}-{sample}");
        self.id = id(&self.sample.to_string());
        if let Some(fork) = &mut self.fork {
            fork.parent = id(fork.parent.rsplit('-').next().unwrap_or_default());
        }
        Self { group, ..self }
    }

    /// Sum of step rewards.
    pub fn total_reward(&self) -> f64 {
        // Not `sum()`, which is -0.0 for an empty list.
        self.steps.iter().fold(0.0, |sum, step| sum + step.reward)
    }

    /// The reason of the failure, as text: message, place, line, hint, frames.
    pub fn error_text(&self) -> Option<String> {
        self.error.as_ref().map(ToString::to_string)
    }

    /// Whether it was in an update of its step.
    pub fn is_trained(&self) -> bool {
        self.steps.iter().any(|step| !step.trained.loss_mask.is_empty())
    }

    /// Number of first steps shared with its parent.
    pub fn shared_steps(&self) -> usize {
        self.fork.as_ref().map_or(0, |fork| self.steps.len().min(fork.step as usize))
    }

    /// The steps that were sampled for it, not for its parent.
    pub fn own_steps(&self) -> &[Step] {
        &self.steps[self.shared_steps()..]
    }

    /// Calls that were parsed and named a tool of the recipe.
    pub fn tool_calls(&self) -> usize {
        self.steps.iter().flat_map(Step::policy_calls).filter(|tool| tool.kind.is_known()).count()
    }

    /// Calls that could not be parsed, or named no tool of the recipe.
    pub fn malformed_calls(&self) -> usize {
        self.steps.iter().flat_map(Step::policy_calls).filter(|tool| !tool.kind.is_known()).count()
    }

    /// Calls that the script made for itself.
    pub fn hidden_calls(&self) -> usize {
        self.steps.iter().flat_map(|step| &step.tools).filter(|tool| tool.hidden).count()
    }

    pub fn response_tokens(&self) -> usize {
        self.steps.iter().map(Step::response_tokens).sum()
    }
}
