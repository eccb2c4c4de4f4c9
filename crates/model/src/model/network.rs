//! A model and its weights: load, initialise, save; [`Model::forward`] for training,
//! [`Model::step`] for generation.
//!
//! Both use the same weights and layers. The CPU kernels (docs/lab/cpu-kernels.md) compute the
//! layers that Qwen2, Qwen3, Llama and similar models share: in f32 for both, in bf16 for
//! generation. libtorch operations (`decoder`) compute everything else, and everything if the
//! kernels are disabled.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use r1_base::mdp::image_number;
use r1_vision::Images;
use tch::{Device, Kind, Tensor};

use super::cache::Layout;
use super::kernels::native_model;
use super::layers::Parameters;
use super::own_kernels::Kernels;
use super::stacked::{gpu_paths, stacks};
use super::unwritten::{UnwrittenFile, write_all};
use super::varlen::Varlen;
use super::{Config, KvCache, LoraConfig, Packed, SHARD_BYTES, Span, lora, memory};
use crate::native;
use r1_base::error::{self, Error, Result};

/// Whether decode steps are recorded as CUDA graphs.
#[derive(Debug)]
pub(super) enum Graphs {
    On,
    Off,
    /// Launches do nothing after the first, to time the host.
    Stub,
    /// The reason of a failed recording; no other is tried.
    Failed(String),
}

/// A causal language model. The engine samples from the same tensors that training updates.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent switches of the computation
pub struct Model {
    pub config: Config,
    pub(super) parameters: Parameters,
    /// Frequencies of each rotary embedding within `max_position_embeddings`.
    pub(super) frequencies: Vec<Tensor>,
    /// The CPU kernels, if they support this model; in bf16 for generation only.
    pub(super) native: Option<native::Network>,
    /// Set by [`without_kernels`](Self::without_kernels).
    pub(super) without_kernels: Arc<AtomicBool>,
    /// Whether attention is variable-length.
    pub(super) varlen: bool,
    /// Whether the CPU runs the code paths of a GPU.
    gpu_paths: bool,
    /// Whether RMSNorms are libtorch's fused operation: on CUDA, in bf16 and f16.
    pub(super) fused_norms: bool,
    /// Whether the experts of a layer are one product: on CUDA in bf16.
    pub(super) grouped_experts: bool,
    /// r1's CUDA kernels that it uses.
    pub(super) kernels: Kernels,
    /// Why it does without some of them.
    kernels_failure: Option<String>,
    /// Whether decode steps are recorded as CUDA graphs.
    pub(super) graphs: RefCell<Graphs>,
    adapter: Option<LoraConfig>,
    /// Whether generation uses weights with the adapter merged in.
    pub(super) merged: bool,
    /// The adapter is disabled in [`without_adapter`](Self::without_adapter).
    pub(super) adapter_disabled: Cell<bool>,
    pub(super) checkpointing: bool,
    /// What ids of images refer to.
    pub(super) images: Option<Arc<Images>>,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

impl Model {
    pub(super) fn new(config: Config, parameters: Parameters, device: Device, kind: Kind) -> Result<Self> {
        let wide = if kind == Kind::Double { kind } else { Kind::Float };
        let (head_dim, longest) = (config.head_dim, config.max_position_embeddings);
        let frequencies = config
            .ropes
            .iter()
            .map(|rope| rope.frequencies(head_dim, longest, 0, (wide, device)))
            .collect::<Result<Vec<_>>>()?;
        let gpu_paths = gpu_paths();
        let frequencies = if native::meta::is_on() {
            frequencies.iter().map(native::meta::like).collect::<Result<Vec<_>>>()?
        } else {
            frequencies
        };
        let native = if gpu_paths { None } else { native_model(&config, &parameters, &frequencies, device, kind)? };
        // Flash attention has no sinks.
        let varlen = gpu_paths || (Varlen::fits(device, kind, config.head_dim) && !config.sinks);
        let (kernels, kernels_failure) = Kernels::find(&config, device, kind)?;
        let (adapter_disabled, checkpointing, adapter) = (Cell::new(false), false, None);
        Ok(Self {
            config,
            parameters,
            frequencies,
            native,
            without_kernels: Arc::default(),
            varlen,
            gpu_paths,
            fused_norms: (device.is_cuda() || gpu_paths) && matches!(kind, Kind::BFloat16 | Kind::Half),
            grouped_experts: device.is_cuda() && kind == Kind::BFloat16,
            kernels,
            kernels_failure,
            graphs: RefCell::new(Graphs::On),
            adapter,
            merged: false,
            adapter_disabled,
            checkpointing,
            images: None,
            device,
            kind,
        })
    }

    /// A copy of the model, including its adapter.
    pub fn duplicate(&self) -> Result<Self> {
        self.copy_as(stacks(self.device))
    }

    /// As [`duplicate`](Self::duplicate); `stacked` stores projections of one input as one matrix.
    pub(super) fn copy_as(&self, stacked: bool) -> Result<Self> {
        self.copy_in(stacked, self.kind)
    }

    /// As [`copy_as`](Self::copy_as), in another type.
    pub(super) fn copy_in(&self, stacked: bool, kind: Kind) -> Result<Self> {
        let mut parameters = Parameters::empty_as(&self.config, self.device, kind, stacked)?;
        if let Some(adapter) = &self.adapter {
            let adapted: HashSet<String> = lora::named(&self.parameters).into_iter().map(|(name, _)| name).collect();
            let is_adapted = |module: &str| adapted.contains(&format!("{}{module}.lora_A.weight", lora::PREFIX));
            lora::attach_where(&mut parameters, adapter, 0, is_adapted)?;
        }
        let all = |parameters: &Parameters| parameters.named().into_iter().chain(lora::named(parameters));
        {
            let _guard = tch::no_grad_guard();
            for ((_, mut target), (_, theirs)) in all(&parameters).zip(all(&self.parameters)) {
                target.f_copy_(&theirs)?;
            }
        }
        let copy = Self::new(self.config.clone(), parameters, self.device, kind)?;
        Ok(Self { adapter: self.adapter.clone(), images: self.images.clone(), ..copy })
    }

    /// Checkpoint keys (`model.layers.0.self_attn.q_proj.weight`, …) and shallow clones of the
    /// parameters; a tied head is not repeated. An optimiser may change them in place, in no-grad
    /// mode. With an adapter, these do not require gradients; the adapter's tensors, which do,
    /// follow with PEFT's keys.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut all = self.parameters.named();
        all.extend(lora::named(&self.parameters));
        all
    }

    /// Adds a new adapter, which has no effect before training; deterministic for a seed.
    ///
    /// Invalidates caches, as the next three do. Errors: an adapter exists; an unknown target.
    ///
    /// Joint projections are adapted in place of their parts, and experts in one tensor
    /// ([`ExpertStorage::Transposed`](super::ExpertStorage)) are left out.
    pub fn add_adapter(&mut self, mut config: LoraConfig, seed: u64) -> Result<()> {
        self.refuse_adapter()?;
        config.target_modules = lora::adapted_modules(&self.config, &config.target_modules);
        lora::attach(&mut self.parameters, &config, seed)?;
        self.adapter = Some(config);
        self.rebuild()
    }

    /// Loads a PEFT LoRA adapter (`adapter_config.json`, `adapter_model.safetensors`) onto the
    /// model.
    ///
    /// Errors are `Kind::Model` and name the field or the tensors.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<()> {
        self.refuse_adapter()?;
        self.adapter = Some(lora::load(&mut self.parameters, dir)?);
        self.rebuild()
    }

    /// Sets the base model in the adapter's configuration.
    pub fn set_adapter_base(&mut self, name: &str, revision: Option<&str>) -> Result<()> {
        let none = || Error::new(error::Kind::Usage, "the model has no adapter");
        self.adapter.as_mut().ok_or_else(none)?.set_base(name, revision);
        Ok(())
    }

    /// Writes the adapter in PEFT's format.
    pub fn save_adapter(&self, dir: &Path) -> Result<()> {
        write_all(&lora::unwritten(&self.parameters, self.adapter()?), dir)
    }

    /// Merges the adapter into the weights, which require gradients again, and removes it.
    pub fn merge_adapter(&mut self) -> Result<()> {
        self.adapter()?;
        self.set_merged_sampling(false)?;
        lora::detach(&mut self.parameters, true)?;
        self.adapter = None;
        self.rebuild()
    }

    /// Configuration of the adapter, if any.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.adapter.as_ref()
    }

    /// Writes the trained weights: the adapter if there is one, else the model.
    pub fn save_trained(&self, dir: &Path) -> Result<()> {
        write_all(&self.unwritten_trained(SHARD_BYTES)?, dir)
    }

    /// The files that [`save_trained`](Self::save_trained) writes, with shards of at most
    /// `shard_bytes`. Their tensors are not copied.
    pub fn unwritten_trained(&self, shard_bytes: u64) -> Result<Vec<UnwrittenFile>> {
        match &self.adapter {
            Some(adapter) => Ok(lora::unwritten(&self.parameters, adapter)),
            None => self.unwritten(shard_bytes),
        }
    }

    fn adapter(&self) -> Result<&LoraConfig> {
        self.adapter.as_ref().ok_or_else(|| Error::new(error::Kind::Usage, "the model has no adapter"))
    }

    pub(super) fn refuse_adapter(&self) -> Result<()> {
        match self.adapter {
            None => Ok(()),
            Some(_) => Err(Error::new(error::Kind::Usage, "the model has an adapter")
                .hint("merge it into the weights first, or save it separately")),
        }
    }

    /// The CPU kernels do not support adapters.
    fn rebuild(&mut self) -> Result<()> {
        if !self.gpu_paths {
            self.native = native_model(&self.config, &self.parameters, &self.frequencies, self.device, self.kind)?;
        }
        Ok(())
    }

    /// Memory of the weights and the CPU kernels' copy, bytes.
    pub fn bytes(&self) -> u64 {
        let copied = self.native.is_some() && self.kind == Kind::Float;
        let all = self.parameters().iter().map(|(_, tensor)| tensor.numel() as u128).sum();
        u64::try_from(memory::bytes(all, self.kind, copied)).unwrap_or(u64::MAX)
    }

    /// Device of the weights.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Type of the weights and of the computation.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Hidden states `[T, E]` after the final norm, for training and scoring. Rows do not attend to
    /// each other.
    pub fn forward(&self, batch: &Packed) -> Result<Tensor> {
        match self.native_f32() {
            Some(native) => native.forward(&batch.ids, &batch.positions, &batch.lengths, self.checkpointing),
            None => self.forward_plain(batch),
        }
    }

    /// Enables activation checkpointing in [`learn`](Self::learn): a third more computation.
    pub fn set_checkpointing(&mut self, on: bool) {
        self.checkpointing = on;
    }

    /// Enables recording of decode steps as CUDA graphs (default: on).
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs = RefCell::new(if on { Graphs::On } else { Graphs::Off });
    }

    /// Runs the code paths of a GPU on the CPU: attention without padding, in plain operations, and
    /// no CPU kernels. `R1_GPU_PATHS=1` does so for every model. Caches made before are invalid.
    pub fn use_gpu_paths(&mut self) {
        (self.varlen, self.gpu_paths, self.native) = (true, true, None);
    }

    /// Launches of decode steps do nothing after the first of their size, to time the host.
    #[doc(hidden)]
    pub fn stub_launches(&mut self) {
        self.graphs = RefCell::new(Graphs::Stub);
    }

    /// The reason why decode steps of a model on CUDA are not recorded as graphs although that is
    /// enabled: the program has no code for it, or a recording failed.
    pub fn graphs_failure(&self) -> Option<String> {
        if !self.varlen || !self.device.is_cuda() {
            return None;
        }
        match &*self.graphs.borrow() {
            Graphs::On => native::cuda_graphs(self.device),
            Graphs::Off | Graphs::Stub => None,
            Graphs::Failed(why) => Some(why.clone()),
        }
    }

    /// The reason why a model on CUDA does not use all of r1's kernels although they are enabled.
    pub fn kernels_failure(&self) -> Option<&str> {
        self.kernels_failure.as_deref()
    }

    /// Runs `body` with the adapter disabled.
    pub fn without_adapter<R>(&self, body: impl FnOnce() -> R) -> R {
        /// Restores the switch when dropped, also after a panic.
        struct Restore<'a>(&'a Cell<bool>, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let _restore = Restore(&self.adapter_disabled, self.adapter_disabled.replace(true));
        body()
    }

    /// Logits `[N, V]` f32 of hidden states `[N, E]`, for sampling. On CUDA, products of bf16 and
    /// f16 matrices are not rounded to their type, as in [`logprobs`](Self::logprobs); the CPU has
    /// no such product.
    pub(super) fn logits_wide(&self, hidden: &Tensor) -> Result<Tensor> {
        if self.device.is_cuda() && matches!(self.kind, Kind::BFloat16 | Kind::Half) {
            return Ok(hidden.f_mm_dtype(&self.parameters.lm_head.f_tr()?, Kind::Float)?);
        }
        Ok(self.logits(hidden)?.f_to_kind(Kind::Float)?)
    }

    /// Logits `[N, V]` of hidden states `[N, E]`, in the type the model is held in.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(hidden.f_linear(&self.parameters.lm_head, None::<&Tensor>)?)
    }

    /// Logits `[N, ids]` f32 of a few ids, `[ids]` i64, of hidden states `[N, E]`.
    pub(super) fn logits_of(&self, hidden: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let rows = self.parameters.lm_head.f_index_select(0, ids)?.f_to_kind(Kind::Float)?;
        Ok(hidden.f_to_kind(Kind::Float)?.f_linear(&rows, None::<&Tensor>)?)
    }

    /// Log-probability of `targets` `[N]` i64 and entropy (nats) of the distribution at each of the
    /// hidden states `[N, E]`, both `[N]` f32 (f64 for a model held in f64), at `temperature` > 0.
    /// Differentiable.
    ///
    /// Computed for `chunk` positions at a time, so that the logits `[N, V]` are never
    /// materialised; backward recomputes them.
    pub fn logprobs(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        temperature: f64,
        chunk: usize,
    ) -> Result<(Tensor, Tensor)> {
        self.logprobs_among(hidden, targets, None, temperature, chunk)
    }

    /// As [`logprobs`](Self::logprobs), over a subset of the vocabulary per position: `support` has
    /// the ids of all positions in order and the end offset of each, both i64 on the CPU.
    /// Distributions are renormalised over these ids; a position without ids uses the whole
    /// vocabulary. A target outside its support is an error.
    pub fn logprobs_among(
        &self,
        hidden: &Tensor,
        targets: &Tensor,
        support: Option<&(Tensor, Tensor)>,
        temperature: f64,
        chunk: usize,
    ) -> Result<(Tensor, Tensor)> {
        let softmax = native::Softmax { temperature, chunk, fused: self.kernels.logprobs };
        native::logprobs(self.native_f32(), hidden, &self.parameters.lm_head, targets, support, softmax)
    }

    /// An empty cache for `slots` sequences of `capacity` tokens.
    pub fn new_cache(&self, slots: usize, capacity: usize) -> Result<KvCache> {
        KvCache::new(&self.config, slots, capacity, self.layout(), self.device, self.cache_kind())
    }

    /// Type of cached keys and values: the model's, or f32 with the CPU kernels.
    pub fn cache_kind(&self) -> Kind {
        if self.native.is_some() { Kind::Float } else { self.kind }
    }

    /// Type and device of cached keys and values.
    pub fn cache_options(&self) -> (Kind, Device) {
        (self.cache_kind(), self.device)
    }

    /// Layout of a cache. Recorded steps need a spare slot for padding sequences.
    fn layout(&self) -> Layout {
        match self.native {
            Some(_) => Layout::Panels(native::panel()),
            None => Layout::Tokens { spare: usize::from(self.varlen) },
        }
    }

    /// Runs the spans (prefill and decode mixed), writes their keys and values to the cache, and
    /// returns the f32 logits [spans, V] of the last token of each span. No gradient. The cache
    /// grows as needed.
    ///
    /// Errors are `Kind::Internal`: an empty span, a slot out of range or given twice, an id out of
    /// the vocabulary.
    ///
    /// With "dynamic" rotary embeddings, results past `max_position_embeddings` differ from a full
    /// forward pass, as in transformers: cached keys were rotated by shorter lengths.
    pub fn step(&self, cache: &mut KvCache, items: &[Span<'_>]) -> Result<Tensor> {
        let logits = self.step_until(cache, items, &|| false)?;
        logits.ok_or_else(|| Error::new(error::Kind::Internal, "a step ended early without a stop"))
    }

    /// As [`step`](Self::step), but `None` if `stop`, polled between the layers, returns true.
    pub fn step_until(
        &self,
        cache: &mut KvCache,
        items: &[Span<'_>],
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let _guard = tch::no_grad_guard();
        self.check_spans(cache, items)?;
        if cache.layout != self.layout() {
            return Err(Error::new(error::Kind::Internal, "the cache was created before the model's adapter changed"));
        }
        let longest = items.iter().map(|span| span.start + span.ids.len()).max().unwrap_or(0);
        cache.reserve(longest)?;
        cache.rewind(items)?;
        // Left over from a stopped step.
        cache.routes.iter_mut().for_each(|routes| routes.get_mut().clear());
        let logits = match &self.native {
            Some(native) => {
                let spans = items.iter().map(|span| (span.slot, span.start, span.ids));
                native.step(&cache.keys, &cache.values, cache.capacity(), spans, stop)
            }
            None if self.varlen => self.step_varlen(cache, items, stop),
            None => self.step_plain(cache, items, stop),
        }?;
        Ok(logits.inspect(|_| cache.advance(items)))
    }

    /// Whether an id is of the vocabulary, or of an image.
    pub(crate) fn reads_id(&self, id: u32) -> bool {
        match image_number(id) {
            Some(number) => self.images.as_ref().is_some_and(|images| images.image(number).is_ok()),
            None => (id as usize) < self.config.vocab_size,
        }
    }

    fn check_spans(&self, cache: &KvCache, items: &[Span<'_>]) -> Result<()> {
        cache.check_slots(items.iter().map(|span| span.slot))?;
        for span in items {
            let wrong = |why: String| Err(Error::new(error::Kind::Internal, why));
            if span.ids.is_empty() {
                return wrong(format!("the span of slot {} is empty", span.slot));
            }
            if let Some(id) = span.ids.iter().find(|&&id| !self.reads_id(id)) {
                return wrong(format!("token id {id} is outside the vocabulary of {}", self.config.vocab_size));
            }
        }
        Ok(())
    }
}
