//! What a loop that rolls out starts from: script, model, tokenizer, engine and script workers, on one thread that
//! owns every tensor.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::config::{Dtype, PolicySettings, Settings};
use crate::engine::{self, Engine, EngineOptions, Policy, Stats, TokenBytes};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Sampling, Trajectory};
use crate::model::Qwen2;
use crate::rollout::{Pool, PoolOptions, Progress, Spec};
use crate::script::Script;
use crate::telemetry::Reporter;
use crate::text::Renderer;

/// A loaded recipe with everything that runs it.
pub(super) struct Session {
    pub(super) settings: Settings,
    pub(super) model: Rc<Qwen2>,
    pub(super) renderer: Arc<Renderer>,
    pub(super) engine: Engine,
    pub(super) pool: Pool,
    /// The directory the model came from.
    pub(super) dir: PathBuf,
    /// Longest prompt plus reply, tokens.
    pub(super) max_context: usize,
}

impl Session {
    pub(super) fn open(script: &Script, policy: &PolicySettings) -> Result<Self> {
        let settings = script.settings.clone();
        let (model, renderer, dir) = load_policy(policy, &settings.env.format)?;
        let limit = model.config.max_position_embeddings;
        let max_context = if policy.max_context == 0 { limit } else { policy.max_context.min(limit) };
        let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
        let slots = settings.rollout.concurrency;
        let size = EngineOptions::sized(&model.config, model.kind(), slots, max_context);
        let engine = Engine::new(Rc::clone(&model), vocabulary, size)?;
        let pool = Pool::new(
            script,
            &renderer,
            &PoolOptions { workers: settings.rollout.workers, concurrency: slots, retries: settings.rollout.retries },
        )?;
        Ok(Self { settings, model, renderer, engine, pool, dir, max_context })
    }

    /// Sampling settings with the tool format's stop strings added.
    pub(super) fn with_stop(&self, mut sampling: Sampling) -> Arc<Sampling> {
        for stop in self.renderer.stop_strings() {
            if !sampling.stop.contains(stop) {
                sampling.stop.push(stop.clone());
            }
        }
        Arc::new(sampling)
    }

    /// Runs trajectories to their end: script workers step environments while this thread samples for them.
    pub(super) fn rollout(
        &mut self,
        specs: Vec<Spec>,
        reporter: &Reporter,
        label: &str,
    ) -> Result<(Vec<Trajectory>, Stats)> {
        let bar = reporter.bar(label, specs.len() as u64, "trajectories");
        let sampled = self.engine.progress();
        bar.tokens_from(move || sampled.stats().sampled_tokens);
        let counter = bar.clone();
        let progress: Progress = Arc::new(move |_| counter.inc(1));
        let (client, queue) = engine::channel();
        let policy: Arc<dyn Policy> = Arc::new(client);
        let pending = self.pool.start(&policy, specs, &progress)?;
        drop(policy);
        let stats = self.engine.serve(queue)?;
        let trajectories = pending.finish();
        bar.finish();
        Ok((trajectories?, stats))
    }
}

/// The name of the embedded model.
pub const MODEL_NANO: &str = "r1-nano";

/// The embedded model's files, so that `r1` works from any directory. `just nano` makes the model with a binary that
/// does not have it yet (build.rs).
#[cfg(not(nano))]
const NANO_FILES: [(&str, &[u8]); 0] = [];
#[cfg(nano)]
const NANO_FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../models/r1-nano/config.json")),
    ("generation_config.json", include_bytes!("../../models/r1-nano/generation_config.json")),
    ("model.safetensors", include_bytes!("../../models/r1-nano/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/r1-nano/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/r1-nano/tokenizer_config.json")),
];

/// The directory of a model: one that exists, the embedded one, or one fetched from the hub into its cache.
pub fn model_dir(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.join("config.json").is_file() {
        return Ok(path.to_owned());
    }
    if name == MODEL_NANO {
        return unpack_nano();
    }
    if path.is_dir() {
        return Err(Error::new(Kind::Model, "the model directory has no config.json")
            .at_path(path)
            .hint("point at a directory in Hugging Face layout (config.json, model.safetensors, tokenizer.json)"));
    }
    if name.split('/').count() == 2 && !name.starts_with(['.', '/', '~']) && !name.contains(char::is_whitespace) {
        return from_hub(name);
    }
    Err(Error::new(Kind::Model, format!("there is no model `{name}`")).hint(format!(
        "give a directory, a hub id such as Qwen/Qwen2.5-1.5B-Instruct, or `{MODEL_NANO}` for the embedded model"
    )))
}

/// Writes the embedded model where files can be mapped; once per content.
fn unpack_nano() -> Result<PathBuf> {
    if NANO_FILES.is_empty() {
        return Err(Error::new(Kind::Model, "this binary was built without the embedded model")
            .hint("make it with `just nano`, then `just build`"));
    }
    let mut hash = Sha256::new();
    for (_, bytes) in NANO_FILES {
        hash.update(bytes);
    }
    let digest: u64 = hash.finalize().iter().take(6).fold(0, |digest, byte| digest << 8 | u64::from(*byte));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(std::env::temp_dir);
    let dir = cache.join("r1").join(format!("{MODEL_NANO}-{digest:012x}"));
    if dir.join("config.json").is_file() {
        return Ok(dir);
    }
    let io = |error: std::io::Error| Error::io(Kind::Model, "unpack the embedded model", &dir, &error);
    let parent = dir.parent().unwrap_or(&cache);
    std::fs::create_dir_all(parent).map_err(io)?;
    let part = tempfile::Builder::new().prefix(".nano").tempdir_in(parent).map_err(io)?;
    for (name, bytes) in NANO_FILES {
        std::fs::write(part.path().join(name), bytes).map_err(io)?;
    }
    let part = part.keep();
    if let Err(error) = std::fs::rename(&part, &dir) {
        // Another process may have been faster; its copy is the same.
        let _ = std::fs::remove_dir_all(&part);
        if !dir.join("config.json").is_file() {
            return Err(io(error));
        }
    }
    Ok(dir)
}

/// Fetches what a checkpoint needs from the hub (HF_HOME cache, HF_TOKEN and HF_ENDPOINT respected); never a pickle.
fn from_hub(id: &str) -> Result<PathBuf> {
    let failed = |what: &str, error: &hf_hub::api::sync::ApiError| {
        Error::new(Kind::Model, format!("can't fetch {what} of `{id}` from the hub: {error}"))
            .hint("check the id and the network; for a private model set HF_TOKEN; or give a local directory")
    };
    let api = hf_hub::api::sync::ApiBuilder::from_env().build().map_err(|error| failed("files", &error))?;
    let repo = api.model(id.to_owned());
    let config = repo.get("config.json").map_err(|error| failed("config.json", &error))?;
    repo.get("tokenizer.json").map_err(|error| failed("tokenizer.json", &error))?;
    repo.get("tokenizer_config.json").map_err(|error| failed("tokenizer_config.json", &error))?;
    // Not every checkpoint has these.
    for optional in ["generation_config.json", "chat_template.jinja"] {
        let _ = repo.get(optional);
    }
    if let Ok(index) = repo.get("model.safetensors.index.json") {
        let text = std::fs::read_to_string(&index)
            .map_err(|error| Error::io(Kind::Model, "read the weight index", &index, &error))?;
        let parsed: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
            Error::new(Kind::Model, format!("the weight index is not JSON: {error}")).at_path(&index)
        })?;
        let mut shards: Vec<&str> =
            parsed["weight_map"].as_object().into_iter().flatten().filter_map(|(_, file)| file.as_str()).collect();
        shards.sort_unstable();
        shards.dedup();
        for shard in shards {
            repo.get(shard).map_err(|error| failed(shard, &error))?;
        }
    } else {
        repo.get("model.safetensors").map_err(|error| failed("model.safetensors", &error))?;
    }
    config.parent().map(Path::to_owned).ok_or_else(|| Error::new(Kind::Internal, "the hub cache has no directory"))
}

/// Loads the policy: model on its device, tokenizer and template for the recipe's tool format.
pub fn load_policy(policy: &PolicySettings, format: &str) -> Result<(Rc<Qwen2>, Arc<Renderer>, PathBuf)> {
    let dir = model_dir(&policy.model)?;
    let renderer = Arc::new(Renderer::load_named(&dir, format)?);
    let device = crate::native::device(policy.device)?;
    let model = Rc::new(Qwen2::load(&dir, device, compute_kind(policy.dtype, device))?);
    Ok((model, renderer, dir))
}

/// The compute type: as asked, or f32 on CPU (the faster one there) and bf16 on CUDA.
pub(super) fn compute_kind(dtype: Dtype, device: tch::Device) -> tch::Kind {
    match dtype {
        Dtype::Bf16 => tch::Kind::BFloat16,
        Dtype::Auto if device.is_cuda() => tch::Kind::BFloat16,
        Dtype::F32 | Dtype::Auto => tch::Kind::Float,
    }
}
