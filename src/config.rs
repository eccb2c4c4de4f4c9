//! Typed settings of a recipe with their defaults: the script's table, overridden by `key=value`
//! arguments.
//!
//! Each table is declared once with `section!` (crate::schema); unknown keys are refused. Functions
//! of a recipe (reset, step, context, reward, row generators) stay in the script's VM.

pub mod algorithms;
mod branch;
mod correction;
pub mod counterparts;
mod data;
mod env;
mod kl;
mod learner;
mod policy;
mod reference;
mod refusal;
mod rollout;
mod server;
mod shaping;
mod source;

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value as Json;

pub use algorithms::{Algorithm, algorithm_names};
pub use branch::{Branch, BranchAt};
pub use correction::{Estimate, Importance, Measure, Rejection, Scope};
pub use data::{Compression, Curriculum, DataFormat, DataSettings, OverlongPrompts};
pub use env::{CallRewards, EnvSettings, ExcessCalls, OnOverflow, ToolChoice};
pub use kl::{Kl, KlKind, KlPlace};
pub use learner::{Choice, CriticSettings, Decay, Filter, Learner, MiniBatchBy, OnNan, RoutingReplay, WeightGroup};
pub use policy::{InitModel, LORA_TARGETS, LoraSettings, PolicySettings, Price, ServerApi, Switch, VisionInit};
pub use reference::{Lacking, NumberRange, check_ranges, lacking, settings, value_of};
pub use refusal::{refused, unknown_hint};
pub use rollout::{AsyncRollouts, OnUpdate, Oversample, RolloutSettings, Unfinished};
pub use server::{refuse_reply_prefix, refuse_server};
pub use shaping::{Grouping, Method, OverlongPenalty, Shaping};
pub use source::{Columns, DataFile, Generated, HubData, MixedDataset, PartOptions, Paths, SOURCE_KINDS, Source};

pub use r1_base::{DeviceChoice, Dtype};

pub use crate::algorithms::{Binary, Input, LossAgg, LossGraph, Node, Op, Operand, Over, Shape, Unary};
use crate::mdp::Sampling;
use crate::schema::{
    Field, KiB, MiB, Misfit, Reload, Section, Setting, Table, Time, choices, fields_of, join, section,
};

section! {
    /// All settings of a recipe.
    pub struct Settings: "" {
        /// Name of the run and of its directory; the file name of the script if empty.
        name: String = String::new(), restart();
        /// Seed of every random stream: the same seed gives the same run.
        seed: u64 = 0, range("≥ 0"), restart();
        /// The model that is trained.
        policy: PolicySettings = PolicySettings::default(), restart();
        /// Datasets of tasks; several datasets, by name or as a list, are mixed
        /// (docs/guide/data.md).
        data: DataSettings = DataSettings::default(), restart();
        /// Sampling of responses in training.
        sampling: Sampling = Sampling::default();
        /// The environment of a recipe with one.
        env: EnvSettings = EnvSettings::default();
        /// Named environments, each with the settings of env; rows select one with their column
        /// env. env is then unused.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        envs: BTreeMap<String, EnvSettings> = BTreeMap::new();
        /// Concurrency, retries and failures of rollouts.
        rollout: RolloutSettings = RolloutSettings::default();
        /// Algorithm and its settings: a result of r1.grpo, r1.ppo, r1.sft or r1.trainer.
        trainer: Trainer = Trainer::Rl { learner: Learner::default(), critic: false };
        /// Evaluation on data.eval.
        eval: EvalSettings = EvalSettings::default();
        /// The models of searches: encoders and cross-encoders.
        search: SearchSettings = SearchSettings::default(), restart();
        /// Checkpoints and the exported model.
        checkpoint: CheckpointSettings = CheckpointSettings::default();
        /// Time and memory limits of script calls.
        limits: Limits = Limits::default();
        /// A recipe with r1.sft that r1 run runs once before reinforcement learning; override its
        /// settings with cold_start.KEY, leave it out with cold_start=false (docs/guide/sft.md).
        #[serde(skip_serializing_if = "Option::is_none")]
        cold_start: Option<Box<Settings>> = None, restart();
        /// Parameters of the script, with the names that it declares by r1.params.
        #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
        params: serde_json::Map<String, Json> = serde_json::Map::new(), restart();
        /// External access of the script: "http" (public hosts), "http:HOST", a URL (its host and
        /// port), "process", "process:NAME", "env:NAME", "fs:DIR", "fs:write:DIR".
        #[serde(skip_serializing_if = "Vec::is_empty")]
        needs: Vec<String> = Vec::new(), restart();
    }
}

/// `cold_start`: a recipe in a recipe.
impl Field for Box<Settings> {
    type Value = Self;

    fn kind() -> String {
        "table".to_owned()
    }

    fn lua() -> String {
        "Recipe".to_owned()
    }

    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        Settings::read(key, json, None).map(Self::new)
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

section! {
    /// Device and type of the models of searches (docs/guide/search.md).
    pub struct SearchSettings: "search.", restart() {
        /// Device of encoders and cross-encoders; auto is policy.device.
        device: DeviceChoice = DeviceChoice::Auto;
        /// Type of their weights and computation; auto is f32 on the CPU and bf16 on CUDA.
        dtype: Dtype = Dtype::Auto;
    }
}

/// The training algorithm and its settings. In Lua: `r1.grpo { … }`, `r1.ppo { … }`, `r1.sft { …
/// }`, or `r1.trainer { algorithm = … }`.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // there is one per recipe
pub enum Trainer {
    /// Reinforcement learning, with a critic or without.
    Rl {
        learner: Learner,
        critic: bool,
    },
    Sft(Sft),
}

impl Serialize for Trainer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithAlgorithm<'a, T> {
            algorithm: &'static str,
            #[serde(flatten)]
            settings: &'a T,
        }
        match self {
            Self::Rl { learner, critic } => {
                WithAlgorithm { algorithm: if *critic { "ppo" } else { "grpo" }, settings: learner }
                    .serialize(serializer)
            }
            Self::Sft(sft) => WithAlgorithm { algorithm: "sft", settings: sft }.serialize(serializer),
        }
    }
}

impl Sft {
    /// Tokens per forward pass without a GPU.
    const TOKENS: usize = 8192;

    /// Maximum number of tokens per forward pass.
    pub fn tokens_at_once(&self) -> usize {
        if self.tokens_per_batch == 0 { Self::TOKENS } else { self.tokens_per_batch }
    }
}

impl Field for Trainer {
    type Value = Self;

    fn kind() -> String {
        "table".to_owned()
    }

    fn lua() -> String {
        "Trainer".to_owned()
    }

    /// A table with `algorithm`, such as the result of `r1.grpo`.
    fn read(key: &str, json: &Json, _: Option<&Self>) -> Result<Self, Misfit> {
        let mut fields = fields_of(key, json)?.clone();
        let algorithm = fields.remove("algorithm").unwrap_or_else(|| "grpo".into());
        let fields = Json::Object(fields);
        let at = join(key, "algorithm");
        let name = algorithm.as_str().ok_or_else(|| Misfit::wanted(&at, "text", &algorithm))?;
        if name == "sft" {
            return Ok(Self::Sft(Sft::read(key, &fields, None)?));
        }
        let Some(Algorithm { critic, settings }) = Algorithm::named(name) else {
            let names: Vec<&str> = algorithm_names().into_iter().chain(["sft"]).collect();
            return Err(Misfit::not_one_of(&at, name, &names));
        };
        let learner = Learner::read(key, &fields, Some(&settings))?;
        Ok(Self::Rl { learner, critic })
    }

    fn tables() -> Vec<Table> {
        [Learner::tables(), Sft::tables()].concat()
    }

    fn settings(_: Setting) -> Vec<Setting> {
        const DOC: &str =
            "The algorithm: an estimator, a loss and their defaults by name. r1.grpo, r1.ppo and r1.sft set it.";
        let algorithm = Setting::new("trainer.algorithm", "string", DOC).default("\"grpo\"");
        let algorithm = algorithm.range("one of docs/reference/algorithms.md, or sft").restart();
        let sft = Sft::listed().into_iter().map(|setting| Setting { only: "sft", ..setting });
        std::iter::once(algorithm).chain(Learner::listed()).chain(sft).collect()
    }

    fn reloaded(_: Reload, old: &Self, new: &Self) -> Self {
        match (old, new) {
            (Self::Rl { learner: old, critic }, Self::Rl { learner: new, critic: new_critic })
                if critic == new_critic =>
            {
                Self::Rl { learner: Learner::reload(old, new), critic: *critic }
            }
            _ => old.clone(),
        }
    }
}

impl Trainer {
    /// The settings of reinforcement learning.
    pub fn learner(&self) -> Option<&Learner> {
        if let Self::Rl { learner, .. } = self { Some(learner) } else { None }
    }

    /// Whether a critic is trained.
    pub fn has_critic(&self) -> bool {
        matches!(self, Self::Rl { critic: true, .. })
    }

    /// Whether sampling records the experts of each token (`trainer.routing_replay`).
    pub fn replays_routing(&self) -> bool {
        self.learner().is_some_and(|learner| learner.routing_replay == RoutingReplay::Rollout)
    }

    /// `tokens_per_batch`; 0 selects it.
    pub fn tokens_per_batch_mut(&mut self) -> &mut usize {
        match self {
            Self::Rl { learner, .. } => &mut learner.tokens_per_batch,
            Self::Sft(sft) => &mut sft.tokens_per_batch,
        }
    }

    /// What the processes of a run divide among them.
    pub fn zero_stage(&self) -> usize {
        match self {
            Self::Rl { learner, .. } => learner.zero_stage,
            Self::Sft(sft) => sft.zero_stage,
        }
    }

    /// Whether activations are recomputed in the backward pass.
    pub fn gradient_checkpointing(&self) -> bool {
        match self {
            Self::Rl { learner, .. } => learner.gradient_checkpointing,
            Self::Sft(sft) => sft.gradient_checkpointing,
        }
    }
}

section! {
    /// Supervised fine-tuning on the assistant tokens of messages.
    pub struct Sft: "trainer.", restart() {
        /// Optimiser steps.
        steps: usize = 1000, unit("steps"), range("≥ 0");
        /// Conversations per optimiser step.
        batch_size: usize = 64, unit("conversations"), range("≥ 1");
        /// Learning rate of AdamW after the warm-up.
        lr: f64 = 1e-5, range("≥ 0");
        /// Steps over which the learning rate rises linearly from 0.
        warmup: usize = 20, unit("steps"), range("≥ 0");
        /// Learning rate at the end of the cosine decay, as a fraction of lr.
        final_lr: f64 = 0.1, range("≥ 0");
        /// Decay rates of AdamW's first and second moments.
        betas: (f64, f64) = (0.9, 0.95), range("0 ≤ x < 1");
        /// Decoupled weight decay of AdamW.
        weight_decay: f64 = 0.0, range("≥ 0");
        /// Global gradient norm above which gradients are scaled down; 0 is off.
        max_grad_norm: f64 = 1.0, range("≥ 0");
        /// Maximum number of tokens per forward pass. 0 is 8,192 on the CPU, and on CUDA the most
        /// of 32,768, 16,384, 8,192 and 4,096 for which there is memory (`r1 sft --plan`).
        tokens_per_batch: usize = 0, unit("tokens"), range("≥ 0");
        /// Maximum length of a conversation; 0 is the model's context.
        max_length: usize = 0, unit("tokens"), range("≥ 0");
        /// Handling of longer conversations: they end the run, are skipped, or are truncated.
        overlong: Overlong = Overlong::Error;
        /// Consecutive evaluations of data.eval without a lower loss after which the run stops; 0
        /// disables early stopping.
        patience: usize = 0, unit("evaluations"), range("≥ 0"),
            needs("data.eval", Is::Set), needs("eval.every", Is::Positive);
        /// Parts into which the micro-batches of an optimiser step are divided; 0 is one for each
        /// process. Runs with the same number of shards have the same bits on 1, 2, 4, …
        /// processes (docs/guide/scale.md).
        gradient_shards: usize = 0, unit("shards"), range("≥ 0");
        /// What the processes divide among them (ZeRO, arXiv:1910.02054): 0 nothing, 1 the state of
        /// the optimiser, 2 gradients too, 3 also the weights of layers while gradients are
        /// computed (docs/guide/scale.md).
        zero_stage: usize = 0, range("0 to 3");
        /// Size of the gradients that the processes exchange together.
        bucket_cap_mb: f64 = 4.0, unit("MiB"), range("> 0");
        /// Keeps only the inputs of the layers and recomputes activations in the backward pass:
        /// less memory, more time.
        gradient_checkpointing: bool = false;
    }
}

choices! {
    /// Handling of conversations longer than `trainer.max_length` in supervised fine-tuning.
    #[derive(Default)]
    pub enum Overlong {
        /// The run ends with an error that names the row.
        #[default]
        Error = "error",
        /// The conversation is skipped, and the next one is used instead.
        Skip = "skip",
        /// The conversation is truncated at its end.
        Truncate = "truncate",
    }
}

section! {
    /// Evaluation on `data.eval`.
    pub struct EvalSettings: "eval." {
        /// Training steps between evaluations; 0 evaluates before and after only.
        every: usize = 0, unit("steps"), range("≥ 0"), needs("data.eval", Is::Set);
        /// Rows evaluated of each dataset of data.eval; 0 is all.
        limit: usize = 128, unit("rows"), range("≥ 0"), needs("data.eval", Is::Set);
        /// Evaluates before the first step.
        before: bool = true;
        /// Evaluates after the last step.
        after: bool = true;
        /// Samples of each task; above 1, best@k, maj@k and pass@k are reported
        /// (docs/guide/evaluation.md).
        samples: usize = 1, unit("trajectories"), range("≥ 1"), needs("data.eval", Is::Set);
        /// Sampling temperature of evaluations; 0 is greedy. The default is 0 for one sample of
        /// each task, and sampling.temperature for several.
        temperature: Option<f64> = None, range("≥ 0");
        /// As sampling.top_p, which is the default.
        top_p: Option<f64> = None, range("0 to 1");
        /// As sampling.top_k, which is the default.
        top_k: Option<usize> = None, unit("tokens"), range("≥ 0");
        /// As sampling.min_p, which is the default.
        min_p: Option<f64> = None, range("0 to 1");
        /// Longest response; the default is sampling.max_new_tokens.
        max_new_tokens: Option<usize> = None, unit("tokens"), range("≥ 1");
        /// Longest trajectory; the default is env.max_steps.
        max_steps: Option<usize> = None, unit("steps"), range("≥ 1");
        /// Environment of all evaluation tasks: a name in envs, or in the recipe an environment;
        /// the rows' own if empty.
        env: String = String::new();
        /// Stops sampling a further model of r1 eval when its difference from the first has this
        /// p-value, at any number of tasks (docs/guide/evaluation.md); 0 samples all tasks.
        early_stop: f64 = 0.0, range("0 to 1");
        /// Reward part that is reported as accuracy; if empty, a task is solved when its reward is
        /// above 0.
        accuracy: String = String::new();
        /// Trajectories stored of each evaluation; 0 stores none.
        store: usize = 128, unit("trajectories"), range("≥ 0");
    }
}

impl EvalSettings {
    /// Sampling settings of evaluation: these, with `training` for those that are not set.
    pub fn sampling(&self, training: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(if self.samples > 1 { training.temperature } else { 0.0 }),
            top_p: self.top_p.unwrap_or(training.top_p),
            top_k: self.top_k.unwrap_or(training.top_k),
            min_p: self.min_p.unwrap_or(training.min_p),
            max_new_tokens: self.max_new_tokens.unwrap_or(training.max_new_tokens),
            ..training.clone()
        }
    }
}

section! {
    /// Checkpoints and the exported model.
    pub struct CheckpointSettings: "checkpoint." {
        /// Training steps between checkpoints; 0 writes only the last.
        every: usize = 20, unit("steps"), range("≥ 0");
        /// Number of checkpoints kept, newest first; 0 keeps all.
        keep: usize = 2, unit("checkpoints"), range("≥ 0");
        /// A checkpoint of every such step is written and never removed, as for a later --fork or
        /// --resume-from; 0 keeps none.
        keep_every: usize = 0, unit("steps"), range("≥ 0");
        /// Maximum size of a file of weights. Larger models have several files, which the processes
        /// of a run write at the same time from trainer.zero_stage 1 on.
        max_shard_mb: f64 = 5000.0, unit("MB"), range("> 0");
        /// Metric of evaluations, such as eval/reward; the model of the best evaluation is kept in
        /// RUN/best.
        best: String = "eval/accuracy".to_owned(), restart(), needs("data.eval", Is::Set);
        /// Whether the largest or the smallest value of that metric is the best.
        best_mode: BestMode = BestMode::Max, restart(), needs("data.eval", Is::Set);
        /// Type of the weights written by --out; auto is the type of the initial model.
        export: Dtype = Dtype::Auto, restart();
        /// --out merges the adapter into the weights instead of writing the adapter alone.
        merge: bool = false, restart();
    }
}

choices! {
    /// The value of a metric that is the best.
    pub enum BestMode {
        /// The largest.
        Max = "max",
        /// The smallest.
        Min = "min",
    }
}

impl BestMode {
    /// Whether a value is better than the best one so far.
    pub fn is_better(self, new: f64, best: f64) -> bool {
        match self {
            Self::Max => new > best,
            Self::Min => new < best,
        }
    }
}

section! {
    /// Limits of one call into the script.
    pub struct Limits: "limits.", reload(Reload::NextGroup) {
        /// CPU time of one call into the script.
        cpu: f64 as Time = 1.0, unit("seconds"), range("> 0");
        /// Maximum time that one call waits for tools and other hosts.
        wait: f64 as Time = 60.0, unit("seconds"), range("> 0");
        /// Memory of one script worker.
        memory: usize as MiB = 512, unit("MiB"), range("> 0");
        /// Memory of one trajectory: its state, plus what one call adds to the worker's memory.
        trajectory: usize as MiB = 64, unit("MiB"), range("> 0");
        /// Size of one observation, and of one argument of a host function.
        text: usize as MiB = 4, unit("MiB"), range("> 0");
        /// Size of one tool result; a longer result is truncated with a notice.
        result: usize as KiB = 256, unit("KiB"), range("≥ 0");
        /// Maximum number of lines logged by one call; further lines are dropped.
        log: usize = 100, unit("lines"), range("≥ 0");
    }
}
