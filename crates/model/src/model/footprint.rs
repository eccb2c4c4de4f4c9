//! Memory estimates of a model in sampling and training, from its shapes.
//!
//! Included: weights and their copies, activations kept for backward, buffers of backward, a chunk
//! of logits. Not included: norms and biases of layers, and temporaries of single operations.

use tch::{Device, Kind};

use super::kernels::packs;
use super::layers::Parameters;
use super::lora::{adapted_modules, is_target};
use super::vision::TOWER;
use super::{Config, ExpertStorage, LoraConfig};

impl Parameters {
    /// Number of weights in the matrices of the configured shapes, without allocation. Experts of
    /// sparse layers are included.
    pub(super) fn numbers(config: &Config) -> u128 {
        let [vocab, hidden, inner, heads, kv_heads, head_dim] = [
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        ]
        .map(|size| size as u128);
        let gates = if config.output_gate { heads } else { 0 };
        let attention = (2 * (heads + kv_heads) + gates) * head_dim * hidden;
        let layer = |index: usize| match config.experts.filter(|_| config.layer(index).sparse) {
            Some(experts) => {
                let shared = experts.shared.map_or(0, |shared| {
                    3 * hidden * shared.intermediate_size as u128 + if shared.gated { hidden } else { 0 }
                });
                experts.count as u128 * hidden * (1 + 3 * experts.intermediate_size as u128) + shared
            }
            None => 3 * hidden * inner,
        };
        let delta = config.delta.map_or(0, |shape| {
            let outputs = shape.projections().iter().sum::<usize>() + shape.values();
            outputs as u128 * hidden + (shape.channels() * shape.taps) as u128
        });
        let linear = config.short_conv.map_or(delta, |taps| (4 * hidden + taps as u128) * hidden);
        let mixer = |index: usize| if config.layer(index).linear { linear } else { attention };
        let layers: u128 = (0..config.num_hidden_layers).map(|index| mixer(index) + layer(index)).sum();
        let tower = config.vision.as_ref().map_or(0, |vision| vision.tower.numbers());
        tower + layers + vocab * hidden * if config.tie_word_embeddings { 1 } else { 2 }
    }
}

/// Shapes of a model and how it is used.
#[derive(Clone, Copy, Debug)]
pub struct Footprint<'a> {
    pub config: &'a Config,
    pub device: Device,
    /// Type of the weights and of the computation.
    pub kind: Kind,
    /// The adapter that is trained instead of the weights.
    pub adapter: Option<&'a LoraConfig>,
    pub checkpointing: bool,
    /// CPU threads.
    pub threads: usize,
    /// Number of processes.
    pub processes: u64,
    /// What they divide among them (`trainer.zero_stage`).
    pub zero_stage: usize,
}

impl Footprint<'_> {
    /// Number of weights.
    pub fn numbers(&self) -> u64 {
        narrow(Parameters::numbers(self.config))
    }

    /// Number of processes that divide what ZeRO's `stage` adds.
    pub fn parts(&self, stage: usize) -> u64 {
        if self.zero_stage >= stage { self.processes } else { 1 }
    }

    /// Number of weights of the layers.
    pub fn in_layers(&self) -> u64 {
        let embeddings = if self.config.tie_word_embeddings { 1 } else { 2 } * self.embedding();
        self.numbers().saturating_sub(embeddings)
    }

    /// Memory of weights that are freed while gradients are computed, and of a layer, bytes.
    pub fn freed(&self) -> (u64, u64) {
        let (bytes, parts) = (self.in_layers() * self.element(), self.parts(3));
        (bytes - bytes / parts, bytes / (self.config.num_hidden_layers as u64).max(1))
    }

    /// Number of weights of the embedding `[V, E]`.
    pub fn embedding(&self) -> u64 {
        (self.config.vocab_size * self.config.hidden_size) as u64
    }

    /// Number of weights of all routed experts.
    pub fn experts(&self) -> u64 {
        let Some(experts) = self.config.experts else { return 0 };
        let sparse = (0..self.config.num_hidden_layers).filter(|&index| self.config.layer(index).sparse).count();
        (sparse * experts.count * 3 * self.config.hidden_size * experts.intermediate_size) as u64
    }

    /// Fraction of the experts that a token is computed by.
    pub fn experts_share(&self) -> f64 {
        self.config.experts.map_or(0.0, |experts| experts.chosen as f64 / experts.count.max(1) as f64)
    }

    /// Number of weights of the layers that a token is multiplied with.
    pub fn active(&self) -> f64 {
        self.in_layers() as f64 - (1.0 - self.experts_share()) * self.experts() as f64
    }

    /// Memory of the weights, bytes.
    pub fn weights(&self) -> u64 {
        self.numbers() * self.element()
    }

    /// Memory of the CPU kernels' packed copy of the matrices, bytes.
    pub fn packed(&self) -> u64 {
        if !self.native() {
            return 0;
        }
        let looked_up = if self.config.tie_word_embeddings { 0 } else { self.embedding() };
        4 * (self.numbers() - looked_up)
    }

    /// Number of weights of the adapter.
    pub fn adapted(&self) -> u64 {
        let rank = self.adapter.map_or(0, |adapter| adapter.rank as u64);
        self.in_adapted(|inputs, outputs| (inputs + outputs) * rank)
    }

    /// Copies of the weights that an adapter applies to, for sampling, bytes.
    pub fn merged(&self) -> u64 {
        self.in_adapted(|inputs, outputs| inputs * outputs) * self.element()
    }

    fn layers(&self) -> u64 {
        self.config.num_hidden_layers as u64
    }

    /// The sum of a number of the inputs and outputs of each projection that has an adapter.
    fn in_adapted(&self, number: impl Fn(u64, u64) -> u64) -> u64 {
        let Some(adapter) = self.adapter else { return 0 };
        let targets = adapted_modules(self.config, &adapter.target_modules);
        let is_adapted = |name: &str| targets.iter().any(|target| is_target(target, name));
        let language = self.projections().into_iter().filter(|(name, ..)| is_adapted(name));
        let language: u64 = language.map(|(_, inputs, outputs, count)| number(inputs, outputs) * count).sum();
        let tower = self.config.vision.iter().flat_map(|vision| vision.tower.projections());
        let tower = tower.filter(|((name, ..), _)| is_adapted(&format!("{TOWER}{name}")));
        language
            + tower
                .map(|((_, inputs, outputs), count)| number(inputs as u64, outputs as u64) * count as u64)
                .sum::<u64>()
    }

    /// Activations kept by a forward pass over `tokens`, and buffers of backward, bytes.
    pub fn learning(&self, tokens: u64) -> u64 {
        if self.native() { self.learning_native(tokens) } else { self.learning_plain(tokens) }
    }

    /// Memory of log-probabilities of a chunk of `positions`, bytes; double in backward of the
    /// plain operations.
    pub fn logits(&self, positions: u64) -> u64 {
        let copies = if self.native() { 1 } else { 3 };
        copies * 4 * positions * self.config.vocab_size as u64
    }

    /// Memory of `prefill` prompt tokens and of the logits of `slots` sequences in sampling, bytes.
    pub fn sampling(&self, prefill: u64, slots: u64) -> u64 {
        let Sizes { hidden, queries, keys, inner, .. } = self.sizes();
        let row = 4 * (2 * hidden + 2 * queries + 2 * keys) + if self.native() { 0 } else { 8 * inner };
        let row = row.max(self.recurrent_layer());
        prefill * row + 2 * 4 * slots * self.config.vocab_size as u64
    }

    fn native(&self) -> bool {
        self.adapter.is_none() && packs(self.config, self.device, self.kind)
    }

    fn element(&self) -> u64 {
        self.kind.elt_size_in_bytes() as u64
    }

    /// Buffers of `Pass` in learn.cpp.
    fn learning_native(&self, tokens: u64) -> u64 {
        let whole = |floats: u64| floats.next_multiple_of(16);
        let Sizes { hidden, queries, keys, inner, heads } = self.sizes();
        let (x, qkv, o, gate_up) = (whole(hidden), whole(queries + 2 * keys), whole(queries), whole(2 * inner));
        let raw = if self.config.head_norms { whole(queries + keys) } else { 0 };
        let kept = self.layers() * x + self.layers_kept() * (qkv + o + heads + x + gate_up + raw) + x;
        // A chunk ends with the prefix tree that fills it.
        let chunk = tokens.min(2 * 768 * self.threads as u64);
        let backward = tokens * x + chunk * (4 * x + o + qkv + gate_up + whole(inner));
        4 * (tokens * (kept + 3 * x) + backward)
    }

    /// Activations that libtorch's autograd keeps for `decoder`.
    fn learning_plain(&self, tokens: u64) -> u64 {
        let Sizes { hidden, queries, inner, heads, .. } = self.sizes();
        let element = self.element();
        // A norm keeps its input in f32; trained weights also keep the scaled input and the other
        // factor.
        let norm = match (self.adapter, element < 4) {
            (None, true) => hidden * (4 + 2 * element),
            (None, false) => 3 * hidden * element,
            (Some(_), true) => 4 * hidden,
            (Some(_), false) => 2 * hidden * element,
        };
        let norms = if self.config.norms == super::Norms::Around { 4 } else { 2 };
        // Queries, keys and values per head, padded; the result before and after unpadding.
        let gate = if self.config.output_gate { 2 * queries } else { 0 };
        let attention = element * (queries * 11 / 2 + gate) + 4 * heads;
        let wide = if element < 4 { 4 } else { 0 };
        let adapted = self.in_adapted(|inputs, _| wide * inputs) / self.layers().max(1);
        let shared = self.shared().map_or(0, |shared| shared.intermediate_size as u64);
        let layer = norms * norm + element * 4 * (inner * self.experts_chosen() + shared) + adapted;
        let (attentions, delta) = (self.config.attention_layers() as u64, self.recurrent_layer());
        let mixers = if self.checkpointing {
            attention.max(delta)
        } else {
            attention * attentions + delta * (self.layers() - attentions)
        };
        let inputs = if self.checkpointing { self.layers() * hidden * element } else { 0 };
        tokens * (self.layers_kept() * layer + mixers + inputs + 6 * hidden * element.max(4))
    }

    fn layers_kept(&self) -> u64 {
        if self.checkpointing { 1 } else { self.layers() }
    }

    fn experts_chosen(&self) -> u64 {
        self.config.experts.map_or(1, |experts| experts.chosen as u64)
    }

    fn shared(&self) -> Option<super::SharedExpert> {
        self.config.experts.and_then(|experts| experts.shared)
    }

    /// Numbers of a token that a recurrent layer keeps for backward, bytes: in a Gated DeltaNet the
    /// inputs and outputs of the convolution, and in f32 queries, keys, values, the matrices of a
    /// block and the solutions of its system.
    fn recurrent_layer(&self) -> u64 {
        if let Some(taps) = self.config.short_conv {
            // In the model's type the projections, the gated input and the gated output; in f32
            // inputs and products of each tap.
            let hidden = self.config.hidden_size as u64;
            return hidden * (5 * self.element() + 4 * (2 + 2 * taps as u64));
        }
        let Some(delta) = self.config.delta else { return 0 };
        let [channels, values, heads] = [delta.channels(), delta.values(), delta.value_heads].map(|n| n as u64);
        let keys = heads * delta.key_dim as u64;
        let blocks = 5 * heads * super::delta_rule::BLOCK as u64;
        4 * (3 * channels + 10 * keys + 8 * values + blocks) + self.element() * (3 * channels + 2 * values)
    }

    /// Name, inputs, outputs and number of the projections of all layers.
    fn projections(&self) -> Vec<(&'static str, u64, u64, u64)> {
        let Sizes { hidden, queries, keys, inner, .. } = self.sizes();
        let (layers, attentions) = (self.layers(), self.config.attention_layers() as u64);
        let count = match self.config.experts {
            Some(experts) if experts.storage == ExpertStorage::Single => layers * experts.count as u64,
            // They have no adapters.
            Some(_) => 0,
            None => layers,
        };
        let gated = if self.config.output_gate { 2 * queries } else { queries };
        let mut all = vec![
            ("q_proj", hidden, gated, attentions),
            ("k_proj", hidden, keys, attentions),
            ("v_proj", hidden, keys, attentions),
            ("qkv_proj", hidden, queries + 2 * keys, attentions),
            ("o_proj", queries, hidden, attentions),
        ];
        let shared = self.shared().map(|shared| (shared.intermediate_size as u64, layers));
        for (inner, count) in [(inner, count)].into_iter().chain(shared) {
            let (up, down) = ((hidden, inner), (inner, hidden));
            let ends = [("gate_proj", up), ("up_proj", up), ("gate_up_proj", (hidden, 2 * inner)), ("down_proj", down)];
            all.extend(ends.map(|(name, (inputs, outputs))| (name, inputs, outputs, count)));
        }
        if let Some(delta) = self.config.delta {
            let linear = layers - attentions;
            let projections = delta.named_projections().into_iter();
            all.extend(projections.map(|(name, outputs)| (name, hidden, outputs as u64, linear)));
            all.push(("out_proj", delta.values() as u64, hidden, linear));
        }
        for projection in &mut all {
            projection.0 = self.config.architecture.projection(projection.0);
        }
        if self.config.short_conv.is_some() {
            let linear = layers - attentions;
            all.extend([("conv.in_proj", hidden, 3 * hidden, linear), ("conv.out_proj", hidden, hidden, linear)]);
        }
        all
    }

    fn sizes(&self) -> Sizes {
        let config = self.config;
        let inner = config.experts.map_or(config.intermediate_size, |experts| experts.intermediate_size);
        Sizes {
            hidden: config.hidden_size as u64,
            queries: (config.num_attention_heads * config.head_dim) as u64,
            keys: (config.num_key_value_heads * config.head_dim) as u64,
            inner: inner as u64,
            heads: config.num_attention_heads as u64,
        }
    }
}

struct Sizes {
    hidden: u64,
    queries: u64,
    keys: u64,
    inner: u64,
    heads: u64,
}

fn narrow(numbers: u128) -> u64 {
    u64::try_from(numbers).unwrap_or(u64::MAX / 16)
}
