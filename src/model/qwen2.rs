//! Qwen2 and Qwen2.5 text models (arXiv:2407.10671, arXiv:2412.15115): grouped-query attention with biases on q, k and
//! v, rotary embeddings, RMSNorm before each block, SwiGLU.
//!
//! The same weights and layers serve learning ([`Qwen2::forward`]) and generation ([`Qwen2::step`]).

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use tch::{Device, Kind, Tensor};

use super::layers::{Layer, Linear, Parameters};
use super::{Config, KvCache, Packed, Span, plain, weights};
use crate::error::{self, Error, Result};
use crate::native;

/// A model and its weights.
#[derive(Debug)]
pub struct Qwen2 {
    pub config: Config,
    parameters: Parameters,
    /// Computes in place of the plain operations, for f32 on the CPU.
    native: Option<native::Model>,
    device: Device,
    kind: Kind,
}

impl Qwen2 {
    /// Loads `config.json` and the safetensors (one file, or shards with an index) in `dir`.
    ///
    /// Weights stored as f32, bf16 or f16 are converted to `kind`; every parameter wants a gradient. Errors are
    /// `Kind::Model` and name the file, the field or the tensors.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        let config = Config::load(dir)?;
        let parameters = Parameters::empty(&config, device, kind)?;
        let tied = config.tie_word_embeddings;
        // Old checkpoints hold the rotary frequencies and a copy of the tied head; both are known without them.
        weights::read(dir, &parameters.named(), |name| {
            name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
        })?;
        Self::new(config, parameters, device, kind)
    }

    /// A model with fresh weights: normal with `initializer_range`, norms 1, biases 0; the same for the same seed on
    /// every machine.
    pub fn init(config: Config, device: Device, kind: Kind, seed: u64) -> Result<Self> {
        config.check()?;
        let parameters = Parameters::empty(&config, device, kind)?;
        let _guard = tch::no_grad_guard();
        for (stream, (name, mut tensor)) in (0..).zip(parameters.named()) {
            if name.ends_with("norm.weight") {
                let _ = tensor.f_fill_(1.0)?;
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
        let shape = native::Shape {
            vocab: config.vocab_size as i64,
            hidden: config.hidden_size as i64,
            inner: config.intermediate_size as i64,
            layers: config.num_hidden_layers as i64,
            heads: config.num_attention_heads as i64,
            kv_heads: config.num_key_value_heads as i64,
            head_dim: config.head_dim as i64,
            eps: config.rms_norm_eps,
            theta: config.rope_theta,
        };
        let tensors: Vec<Tensor> = parameters.named().into_iter().map(|(_, tensor)| tensor).collect();
        let native = match (device, kind) {
            (Device::Cpu, Kind::Float) => Some(native::Model::new(&shape, &tensors)?),
            _ => None,
        };
        Ok(Self { config, parameters, native, device, kind })
    }

    /// Checkpoint keys (`model.layers.0.self_attn.q_proj.weight`, …) and shallow clones of the parameters; a tied head
    /// is not repeated. An optimiser may change them in place, without gradient.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        self.parameters.named()
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The type the weights are held and computed in.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Writes `config.json` and `model.safetensors` as transformers reads them, each complete or not at all.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let failed = |path: &Path, error: &std::io::Error| Error::io(error::Kind::Store, "write", path, error);
        std::fs::create_dir_all(dir).map_err(|error| failed(dir, &error))?;
        weights::write(dir, &self.parameters.named())?;
        let mut config = self.config.to_json();
        config["torch_dtype"] = serde_json::json!(match self.kind {
            Kind::BFloat16 => "bfloat16",
            Kind::Half => "float16",
            Kind::Double => "float64",
            _ => "float32",
        });
        let path = dir.join("config.json");
        let part = dir.join("config.json.part");
        std::fs::write(&part, format!("{config:#}\n"))
            .and_then(|()| weights::publish(&part, &path))
            .map_err(|error| failed(&path, &error))
    }

    /// Hidden states `[T, E]` after the final norm, for learning and scoring; rows never see each other.
    pub fn forward(&self, batch: &Packed) -> Result<Tensor> {
        match &self.native {
            Some(native) => native.forward(&batch.ids, &batch.positions, &batch.lengths),
            None => self.forward_plain(batch),
        }
    }

    /// [`forward`](Self::forward) in plain libtorch operations.
    pub(super) fn forward_plain(&self, batch: &Packed) -> Result<Tensor> {
        let angles = self.angles(&batch.positions)?;
        let mut x = self.embed(&batch.ids)?;
        for layer in &self.parameters.layers {
            x = self.block(layer, &x, &angles, |q, k, v| plain::attend_rows(q, k, v, &batch.lengths))?;
        }
        plain::rms_norm(&x, &self.parameters.norm, self.config.rms_norm_eps)
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
        native::logprobs(self.native.as_ref(), hidden, &self.parameters.lm_head, targets, temperature, chunk)
    }

    /// An empty cache for `slots` sequences of `capacity` tokens.
    pub fn new_cache(&self, slots: usize, capacity: usize) -> KvCache {
        let panel = if self.native.is_some() { native::panel() } else { 1 };
        KvCache::new(&self.config, slots, capacity, panel, self.device, self.kind)
    }

    /// Runs the spans (prefill and decode mixed), writes their keys and values to the cache, and gives the f32 logits
    /// [spans, V] of the last token of each. No gradient. The cache grows where a span needs it.
    ///
    /// Errors are `Kind::Internal`: an empty span, a slot out of range or given twice, an id out of the vocabulary.
    pub fn step(&self, cache: &mut KvCache, items: &[Span<'_>]) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        self.check_spans(cache, items)?;
        let longest = items.iter().map(|span| span.start + span.ids.len()).max().unwrap_or(0);
        cache.reserve(longest)?;
        match &self.native {
            Some(native) => {
                let spans = items.iter().map(|span| (span.slot, span.start, span.ids));
                native.step(&cache.keys, &cache.values, cache.capacity(), spans)
            }
            None => self.step_plain(cache, items),
        }
    }

    /// [`step`](Self::step) in plain libtorch operations.
    pub(super) fn step_plain(&self, cache: &mut KvCache, items: &[Span<'_>]) -> Result<Tensor> {
        let tensor =
            |numbers: Vec<i64>| -> Result<Tensor> { Ok(Tensor::f_from_slice(&numbers)?.f_to_device(self.device)?) };
        let each = |number: fn(&Span<'_>, usize) -> i64| {
            tensor(items.iter().flat_map(|span| (0..span.ids.len()).map(move |at| number(span, at))).collect())
        };
        let positions = each(|span, at| (span.start + at) as i64)?;
        let slots = each(|span, _| span.slot as i64)?;
        let groups = SpanGroup::all(items, self.device)?;
        let angles = self.angles(&positions)?;
        let mut x = self.embed(&each(|span, at| i64::from(span.ids[at]))?)?;
        for (index, layer) in self.parameters.layers.iter().enumerate() {
            // [slots, Hkv, capacity, D] both: without native code a panel is one key wide.
            let (mut keys, mut values) = (cache.keys[index].f_flatten(3, 4)?, cache.values[index].shallow_clone());
            x = self.block(layer, &x, &angles, |q, k, v| {
                let place = [Some(&slots), None, Some(&positions)];
                let _ = keys.f_index_put_(&place, k, false)?;
                let _ = values.f_index_put_(&place, v, false)?;
                let mut out = q.f_zeros_like()?;
                for group in &groups {
                    let held = |x: &Tensor| -> Result<Tensor> {
                        Ok(x.f_index_select(0, &group.slots)?.f_narrow(2, 0, group.context)?)
                    };
                    let own = q.f_index_select(0, &group.tokens)?;
                    let own = own.f_view([-1, group.length, q.size()[1], q.size()[2]])?.f_transpose(1, 2)?;
                    let seen = plain::attend_cache(&own, &held(&keys)?, &held(&values)?, &group.visible)?;
                    let seen = seen.f_transpose(1, 2)?.f_reshape([-1, q.size()[1], q.size()[2]])?;
                    let _ = out.f_index_copy_(0, &group.tokens, &seen)?;
                }
                Ok(out)
            })?;
        }
        let ends = items.iter().scan(0, |end, span| {
            *end += span.ids.len() as i64;
            Some(*end - 1)
        });
        let last = x.f_index_select(0, &tensor(ends.collect())?)?;
        let hidden = plain::rms_norm(&last, &self.parameters.norm, self.config.rms_norm_eps)?;
        Ok(self.logits(&hidden)?.f_to_kind(Kind::Float)?)
    }

    /// One decoder layer over x `[T, E]`; `attend` is given q `[T, H, D]`, k and v `[T, Hkv, D]`.
    fn block(
        &self,
        layer: &Layer,
        x: &Tensor,
        (cos, sin): &(Tensor, Tensor),
        attend: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let eps = self.config.rms_norm_eps;
        let heads = |linear: &Linear, h: &Tensor| -> Result<Tensor> {
            Ok(h.f_linear(&linear.weight, linear.bias.as_ref())?.f_view([
                h.size()[0],
                -1,
                self.config.head_dim as i64,
            ])?)
        };
        let linear = |linear: &Linear, h: &Tensor| h.f_linear(&linear.weight, linear.bias.as_ref());
        let h = plain::rms_norm(x, &layer.input_norm, eps)?;
        let q = plain::rotate(&heads(&layer.q, &h)?, cos, sin)?;
        let k = plain::rotate(&heads(&layer.k, &h)?, cos, sin)?;
        let out = attend(&q, &k, &heads(&layer.v, &h)?)?;
        let x = x.f_add(&linear(&layer.o, &out.f_flatten(1, 2)?)?)?;
        let h = plain::rms_norm(&x, &layer.post_norm, eps)?;
        let inner = linear(&layer.gate, &h)?.f_silu()?.f_mul(&linear(&layer.up, &h)?)?;
        Ok(x.f_add(&linear(&layer.down, &inner)?)?)
    }

    fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(Tensor::f_embedding(&self.parameters.embed, ids, -1, false, false)?)
    }

    fn angles(&self, positions: &Tensor) -> Result<(Tensor, Tensor)> {
        plain::rotary(positions, self.config.head_dim as i64, self.config.rope_theta, self.kind)
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

/// Spans of one length, attended together.
struct SpanGroup {
    length: i64,
    /// Longest context among them, the new tokens included.
    context: i64,
    /// `[spans]`
    slots: Tensor,
    /// [spans * length] places in the packed batch.
    tokens: Tensor,
    /// [spans, 1, length, context]
    visible: Tensor,
}

impl SpanGroup {
    fn all(items: &[Span<'_>], device: Device) -> Result<Vec<Self>> {
        let mut by_length: std::collections::BTreeMap<usize, Vec<(usize, &Span<'_>)>> =
            std::collections::BTreeMap::new();
        let mut at = 0;
        for span in items {
            by_length.entry(span.ids.len()).or_default().push((at, span));
            at += span.ids.len();
        }
        by_length
            .into_iter()
            .map(|(length, spans)| {
                let tensor =
                    |numbers: Vec<i64>| -> Result<Tensor> { Ok(Tensor::f_from_slice(&numbers)?.f_to_device(device)?) };
                let context = spans.iter().map(|(_, span)| span.start + length).max().unwrap_or(0) as i64;
                let each = |(first, _): &(usize, _)| (*first as i64)..(*first + length) as i64;
                let starts = tensor(spans.iter().map(|(_, span)| span.start as i64).collect())?;
                let last = starts.f_unsqueeze(1)?.f_add(&Tensor::f_arange(length as i64, (Kind::Int64, device))?)?;
                let columns = Tensor::f_arange(context, (Kind::Int64, device))?;
                Ok(Self {
                    length: length as i64,
                    context,
                    slots: tensor(spans.iter().map(|(_, span)| span.slot as i64).collect())?,
                    tokens: tensor(spans.iter().flat_map(each).collect())?,
                    visible: columns.f_le_tensor(&last.f_unsqueeze(2)?)?.f_unsqueeze(1)?,
                })
            })
            .collect()
    }
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
