//! A recipe's settings: what a script's table and `key=value` on the command line may set, typed, with defaults.
//!
//! Everything here is plain data read with serde; unknown keys are refused. Functions of a recipe (reset, step,
//! context, reward, row generators) stay in the script's VM and are not seen here.

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
    ALGORITHMS, Algorithm, Choice, CriticSettings, Decay, Filter, Kl, KlPlace, Learner, MiniBatchBy, OnNan,
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
    /// Root of every random stream.
    pub seed: u64,
    pub policy: PolicySettings,
    pub data: DataSettings,
    pub sampling: Sampling,
    pub env: EnvSettings,
    /// Environments by name, where rows choose one with their column `env`. `env` is not used then.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, EnvSettings>,
    pub rollout: RolloutSettings,
    pub trainer: Trainer,
    pub eval: EvalSettings,
    pub checkpoint: CheckpointSettings,
    pub limits: Limits,
    /// Supervised training that `r1 run` does first, once: its result is the policy that reinforcement learning starts from,
    /// and the reference policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<Box<Settings>>,
    /// What the script reaches outside of itself: `http`, `http:HOST`, `process`, `fs:DIR` …
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
    /// The settings of all environments, by the name of their section: `env`, or `envs.NAME`.
    pub fn environments(&self) -> Vec<(String, &EnvSettings)> {
        if self.envs.is_empty() {
            return vec![("env".to_owned(), &self.env)];
        }
        self.envs.iter().map(|(name, env)| (format!("envs.{name}"), env)).collect()
    }
}

/// Which model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// A directory in Hugging Face layout, a hub id (`Qwen/Qwen2.5-1.5B-Instruct`), or `r1-nano`, the embedded model.
    pub model: String,
    /// The model that an adapter is for, in place of the one that its file names. Empty: that one.
    pub base: String,
    /// `auto` (f32 on CPU, bf16 on CUDA), `f32` or `bf16`.
    pub dtype: Dtype,
    /// `auto`, `cpu` or `cuda`.
    pub device: DeviceChoice,
    /// Longest prompt plus reply; 0 is the model's own limit.
    pub max_context: usize,
    /// Records the steps of generation as CUDA graphs, on a GPU: a launch a step in place of hundreds, for some memory.
    pub cuda_graphs: bool,
    /// Variables of the chat template (transformers' `chat_template_kwargs`), such as `enable_thinking = false`.
    pub template_kwargs: serde_json::Map<String, serde_json::Value>,
    /// Makes a new model instead of loading one (supervised training from nothing).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<InitModel>,
    /// Trains a low-rank adapter; the model's own weights stay as they are.
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
    /// Extra special tokens, one id each, besides ChatML's.
    pub special_tokens: Vec<String>,
    /// Rows of `data.train` the tokenizer is trained on.
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

/// A new low-rank adapter (LoRA, arXiv:2106.09685), saved as PEFT saves it. A `policy.model` that is an adapter's directory is
/// trained on without this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraSettings {
    /// Rows of the smaller matrix.
    pub rank: usize,
    /// The adapter counts `alpha / rank` times, or `alpha / sqrt(rank)` times if `rank_stabilized`.
    pub alpha: f64,
    /// Scales by the square root of the rank (arXiv:2312.03732).
    pub rank_stabilized: bool,
    /// Projections that have a part of it, by the end of their names.
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
    /// Script worker threads; 0 picks one for every four cores.
    pub workers: usize,
    /// Failed trajectories are sampled again up to so many times: in a fresh environment, from another random stream. One that
    /// could only fail again is not.
    pub retries: usize,
    /// Share of failed trajectories in a step above which the run stops.
    pub max_failure_rate: f64,
}

impl Default for RolloutSettings {
    fn default() -> Self {
        Self { concurrency: 128, workers: 0, retries: 1, max_failure_rate: 0.5 }
    }
}

/// How to train. In Lua: `r1.grpo { … }`, `r1.ppo { … }`, `r1.sft { … }`, or `r1.trainer { algorithm = … }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "lowercase")]
pub enum Trainer {
    /// The loop without a critic.
    Grpo(Learner),
    /// The loop with one.
    Ppo(Learner),
    Sft(Sft),
}

impl Trainer {
    /// Whether sampling records the experts of tokens.
    pub fn replays_routing(&self) -> bool {
        matches!(self, Self::Grpo(learner) | Self::Ppo(learner) if learner.routing_replay == RoutingReplay::Rollout)
    }

    /// Whether activations are computed again in the backward pass.
    pub fn gradient_checkpointing(&self) -> bool {
        match self {
            Self::Grpo(learner) | Self::Ppo(learner) => learner.gradient_checkpointing,
            Self::Sft(sft) => sft.gradient_checkpointing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Normalize {
    Std,
    None,
}

/// How token losses become one number; 'seq' is a trajectory.
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
    /// Steps over which the learning rate rises on a straight line to `lr`.
    pub warmup: usize,
    /// After the warm-up the learning rate falls along half a cosine to this share of `lr`; 1 keeps it constant.
    pub final_lr: f64,
    /// Decay rates of AdamW's first and second moments.
    pub betas: (f64, f64),
    /// Decoupled weight decay, of matrices only.
    pub weight_decay: f64,
    /// The gradient's norm is clipped to this; 0 clips nothing.
    pub max_grad_norm: f64,
    /// Tokens per forward pass. A step's conversations are packed into as many passes as they need.
    pub tokens_per_batch: usize,
    /// Longest conversation, tokens; 0 is the model's context.
    pub max_length: usize,
    /// What happens to a longer one.
    pub overlong: Overlong,
    /// Evaluations of `data.eval` in a row without a lower loss after which the run stops; 0 never stops early.
    pub patience: usize,
    /// Keep only the inputs of the layers until the backward pass, which computes the rest again.
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

/// What supervised training does with a conversation that is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlong {
    /// The run ends with an error that names the row.
    #[default]
    Error,
    /// It is left out, and the next one takes its place.
    Skip,
    /// Its end is cut off.
    Truncate,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSettings {
    /// Steps between evaluations; 0 evaluates before and after only.
    pub every: usize,
    /// Rows of `data.eval` used, of each of its datasets; 0 is all.
    pub limit: usize,
    /// Whether the policy is evaluated before the first step.
    pub before: bool,
    /// Whether it is evaluated after the last step.
    pub after: bool,
    /// Sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Smallest set of tokens whose probabilities add up to this; `sampling.top_p` if `nil`.
    pub top_p: Option<f64>,
    /// Most likely tokens that are drawn from, 0 for all; `sampling.top_k` if `nil`.
    pub top_k: Option<usize>,
    /// Least probability, as a share of the most likely token's; `sampling.min_p` if `nil`.
    pub min_p: Option<f64>,
    /// Tokens of a reply at most; `sampling.max_new_tokens` if `nil`.
    pub max_new_tokens: Option<usize>,
    /// Steps after which a trajectory is cut off; the environment's own setting if `nil`.
    pub max_steps: Option<usize>,
    /// The environment of all evaluation tasks, by its name in `envs`; what rows name if empty. A recipe may also give one
    /// here: `eval = { env = r1.env { … } }`.
    pub env: String,
    /// Named reward part that counts as accuracy; empty: total reward > 0.
    pub accuracy: String,
    /// Trajectories that are stored of each evaluation, spread evenly over its tasks; 0 stores none.
    pub store: usize,
}

impl EvalSettings {
    /// How replies are sampled in evaluation, where training samples with `usual`.
    pub fn sampling(&self, usual: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p.unwrap_or(usual.top_p),
            top_k: self.top_k.unwrap_or(usual.top_k),
            min_p: self.min_p.unwrap_or(usual.min_p),
            max_new_tokens: self.max_new_tokens.unwrap_or(usual.max_new_tokens),
            ..usual.clone()
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
    /// How many to keep; 0 keeps all.
    pub keep: usize,
    /// Type of the weights that `--out` writes; `auto` is the type of the model's files that the run began from.
    pub export: Dtype,
    /// `--out` writes the model with its adapter merged into the weights, not the adapter alone.
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
    /// Memory of one trajectory, MiB: its state, and what one of its calls adds to the worker's.
    #[serde(deserialize_with = "units::mib")]
    pub trajectory: usize,
    /// Text of one observation, and of one argument of a host function, MiB.
    #[serde(deserialize_with = "units::mib")]
    pub text: usize,
    /// Text of one tool's result, KiB; a longer one is cut, and says so.
    #[serde(deserialize_with = "units::kib")]
    pub result: usize,
    /// Lines that one call may log; more are dropped and counted.
    pub log: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu: 1.0, wait: 60.0, memory: 512, trajectory: 64, text: 4, result: 256, log: 100 }
    }
}
