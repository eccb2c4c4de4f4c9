//! Calls of `r1.script` and `r1.rollout`: other scripts and their trajectories.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::model::SamplingFields;
use super::request::calls;
use crate::mdp::{FinishReason, Limit, Observation, Sampling, Seed, Split, ToolCall, ToolRecord, Trajectory};
use crate::script::runtime::log::LogLine;

calls! {
    /// Calls of scripts and trajectories. `script` and `attempt` are the numbers of open ones.
    pub enum EnvCall {
        /// Loads a script.
        OpenScript {
            path: PathBuf,
            /// Directory of the program, for paths that are not in the current directory.
            #[serde(skip)]
            directory: PathBuf,
            #[serde(default, deserialize_with = "super::read::overrides")]
            overrides: Vec<String>,
            /// Directory of the model whose tokenizer is used.
            model: Option<PathBuf>,
        } -> OpenedScript;
        /// Closes a script.
        CloseScript { script: u64 } -> ();
        /// Number of rows of a split.
        CountRows { script: u64, #[serde(default)] split: Split } -> u64;
        /// A row: a task.
        ReadRow { script: u64, #[serde(default)] split: Split, row: u64 } -> Json;
        /// Begins a trajectory; its number. `generated`: the texts of `r1.generate`.
        Reset { script: u64, task: TaskChoice, generated: Option<Vec<String>> } -> Logged<u64>;
        /// Closes a trajectory.
        CloseAttempt { attempt: u64 } -> ();
        /// The current observation; `None` if the trajectory has ended.
        Observe { attempt: u64 } -> Logged<Option<Observation>>;
        /// The request for the next response of a model.
        NextRequest { attempt: u64 } -> Logged<SampleRequest>;
        /// Replies to the observation.
        TakeStep { attempt: u64, reply: ScriptedReply } -> Logged<Stepped>;
        /// A copy of the environment's state.
        ReadState { attempt: u64 } -> Logged<Json>;
        /// The reward if the trajectory ended here.
        RewardSoFar { attempt: u64 } -> Logged<RewardReport>;
        /// An independent copy of a trajectory; its number.
        Fork { attempt: u64 } -> Logged<u64>;
        /// The result so far.
        Finish { attempt: u64 } -> Logged<Trajectory>;
        /// Runs trajectories with a model, concurrently.
        RunTasks {
            script: u64,
            model: u64,
            tasks: Vec<TaskChoice>,
            samples: u32,
            #[serde(default)]
            sampling: SamplingFields,
            seed: Seed,
            branch: Option<Branching>,
        } -> Logged<Vec<BranchResult>>;
    }
}

/// A script that was opened.
#[derive(Clone, Debug)]
pub struct OpenedScript {
    pub script: u64,
    pub about: AboutScript,
}

/// The properties of a script for programs.
#[derive(Clone, Debug, Serialize)]
pub struct AboutScript {
    pub path: PathBuf,
    /// Schemas of the tools.
    pub tools: Vec<Json>,
    /// Name of the tool-call format.
    pub format: String,
}

/// A result, and what the script logged during the call.
#[derive(Clone, Debug)]
pub struct Logged<T> {
    pub result: T,
    pub log: Vec<LogLine>,
}

/// A row of a dataset, or a task.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskChoice {
    pub split: Split,
    pub row: u64,
    pub task: Option<Json>,
    pub seed: Option<Seed>,
}

/// The response that a model is to sample.
#[derive(Clone, Debug, Serialize)]
pub struct SampleRequest {
    pub prompt_ids: Vec<u32>,
    pub stop_ids: Vec<u32>,
    pub seed: Seed,
    pub sampling: Sampling,
}

/// A response, written by a program or sampled by a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedReply {
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub calls: Vec<ToolCall>,
    pub finish_reason: Option<FinishReason>,
    /// The exact ids, if a model sampled them.
    pub token_ids: Option<Vec<u32>>,
    #[serde(default)]
    pub logprobs: Vec<f32>,
}

/// The last step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stepped {
    pub reward: f64,
    pub done: bool,
    pub status: Option<&'static str>,
    pub truncated_by: Option<Limit>,
    pub text: String,
    pub tools: Vec<ToolRecord>,
}

/// A reward: of the steps and the outcome, of the outcome alone, and by part.
#[derive(Clone, Debug, Serialize)]
pub struct RewardReport {
    pub total: f64,
    pub outcome: f64,
    pub parts: BTreeMap<String, f64>,
}

/// Continuations of a trajectory from a step on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branching {
    pub step: usize,
    pub count: u32,
}

/// A trajectory, and its number among the continuations of one.
#[derive(Clone, Debug)]
pub struct BranchResult {
    pub trajectory: Trajectory,
    pub branch: Option<u32>,
}
