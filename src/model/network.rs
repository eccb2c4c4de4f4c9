//! A model and its weights: load, make, save; [`Model::forward`] for learning, [`Model::step`] for generation.
//!
//! The same weights and layers serve both. On the CPU the CPU kernels (docs/cpu-kernels.md) compute the layers that Qwen2,
//! Qwen3, Llama and similar models share: in f32 for both, in bf16 for generation. Libtorch's operations compute everything
//! else (`decoder`), and all of it where the kernels are switched off.

use std::cell::Cell;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tch::{Device, Kind, Tensor};

use super::cache::Layout;
use super::config::{Activation, LayerKind, Norms, Rope};
use super::layers::Parameters;
use super::varlen::Varlen;
use super::{Config, KvCache, LoraConfig, Packed, Span, lora, memory, weights};
use crate::error::{self, Error, Result};
use crate::native;

/// A file of weights is not made larger than this, if it has more than one tensor.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// A model and its weights.
#[derive(Debug)]
pub struct Model {
    pub config: Config,
    pub(super) parameters: Parameters,
    /// Of each rope, within `max_position_embeddings`.
    pub(super) frequencies: Vec<Tensor>,
    /// Computes in place of the plain operations, where it can; in bf16 for generation alone.
    native: Option<native::Model>,
    /// Attention takes sequences without padding.
    pub(super) varlen: bool,
    /// Steps of one token a sequence are recorded where the device can.
    pub(super) graphs: bool,
    adapter: Option<LoraConfig>,
    /// The adapter is disabled in [`without_adapter`](Self::without_adapter).
    pub(super) adapter_disabled: Cell<bool>,
    pub(super) checkpointing: bool,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

/// The output head's key in a checkpoint.
const HEAD: &str = "lm_head.weight";

impl Model {
    /// Loads `config.json` and the safetensors (one file, or shards with an index) in `dir`.
    ///
    /// Weights stored as f32, bf16 or f16 are converted to `kind`; every parameter wants a gradient. Errors are
    /// `Kind::Model` and name the file, the field or the tensors; `Kind::Device` with the numbers, before anything is
    /// loaded, if the machine's memory does not hold the weights (and the packed copy of the CPU kernels, in f32).
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        Self::load_for(dir, device, kind, true)
    }

    /// [`load`](Self::load), where an adapter is going to learn on the model or weights are only read: the native code
    /// computes nothing with them, so that its copy needs no memory.
    pub fn load_base(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        Self::load_for(dir, device, kind, false)
    }

    fn load_for(dir: &Path, device: Device, kind: Kind, computes: bool) -> Result<Self> {
        let config = Config::load(dir)?;
        let files = weights::files(dir)?;
        // A config that lies must not make us ask for memory that the weights can't fill.
        let (wanted, held) = (Parameters::numbers(&config), weights::numbers(&files)?);
        if wanted > 2 * held + (1 << 20) {
            return Err(Error::new(
                error::Kind::Model,
                format!("weights and config.json disagree; config.json is of a model of {wanted} numbers, the weights hold {held}"),
            )
            .at_path(dir)
            .hint("config.json and the weights must come from the same model"));
        }
        if let Some(free) = memory::available(device) {
            let packed = computes && packs(&config, device, kind);
            memory::check(wanted, kind, packed, free).map_err(|error| error.at_path(dir))?;
        }
        let parameters = Parameters::empty(&config, device, kind)?;
        let tied = config.tie_word_embeddings;
        // Old checkpoints hold the rotary frequencies and a copy of the tied head; both are known without them.
        weights::read(&files, &parameters.named(), |name| {
            name.ends_with("rotary_emb.inv_freq") || (tied && name == HEAD)
        })?;
        if tied && weights::differ(&files, HEAD, "model.embed_tokens.weight")? {
            let message = format!("config.json ties the output head to the embedding, and {HEAD} is another tensor");
            return Err(Error::new(error::Kind::Model, message)
                .at_path(dir)
                .hint("set tie_word_embeddings to false to use that head, or remove it from the weights"));
        }
        Self::new(config, parameters, device, kind)
    }

    /// A model with fresh weights: normal with `initializer_range`, norms that change nothing, biases 0; the same for the
    /// same seed on every machine.
    pub fn init(config: Config, device: Device, kind: Kind, seed: u64) -> Result<Self> {
        config.check()?;
        let parameters = Parameters::empty(&config, device, kind)?;
        let norm = if config.norms == Norms::Around { 0.0 } else { 1.0 };
        let _guard = tch::no_grad_guard();
        for (stream, (name, mut tensor)) in (0..).zip(parameters.named()) {
            if name.ends_with("norm.weight") {
                let _ = tensor.f_fill_(norm)?;
            } else if name.ends_with("bias") {
                let _ = tensor.f_fill_(0.0)?;
            } else {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(stream);
                let values = normal(&mut random, tensor.numel(), config.initializer_range);
                tensor.f_copy_(&Tensor::f_from_slice(&values)?.f_view_as(&tensor)?)?;
            }
        }
        Self::new(config, parameters, device, kind)
    }

    fn new(config: Config, parameters: Parameters, device: Device, kind: Kind) -> Result<Self> {
        let wide = if kind == Kind::Double { kind } else { Kind::Float };
        let (head_dim, longest) = (config.head_dim, config.max_position_embeddings);
        let frequencies = config
            .ropes
            .iter()
            .map(|rope| rope.frequencies(head_dim, longest, 0, (wide, device)))
            .collect::<Result<Vec<_>>>()?;
        let native = native_model(&config, &parameters, &frequencies, device, kind)?;
        let varlen = Varlen::fits(device, kind, config.head_dim);
        let (adapter_disabled, checkpointing, graphs, adapter) = (Cell::new(false), false, true, None);
        Ok(Self {
            config,
            parameters,
            frequencies,
            native,
            varlen,
            graphs,
            adapter,
            adapter_disabled,
            checkpointing,
            device,
            kind,
        })
    }

    /// A model of its own with the same weights, and the same adapter if there is one.
    pub fn duplicate(&self) -> Result<Self> {
        let mut parameters = Parameters::empty(&self.config, self.device, self.kind)?;
        if let Some(adapter) = &self.adapter {
            lora::attach(&mut parameters, adapter, 0)?;
        }
        let all = |parameters: &Parameters| parameters.named().into_iter().chain(lora::named(parameters));
        {
            let _guard = tch::no_grad_guard();
            for ((_, mut own), (_, theirs)) in all(&parameters).zip(all(&self.parameters)) {
                own.f_copy_(&theirs)?;
            }
        }
        let copy = Self::new(self.config.clone(), parameters, self.device, self.kind)?;
        Ok(Self { adapter: self.adapter.clone(), ..copy })
    }

    /// Checkpoint keys (`model.layers.0.self_attn.q_proj.weight`, …) and shallow clones of the parameters; a tied head
    /// is not repeated. An optimiser may change them in place, without gradient. With an adapter these do not want a
    /// gradient, and the adapter's own tensors, which do, follow under PEFT's keys.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut all = self.parameters.named();
        all.extend(lora::named(&self.parameters));
        all
    }

    /// Puts a new adapter on the model, which changes nothing until it has learned; the same for the same seed.
    ///
    /// A cache made before is of no use afterwards, here and in the next three. Errors: the model has an adapter already,
    /// a target names no projection.
    pub fn add_adapter(&mut self, config: LoraConfig, seed: u64) -> Result<()> {
        self.refuse_adapter()?;
        lora::attach(&mut self.parameters, &config, seed)?;
        self.adapter = Some(config);
        self.rebuild()
    }

    /// Loads a PEFT LoRA adapter (`adapter_config.json`, `adapter_model.safetensors`) onto the model.
    ///
    /// Errors are `Kind::Model` and name the field or the tensors.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<()> {
        self.refuse_adapter()?;
        self.adapter = Some(lora::load(&mut self.parameters, dir)?);
        self.rebuild()
    }

    /// Names the model that the adapter is for, as its file will.
    pub fn set_adapter_base(&mut self, name: &str, revision: Option<&str>) -> Result<()> {
        let none = || Error::new(error::Kind::Usage, "the model has no adapter");
        self.adapter.as_mut().ok_or_else(none)?.set_base(name, revision);
        Ok(())
    }

    /// Writes the adapter, with PEFT's keys.
    pub fn save_adapter(&self, dir: &Path) -> Result<()> {
        lora::save(&self.parameters, self.adapter()?, dir)
    }

    /// Adds the adapter to the weights, which want gradients again, and takes it off.
    pub fn merge_adapter(&mut self) -> Result<()> {
        self.adapter()?;
        lora::detach(&mut self.parameters, true)?;
        self.adapter = None;
        self.rebuild()
    }

    /// The adapter that is on the model.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.adapter.as_ref()
    }

    /// Writes what has been trained: the adapter if there is one, else the model.
    pub fn save_trained(&self, dir: &Path) -> Result<()> {
        if self.adapter.is_some() { self.save_adapter(dir) } else { self.save(dir) }
    }

    fn adapter(&self) -> Result<&LoraConfig> {
        self.adapter.as_ref().ok_or_else(|| Error::new(error::Kind::Usage, "the model has no adapter"))
    }

    fn refuse_adapter(&self) -> Result<()> {
        match self.adapter {
            None => Ok(()),
            Some(_) => Err(Error::new(error::Kind::Usage, "the model has an adapter")
                .hint("merge it into the weights first, or save it by itself")),
        }
    }

    /// The CPU kernels do not support adapters.
    fn rebuild(&mut self) -> Result<()> {
        self.native = native_model(&self.config, &self.parameters, &self.frequencies, self.device, self.kind)?;
        Ok(())
    }

    /// Memory of the weights, bytes, with the native code's copy of them.
    pub fn bytes(&self) -> u64 {
        let copied = self.native.is_some() && self.kind == Kind::Float;
        let all = self.parameters().iter().map(|(_, tensor)| tensor.numel() as u128).sum();
        u64::try_from(memory::bytes(all, self.kind, copied)).unwrap_or(u64::MAX)
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The type the weights are held and computed in.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Writes `config.json` and the weights as transformers reads them, each file complete or not at all: one file of
    /// weights, or shards and their index above [`SHARD_BYTES`].
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.save_sharded(dir, SHARD_BYTES)
    }

    /// [`save`](Self::save) with shards of at most `most` bytes, but of one tensor at least.
    pub fn save_sharded(&self, dir: &Path, most: u64) -> Result<()> {
        self.refuse_adapter()?;
        std::fs::create_dir_all(dir).map_err(|error| Error::io(error::Kind::Store, "write", dir, &error))?;
        weights::write(dir, &self.parameters.named(), most)?;
        let mut config = self.config.to_json();
        // The newer name of the field below, which would contradict it.
        if let Some(object) = config.as_object_mut() {
            object.shift_remove("dtype");
        }
        config["torch_dtype"] = serde_json::json!(match self.kind {
            Kind::BFloat16 => "bfloat16",
            Kind::Half => "float16",
            Kind::Double => "float64",
            _ => "float32",
        });
        weights::write_text(&dir.join("config.json"), &format!("{config:#}\n"))
    }

    /// Hidden states `[T, E]` after the final norm, for learning and scoring; rows never see each other.
    pub fn forward(&self, batch: &Packed) -> Result<Tensor> {
        match self.native_f32() {
            Some(native) => native.forward(&batch.ids, &batch.positions, &batch.lengths, self.checkpointing),
            None => self.forward_plain(batch),
        }
    }

    /// Whether [`learn`](Self::learn) keeps only the inputs of the layers until backward, which computes the rest again: a
    /// third more arithmetic, and memory of one layer and not of all.
    pub fn set_checkpointing(&mut self, on: bool) {
        self.checkpointing = on;
    }

    /// Whether steps of one token a sequence are recorded as CUDA graphs, where there are such; they are unless said.
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs = on;
    }

    /// Runs `body` with the adapter disabled.
    pub fn without_adapter<R>(&self, body: impl FnOnce() -> R) -> R {
        /// Restores the switch when dropped, after a panic too.
        struct Restore<'a>(&'a Cell<bool>, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _restore = Restore(&self.adapter_disabled, self.adapter_disabled.replace(true));
        body()
    }

    /// Logits `[N, V]` of hidden states `[N, E]`, in the type the model is held in.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(hidden.f_linear(&self.parameters.lm_head, None::<&Tensor>)?)
    }

    /// Log-probability of `targets` `[N]` i64 and entropy (nats) of the distribution at each of the hidden states `[N, E]`,
    /// both `[N]` f32 (f64 for a model held in f64), at `temperature` > 0. Differentiable.
    ///
    /// `chunk` positions at a time, so that the logits `[N, V]` never exist whole; backward computes them again.
    pub fn logprobs(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        temperature: f64,
        chunk: usize,
    ) -> Result<(Tensor, Tensor)> {
        self.logprobs_among(hidden, targets, None, temperature, chunk)
    }

    /// As [`logprobs`](Self::logprobs), where positions choose among some of the vocabulary only: `support` is their ids,
    /// one position after the other, and where those of each end, both i64 on the CPU. Log-probabilities and entropies
    /// are those of the distribution over these ids, and of the whole one at a position without any. A target that is not
    /// in its support is an error.
    pub fn logprobs_among(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        support: Option<&(Tensor, Tensor)>,
        temperature: f64,
        chunk: usize,
    ) -> Result<(Tensor, Tensor)> {
        native::logprobs(self.native_f32(), hidden, &self.parameters.lm_head, targets, support, temperature, chunk)
    }

    /// An empty cache for `slots` sequences of `capacity` tokens.
    pub fn new_cache(&self, slots: usize, capacity: usize) -> Result<KvCache> {
        KvCache::new(&self.config, slots, capacity, self.layout(), self.device, self.cache_kind())
    }

    /// The type of cached keys and values: the model's own, but f32 where the native code generates from bf16 weights.
    pub fn cache_kind(&self) -> Kind {
        if self.native.is_some() { Kind::Float } else { self.kind }
    }

    /// The type and the device of cached keys and values.
    pub fn cache_options(&self) -> (Kind, Device) {
        (self.cache_kind(), self.device)
    }

    /// The native network for learning and scoring, which it does in f32 alone.
    pub(super) fn native_f32(&self) -> Option<&native::Model> {
        self.native.as_ref().filter(|_| self.kind == Kind::Float)
    }

    /// How a cache lies. What is recorded for a number of sequences needs a place to write for those that are missing.
    fn layout(&self) -> Layout {
        match self.native {
            Some(_) => Layout::Panels(native::panel()),
            None => Layout::Tokens { spare: usize::from(self.varlen) },
        }
    }

    /// Runs the spans (prefill and decode mixed), writes their keys and values to the cache, and gives the f32 logits
    /// [spans, V] of the last token of each. No gradient. The cache grows where a span needs it.
    ///
    /// Errors are `Kind::Internal`: an empty span, a slot out of range or given twice, an id out of the vocabulary.
    ///
    /// With "dynamic" rotary embeddings, a span that ends past `max_position_embeddings` turns by its own length while
    /// the cache keeps what shorter lengths turned, so that a full forward pass differs there (it does in transformers too).
    pub fn step(&self, cache: &mut KvCache, items: &[Span<'_>]) -> Result<Tensor> {
        let logits = self.step_until(cache, items, &|| false)?;
        logits.ok_or_else(|| Error::new(error::Kind::Internal, "a step ended without being stopped"))
    }

    /// [`step`](Self::step), unless `stop` (polled between the layers) says that the result is no longer needed: `None` then,
    /// and the positions of the spans are to be computed again.
    pub fn step_until(
        &self,
        cache: &mut KvCache,
        items: &[Span<'_>],
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let _guard = tch::no_grad_guard();
        self.check_spans(cache, items)?;
        if cache.layout != self.layout() {
            return Err(Error::new(error::Kind::Internal, "the cache was made before the model's adapter changed"));
        }
        let longest = items.iter().map(|span| span.start + span.ids.len()).max().unwrap_or(0);
        cache.reserve(longest)?;
        // Of a step that was stopped.
        cache.routes.iter_mut().for_each(|routes| routes.get_mut().clear());
        match &self.native {
            Some(native) => {
                let spans = items.iter().map(|span| (span.slot, span.start, span.ids));
                native.step(&cache.keys, &cache.values, cache.capacity(), spans, stop)
            }
            None if self.varlen => self.step_varlen(cache, items, stop),
            None => self.step_plain(cache, items, stop),
        }
    }

    fn check_spans(&self, cache: &KvCache, items: &[Span<'_>]) -> Result<()> {
        let mut used = vec![false; cache.slots()];
        for span in items {
            let wrong = |why: String| Err(Error::new(error::Kind::Internal, why));
            match used.get_mut(span.slot) {
                None => return wrong(format!("slot {} is outside the cache of {}", span.slot, cache.slots())),
                Some(true) => return wrong(format!("slot {} is given twice in one step", span.slot)),
                Some(free) => *free = true,
            }
            if span.ids.is_empty() {
                return wrong(format!("the span of slot {} is empty", span.slot));
            }
            if let Some(id) = span.ids.iter().find(|&&id| id as usize >= self.config.vocab_size) {
                return wrong(format!("token id {id} is outside the vocabulary of {}", self.config.vocab_size));
            }
        }
        Ok(())
    }
}

/// Whether the native network knows what the config says of layers, on this device and in this type.
fn serves(config: &Config, device: Device, kind: Kind) -> bool {
    let alike = (0..config.num_hidden_layers).all(|index| config.layer(index) == LayerKind::default());
    native::has_cpu_kernels()
        && alike
        && config.activation == Activation::Silu
        && config.norms == Norms::Before
        && config.attention_scale.is_none()
        && (config.embedding_scale - 1.0).abs() < f64::EPSILON
        && !config.ropes.iter().any(Rope::is_dynamic)
        && device == Device::Cpu
        && matches!(kind, Kind::Float | Kind::BFloat16)
}

/// Whether the native network will hold a copy of the weights: in f32, packed; in bf16 it reads them where they are.
pub(super) fn packs(config: &Config, device: Device, kind: Kind) -> bool {
    kind == Kind::Float && serves(config, device, kind) && !config.biases.output && !config.biases.mlp
}

/// The native network, for f32 and bf16 on the CPU and the layers it knows.
fn native_model(
    config: &Config,
    parameters: &Parameters,
    frequencies: &[Tensor],
    device: Device,
    kind: Kind,
) -> Result<Option<native::Model>> {
    let ([rope], [frequencies], true) = (&config.ropes[..], frequencies, serves(config, device, kind)) else {
        return Ok(None);
    };
    let Some(tensors) = parameters.native() else { return Ok(None) };
    let shape = native::Shape {
        vocab: config.vocab_size as i64,
        hidden: config.hidden_size as i64,
        inner: config.intermediate_size as i64,
        layers: config.num_hidden_layers as i64,
        heads: config.num_attention_heads as i64,
        kv_heads: config.num_key_value_heads as i64,
        head_dim: config.head_dim as i64,
        eps: config.rms_norm_eps,
        magnitude: rope.magnitude(),
    };
    native::Model::new(&shape, frequencies, &tensors).map(Some)
}

/// `count` draws of a normal distribution of mean 0 (Box-Muller, in f64, so that every machine rounds alike).
fn normal(random: &mut ChaCha8Rng, count: usize, deviation: f64) -> Vec<f32> {
    let mut uniform = || (random.next_u64() >> 11) as f64 * (-53f64).exp2();
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt() * deviation;
        let (sin, cos) = (std::f64::consts::TAU * uniform()).sin_cos();
        values.extend([(radius * cos) as f32, (radius * sin) as f32]);
    }
    values.truncate(count);
    values
}
