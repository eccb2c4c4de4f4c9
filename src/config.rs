//! Typed settings of a recipe with their defaults: the script's table, overridden by `key=value`
//! arguments.
//!
//! All settings are plain data read with serde; unknown keys are refused. Functions of a recipe
//! (reset, step, context, reward, row generators) stay in the script's VM.

mod branch;
pub mod counterparts;
mod data;
mod env;
mod learner;
mod loss_graph;
mod reference;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use branch::{Branch, BranchAt};
pub use data::{
    Columns, Compression, DataFile, DataFormat, DataSettings, HubData, OverlongPrompts, Part, Paths, Source,
};
pub use env::{CallRewards, EnvSettings, ExcessCalls, OnOverflow, ToolChoice};
pub use learner::{
    ALGORITHMS, Algorithm, CUSTOM, Choice, CriticSettings, Decay, Filter, Kl, KlPlace, Learner, MiniBatchBy, OnNan,
    RoutingReplay, WeightGroup,
};
pub use loss_graph::{Binary, Input, LossGraph, Node, Op, Operand, Over, Shape, Unary};

pub use reference::{Range, Setting, check_ranges, settings};

use crate::mdp::Sampling;
use crate::units;

/// All settings of a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Run name; the script's file stem when empty.
    pub name: String,
    /// Seed of every random stream.
    pub seed: u64,
    pub policy: PolicySettings,
    pub data: DataSettings,
    pub sampling: Sampling,
    pub env: EnvSettings,
    /// Named environments; each row selects one with its column `env`. The section `env` is then
    /// unused.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, EnvSettings>,
    pub rollout: RolloutSettings,
    pub trainer: Trainer,
    pub eval: EvalSettings,
    pub checkpoint: CheckpointSettings,
    pub limits: Limits,
    /// Supervised fine-tuning that `r1 run` runs once before reinforcement learning. Its result is
    /// both the initial policy and the reference policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<Box<Settings>>,
    /// External access of the script: `http`, `http:HOST`, `process`, `fs:DIR` …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: String::new(),
            seed: 0,
            policy: PolicySettings::default(),
            data: DataSettings::default(),
            sampling: Sampling::default(),
            env: EnvSettings::default(),
            envs: BTreeMap::new(),
            rollout: RolloutSettings::default(),
            trainer: Trainer::Grpo(Learner::default()),
            eval: EvalSettings::default(),
            checkpoint: CheckpointSettings::default(),
            limits: Limits::default(),
            cold_start: None,
            needs: Vec::new(),
        }
    }
}

impl Settings {
    /// Settings of all environments with the name of their section: `env` or `envs.NAME`.
    pub fn environments(&self) -> Vec<(String, &EnvSettings)> {
        if self.envs.is_empty() {
            return vec![("env".to_owned(), &self.env)];
        }
        self.envs.iter().map(|(name, env)| (format!("envs.{name}"), env)).collect()
    }
}

/// The model, its type and device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// A directory in Hugging Face layout, a Hub id (`Qwen/Qwen2.5-1.5B-Instruct`), or `r1-nano`,
    /// the embedded model.
    pub model: String,
    /// Base model of an adapter. Empty: the base model in `adapter_config.json`.
    pub base: String,
    /// `auto` (f32 on CPU, bf16 on CUDA), `f32` or `bf16`.
    pub dtype: Dtype,
    /// `auto`, `cpu` or `cuda`.
    pub device: DeviceChoice,
    /// Maximum length of prompt plus response, tokens; 0 is the model's limit.
    pub max_context: usize,
    /// Records decode steps as CUDA graphs: one launch per step, at the cost of some memory.
    pub cuda_graphs: bool,
    /// Variables of the chat template (transformers' `chat_template_kwargs`), such as
    /// `enable_thinking = false`.
    pub template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// Initialises a new model instead of loading one (supervised training from scratch).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<InitModel>,
    /// Trains a low-rank adapter; the base weights are frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            model: "r1-nano".to_owned(),
            base: String::new(),
            dtype: Dtype::Auto,
            device: DeviceChoice::Auto,
            max_context: 0,
            cuda_graphs: true,
            template_kwargs: serde_json::Map::new(),
            init: None,
            lora: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Auto,
    F32,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    Auto,
    Cpu,
    Cuda,
}

/// A Qwen2 model with fresh weights and a tokenizer trained on the recipe's own text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InitModel {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub max_position_embeddings: usize,
    pub rope_theta: f64,
    /// Byte-level BPE vocabulary, special tokens included.
    pub vocab_size: usize,
    /// Special tokens in addition to ChatML's, one id each.
    pub special_tokens: Vec<String>,
    /// Number of rows of `data.train` that the tokenizer is trained on.
    pub tokenizer_rows: usize,
}

impl Default for InitModel {
    fn default() -> Self {
        Self {
            hidden_size: 192,
            intermediate_size: 512,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            max_position_embeddings: 1024,
            rope_theta: 10_000.0,
            vocab_size: 512,
            special_tokens: Vec::new(),
            tokenizer_rows: 4000,
        }
    }
}

/// A new low-rank adapter (LoRA, arXiv:2106.09685), saved in PEFT's format. Training of an existing
/// adapter (`policy.model` is its directory) does not need this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraSettings {
    /// Rank of the adapter.
    pub rank: usize,
    /// The adapter is scaled by `alpha / rank`, or by `alpha / sqrt(rank)` if `rank_stabilized`.
    pub alpha: f64,
    /// Scales by the square root of the rank (arXiv:2312.03732).
    pub rank_stabilized: bool,
    /// Projections with an adapter, by the end of their names.
    pub targets: Vec<String>,
}

impl Default for LoraSettings {
    fn default() -> Self {
        let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
        Self { rank: 16, alpha: 32.0, rank_stabilized: false, targets: targets.map(str::to_owned).to_vec() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSettings {
    /// Trajectories in flight at once.
    pub concurrency: usize,
    /// Script worker threads; 0 is one per four cores.
    pub workers: usize,
    /// Maximum number of retries of a failed trajectory, each in a fresh environment with another
    /// random stream. Failures that would recur are not retried.
    pub retries: usize,
    /// Fraction of failed trajectories in a step above which the run stops.
    pub max_failure_rate: f64,
}

impl Default for RolloutSettings {
    fn default() -> Self {
        Self { concurrency: 128, workers: 0, retries: 1, max_failure_rate: 0.5 }
    }
}

/// The training algorithm and its settings. In Lua: `r1.grpo { … }`, `r1.ppo { … }`, `r1.sft { …
/// }`, or `r1.trainer { algorithm = … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase")]
pub enum Trainer {
    /// Reinforcement learning without a critic.
    Grpo(Learner),
    /// Reinforcement learning with a critic.
    Ppo(Learner),
    Sft(Sft),
}

impl Trainer {
    /// Whether sampling records the experts of each token (`trainer.routing_replay`).
    pub fn replays_routing(&self) -> bool {
        matches!(self, Self::Grpo(learner) | Self::Ppo(learner) if learner.routing_replay == RoutingReplay::Rollout)
    }

    /// Whether activations are recomputed in the backward pass.
    pub fn gradient_checkpointing(&self) -> bool {
        match self {
            Self::Grpo(learner) | Self::Ppo(learner) => learner.gradient_checkpointing,
            Self::Sft(sft) => sft.gradient_checkpointing,
        }
    }
}

/// Aggregation of token losses to a scalar. `seq` is a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossAgg {
    TokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenMean,
    SeqMeanTokenSumNorm,
}

/// Supervised fine-tuning on the assistant tokens of messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sft {
    /// Optimiser steps.
    pub steps: usize,
    /// Conversations per optimiser step.
    pub batch_size: usize,
    /// Learning rate after the warm-up.
    pub lr: f64,
    /// Steps over which the learning rate rises linearly to `lr`.
    pub warmup: usize,
    /// Final learning rate of the cosine decay after the warm-up, as a fraction of `lr`; 1 is a
    /// constant rate.
    pub final_lr: f64,
    /// Decay rates of AdamW's first and second moments.
    pub betas: (f64, f64),
    /// Decoupled weight decay, applied to matrices only.
    pub weight_decay: f64,
    /// Maximum gradient norm; 0 is off.
    pub max_grad_norm: f64,
    /// Maximum number of tokens per forward pass. The conversations of a step are packed into as
    /// many passes as necessary.
    pub tokens_per_batch: usize,
    /// Maximum length of a conversation, tokens; 0 is the model's context.
    pub max_length: usize,
    /// Handling of longer conversations.
    pub overlong: Overlong,
    /// Consecutive evaluations of `data.eval` without a lower loss after which the run stops; 0
    /// disables early stopping.
    pub patience: usize,
    /// Keeps only the inputs of the layers and recomputes the other activations in the backward
    /// pass.
    pub gradient_checkpointing: bool,
}

impl Default for Sft {
    fn default() -> Self {
        Self {
            steps: 1000,
            batch_size: 64,
            lr: 1e-5,
            warmup: 20,
            final_lr: 0.1,
            betas: (0.9, 0.95),
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            tokens_per_batch: 8192,
            max_length: 0,
            overlong: Overlong::Error,
            patience: 0,
            gradient_checkpointing: false,
        }
    }
}

/// Handling of conversations longer than `trainer.max_length` in supervised fine-tuning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlong {
    /// The run ends with an error that names the row.
    #[default]
    Error,
    /// The conversation is skipped, and the next one is used instead.
    Skip,
    /// The conversation is truncated at its end.
    Truncate,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSettings {
    /// Steps between evaluations; 0 evaluates before and after only.
    pub every: usize,
    /// Rows evaluated of each dataset of `data.eval`; 0 is all.
    pub limit: usize,
    /// Evaluates the policy before the first step.
    pub before: bool,
    /// Evaluates the policy after the last step.
    pub after: bool,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Nucleus sampling threshold; `sampling.top_p` if `nil`.
    pub top_p: Option<f64>,
    /// Number of most likely tokens to sample from, 0 for all; `sampling.top_k` if `nil`.
    pub top_k: Option<usize>,
    /// Minimum probability relative to the most likely token; `sampling.min_p` if `nil`.
    pub min_p: Option<f64>,
    /// Maximum number of response tokens; `sampling.max_new_tokens` if `nil`.
    pub max_new_tokens: Option<usize>,
    /// Steps after which a trajectory is truncated; `env.max_steps` if `nil`.
    pub max_steps: Option<usize>,
    /// Environment of all evaluation tasks, by its name in `envs`; if empty, the `env` column of
    /// each row. A recipe can also define it here: `eval = { env = r1.env { … } }`.
    pub env: String,
    /// Name of the reward part that is reported as accuracy; if empty, accuracy is total
    /// reward > 0.
    pub accuracy: String,
    /// Trajectories that are stored of each evaluation, spread evenly over its tasks; 0 stores
    /// none.
    pub store: usize,
}

impl EvalSettings {
    /// Sampling settings of evaluation: these, with `training` for those that are not set.
    pub fn sampling(&self, training: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p.unwrap_or(training.top_p),
            top_k: self.top_k.unwrap_or(training.top_k),
            min_p: self.min_p.unwrap_or(training.min_p),
            max_new_tokens: self.max_new_tokens.unwrap_or(training.max_new_tokens),
            ..training.clone()
        }
    }
}

impl Default for EvalSettings {
    fn default() -> Self {
        Self {
            every: 0,
            limit: 128,
            before: true,
            after: true,
            temperature: 0.0,
            top_p: None,
            top_k: None,
            min_p: None,
            max_new_tokens: None,
            max_steps: None,
            env: String::new(),
            accuracy: String::new(),
            store: 128,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointSettings {
    /// Steps between checkpoints; 0 writes only the last.
    pub every: usize,
    /// Number of checkpoints kept; 0 keeps all.
    pub keep: usize,
    /// Type of the weights written by `--out`; `auto` is the type of the initial model's files.
    pub export: Dtype,
    /// `--out` merges the adapter into the weights instead of writing the adapter alone.
    pub merge: bool,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self { every: 20, keep: 2, export: Dtype::Auto, merge: false }
    }
}

/// Limits of one call into the script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// CPU time, seconds.
    #[serde(deserialize_with = "units::time")]
    pub cpu: f64,
    /// Time in tools and other waits, seconds.
    #[serde(deserialize_with = "units::time")]
    pub wait: f64,
    /// Memory of one script worker, MiB.
    #[serde(deserialize_with = "units::mib")]
    pub memory: usize,
    /// Memory of one trajectory, MiB: its state, plus what one call adds to the worker's memory.
    #[serde(deserialize_with = "units::mib")]
    pub trajectory: usize,
    /// Size of one observation, and of one argument of a host function, MiB.
    #[serde(deserialize_with = "units::mib")]
    pub text: usize,
    /// Size of one tool result, KiB; a longer result is truncated with a notice.
    #[serde(deserialize_with = "units::kib")]
    pub result: usize,
    /// Maximum number of lines logged by one call; further lines are dropped and counted.
    pub log: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu: 1.0, wait: 60.0, memory: 512, trajectory: 64, text: 4, result: 256, log: 100 }
    }
}
