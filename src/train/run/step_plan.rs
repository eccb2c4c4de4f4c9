//! `r1 plan`: the memory of one rank on a device, and the seconds of a training step by parts. The
//! devices and the model of the time are in `lua/plan.lua`; shapes, settings and the rates of this
//! machine are from here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tch::{Device, Kind as Dtype, Tensor};

use super::plan::{MemoryPlan, PlannedDevice, PlannedRun, plan_run};
use crate::config::Trainer;
use crate::error::{Error, Kind, Result};
use crate::host_lua::HostFile;
use crate::load::load_script;
use crate::model::available_memory;
use crate::native::{set_threads, thread_count};
use crate::store::StoredRun;
use crate::telemetry::{Curve, Reporter, read_curves};
use crate::train::options::RunOptions;
use crate::train::start::memory::{context_tokens, learned};

/// What a step is planned for.
#[derive(Clone, Debug)]
pub struct StepPlanOptions {
    /// A name of `lua/plan.lua`.
    pub device: String,
    /// Number of ranks, at least 1.
    pub world: u32,
    /// A run whose mean lengths the step has.
    pub like: Option<PathBuf>,
    /// Prompt tokens of a trajectory; `None`: from the settings, or from `like`.
    pub prompt_tokens: Option<u64>,
    /// Sampled tokens of a trajectory; `None`: likewise.
    pub response_tokens: Option<u64>,
}

/// The memory of one rank and the time of a step.
#[derive(Clone, Debug)]
pub struct PlannedStep {
    pub memory: MemoryPlan,
    /// As `r1 plan --json` prints it: the memory, and the fields `world`, `fits` and `time`.
    pub result: Value,
}

/// Predicts memory and time of a step of the run of `options` on a device, which need not be there.
///
/// # Errors
/// As for a run: script, settings, the model's `config.json`. [`Kind::Usage`] for an unknown
/// device; [`Kind::Store`] for a run without metrics.
pub fn plan_step(options: &RunOptions, wanted: &StepPlanOptions, reporter: &Reporter) -> Result<PlannedStep> {
    let file = HostFile::load("plan", include_str!("../../../lua/plan.lua"), |_| Ok(()))?;
    let devices: BTreeMap<String, Value> = file.call("devices", &())?;
    let Some(mut figures) = devices.get(&wanted.device).cloned() else {
        let names: Vec<&str> = devices.keys().map(String::as_str).collect();
        let error = Error::new(Kind::Usage, format!("there is no device `{}`", wanted.device)).at("--device");
        return Err(error.hint(format!("one of {}", names.join(", "))));
    };
    let script = load_script(&options.script, &options.overrides)?;
    // The ranks that learn; the last ones can sample only.
    let samplers = script.settings.rollout.r#async.ranks;
    let world = u64::from(wanted.world).saturating_sub(samplers as u64);
    if world == 0 {
        let message = format!("rollout.async.ranks is {samplers}, and there are {} ranks", wanted.world);
        return Err(Error::new(Kind::Usage, message).at("--world").hint("plan with more: the others learn"));
    }
    let target = if wanted.device == "cpu" {
        // The ranks share cores, bandwidth and memory of the machine.
        let ranks = f64::from(wanted.world);
        let (flops, bandwidth) = cpu_rates()?;
        figures = json!({ "flops": flops / ranks, "bandwidth": bandwidth / ranks });
        let memory = available_memory(Device::Cpu).map(|bytes| bytes / u64::from(wanted.world));
        let threads = (thread_count() / wanted.world as usize).max(1);
        PlannedDevice { name: "the CPU".to_owned(), device: Device::Cpu, memory, threads, world }
    } else {
        let memory = figures["memory"].as_f64().map(|gib| gib as u64 * (1 << 30));
        PlannedDevice { name: wanted.device.clone(), device: Device::Cuda(0), memory, threads: 1, world }
    };
    figures["name"] = json!(wanted.device);
    let like = wanted.like.as_ref().map(|run| means(run, options)).transpose()?;
    let supervised = matches!(script.settings.trainer, Trainer::Sft(_));
    plan_run(&script, supervised, &target, (options, reporter), |run| {
        let facts = facts(&run, wanted, &figures, like.as_ref());
        let time: Value = file.call("step", &facts)?;
        let memory = run.memory;
        let fits = memory.available.is_none_or(|available| memory.peak() <= available);
        let mut result = memory.to_json();
        result["world"] = json!(wanted.world);
        result["fits"] = json!(fits);
        result["time"] = time;
        Ok(PlannedStep { memory, result })
    })
}

/// The means of the metrics of a run over its steps.
fn means(run: &Path, options: &RunOptions) -> Result<BTreeMap<String, f64>> {
    let stored = StoredRun::open(run, &options.runs_dir)?;
    let mean = |Curve(points): Curve| points.iter().map(|(_, value)| value).sum::<f64>() / points.len().max(1) as f64;
    Ok(read_curves(stored.path())?.into_iter().map(|(name, curve)| (name, mean(curve))).collect())
}

/// The argument of `step` in `lua/plan.lua`.
fn facts(
    run: &PlannedRun<'_>,
    wanted: &StepPlanOptions,
    figures: &Value,
    like: Option<&BTreeMap<String, f64>>,
) -> Value {
    let PlannedRun { shape, settings, reference, memory } = run;
    let config = shape.config;
    let environments = settings.environments();
    let critic = settings.trainer.learner().filter(|_| settings.trainer.has_critic());
    json!({
        "device": figures,
        "world": wanted.world,
        "options": { "prompt_tokens": wanted.prompt_tokens, "response_tokens": wanted.response_tokens },
        "like": like,
        "like_name": wanted.like.as_ref().map(|run| run.display().to_string()),
        "settings": settings,
        "shape": {
            "body": shape.active(),
            "embedding": shape.embedding(),
            "experts": shape.experts(),
            "experts_share": shape.experts_share(),
            "layers": config.num_hidden_layers,
            "attention_layers": config.attention_layers(),
            "queries": config.num_attention_heads * config.head_dim,
            // Numbers of a token in the key-value cache.
            "cache": 2 * config.attention_layers() * config.num_key_value_heads * config.head_dim,
            "element": shape.kind.elt_size_in_bytes(),
            "adapted": shape.adapted(),
            "learned": learned(shape).0,
        },
        "slots": memory.slots,
        "context": context_tokens(shape, settings),
        "tokens_at_once": match &settings.trainer {
            Trainer::Rl { learner, .. } => learner.tokens_at_once(),
            Trainer::Sft(sft) => sft.tokens_at_once(),
        },
        "max_steps": environments.iter().map(|(_, env)| env.max_steps).max(),
        "max_tokens": environments.iter().map(|(_, env)| env.max_tokens).max(),
        "reference": reference,
        "critic": critic.map(|learner| if learner.critic.shared { "shared" } else { "separate" }),
        "zero_stage": if shape.processes > 1 { shape.zero_stage } else { 0 },
    })
}

/// Rates of this machine with the threads of this process: operations per second of products of f32
/// matrices, one on each thread, and bytes per second that a sum of f32 numbers reads. The fastest
/// of several measurements, because other load on the machine only adds time.
fn cpu_rates() -> Result<(f64, f64)> {
    const SIZE: i64 = 512;
    const NUMBERS: i64 = 64 << 20;
    let fastest = |operation: &dyn Fn() -> Result<Tensor>| -> Result<f64> {
        let (began, mut fastest) = (Instant::now(), f64::INFINITY);
        while began.elapsed() < Duration::from_secs(1) {
            let started = Instant::now();
            let _result = operation()?;
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
        Ok(fastest.max(1e-9))
    };
    let ones = |size: &[i64]| Tensor::f_ones(size, (Dtype::Float, Device::Cpu));
    let matrix = ones(&[SIZE, SIZE])?;
    // On one thread: threads that wait for each other would vary the time of such a small product.
    let threads = thread_count();
    set_threads(1);
    let product = fastest(&|| Ok(matrix.f_matmul(&matrix)?));
    set_threads(threads);
    let product = product? / threads as f64;
    let numbers = ones(&[NUMBERS])?;
    let sum = fastest(&|| Ok(numbers.f_sum(Dtype::Float)?))?;
    Ok((2.0 * (SIZE as f64).powi(3) / product, 4.0 * NUMBERS as f64 / sum))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Four ranks, two in a machine, with round figures; on a GPU.
    fn facts() -> Value {
        json!({
            "device": {
                "name": "test", "flops": 1e12, "bandwidth": 1e11, "nvlink": 1e10, "network": 1e9, "ranks_per_machine": 2,
            },
            "world": 4,
            "options": { "prompt_tokens": 100, "response_tokens": 50 },
            "settings": {
                "trainer": {
                    "algorithm": "grpo", "group_size": 2, "groups_per_step": 8, "epochs": 1, "mini_batches": 1,
                    "gradient_checkpointing": false,
                },
                "sampling": { "max_new_tokens": 64 }, "data": { "max_prompt_tokens": 0 }, "rollout": { "concurrency": 2 },
            },
            "shape": {
                "body": 1e6, "embedding": 1e5, "experts": 0, "experts_share": 0, "layers": 1, "attention_layers": 1,
                "queries": 100, "cache": 50, "element": 2, "adapted": 0, "learned": 1_100_000,
            },
            "slots": 2, "context": 400, "tokens_at_once": 300, "max_steps": 3, "max_tokens": 0, "reference": false,
            "zero_stage": 0,
        })
    }

    fn step(facts: &Value) -> Value {
        let file = HostFile::load("plan", include_str!("../../../lua/plan.lua"), |_| Ok(())).unwrap();
        file.call("step", facts).unwrap()
    }

    fn seconds(time: &Value, name: &str) -> f64 {
        let parts = time["parts"].as_array().unwrap();
        parts.iter().find(|part| part["part"] == name).map_or(0.0, |part| part["seconds"].as_f64().unwrap())
    }

    #[track_caller]
    fn assert_seconds(time: &Value, expected: &[(&str, f64)]) {
        for (name, expected) in expected {
            let computed = seconds(time, name);
            assert!((computed / expected - 1.0).abs() < 1e-4, "{name}: {computed}, not {expected}: {time}");
        }
    }

    #[test]
    fn the_parts_of_a_step_have_closed_forms() {
        let time = step(&facts());
        let expected = [
            // 2 groups of 100 tokens: 200 (2e6 + 4 x 100 x 50) operations at 0.4e12.
            ("prefill", 1.01e-3),
            // 4 trajectories in 2 slots: 100 steps of 2.2e6 bytes at 0.9e11, 2 x 125 x 50 x 2 bytes
            // at 0.17e11, and 41 us.
            ("decode", 100.0 * (2.2e6 / 9e10 + 25_000.0 / 1.7e10 + 41e-6)),
            // A quarter of 16 x 150 tokens without 8 x 100 shared ones: 400, of which 200 are
            // sampled; two micro-batches.
            ("forward and backward", 3.0 * (400.0 * 2.03e6 + 200.0 * 2e5) / 0.5e12 + 2.0 * 0.4e-3),
            ("optimiser", 36.0 * 1.1e6 / 0.65e11),
            // Over loopback, over the network that two ranks share, and from and to the GPU.
            ("exchange of gradients", 4.4e6 / 2e9 + 4.4e6 / 3e8 + 2e-4 + 2.0 * 4.4e6 / 20e9),
            ("exchange of trajectories", 16.0 * 150.0 * 24.0 / 3e8),
        ];
        assert_seconds(&time, &expected);
        let sum: f64 = expected.iter().map(|(_, seconds)| seconds).sum();
        let exchanged = expected[4].1 + expected[5].1;
        for (name, expected) in [
            ("step_seconds", sum),
            ("exchange_share", exchanged / sum),
            ("sequences_per_second", 16.0 / sum),
            ("tokens_per_second", 800.0 / sum),
            ("exchange_with_nccl_seconds", 1.5 * 4.4e6 / 1e9),
        ] {
            assert!((time[name].as_f64().unwrap() / expected - 1.0).abs() < 1e-4, "{name}: {time}");
        }
    }

    #[test]
    fn settings_change_the_parts_that_depend_on_them() {
        let pass = 400.0 * 2.03e6 + 200.0 * 2e5;
        let mut facts = facts();
        facts["settings"]["trainer"]["gradient_checkpointing"] = json!(true);
        facts["settings"]["trainer"]["mini_batches"] = json!(2);
        facts["reference"] = json!(true);
        facts["zero_stage"] = json!(1);
        facts["world"] = json!(3);
        // A rank of three has 6 of 16 rows.
        let part = 1.5;
        assert_seconds(
            &step(&facts),
            &[
                ("log-probabilities", part * pass / 0.5e12 + 2.0 * 0.4e-3 / 3.0),
                ("forward and backward", part * (3.0 * pass + 400.0 * 2.03e6) / 0.5e12 + 2.0 * 0.4e-3),
                ("optimiser", 2.0 * 12.0 * 1.1e6 / 0.65e11),
                ("exchange of gradients", 2.0 * (2.0 * (4.4e6 / 3e8 + 1e-4) + 2.0 * 4.4e6 / 20e9)),
            ],
        );
        // Weights that are frozen have no gradients.
        facts["shape"]["adapted"] = json!(1000);
        facts["settings"]["trainer"]["gradient_checkpointing"] = json!(false);
        assert_seconds(&step(&facts), &[("forward and backward", part * 2.0 * pass / 0.5e12 + 2.0 * 0.4e-3)]);
    }

    #[test]
    fn lengths_are_those_of_a_run_or_the_limits() {
        let mut facts = facts();
        assert_eq!(step(&facts)["lengths"]["turns"], 1);
        facts["options"] = json!({});
        let lengths = |facts: &Value| step(facts)["lengths"].clone();
        let limits = lengths(&facts);
        // Three steps of 64 tokens; the rest of the context.
        assert_eq!((limits["response"].as_f64(), limits["prompt"].as_f64()), (Some(192.0), Some(208.0)));
        facts["like"] = json!({
            "rollout/steps": 2, "rollout/response_tokens": 40, "rollout/response_tokens_max": 60,
            "rollout/prompt_tokens": 50, "time/tools": 32,
            "throughput/train_tokens_per_s": 280, "time/training": 2,
        });
        facts["like_name"] = json!("runs/a");
        let time = step(&facts);
        let of_run = &time["lengths"];
        // The last prompt has the first response. 16 trajectories share 32 s of tools; 2 of 4 run
        // at once. 560 of 16 x 70 tokens are trained.
        for (name, expected) in
            [("prompt", 30.0), ("response", 40.0), ("longest", 60.0), ("tools", 2.0), ("trained", 0.5)]
        {
            assert_eq!(of_run[name].as_f64(), Some(expected), "{name}: {of_run}");
        }
        assert_seconds(&time, &[("tools", 4.0)]);
        facts["settings"]["trainer"] = json!({ "algorithm": "sft", "batch_size": 8, "max_length": 0 });
        facts["like"] = json!({ "sft/packed_tokens": 800, "sft/supervised_share": 0.25 });
        let time = step(&facts);
        assert_eq!((&time["lengths"]["prompt"], &time["lengths"]["response"]), (&json!(75), &json!(25)));
        assert!(seconds(&time, "decode") == 0.0 && seconds(&time, "forward and backward") > 0.0, "{time}");
    }
}
