//! `r1 run --plan`: the maximum memory of a run, from shapes alone. No weights are read.
//!
//! The maximum: every context has the allowed length, every slot of the cache is in use, every
//! micro-batch is full.

use serde_json::{Value, json};
use tch::{Device, Kind as Dtype};

use super::cold_start;
use crate::config::{Settings, Trainer};
use crate::engine::EngineOptions;
use crate::error::{Error, Kind, Result};
use crate::load::model_dir;
use crate::load::{adapter, load_script};
use crate::model::{Config, Footprint, LoraConfig, available_memory, resident_memory};
use crate::native::compute_kind;
use crate::script::Script;
use crate::telemetry::Reporter;
use crate::train::options::RunOptions;
use crate::train::rules::unused::unused_settings;
use crate::train::rules::validate::{ValidatedTrainer, validate};
use crate::train::start::context::{context, context_of_rollouts};
use crate::train::start::memory::{
    MemoryShare, context_tokens, held_by_run, in_update, learned, named, share, sum, training_memory,
    with_micro_batches,
};
use crate::train::start::resume::supervised;
use crate::train::watch::report;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    pub device: String,
    /// In use from the beginning to the end.
    pub held: Vec<MemoryShare>,
    /// In use while trajectories are sampled.
    pub sampling: Vec<MemoryShare>,
    /// In use during an update.
    pub learning: Vec<MemoryShare>,
    /// Free memory of the device, bytes; `None` if unknown.
    pub available: Option<u64>,
    /// Trajectories that are sampled at once; 0 in supervised training.
    pub slots: usize,
    /// The recipe's cold start, which ends before the rest begins.
    pub cold_start: Option<Box<MemoryPlan>>,
}

impl MemoryPlan {
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
        let list = |shares: &[MemoryShare]| -> Vec<Value> {
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

/// The device that a run is planned for.
#[derive(Clone, Debug)]
pub(crate) struct PlannedDevice {
    pub(crate) name: String,
    pub(crate) device: Device,
    /// Memory for a process, bytes; `None` if unknown.
    pub(crate) memory: Option<u64>,
    /// CPU threads of a process.
    pub(crate) threads: usize,
    /// Number of processes.
    pub(crate) world: u64,
}

impl PlannedDevice {
    /// The device that a run on this machine has.
    fn of_run(settings: &Settings) -> Result<Self> {
        let device = crate::native::device(settings.policy.device)?;
        let name = if device == Device::Cpu { "the CPU" } else { "the GPU" };
        let (memory, threads) = (available_memory(device), crate::native::thread_count());
        Ok(Self { name: name.to_owned(), device, memory, threads, world: 1 })
    }
}

/// Shape and settings of a run, with the number of tokens per micro-batch.
pub(crate) struct PlannedRun<'a> {
    pub(crate) shape: Footprint<'a>,
    pub(crate) settings: Settings,
    /// Whether it has a reference policy that is a model of its own.
    pub(crate) reference: bool,
    pub(crate) memory: MemoryPlan,
}

/// Predicts the memory of the run of `options`, or of its supervised training.
///
/// # Errors
/// As for a run: script, settings, the model's `config.json`.
pub fn plan(options: &RunOptions, is_supervised: bool, reporter: &Reporter) -> Result<MemoryPlan> {
    let script = load_script(&options.script, &options.overrides)?;
    let script = if is_supervised { supervised(script)? } else { script };
    let target = PlannedDevice::of_run(&script.settings)?;
    plan_run(&script, is_supervised, &target, (options, reporter), |run| Ok(run.memory))
}

/// Plans the run of a script and its cold start, unless that `is_supervised` training itself.
pub(crate) fn plan_run<T>(
    script: &Script,
    is_supervised: bool,
    target: &PlannedDevice,
    (options, reporter): (&RunOptions, &Reporter),
    use_run: impl FnOnce(PlannedRun<'_>) -> Result<T>,
) -> Result<T> {
    let cold_start = match script.cold_start()?.filter(|_| !is_supervised) {
        Some(phase) => {
            cold_start::check(script)?;
            Some(Box::new(plan_phase(&phase, target, (options, reporter), |run| Ok(run.memory))?))
        }
        None => None,
    };
    plan_phase(script, target, (options, reporter), |run| {
        use_run(PlannedRun { memory: MemoryPlan { cold_start, ..run.memory }, ..run })
    })
}

fn plan_phase<T>(
    script: &Script,
    target: &PlannedDevice,
    (options, reporter): (&RunOptions, &Reporter),
    use_run: impl FnOnce(PlannedRun<'_>) -> Result<T>,
) -> Result<T> {
    let settings = &script.settings;
    let policy = &settings.policy;
    if policy.init.is_some() {
        return Err(Error::new(Kind::Usage, "the recipe makes its own model; its vocabulary is not known yet")
            .hint("make it with trainer.steps=1, and plan with policy.model=RUN/init"));
    }
    let (device, fetching) = (target.device, options.fetching(reporter));
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
    let checkpointing = settings.trainer.gradient_checkpointing();
    let adapter = of_policy.as_ref();
    let (threads, processes, zero_stage) = (target.threads, target.world, settings.trainer.zero_stage());
    // Weights that are divided are computed with checkpointing.
    let checkpointing = checkpointing || zero_stage >= 3;
    let shape = Footprint { config: &config, device, kind, adapter, checkpointing, threads, processes, zero_stage };
    let reference = match &settings.trainer {
        Trainer::Rl { .. } => {
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
        Trainer::Rl { .. } => context_of_rollouts(policy, &config, reporter)?,
    };
    let weights = shape.weights() + shape.adapted() * 4;
    let free = target.memory.map(|bytes| bytes.saturating_sub(weights));
    let settings = with_micro_batches(&shape, settings, reference, free);
    let memory = assemble(&shape, &settings, reference, target);
    use_run(PlannedRun { shape, settings, reference, memory })
}

/// The parts of a run of a model of this shape.
fn assemble(shape: &Footprint<'_>, settings: &Settings, reference: bool, target: &PlannedDevice) -> MemoryPlan {
    let element = shape.kind.elt_size_in_bytes() as u64;
    let cpu = shape.device == Device::Cpu;
    let mut held = Vec::new();
    if cpu {
        held.push(share("program", "r1 and libtorch, current size".to_owned(), resident_memory().unwrap_or(0)));
    }
    let type_name = if element == 2 { "bf16" } else { "f32" };
    let (freed, of_layer) = shape.freed();
    let of_others = if freed > 0 { ", those of other processes' layers beside" } else { "" };
    let mut loaded = vec![
        share("weights", format!("{} in {type_name}{of_others}", named(shape.numbers())), shape.weights() - freed),
        share("packed weights", "the native code's copy, in f32".to_owned(), shape.packed()),
    ];
    if shape.adapter.is_some() {
        let (learned, learned_bytes) = learned(shape);
        loaded.push(share("adapter", format!("{} in f32", named(learned)), learned * learned_bytes));
        if settings.policy.merged_sampling.unless_auto(!cpu) {
            let why = "a copy for sampling, with the adapter".to_owned();
            loaded.push(share("merged weights", why, shape.merged()));
        }
    }
    // The engine is made when the policy is loaded.
    let (run, update) = training_memory(shape, settings, reference);
    let needs = match settings.rollout.crosses_updates() {
        _ if cpu => (0, 0),
        false => (sum(&loaded).saturating_add(freed).saturating_add(run), update),
        // Trajectories are in flight during updates, too.
        true => (sum(&loaded).saturating_add(freed).saturating_add(run).saturating_add(update), 0),
    };
    held.extend(loaded);
    held.extend(held_by_run(shape, settings, reference));
    let (mut sampling, mut learning, mut slots) = (Vec::new(), in_update(shape, settings), 0);
    if let Some(learner) = settings.trainer.learner() {
        let context = context_tokens(shape, settings);
        let cache = if cpu && element == 2 && shape.adapter.is_none() { Dtype::Float } else { shape.kind };
        let wanted = (settings.rollout.concurrency, context);
        let (engine, released) = EngineOptions::sized_within_free(shape.config, cache, target.memory, wanted, needs);
        slots = engine.slots;
        let bytes = engine.bytes(shape.config, cache);
        let fewer =
            if engine.slots < settings.rollout.concurrency { ", those that fit into the free memory" } else { "" };
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
    if freed > 0 {
        sampling.push(share("weights", "of other processes' layers, freed for learning".to_owned(), freed));
        learning.push(share("weights", "of the layer that is computed".to_owned(), of_layer));
    }
    MemoryPlan {
        device: target.name.clone(),
        held,
        sampling,
        learning,
        available: target.memory,
        slots,
        cold_start: None,
    }
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
    let (ids, note) = match sampling.top_k {
        0 => (USUAL.min(vocab), ", a guess: sampling.top_k would bound it"),
        top_k => (top_k.min(vocab), ""),
    };
    Some((ids as u64, format!("{ids} ids a token{note}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

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
        let shape = Footprint {
            config: &config,
            device,
            kind,
            adapter: None,
            checkpointing: true,
            threads: 1,
            processes: 1,
            zero_stage: 0,
        };
        let settings = Settings::default();
        let (held, learning) = training_memory(&shape, &settings, false);
        let needed = held + learning;
        // 7.6e9 weights: two moments and a master copy of 4 bytes each, a gradient of 2.
        assert!(needed > 7_600_000_000 * 14, "{needed}");
        let with_reference = training_memory(&shape, &settings, true);
        assert_eq!(with_reference, (held + shape.weights(), learning));
        // The plan has the same parts, the loaded weights and the cache.
        let target = PlannedDevice { name: "h200".to_owned(), device, memory: Some(139 << 30), threads: 1, world: 1 };
        let plan = assemble(&shape, &settings, false, &target);
        let of = |name: &str| plan.held.iter().find(|share| share.what == name).unwrap().bytes;
        let policy = of("weights") + of("packed weights") + of("key-value cache");
        assert_eq!(sum(&plan.held) + sum(&plan.learning), needed + policy);
    }
}
