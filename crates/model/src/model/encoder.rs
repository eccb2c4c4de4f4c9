//! Text encoders: `BertModel` checkpoints of transformers (BERT, BGE, E5, GTE, Contriever, MiniLM),
//! from token ids to one vector per text, in f32 on the CPU.
//!
//! Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
//! Understanding", NAACL 2019. Names of parameters are the keys of the checkpoint; a checkpoint of
//! a model with a head (`BertForMaskedLM`) has them with the prefix `bert.`, and its head is not
//! read.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::weights;
use r1_base::error::{self, Error, Result};
use r1_base::schema::names;

/// Tokens of a batch, padding included.
pub(super) const BATCH_TOKENS: usize = 8192;
/// Largest size in a configuration.
const LARGEST: u64 = 1 << 24;
const MOST_LAYERS: usize = 1000;

names! {
    /// Pooling of the hidden states of a text to one vector.
    #[derive(Default)]
    pub enum Pooling {
        /// The mean over all tokens, special tokens included.
        #[default]
        Mean = "mean",
        /// The first token, `[CLS]`.
        Cls = "cls",
    }
}

impl Pooling {
    /// The pooling in `1_Pooling/config.json` of a sentence-transformers model; `None` without that
    /// file.
    ///
    /// # Errors
    /// `Kind::Model` for another pooling than mean or CLS.
    pub fn of(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("1_Pooling").join("config.json");
        if !path.exists() {
            return Ok(None);
        }
        let json = weights::read_json(&path, "the pooling")?;
        let on: Vec<&str> = match (json["pooling_mode"].as_str(), json.as_object()) {
            (Some(mode), _) => vec![mode],
            (None, Some(fields)) => {
                let modes = fields.iter().filter(|(name, value)| name.starts_with("pooling_mode_") && **value == true);
                modes.map(|(name, _)| name.trim_start_matches("pooling_mode_")).collect()
            }
            (None, None) => Vec::new(),
        };
        match on[..] {
            ["mean" | "mean_tokens"] => Ok(Some(Self::Mean)),
            ["cls" | "cls_token"] => Ok(Some(Self::Cls)),
            _ => {
                let modes = if on.is_empty() { "none".to_owned() } else { on.join(", ") };
                Err(Error::new(error::Kind::Model, format!("the pooling of this model is not supported: {modes}"))
                    .at_path(path)
                    .hint("mean and cls are supported"))
            }
        }
    }
}

/// The fields of `config.json` that are used.
#[derive(Clone, Debug)]
struct BertConfig {
    vocab: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    inner: usize,
    positions: usize,
    types: usize,
    eps: f64,
    activation: EncoderActivation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum EncoderActivation {
    Gelu,
    GeluTanh,
    Relu,
    Silu,
}

impl BertConfig {
    fn from_json(json: &Value) -> Result<Self> {
        let refused = |why: String| Error::new(error::Kind::Model, format!("config.json: {why}"));
        if json["model_type"] != "bert" {
            let value = &json["model_type"];
            return Err(refused(format!("`model_type` is {value}; an encoder is a `bert` model"))
                .hint("BERT, BGE, E5, GTE, Contriever and MiniLM checkpoints of the class BertModel are supported"));
        }
        let position = json["position_embedding_type"].as_str().unwrap_or("absolute");
        if position != "absolute" {
            return Err(refused(format!("`position_embedding_type` is {position:?}; only \"absolute\" is supported")));
        }
        for field in ["is_decoder", "add_cross_attention"] {
            if json[field] == true {
                return Err(refused(format!("`{field}` is true; an encoder attends in both directions")));
            }
        }
        let size = |name: &str| {
            let value = json[name].as_u64().filter(|size| (1..=LARGEST).contains(size));
            value.map(|size| size as usize).ok_or_else(|| {
                refused(format!("`{name}` is {}; it must be a whole number from 1 to {LARGEST}", json[name]))
            })
        };
        let activation = match json["hidden_act"].as_str().unwrap_or("gelu") {
            "gelu" => EncoderActivation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => EncoderActivation::GeluTanh,
            "relu" => EncoderActivation::Relu,
            "silu" | "swish" => EncoderActivation::Silu,
            other => {
                let activations = "gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish";
                return Err(refused(format!("`hidden_act` is {other:?}; supported are {activations}")));
            }
        };
        let config = Self {
            vocab: size("vocab_size")?,
            hidden: size("hidden_size")?,
            layers: size("num_hidden_layers")?,
            heads: size("num_attention_heads")?,
            inner: size("intermediate_size")?,
            positions: size("max_position_embeddings")?,
            types: size("type_vocab_size")?,
            eps: json["layer_norm_eps"].as_f64().unwrap_or(1e-12),
            activation,
        };
        if !config.hidden.is_multiple_of(config.heads) {
            let (hidden, heads) = (config.hidden, config.heads);
            return Err(refused(format!("`hidden_size` {hidden} is not a multiple of `num_attention_heads` {heads}")));
        }
        if config.layers > MOST_LAYERS {
            return Err(refused(format!("`num_hidden_layers` is {}; at most {MOST_LAYERS}", config.layers)));
        }
        Ok(config)
    }

    /// Number of weights in the matrices.
    fn numbers(&self) -> u128 {
        let [vocab, hidden, layers, inner, positions, types] =
            [self.vocab, self.hidden, self.layers, self.inner, self.positions, self.types].map(|size| size as u128);
        (vocab + positions + types) * hidden + layers * (4 * hidden * hidden + 2 * hidden * inner)
    }
}

/// A linear projection, or a layer normalisation: weight and bias.
#[derive(Debug)]
pub(super) struct Affine {
    weight: Tensor,
    bias: Tensor,
}

impl Affine {
    pub(super) fn linear(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, Some(&self.bias))?)
    }

    fn norm(&self, x: &Tensor, eps: f64) -> Result<Tensor> {
        Ok(x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), eps, false)?)
    }
}

#[derive(Debug)]
struct BertLayer {
    query: Affine,
    key: Affine,
    value: Affine,
    attention_output: Affine,
    attention_norm: Affine,
    intermediate: Affine,
    output: Affine,
    output_norm: Affine,
}

/// A BERT encoder. See the module documentation.
#[derive(Debug)]
pub struct Encoder {
    config: BertConfig,
    word: Tensor,
    position: Tensor,
    token_type: Tensor,
    embedding_norm: Affine,
    layers: Vec<BertLayer>,
}

/// Allocates parameters and collects their checkpoint keys.
pub(super) struct EncoderMaker {
    named: Vec<(String, Tensor)>,
    pub(super) prefix: &'static str,
    /// Names of the two parameters of a layer normalisation.
    norm: [&'static str; 2],
}

impl EncoderMaker {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        let tensor = Tensor::f_zeros(shape, (Kind::Float, Device::Cpu))?;
        self.named.push((format!("{}{name}", self.prefix), tensor.shallow_clone()));
        Ok(tensor)
    }

    pub(super) fn linear(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Affine> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        Ok(Affine { weight, bias: self.tensor(&format!("{name}.bias"), &[outputs])? })
    }

    fn norm(&mut self, name: &str, size: usize) -> Result<Affine> {
        let [weight, bias] = self.norm;
        let weight = self.tensor(&format!("{name}.LayerNorm.{weight}"), &[size])?;
        Ok(Affine { weight, bias: self.tensor(&format!("{name}.LayerNorm.{bias}"), &[size])? })
    }

    fn layer(&mut self, index: usize, config: &BertConfig) -> Result<BertLayer> {
        let (hidden, inner) = (config.hidden, config.inner);
        let name = |part: &str| format!("encoder.layer.{index}.{part}");
        Ok(BertLayer {
            query: self.linear(&name("attention.self.query"), hidden, hidden)?,
            key: self.linear(&name("attention.self.key"), hidden, hidden)?,
            value: self.linear(&name("attention.self.value"), hidden, hidden)?,
            attention_output: self.linear(&name("attention.output.dense"), hidden, hidden)?,
            attention_norm: self.norm(&name("attention.output"), hidden)?,
            intermediate: self.linear(&name("intermediate.dense"), inner, hidden)?,
            output: self.linear(&name("output.dense"), hidden, inner)?,
            output_norm: self.norm(&name("output"), hidden)?,
        })
    }
}

impl Encoder {
    /// Loads `config.json` and the safetensors in `dir`.
    ///
    /// # Errors
    /// `Kind::Model` for a model of another family, and for weights that do not match the
    /// configuration.
    pub fn load(dir: &Path) -> Result<Self> {
        Ok(Self::load_with_head(dir, |_, _| Ok(()))?.0)
    }

    /// As [`load`](Self::load), with the parameters that `head` names, given the size of hidden
    /// states. Their prefix is the encoder's.
    pub(super) fn load_with_head<T>(
        dir: &Path,
        head: impl FnOnce(&mut EncoderMaker, usize) -> Result<T>,
    ) -> Result<(Self, T)> {
        let path = dir.join("config.json");
        let json = weights::read_json(&path, "config.json")?;
        let config = BertConfig::from_json(&json).map_err(|error| error.at_path(&path))?;
        let files = weights::files(dir)?;
        weights::check_size(dir, &files, config.numbers())?;
        let mut names = BTreeSet::new();
        for file in &files {
            names.extend(weights::names(file)?);
        }
        let prefix = if names.contains("bert.embeddings.word_embeddings.weight") { "bert." } else { "" };
        // Checkpoints converted from the first TensorFlow release have the old names of norms.
        let old = names.contains(&format!("{prefix}embeddings.LayerNorm.gamma"));
        let norm = if old { ["gamma", "beta"] } else { ["weight", "bias"] };
        let mut maker = EncoderMaker { named: Vec::new(), prefix, norm };
        let hidden = config.hidden;
        let word = maker.tensor("embeddings.word_embeddings.weight", &[config.vocab, hidden])?;
        let position = maker.tensor("embeddings.position_embeddings.weight", &[config.positions, hidden])?;
        let token_type = maker.tensor("embeddings.token_type_embeddings.weight", &[config.types, hidden])?;
        let embedding_norm = maker.norm("embeddings", hidden)?;
        let layers = (0..config.layers).map(|index| maker.layer(index, &config)).collect::<Result<_>>()?;
        let head = head(&mut maker, hidden)?;
        weights::read(&files, &maker.named, |name| {
            let tensor_name = name.strip_prefix(prefix).unwrap_or(name);
            tensor_name.starts_with("pooler.") || tensor_name == "embeddings.position_ids" || name.starts_with("cls.")
        })?;
        Ok((Self { config, word, position, token_type, embedding_norm, layers }, head))
    }

    /// Dimension of a vector.
    pub fn dimension(&self) -> usize {
        self.config.hidden
    }

    /// Maximum number of tokens of a text.
    pub fn max_tokens(&self) -> usize {
        self.config.positions
    }

    /// Vectors of texts, given as token ids with the special tokens: `[texts, E]`, one after the
    /// other, not normalised. Texts of similar length are computed together, with padding.
    ///
    /// # Errors
    /// `Kind::Model` for a text without ids, with more than [`max_tokens`](Self::max_tokens), or
    /// with an id outside the vocabulary.
    pub fn encode(&self, rows: &[&[u32]], pooling: Pooling) -> Result<Vec<f32>> {
        self.encode_in_batches(rows, pooling, BATCH_TOKENS)
    }

    pub(super) fn encode_in_batches(&self, rows: &[&[u32]], pooling: Pooling, tokens: usize) -> Result<Vec<f32>> {
        rows.iter().try_for_each(|row| self.check(row))?;
        let _guard = tch::no_grad_guard();
        let mut vectors = vec![0.0; rows.len() * self.config.hidden];
        for batch in batches(&rows.iter().map(|row| row.len()).collect::<Vec<_>>(), tokens) {
            let batch_rows: Vec<&[u32]> = batch.iter().map(|at| rows[*at]).collect();
            let pooled: Vec<f32> = self.pooled(&batch_rows, pooling)?.f_view(-1)?.try_into()?;
            for (at, vector) in batch.iter().zip(pooled.chunks_exact(self.config.hidden)) {
                vectors[at * self.config.hidden..][..self.config.hidden].copy_from_slice(vector);
            }
        }
        Ok(vectors)
    }

    /// Refuses a text that the encoder can't compute.
    pub(super) fn check(&self, row: &[u32]) -> Result<()> {
        let wrong = |why: String| Err(Error::new(error::Kind::Model, why));
        if row.is_empty() {
            return wrong("a text without tokens has no vector".to_owned());
        }
        if row.len() > self.config.positions {
            return wrong(format!("a text has {} tokens; the encoder has {}", row.len(), self.config.positions));
        }
        if let Some(id) = row.iter().find(|id| **id as usize >= self.config.vocab) {
            return wrong(format!("token id {id} is outside the vocabulary of {}", self.config.vocab));
        }
        Ok(())
    }

    /// Pooled hidden states `[B, E]` of rows, padded to the longest.
    fn pooled(&self, rows: &[&[u32]], pooling: Pooling) -> Result<Tensor> {
        let (hidden, mask) = self.hidden(rows, None)?;
        if pooling == Pooling::Cls {
            return Ok(hidden.f_select(1, 0)?.f_contiguous()?);
        }
        let weight = mask.f_to_kind(Kind::Float)?.f_unsqueeze(-1)?;
        let sum = hidden.f_mul(&weight)?.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Float)?;
        Ok(sum.f_div(&weight.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Float)?)?)
    }

    /// The last hidden states `[B, T, E]` of rows, padded to the longest, and the mask `[B, T]`,
    /// true for tokens. `types` has the type of every token, below [`Self::types`]; without it all
    /// tokens have the type 0.
    pub(super) fn hidden(&self, rows: &[&[u32]], types: Option<&[&[u32]]>) -> Result<(Tensor, Tensor)> {
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let shape = [rows.len() as i64, longest as i64];
        let padded = |rows: &[&[u32]]| -> Result<Tensor> {
            let mut all = vec![0_i64; rows.len() * longest];
            for (row, padded_row) in rows.iter().zip(all.chunks_exact_mut(longest.max(1))) {
                padded_row.iter_mut().zip(*row).for_each(|(cell, id)| *cell = i64::from(*id));
            }
            Ok(Tensor::f_from_slice(&all)?.f_view(shape)?)
        };
        let mut mask = vec![false; rows.len() * longest];
        rows.iter()
            .zip(mask.chunks_exact_mut(longest.max(1)))
            .for_each(|(row, mask_row)| mask_row[..row.len()].fill(true));
        let mask = Tensor::f_from_slice(&mask)?.f_view(shape)?;
        let types = types.map(padded).transpose()?;
        Ok((self.forward(&padded(rows)?, &mask, types.as_ref())?, mask))
    }

    /// Number of token types.
    pub(super) fn types(&self) -> usize {
        self.config.types
    }

    /// The last hidden states `[B, T, E]` of ids and types `[B, T]`; `mask` `[B, T]` is true for
    /// tokens and false for padding.
    fn forward(&self, ids: &Tensor, mask: &Tensor, types: Option<&Tensor>) -> Result<Tensor> {
        let config = &self.config;
        let (rows, tokens) = ids.size2()?;
        let embedded = Tensor::f_embedding(&self.word, ids, -1, false, false)?;
        let types = match types {
            Some(types) => Tensor::f_embedding(&self.token_type, types, -1, false, false)?,
            None => self.token_type.f_narrow(0, 0, 1)?,
        };
        let places = self.position.f_narrow(0, 0, tokens)?.f_add(&types)?;
        let mut x = self.embedding_norm.norm(&embedded.f_add(&places)?, config.eps)?;
        // Every query attends to the tokens of its own row: [B, 1, 1, T].
        let mask = mask.f_view([rows, 1, 1, tokens])?;
        for layer in &self.layers {
            let heads = |affine: &Affine| -> Result<Tensor> {
                // [B, T, E] to [B, H, T, D].
                let split = affine.linear(&x)?.f_view([rows, tokens, config.heads as i64, -1])?;
                Ok(split.f_transpose(1, 2)?)
            };
            let (query, key, value) = (heads(&layer.query)?, heads(&layer.key)?, heads(&layer.value)?);
            let attended =
                Tensor::f_scaled_dot_product_attention(&query, &key, &value, Some(&mask), 0.0, false, None, false)?;
            let attended = attended.f_transpose(1, 2)?.f_reshape([rows, tokens, config.hidden as i64])?;
            let attended = layer.attention_output.linear(&attended)?.f_add(&x)?;
            let attended = layer.attention_norm.norm(&attended, config.eps)?;
            let inner = layer.intermediate.linear(&attended)?;
            let inner = match config.activation {
                EncoderActivation::Gelu => inner.f_gelu("none")?,
                EncoderActivation::GeluTanh => inner.f_gelu("tanh")?,
                EncoderActivation::Relu => inner.f_relu()?,
                EncoderActivation::Silu => inner.f_silu()?,
            };
            x = layer.output_norm.norm(&layer.output.linear(&inner)?.f_add(&attended)?, config.eps)?;
        }
        Ok(x)
    }
}

/// Numbers of rows that are computed together: rows of similar length, with at most `tokens` tokens
/// including padding, or one row.
pub(super) fn batches(lengths: &[usize], tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|at| lengths[*at]);
    let (mut all, mut rest) = (Vec::new(), order.as_slice());
    while !rest.is_empty() {
        // Sorted by length: the last row of a batch is the longest.
        let fits = |count: &usize| count * lengths[rest[count - 1]] <= tokens;
        let count = (1..=rest.len()).take_while(fits).last().unwrap_or(1);
        let (batch, later) = rest.split_at(count);
        all.push(batch.to_vec());
        rest = later;
    }
    all
}
