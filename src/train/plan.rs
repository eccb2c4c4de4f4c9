//! `r1 run --plan`: the maximum memory of a run, from shapes alone. No weights are read.
//!
//! The maximum: every context has the allowed length, every slot of the cache is in use, every
//! micro-batch is full.

use serde_json::{Value, json};
use tch::{Device, Kind as Dtype};

use super::resume::supervised;
use super::session::{context, context_of_rollouts};
use super::unused::unused_settings;
use super::update::logprobs_at_once;
use super::validate::{ValidatedTrainer, validate};
use super::{RunOptions, cold_start, report};
use crate::config::{Learner, Settings, Trainer};
use crate::engine::EngineOptions;
use crate::error::{Error, Kind, Result};
use crate::load::compute_kind;
use crate::load::model_dir;
use crate::load::{adapter, load_script};
use crate::model::{Config, Footprint, LoraConfig, available_memory, resident_memory};
use crate::script::Script;
use crate::telemetry::Reporter;

/// A part of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub what: &'static str,
    /// A description of the values that its size depends on.
    pub why: String,
    pub bytes: u64,
}

/// The memory of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub device: String,
    /// In use from the beginning to the end.
    pub held: Vec<Share>,
    /// In use while trajectories are sampled.
    pub sampling: Vec<Share>,
    /// In use during an update.
    pub learning: Vec<Share>,
    /// The free memory, on the CPU.
    pub available: Option<u64>,
    /// The recipe's cold start, which ends before the rest begins.
    pub cold_start: Option<Box<Plan>>,
}

fn sum(shares: &[Share]) -> u64 {
    shares.iter().map(|share| share.bytes).sum()
}

impl Plan {
    /// The maximum in use at once, bytes.
    pub fn peak(&self) -> u64 {
        self.own_peak().max(self.cold_start.as_ref().map_or(0, |plan| plan.own_peak()))
    }

    /// The maximum without a cold start.
    fn own_peak(&self) -> u64 {
        sum(&self.held) + sum(&self.sampling).max(sum(&self.learning))
    }

    /// Its sizes, bytes.
    pub fn to_json(&self) -> Value {
        let list = |shares: &[Share]| -> Vec<Value> {
            shares.iter().map(|s| json!({ "what": s.what, "why": s.why, "bytes": s.bytes })).collect()
        };
        let mut json = json!({
            "event": "plan", "device": self.device, "held": list(&self.held), "sampling": list(&self.sampling),
            "learning": list(&self.learning), "peak_bytes": self.peak(), "available_bytes": self.available,
        });
        if let Some(plan) = &self.cold_start {
            json["cold_start"] = json!({
                "held": list(&plan.held), "learning": list(&plan.learning), "peak_bytes": plan.own_peak(),
            });
        }
        json
    }

    /// Rows of a table: a part with its description, MiB.
    pub fn table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["memory", "MiB"].map(str::to_owned).to_vec()];
        for (title, shares) in [("", &self.held), ("sampling: ", &self.sampling), ("learning: ", &self.learning)] {
            let shares = shares.iter().filter(|share| share.bytes > 0);
            rows.extend(
                shares.map(|s| vec![format!("{title}{}, {}", s.what, s.why), s.bytes.div_ceil(1 << 20).to_string()]),
            );
        }
        let peak = if sum(&self.sampling) > sum(&self.learning) { "sampling" } else { "learning" };
        let mib = |bytes: u64| bytes.div_ceil(1 << 20).to_string();
        let Some(plan) = &self.cold_start else {
            rows.push(vec![format!("at most, while {peak}, on {}", self.device), mib(self.peak())]);
            return rows;
        };
        rows.push(vec![format!("at most, while {peak}, after the cold start"), mib(self.own_peak())]);
        let shares = plan.held.iter().chain(&plan.learning).filter(|share| share.bytes > 0);
        rows.extend(shares.map(|s| vec![format!("cold start: {}, {}", s.what, s.why), mib(s.bytes)]));
        rows.push(vec!["at most, in the cold start".to_owned(), mib(plan.own_peak())]);
        rows.push(vec![format!("at most, on {}", self.device), mib(self.peak())]);
        rows
    }
}

/// Predicts the memory of the run of `options`, or of its supervised training.
///
/// # Errors
/// As for a run: script, settings, the model's `config.json`.
pub fn plan(options: &RunOptions, is_supervised: bool, reporter: &Reporter) -> Result<Plan> {
    let script = load_script(&options.script, &options.overrides)?;
    if is_supervised {
        return plan_of(&supervised(script)?, options, reporter);
    }
    let cold_start = match script.cold_start()? {
        Some(own) => {
            cold_start::check(&script)?;
            Some(Box::new(plan_of(&own, options, reporter)?))
        }
        None => None,
    };
    Ok(Plan { cold_start, ..plan_of(&script, options, reporter)? })
}

fn plan_of(script: &Script, options: &RunOptions, reporter: &Reporter) -> Result<Plan> {
    let settings = &script.settings;
    let policy = &settings.policy;
    if policy.init.is_some() {
        return Err(Error::new(Kind::Usage, "the recipe makes its own model; its vocabulary is not known yet")
            .hint("make it with trainer.steps=1, and plan with policy.model=RUN/init"));
    }
    let (device, fetching) = (crate::native::device(policy.device)?, options.fetching(reporter));
    let dir = model_dir(&policy.model, fetching)?;
    let of_policy = match &policy.lora {
        Some(wanted) if adapter::is_new(policy, fetching)? => Some(adapter::new(wanted)),
        _ => LoraConfig::load(&dir)?,
    };
    let base = match &of_policy {
        Some(config) if !dir.join("config.json").is_file() => adapter::base_dir(&dir, config, policy, fetching)?,
        _ => dir,
    };
    let config = Config::load(&base)?;
    let kind = compute_kind(policy.dtype, device);
    let threads = crate::native::thread_count();
    let checkpointing = settings.trainer.gradient_checkpointing();
    let shape = Footprint { config: &config, device, kind, adapter: of_policy.as_ref(), checkpointing, threads };
    let reference = match &settings.trainer {
        Trainer::Grpo(_) | Trainer::Ppo(_) => {
            let ValidatedTrainer { objective, warnings, .. } = validate(script)?;
            report::warn(reporter, &warnings);
            objective.has_reference() && !adapter::is_new(policy, fetching)?
        }
        Trainer::Sft(_) => {
            report::warn(reporter, &unused_settings(script)?);
            false
        }
    };
    match &settings.trainer {
        Trainer::Sft(_) => context(policy, &config, reporter),
        Trainer::Grpo(_) | Trainer::Ppo(_) => context_of_rollouts(policy, &config, reporter)?,
    };
    let weights = shape.weights() + shape.adapted() * 4;
    let free = available_memory(device).map(|bytes| bytes.saturating_sub(weights));
    Ok(assemble(&shape, &with_micro_batches(&shape, settings, reference, free), reference))
}

/// The memory that training takes in addition to a loaded policy and its key-value cache, bytes:
/// moments, master weights and the other models, all the time; gradients and activations, during
/// an update.
pub(super) fn training_memory(shape: &Footprint<'_>, settings: &Settings, reference: bool) -> (u64, u64) {
    (sum(&held_by_run(shape, settings, reference)), sum(&in_update(shape, settings)))
}

/// The settings with a number of tokens per micro-batch on a GPU, if they have none: the most whose
/// update takes at most two thirds of what the other parts of training leave of `free` bytes, the
/// memory beside the policy. The rest is for the key-value cache.
pub(super) fn with_micro_batches(
    shape: &Footprint<'_>,
    settings: &Settings,
    reference: bool,
    free: Option<u64>,
) -> Settings {
    /// From most to least.
    const TOKENS: [usize; 4] = [32_768, 16_384, 8192, 4096];
    let mut chosen = settings.clone();
    let (Some(free), true, 0) = (free, shape.device.is_cuda(), *chosen.trainer.tokens_per_batch_mut()) else {
        return chosen;
    };
    let left = free.saturating_sub(sum(&held_by_run(shape, settings, reference)));
    for tokens in TOKENS {
        *chosen.trainer.tokens_per_batch_mut() = tokens;
        if sum(&in_update(shape, &chosen)) <= left / 3 * 2 {
            break;
        }
    }
    chosen
}

/// The parts of a run of a model of this shape.
fn assemble(shape: &Footprint<'_>, settings: &Settings, reference: bool) -> Plan {
    let element = shape.kind.elt_size_in_bytes() as u64;
    let cpu = shape.device == Device::Cpu;
    let mut held = Vec::new();
    if cpu {
        held.push(share("program", "r1 and libtorch, current size".to_owned(), resident_memory().unwrap_or(0)));
    }
    let type_name = if element == 2 { "bf16" } else { "f32" };
    let mut loaded = vec![
        share("weights", format!("{} in {type_name}", named(shape.numbers())), shape.weights()),
        share("packed weights", "the native code's copy, in f32".to_owned(), shape.packed()),
    ];
    if shape.adapter.is_some() {
        let (learned, own) = learned(shape);
        loaded.push(share("adapter", format!("{} in f32", named(learned)), learned * own));
        if settings.policy.merged_sampling.unless_auto(!cpu) {
            let why = "a copy for sampling, with the adapter".to_owned();
            loaded.push(share("merged weights", why, shape.merged()));
        }
    }
    // The engine is made when the policy is loaded.
    let (run, update) = training_memory(shape, settings, reference);
    let needs = if cpu { (0, 0) } else { (sum(&loaded).saturating_add(run), update) };
    held.extend(loaded);
    held.extend(held_by_run(shape, settings, reference));
    let (mut sampling, mut learning) = (Vec::new(), in_update(shape, settings));
    if let Trainer::Grpo(learner) | Trainer::Ppo(learner) = &settings.trainer {
        let context = context_tokens(shape, settings);
        let cache = if cpu && element == 2 && shape.adapter.is_none() { Dtype::Float } else { shape.kind };
        let (device, slots) = ((cache, shape.device), settings.rollout.concurrency);
        let (engine, released) = EngineOptions::sized_for_training(shape.config, device, slots, context, needs);
        let bytes = engine.bytes(shape.config, cache);
        let fewer = if engine.slots < settings.rollout.concurrency {
            ", those that fit into the memory that is free now"
        } else {
            ""
        };
        let why = format!("{} slots of {context} tokens{fewer}", engine.slots);
        if released {
            sampling.push(share("key-value cache", format!("{why}, released for learning"), bytes));
        } else {
            held.push(share("key-value cache", why, bytes));
        }
        sampling.push(share(
            "activations",
            format!("{} prompt tokens at once, logits of {} sequences", engine.prefill_tokens, engine.slots),
            shape.sampling(engine.prefill_tokens as u64, engine.slots as u64),
        ));
        if let Some((ids, why)) = cut(settings, shape.config.vocab_size) {
            let tokens = learner.tokens_at_once().max(context) as u64;
            let all = (learner.group_size * learner.groups_per_step * context) as u64;
            // In trajectories; again in the rows made from them, and as indices in a micro-batch.
            sampling.push(share("sets that tokens were drawn from", why.clone(), 4 * ids * all));
            learning.push(share("sets that tokens were drawn from", why, ids * (8 * all + 8 * tokens)));
        }
    }
    Plan {
        device: if cpu { "the CPU".to_owned() } else { "the GPU".to_owned() },
        held,
        sampling,
        learning,
        available: available_memory(shape.device),
        cold_start: None,
    }
}

fn share(what: &'static str, why: String, bytes: u64) -> Share {
    Share { what, why, bytes }
}

fn named(numbers: u64) -> String {
    format!("{} million numbers", numbers.div_ceil(1_000_000))
}

/// Number of trained weights, and the bytes of one.
fn learned(shape: &Footprint<'_>) -> (u64, u64) {
    match shape.adapter {
        Some(_) => (shape.adapted(), 4),
        None => (shape.numbers(), shape.kind.elt_size_in_bytes() as u64),
    }
}

fn context_tokens(shape: &Footprint<'_>, settings: &Settings) -> usize {
    match settings.policy.max_context {
        0 => shape.config.max_position_embeddings,
        wanted => wanted.min(shape.config.longest_context()),
    }
}

/// The memory in use during the whole run, without the policy and the key-value cache.
fn held_by_run(shape: &Footprint<'_>, settings: &Settings, reference: bool) -> Vec<Share> {
    let ((learned, own), element) = (learned(shape), shape.kind.elt_size_in_bytes() as u64);
    let mut held = vec![share("AdamW", "two moments in f32".to_owned(), 8 * learned)];
    if own == 2 {
        held.push(share("master weights", "in f32".to_owned(), 4 * learned));
    }
    if reference {
        held.push(share("reference", "a model of its own".to_owned(), shape.weights() + shape.packed()));
    }
    let (Trainer::Grpo(learner) | Trainer::Ppo(learner)) = &settings.trainer else { return held };
    if learner.ema > 0.0 {
        held.push(share("average", "of the weights, in f32".to_owned(), 4 * learned));
    }
    if matches!(settings.trainer, Trainer::Ppo(_)) && !learner.critic.shared {
        let bytes =
            shape.weights() + shape.packed() + shape.numbers() * (8 + element + if element == 2 { 4 } else { 0 });
        held.push(share("critic", "weights, gradients and moments of a model of its own".to_owned(), bytes));
    }
    held
}

/// The memory of an update.
fn in_update(shape: &Footprint<'_>, settings: &Settings) -> Vec<Share> {
    let (learned, own) = learned(shape);
    let (tokens, several) = match &settings.trainer {
        Trainer::Grpo(learner) | Trainer::Ppo(learner) => {
            let context = context_tokens(shape, settings);
            (learner.tokens_at_once().max(context), several(learner, context))
        }
        Trainer::Sft(sft) => (sft.tokens_at_once(), true),
    };
    let mut all = vec![share("gradients", named(learned), learned * own)];
    if several && own == 2 {
        all.push(share("gradients", "of earlier micro-batches, in f32".to_owned(), 4 * learned));
    }
    all.extend(learning(shape, tokens as u64, several));
    all
}

/// Number of ids that are stored with a sampled token if sampling excludes others, with an
/// explanation.
fn cut(settings: &Settings, vocab: usize) -> Option<(u64, String)> {
    /// The size of these sets is known only after sampling.
    const USUAL: usize = 256;
    let sampling = &settings.sampling;
    let by_mass = sampling.top_p < 1.0 || sampling.min_p > 0.0;
    if sampling.temperature == 0.0 || !(by_mass || (1..vocab).contains(&sampling.top_k)) {
        return None;
    }
    let (ids, known) = match sampling.top_k {
        0 => (USUAL.min(vocab), ", a guess: sampling.top_k would bound it"),
        top_k => (top_k.min(vocab), ""),
    };
    Some((ids as u64, format!("{ids} ids a token{known}")))
}

/// Whether an optimiser step may have more than one micro-batch.
fn several(learner: &Learner, context: usize) -> bool {
    let rows = (learner.group_size * learner.groups_per_step).div_ceil(learner.mini_batches.max(1));
    rows * context > learner.tokens_at_once()
}

/// The memory of `tokens` tokens at once; with `several` micro-batches, each has gradients in
/// addition to their sum.
fn learning(shape: &Footprint<'_>, tokens: u64, several: bool) -> Vec<Share> {
    let chunk = (logprobs_at_once(shape.config.vocab_size, shape.device) as u64).min(tokens);
    let how = if shape.checkpointing { ", one layer's at a time" } else { "" };
    let mut all = vec![
        Share { what: "activations", why: format!("{tokens} tokens at once{how}"), bytes: shape.learning(tokens) },
        Share { what: "logits", why: format!("{chunk} tokens at once"), bytes: shape.logits(chunk) },
    ];
    if shape.adapter.is_none() {
        let element = shape.kind.elt_size_in_bytes() as u64;
        let native = shape.packed() > 0;
        let (bytes, why) = if native {
            // In a micro-batch they use the memory of the packed head, which has been freed
            // by then.
            (if several { element * shape.numbers() } else { 0 }, "of a micro-batch, until they are added")
        } else {
            // Summed in f32; a tied embedding adds its own gradient.
            let wide = if shape.kind == Dtype::Float { 0 } else { 4 };
            let own = if shape.config.tie_word_embeddings { element } else { 0 };
            ((wide + own) * shape.embedding(), "of the head, until they are added up")
        };
        all.push(Share { what: "gradients", why: why.to_owned(), bytes });
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Qwen2.5-1.5B in bf16.
    #[test]
    fn micro_batches_of_a_gpu_are_as_large_as_its_memory_allows() {
        let json = serde_json::json!({
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151_936, "hidden_size": 1536,
            "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32768, "tie_word_embeddings": true,
        });
        let config = Config::from_json(&json).unwrap();
        let of = |device: Device, gigabytes: u64, checkpointing: bool, given: usize| {
            let shape =
                Footprint { config: &config, device, kind: Dtype::BFloat16, adapter: None, checkpointing, threads: 1 };
            let mut settings = Settings::default();
            settings.policy.max_context = 2048;
            *settings.trainer.tokens_per_batch_mut() = given;
            let chosen = with_micro_batches(&shape, &settings, false, Some(gigabytes << 30));
            let Trainer::Grpo(learner) = &chosen.trainer else { panic!("the default trainer is GRPO") };
            learner.tokens_at_once()
        };
        let gpu = Device::Cuda(0);
        let sizes = [40, 77, 136, 400].map(|gigabytes| of(gpu, gigabytes, false, 0));
        assert!(sizes.is_sorted() && sizes[0] == 4096 && sizes[2] >= 16_384 && sizes[3] == 32_768, "{sizes:?}");
        assert!(of(gpu, 77, true, 0) >= 16_384);
        assert_eq!((of(gpu, 400, false, 1000), of(Device::Cpu, 400, false, 0)), (1000, 4096));
    }

    /// Qwen2.5-7B in bf16 on a GPU of 139 GiB: the key-value cache leaves enough memory for
    /// training.
    #[test]
    fn training_of_a_large_model_leaves_memory_for_its_optimiser() {
        let json = serde_json::json!({
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152_064, "hidden_size": 3584,
            "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096,
        });
        let config = Config::from_json(&json).unwrap();
        let (device, kind) = (Device::Cuda(0), Dtype::BFloat16);
        let shape = Footprint { config: &config, device, kind, adapter: None, checkpointing: true, threads: 1 };
        let settings = Settings::default();
        let (held, learning) = training_memory(&shape, &settings, false);
        let needed = held + learning;
        // 7.6e9 weights: two moments and a master copy of 4 bytes each, a gradient of 2.
        assert!(needed > 7_600_000_000 * 14, "{needed}");
        let with_reference = training_memory(&shape, &settings, true);
        assert_eq!(with_reference, (held + shape.weights(), learning));
        // The plan has the same parts, the loaded weights and the cache.
        let plan = assemble(&shape, &settings, false);
        let of = |name: &str| plan.held.iter().find(|share| share.what == name).unwrap().bytes;
        let policy = of("weights") + of("packed weights") + of("key-value cache");
        assert_eq!(sum(&plan.held) + sum(&plan.learning), needed + policy);
    }
}
