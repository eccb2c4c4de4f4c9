//! Model configuration, read from a Hugging Face `config.json`.
//!
//! All supported families are one decoder with different parts, described by [`Config`]. Each
//! family has its own reader (`families`). Unsupported and unknown fields are errors. The other
//! fields of the file are kept and written back.

mod fields;
mod rope;

use std::path::Path;

use serde_json::{Map, Value, json};

use super::families::{self, Architecture, VisionPart};
use super::json_file;
use r1_base::error::{Error, Kind, Result};

pub(super) use fields::Fields;
pub use rope::{Rope, Scaling, Sections};

/// Largest RoPE base, scale or epsilon, so that their powers are finite in f32.
const LARGEST: f64 = 1e18;

/// Longest context with RoPE scaling, tokens.
const LARGEST_CONTEXT: f64 = (1_u64 << 30) as f64;

/// Shape, constants and parts of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // independent parts
pub struct Config {
    pub architecture: Architecture,
    /// V: rows of the embedding, special and padding rows included.
    pub vocab_size: usize,
    /// E.
    pub hidden_size: usize,
    /// Inner size of a dense feed-forward block.
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    /// H: query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// D: even; `hidden_size / num_attention_heads` unless given.
    pub head_dim: usize,
    /// Longest sequence the model was trained for. The model does not enforce it.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
    pub biases: Biases,
    pub joint: Joint,
    pub norms: Norms,
    /// Whether the stored weights of norms are the weights minus 1.
    pub zero_centred_norms: bool,
    /// Whether query and key heads have an RMSNorm before the rotary embedding.
    pub head_norms: bool,
    /// Whether the output of attention is multiplied by the sigmoid of a gate, which the query
    /// projection has after the queries of each head (arXiv:2505.06708).
    pub output_gate: bool,
    /// Whether these norms are over all heads of a projection together.
    pub joint_norms: bool,
    /// Whether each query head has a sink: a learned score without a value that takes part in the
    /// softmax (arXiv:2309.17453).
    pub sinks: bool,
    pub activation: Activation,
    /// Embeddings are multiplied by this.
    pub embedding_scale: f64,
    /// What a block adds to the residual stream is multiplied by this.
    pub residual_scale: f64,
    /// Logits are multiplied by this.
    pub logits_scale: f64,
    /// Attention scores are multiplied by this; `head_dim^-0.5` unless given.
    pub attention_scale: Option<f64>,
    /// Rotary embeddings; each layer uses one of them.
    pub ropes: Vec<Rope>,
    /// Whether neighbours in a head are rotated together, in place of numbers of its two halves.
    pub interleaved_ropes: bool,
    /// Experts of sparse layers.
    pub experts: Option<Experts>,
    /// Sizes of the Gated DeltaNet layers.
    pub delta: Option<DeltaShape>,
    /// Tokens that the short convolutions combine.
    pub short_conv: Option<usize>,
    /// One per layer; empty if all are [`LayerKind::default`].
    pub layers: Vec<LayerKind>,
    /// The part that sees images.
    pub vision: Option<Box<VisionPart>>,
    /// The content of the file, which is written back with the sizes above.
    pub source: Map<String, Value>,
}

/// Projections with a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The output of attention.
    pub output: bool,
    /// The feed-forward block.
    pub mlp: bool,
}

/// Projections that are one matrix of the checkpoint: their rows follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Joint {
    /// Queries, keys and values.
    pub qkv: bool,
    /// Gate and up of dense feed-forward blocks.
    pub gate_up: bool,
}

/// Positions of the RMSNorms (arXiv:1910.07467).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Before attention and before the feed-forward block.
    Before,
    /// Before and after each.
    Around,
    /// After each (OLMo 2, arXiv:2501.00656).
    After,
}

/// Activation function of the gate of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// Clamped SwiGLU (gpt-oss, arXiv:2508.10925): `gate · sigmoid(alpha · gate) · (up + 1)`, with
    /// the gate at most `limit` and up within ±`limit`.
    ClampedSwiglu {
        alpha: f64,
        limit: f64,
    },
}

/// Experts of a sparse feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    pub count: usize,
    /// Experts per token.
    pub chosen: usize,
    /// Inner size of one expert.
    pub intermediate_size: usize,
    /// Whether the weights of the chosen experts are normalised to sum 1.
    pub normalised: bool,
    pub router: Router,
    pub shared: Option<SharedExpert>,
    /// Whether the router and the projections of experts have biases.
    pub biased: bool,
    /// How a checkpoint holds the weights.
    pub storage: ExpertStorage,
}

/// How the experts of a token are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Router {
    /// By the softmax over all experts.
    Softmax,
    /// DeepSeek-V3 (arXiv:2412.19437): weights are sigmoids, times `scaling`. The choice is by the
    /// sigmoids plus a correction, among the experts of `top_groups` of `groups`, those with the
    /// largest sums of two.
    Sigmoid { groups: usize, top_groups: usize, scaling: f64 },
}

/// Tensors of the experts of a layer in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertStorage {
    /// A matrix for each projection of each expert.
    Single,
    /// Gate and up of all experts, `[experts, in, 2 · out]` with alternating columns, and down,
    /// `[experts, in, out]`; biases likewise (gpt-oss).
    Transposed,
}

/// An expert that processes every token, beside the chosen ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    pub intermediate_size: usize,
    /// Whether its output is multiplied by the sigmoid of a gate.
    pub gated: bool,
}

/// Sizes of Gated DeltaNet layers (arXiv:2412.06464).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys; divides the value heads.
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Tokens that the convolution combines.
    pub taps: usize,
    /// Whether queries, keys, values and output gates are one projection, in the order of the key
    /// heads.
    pub joint: bool,
}

impl DeltaShape {
    /// Numbers of the values of a token.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }
}

/// Per-layer settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// Sliding window: a token attends to itself and the `window - 1` tokens before it; `None` is
    /// full attention.
    pub window: Option<usize>,
    /// Index into `ropes`; `None` for a layer without rotary embedding.
    pub rope: Option<usize>,
    /// Whether the feed-forward block is a mixture of experts.
    pub sparse: bool,
    /// Whether the layer is a Gated DeltaNet or a short convolution in place of attention.
    pub linear: bool,
}

impl Default for LayerKind {
    fn default() -> Self {
        Self { window: None, rope: Some(0), sparse: false, linear: false }
    }
}

impl Default for Config {
    /// The shape of r1-nano, the embedded model: a Qwen2.
    fn default() -> Self {
        Self {
            architecture: Architecture::Qwen2,
            vocab_size: 512,
            hidden_size: 192,
            intermediate_size: 512,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 48,
            max_position_embeddings: 1024,
            rms_norm_eps: 1e-6,
            tie_word_embeddings: true,
            initializer_range: 0.02,
            biases: Biases { qkv: true, ..Biases::default() },
            joint: Joint::default(),
            norms: Norms::Before,
            zero_centred_norms: false,
            head_norms: false,
            output_gate: false,
            joint_norms: false,
            sinks: false,
            activation: Activation::Silu,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logits_scale: 1.0,
            attention_scale: None,
            ropes: vec![Rope::default()],
            interleaved_ropes: false,
            experts: None,
            delta: None,
            short_conv: None,
            layers: Vec::new(),
            vision: None,
            source: Map::new(),
        }
    }
}

impl Config {
    /// Reads `config.json` in `dir`.
    ///
    /// Errors: `Kind::Model` with the path, for a missing file, bad JSON, an unsupported
    /// architecture or field.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        if !path.exists() {
            return Err(Error::new(Kind::Model, "there is no config.json")
                .at_path(&path)
                .hint("a model is a directory with config.json, model.safetensors and tokenizer.json"));
        }
        let value = json_file::read_json(&path, "config.json")?;
        Self::from_json(&value).map_err(|error| error.at_path(&path))
    }

    /// Reads and validates the parsed file.
    pub fn from_json(value: &Value) -> Result<Self> {
        let Value::Object(object) = value else {
            return Err(Error::new(Kind::Model, "config.json is not a JSON object"));
        };
        let (text, vision) = (families::text_config(object)?, families::vision_part(object)?);
        let object = text.as_ref().unwrap_or(object);
        let architecture = Architecture::of(object)?;
        let mut fields = Fields::new(object.clone());
        let mut config = families::read(architecture, &mut fields)?;
        fields.finish()?;
        config.source.clone_from(object);
        config.vision = vision.map(|vision| vision.for_text(&mut config));
        config.check()?;
        Ok(config)
    }

    /// Content of the file. Rotary embeddings are written in the classic form if possible, which
    /// every version of transformers reads.
    pub fn to_json(&self) -> Value {
        let mut object = self.source.clone();
        object.insert("architectures".to_owned(), json!([self.architecture.class()]));
        object.insert("model_type".to_owned(), json!(self.architecture.model_type()));
        for (name, value) in self.sizes() {
            object.insert(name.to_owned(), json!(value));
        }
        for (name, value) in [("rms_norm_eps", self.rms_norm_eps), ("initializer_range", self.initializer_range)] {
            object.insert(name.to_owned(), json!(value));
        }
        // Layers for the prediction of several tokens are not read.
        for name in ["num_nextn_predict_layers", "num_mtp_layers"] {
            object.entry(name).and_modify(|layers| *layers = json!(0));
        }
        object.insert("tie_word_embeddings".to_owned(), json!(self.tie_word_embeddings));
        if let Some(experts) = self.experts {
            // Newer files have `num_local_experts`, which older readers do not support.
            object.insert("num_experts".to_owned(), json!(experts.count));
        }
        // The weights are written without quantisation.
        object.shift_remove("quantization_config");
        // A gpt-oss without `rope_scaling` has YaRN.
        if let (Some(Value::Object(parameters)), [rope]) = (object.get("rope_parameters").cloned(), &self.ropes[..])
            && !(self.architecture == Architecture::GptOss && rope.scaling == Scaling::None)
        {
            object.shift_remove("rope_parameters");
            let mut scaling = parameters;
            let partial = scaling.contains_key("partial_rotary_factor");
            scaling.shift_remove("rope_theta");
            let plain = rope.scaling == Scaling::None && rope.sections.is_none();
            let scaling = if plain { Value::Null } else { Value::Object(scaling) };
            object.insert("rope_theta".to_owned(), json!(rope.theta));
            object.insert("rope_scaling".to_owned(), scaling);
            if rope.partial < 1.0 || partial {
                object.insert("partial_rotary_factor".to_owned(), json!(rope.partial));
            }
        }
        if let (false, [rope]) = (object.contains_key("rope_theta"), &self.ropes[..]) {
            object.insert("rope_theta".to_owned(), json!(rope.theta));
        }
        families::write(self, &mut object);
        Value::Object(object)
    }

    /// Longest supported sequence: `max_position_embeddings`, times `factor` with dynamic rotary
    /// embeddings, and with LongRoPE the original context.
    pub fn longest_context(&self) -> usize {
        let factor = self.ropes.iter().filter_map(Rope::dynamic_factor).fold(1.0, f64::max);
        let limit = self.ropes.iter().filter_map(Rope::limit).min().unwrap_or(usize::MAX);
        limit.min((self.max_position_embeddings as f64 * factor).min(LARGEST_CONTEXT) as usize)
    }

    /// Longest sequence where no context is set: the longest one without dynamic scaling.
    pub fn default_context(&self) -> usize {
        self.max_position_embeddings.min(self.longest_context())
    }

    /// Whether sequences have a state that exists for one number of tokens only.
    pub fn is_recurrent(&self) -> bool {
        self.convolution().is_some()
    }

    /// Tokens that the convolutions of recurrent layers combine, and their channels.
    pub(super) fn convolution(&self) -> Option<(usize, usize)> {
        let delta = self.delta.map(|delta| (delta.taps, delta.channels()));
        let is_used = self.layers.iter().any(|layer| layer.linear);
        delta.or(self.short_conv.filter(|_| is_used).map(|taps| (taps, self.hidden_size)))
    }

    /// Number of layers of attention.
    pub fn attention_layers(&self) -> usize {
        (0..self.num_hidden_layers).filter(|&index| !self.layer(index).linear).count()
    }

    /// Whether the rotary angles of a sequence of `tokens` depend on its length (dynamic scaling),
    /// so that cached keys differ from the keys of a full pass.
    pub fn turns_by_length(&self, tokens: usize) -> bool {
        tokens > self.max_position_embeddings && self.ropes.iter().any(Rope::is_dynamic)
    }

    /// Settings of a layer.
    pub fn layer(&self, index: usize) -> LayerKind {
        self.layers.get(index).copied().unwrap_or_default()
    }

    /// Sizes by field name.
    fn sizes(&self) -> [(&'static str, usize); 8] {
        [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ]
    }

    /// Validates the sizes.
    pub fn check(&self) -> Result<()> {
        let bad = |field: &str, why: String| Err(Error::new(Kind::Model, format!("`{field}` {why}")));
        let experts = self.experts.map(|experts| {
            [
                ("num_experts", experts.count),
                ("num_experts_per_tok", experts.chosen),
                ("moe_intermediate_size", experts.intermediate_size),
            ]
        });
        let shared = self.experts.and_then(|experts| experts.shared);
        let shared = shared.map(|shared| ("shared_expert_intermediate_size", shared.intermediate_size));
        let delta = self.delta.map(|delta| {
            [
                ("linear_num_key_heads", delta.key_heads),
                ("linear_num_value_heads", delta.value_heads),
                ("linear_key_head_dim", delta.key_dim),
                ("linear_value_head_dim", delta.value_dim),
                ("linear_conv_kernel_dim", delta.taps),
            ]
        });
        let taps = self.short_conv.map(|taps| ("conv_L_cache", taps));
        let windows = self.layers.iter().filter_map(|layer| layer.window).map(|window| ("sliding_window", window));
        for (field, value) in self
            .sizes()
            .into_iter()
            .chain(experts.into_iter().flatten())
            .chain(shared)
            .chain(delta.into_iter().flatten())
            .chain(taps)
            .chain(windows)
        {
            if value == 0 || value > 1 << 30 {
                return bad(field, format!("is {value}; it must be between 1 and 2^30"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return bad(
                "num_key_value_heads",
                format!("is {}, which does not divide {} heads", self.num_key_value_heads, self.num_attention_heads),
            );
        }
        let dynamic = self.ropes.iter().any(Rope::is_dynamic);
        if !self.head_dim.is_multiple_of(2) || (dynamic && self.head_dim < 4) {
            return bad("head_dim", format!("is {}; rotary embeddings need a larger or an even one", self.head_dim));
        }
        if let Some(delta) = self.delta.filter(|delta| !delta.value_heads.is_multiple_of(delta.key_heads)) {
            let why = format!("is {}, which does not divide {} value heads", delta.key_heads, delta.value_heads);
            return bad("linear_num_key_heads", why);
        }
        self.ropes.iter().try_for_each(|rope| rope.check(self.head_dim))?;
        self.vision.as_ref().map_or(Ok(()), |vision| vision.check(self))?;
        if let Some(experts) = self.experts.filter(|experts| experts.chosen > experts.count) {
            return bad("num_experts_per_tok", format!("is {} of {} experts", experts.chosen, experts.count));
        }
        if let Some(Experts { router: Router::Sigmoid { groups, top_groups, .. }, count, chosen, .. }) = self.experts {
            if groups == 0 || !count.is_multiple_of(groups) || count / groups < 2 {
                return bad(
                    "n_group",
                    format!("is {groups}; it must divide {count} experts into groups of two or more"),
                );
            }
            if !(1..=groups).contains(&top_groups) || chosen > top_groups * (count / groups) {
                let why = format!("is {top_groups}; it must be at most {groups} and have {chosen} experts or more");
                return bad("topk_group", why);
            }
        }
        let ropes = self.ropes.iter().map(|rope| ("rope_theta", rope.theta));
        let scale = self.attention_scale.map(|scale| ("query_pre_attn_scalar", scale));
        let clamp = match self.activation {
            Activation::ClampedSwiglu { alpha, limit } => vec![("swiglu_alpha", alpha), ("swiglu_limit", limit)],
            Activation::Silu | Activation::GeluTanh => Vec::new(),
        };
        let factors = [
            ("embedding_multiplier", self.embedding_scale),
            ("residual_multiplier", self.residual_scale),
            ("logits_scaling", self.logits_scale),
        ];
        for (field, value) in
            ropes.chain(scale).chain(clamp).chain(factors).chain([("rms_norm_eps", self.rms_norm_eps)])
        {
            // Larger values overflow in f32.
            if !(value > 0.0 && value <= LARGEST) {
                return bad(field, format!("is {value}; it must be above 0 and at most {LARGEST:e}"));
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            return bad("initializer_range", format!("is {}; it must be 0 or more", self.initializer_range));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
