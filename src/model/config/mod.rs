//! What a model computes, read from a Hugging Face `config.json`.
//!
//! The layers of every supported family are one decoder with different parts; [`Config`] says which. Each family reads
//! its own file into it (`families`). A field that would change the arithmetic in an unsupported way, or that is
//! unknown, is an error that names it. The rest of the file is kept and written back.

mod fields;
mod rope;

use std::path::Path;

use serde_json::{Map, Value, json};

use super::families::{self, Architecture};
use super::weights;
use crate::error::{Error, Kind, Result};

pub(super) use fields::Fields;
pub use rope::{Rope, Scaling};

/// Largest rope base, scale or epsilon: beyond, their powers are no finite numbers in f32.
const LARGEST: f64 = 1e18;

/// Tokens of the longest context that a scaling may ask for.
const LARGEST_CONTEXT: f64 = (1_u64 << 30) as f64;

/// Shape, constants and parts of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
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
    /// Longest sequence the model was trained for. Callers that build prompts enforce it; the model does not.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
    pub biases: Biases,
    pub norms: Norms,
    /// Every head of queries and keys has an RMSNorm before it turns.
    pub head_norms: bool,
    pub activation: Activation,
    /// Embeddings are multiplied by this.
    pub embedding_scale: f64,
    /// Attention scores are multiplied by this; `head_dim^-0.5` unless given.
    pub attention_scale: Option<f64>,
    /// Rotary embeddings, of which each layer picks one.
    pub ropes: Vec<Rope>,
    /// Of sparse layers.
    pub experts: Option<Experts>,
    /// One for each layer, or none where all are [`LayerKind::default`].
    pub layers: Vec<LayerKind>,
    /// The file as it was read, which is written back with the sizes above.
    pub source: Map<String, Value>,
}

/// Which projections have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The output of attention.
    pub output: bool,
    /// The feed-forward block.
    pub mlp: bool,
}

/// Where the RMSNorms are (arXiv:1910.07467).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// Before attention and before the feed-forward block.
    Before,
    /// Before and after each; what is stored is the weight minus 1.
    Around,
}

/// What the gate of a feed-forward block goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// Experts of a sparse feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    /// Experts a token goes through.
    pub chosen: usize,
    /// Inner size of one.
    pub intermediate_size: usize,
    /// The weights of the chosen ones sum to 1.
    pub normalised: bool,
}

/// In what a layer differs from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// A token sees itself and the `window - 1` before it; everything before it if `None`.
    pub window: Option<usize>,
    /// Which of the ropes; queries and keys do not turn if `None`.
    pub rope: Option<usize>,
    /// The feed-forward block is a mixture of experts.
    pub sparse: bool,
}

impl Default for LayerKind {
    fn default() -> Self {
        Self { window: None, rope: Some(0), sparse: false }
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
            norms: Norms::Before,
            head_norms: false,
            activation: Activation::Silu,
            embedding_scale: 1.0,
            attention_scale: None,
            ropes: vec![Rope::default()],
            experts: None,
            layers: Vec::new(),
            source: Map::new(),
        }
    }
}

impl Config {
    /// Reads `config.json` in `dir`.
    ///
    /// Errors: `Kind::Model` with the path, for a missing file, bad JSON, an unsupported architecture or field.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        if !path.exists() {
            return Err(Error::new(Kind::Model, "there is no config.json")
                .at_path(&path)
                .hint("a model is a directory with config.json, model.safetensors and tokenizer.json"));
        }
        let value = weights::read_json(&path, "config.json")?;
        Self::from_json(&value).map_err(|error| error.at_path(&path))
    }

    /// Reads and checks the parsed file.
    pub fn from_json(value: &Value) -> Result<Self> {
        let Value::Object(object) = value else {
            return Err(Error::new(Kind::Model, "config.json is not a JSON object"));
        };
        let architecture = Architecture::of(object)?;
        let mut fields = Fields::new(object.clone());
        let mut config = families::read(architecture, &mut fields)?;
        fields.finish()?;
        config.source.clone_from(object);
        config.check()?;
        Ok(config)
    }

    /// The file's content. Rotary embeddings are in the classic form where it can tell them, because every version of
    /// transformers reads it.
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
        object.insert("tie_word_embeddings".to_owned(), json!(self.tie_word_embeddings));
        if let Some(experts) = self.experts {
            // Newer files call it `num_local_experts`, which older readers do not know.
            object.insert("num_experts".to_owned(), json!(experts.count));
        }
        if let (Some(Value::Object(parameters)), [rope]) = (object.get("rope_parameters").cloned(), &self.ropes[..]) {
            object.shift_remove("rope_parameters");
            let mut scaling = parameters;
            scaling.shift_remove("rope_theta");
            let scaling = if rope.scaling == Scaling::None { Value::Null } else { Value::Object(scaling) };
            object.insert("rope_theta".to_owned(), json!(rope.theta));
            object.insert("rope_scaling".to_owned(), scaling);
        }
        if let (false, [rope]) = (object.contains_key("rope_theta"), &self.ropes[..]) {
            object.insert("rope_theta".to_owned(), json!(rope.theta));
        }
        Value::Object(object)
    }

    /// Longest sequence that the arithmetic is meant for: `max_position_embeddings`, and with dynamic rotary embeddings
    /// `factor` times as many tokens.
    pub fn longest_context(&self) -> usize {
        let factor = self.ropes.iter().filter_map(Rope::dynamic_factor).fold(1.0, f64::max);
        (self.max_position_embeddings as f64 * factor).min(LARGEST_CONTEXT) as usize
    }

    /// Whether a sequence of so many tokens turns every token by its own length, so that what a cache holds of it differs
    /// from a pass over the whole.
    pub fn turns_by_length(&self, tokens: usize) -> bool {
        tokens > self.max_position_embeddings && self.ropes.iter().any(Rope::is_dynamic)
    }

    /// What is special about a layer.
    pub fn layer(&self, index: usize) -> LayerKind {
        self.layers.get(index).copied().unwrap_or_default()
    }

    /// Sizes by their name in the file.
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

    /// Checks that the shape can be computed at all.
    pub fn check(&self) -> Result<()> {
        let bad = |field: &str, why: String| Err(Error::new(Kind::Model, format!("`{field}` {why}")));
        let experts = self.experts.map(|experts| {
            [
                ("num_experts", experts.count),
                ("num_experts_per_tok", experts.chosen),
                ("moe_intermediate_size", experts.intermediate_size),
            ]
        });
        let windows = self.layers.iter().filter_map(|layer| layer.window).map(|window| ("sliding_window", window));
        for (field, value) in self.sizes().into_iter().chain(experts.into_iter().flatten()).chain(windows) {
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
        if let Some(experts) = self.experts.filter(|experts| experts.chosen > experts.count) {
            return bad("num_experts_per_tok", format!("is {} of {} experts", experts.chosen, experts.count));
        }
        let ropes = self.ropes.iter().map(|rope| ("rope_theta", rope.theta));
        let scale = self.attention_scale.map(|scale| ("query_pre_attn_scalar", scale));
        for (field, value) in ropes.chain(scale).chain([("rms_norm_eps", self.rms_norm_eps)]) {
            // Larger ones, and what is computed of them in f32, are beyond all numbers.
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
