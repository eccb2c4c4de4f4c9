//! Encoders with attention in both directions, from token ids to hidden states: checkpoints of
//! transformers' `BertModel` (BERT, BGE, E5, GTE, Contriever, MiniLM), `RobertaModel` and
//! `XLMRobertaModel` (BGE-M3, multilingual E5).
//!
//! Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
//! Understanding", NAACL 2019; Liu et al., "RoBERTa", arXiv:1907.11692; Conneau et al.,
//! "Unsupervised Cross-lingual Representation Learning at Scale", arXiv:1911.02116. Names of
//! parameters are the keys of the checkpoint; a checkpoint of a model with a head
//! (`BertForMaskedLM`) has them with the prefix `bert.` or `roberta.`, and its head is not read.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::stacked::gpu_paths;
use super::varlen::Varlen;
use super::{upload, weights, zeros};
use r1_base::error::{self, Error, Result};

/// Largest size in a configuration.
const LARGEST: u64 = 1 << 24;
const MOST_LAYERS: usize = 1000;
/// `model_type` of the supported checkpoints; the last two are of the RoBERTa kind.
const MODEL_TYPES: [&str; 3] = ["bert", "roberta", "xlm-roberta"];

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
    /// RoBERTa's id of padding: positions begin after it, and tokens with this id have it as their
    /// position. `None` for BERT, whose positions begin at 0.
    padding: Option<u32>,
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
        if !json["quantization_config"].is_null() {
            return Err(refused("`quantization_config`: quantised weights are not read".to_owned())
                .hint("take the model in f32, bf16 or f16"));
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
            padding: None,
        };
        let padding = match &json["pad_token_id"] {
            _ if json["model_type"] == MODEL_TYPES[0] => None,
            Value::Null if json.get("pad_token_id").is_none() => Some(1),
            value => {
                let limit = config.vocab.min(config.positions - 1) as u64;
                let id = value.as_u64().filter(|id| *id < limit).ok_or_else(|| {
                    let why = "positions begin after it, and it is an id below `vocab_size`";
                    refused(format!("`pad_token_id` is {value}; {why} and `max_position_embeddings` - 1"))
                })?;
                Some(id as u32)
            }
        };
        if !config.hidden.is_multiple_of(config.heads) {
            let (hidden, heads) = (config.hidden, config.heads);
            return Err(refused(format!("`hidden_size` {hidden} is not a multiple of `num_attention_heads` {heads}")));
        }
        if config.layers > MOST_LAYERS {
            return Err(refused(format!("`num_hidden_layers` is {}; at most {MOST_LAYERS}", config.layers)));
        }
        Ok(Self { padding, ..config })
    }

    /// The position of the first token.
    fn first_position(&self) -> usize {
        self.padding.map_or(0, |id| id as usize + 1)
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
    pub weight: Tensor,
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

/// An encoder. See the module documentation.
#[derive(Debug)]
pub(super) struct Bert {
    config: BertConfig,
    word: Tensor,
    position: Tensor,
    token_type: Tensor,
    embedding_norm: Affine,
    layers: Vec<BertLayer>,
    pub device: Device,
    /// Whether rows are computed without padding.
    pub varlen: bool,
}

/// Allocates parameters and collects their checkpoint keys.
pub(super) struct BertMaker {
    named: Vec<(String, Tensor)>,
    pub(super) prefix: &'static str,
    /// Names of the two parameters of a layer normalisation.
    norm: [&'static str; 2],
    options: (Device, Kind),
}

impl BertMaker {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let shape: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        let tensor = zeros(&shape, self.options.1, self.options.0)?;
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

/// Whether `config.json` is of a model of this file.
pub(super) fn is_bert(json: &Value) -> bool {
    MODEL_TYPES.iter().any(|kind| json["model_type"] == *kind)
}

/// Whether it is of the RoBERTa kind: without types of tokens, and with another head.
pub(super) fn is_roberta(json: &Value) -> bool {
    is_bert(json) && json["model_type"] != MODEL_TYPES[0]
}

impl Bert {
    /// Loads the safetensors in `dir`, with the parameters that `head` names, given the size of
    /// hidden states. Their prefix is the encoder's.
    ///
    /// # Errors
    /// `Kind::Model` for a configuration that is not supported, and for weights that do not match
    /// it.
    pub(super) fn load<T>(
        dir: &Path,
        json: &Value,
        (device, kind): (Device, Kind),
        head: impl FnOnce(&mut BertMaker, usize) -> Result<T>,
    ) -> Result<(Self, T)> {
        let config = BertConfig::from_json(json).map_err(|error| error.at_path(dir.join("config.json")))?;
        let files = weights::files(dir)?;
        weights::check_size(dir, &files, config.numbers())?;
        let mut names = BTreeSet::new();
        for file in &files {
            names.extend(weights::names(file)?);
        }
        let has_prefix = |prefix: &&str| names.contains(&format!("{prefix}embeddings.word_embeddings.weight"));
        let prefix = ["bert.", "roberta."].into_iter().find(has_prefix).unwrap_or("");
        // Checkpoints converted from the first TensorFlow release have the old names of norms.
        let old = names.contains(&format!("{prefix}embeddings.LayerNorm.gamma"));
        let norm = if old { ["gamma", "beta"] } else { ["weight", "bias"] };
        let mut maker = BertMaker { named: Vec::new(), prefix, norm, options: (device, kind) };
        let hidden = config.hidden;
        let word = maker.tensor("embeddings.word_embeddings.weight", &[config.vocab, hidden])?;
        let position = maker.tensor("embeddings.position_embeddings.weight", &[config.positions, hidden])?;
        let token_type = maker.tensor("embeddings.token_type_embeddings.weight", &[config.types, hidden])?;
        let embedding_norm = maker.norm("embeddings", hidden)?;
        let layers = (0..config.layers).map(|index| maker.layer(index, &config)).collect::<Result<_>>()?;
        let head = head(&mut maker, hidden)?;
        weights::read(&files, &maker.named, |name| {
            let tensor_name = name.strip_prefix(prefix).unwrap_or(name);
            let heads = ["pooler.", "cls.", "lm_head."];
            tensor_name == "embeddings.position_ids" || heads.iter().any(|head| tensor_name.starts_with(head))
        })?;
        let varlen = gpu_paths() || Varlen::fits(device, kind, hidden / config.heads);
        Ok((Self { config, word, position, token_type, embedding_norm, layers, device, varlen }, head))
    }

    /// Size of a hidden state.
    pub(super) fn dimension(&self) -> usize {
        self.config.hidden
    }

    /// Maximum number of tokens of a text.
    pub(super) fn max_tokens(&self) -> usize {
        self.config.positions - self.config.first_position()
    }

    /// Size of the vocabulary.
    pub(super) fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Number of token types that tokenizers give: RoBERTa's give none.
    pub(super) fn types(&self) -> usize {
        if self.config.padding.is_some() { 1 } else { self.config.types }
    }

    /// Positions of the tokens of a row.
    fn positions(&self, row: &[u32]) -> Vec<i64> {
        let mut next = self.config.first_position() as i64;
        let position = |id: &u32| match self.config.padding {
            Some(padding) if padding == *id => i64::from(padding),
            _ => {
                next += 1;
                next - 1
            }
        };
        row.iter().map(position).collect()
    }

    /// The last hidden states of rows and the place of each row's first token in them: `[N, E]`
    /// one row after the other, or `[B, T, E]` padded to the longest row, with the mask `[B, T]`,
    /// true for tokens. `types` has the type of every token, below [`Self::types`]; without it all
    /// tokens have the type 0.
    pub(super) fn hidden(
        &self,
        rows: &[&[u32]],
        types: Option<&[&[u32]]>,
    ) -> Result<(Tensor, Vec<i64>, Option<Tensor>)> {
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let (mut ids, mut positions, mut all_types) = (Vec::new(), Vec::new(), Vec::new());
        let (mut mask, mut starts) = (Vec::new(), Vec::new());
        for (index, row) in rows.iter().enumerate() {
            starts.push(ids.len() as i64);
            ids.extend(row.iter().map(|id| i64::from(*id)));
            positions.extend(self.positions(row));
            all_types.extend(types.into_iter().flat_map(|types| types[index]).map(|kind| i64::from(*kind)));
            mask.resize(ids.len(), true);
            let end = if self.varlen { ids.len() } else { ids.len() + longest - row.len() };
            for column in [&mut ids, &mut positions, &mut all_types] {
                column.resize(end, 0);
            }
            mask.resize(end, false);
        }
        let lengths: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
        let shape = [rows.len() as i64, longest as i64];
        let columns = Tensor::f_from_slice(&[ids, positions, all_types].concat())?;
        let (shape, mask, varlen) = if self.varlen {
            (vec![3, mask.len() as i64], None, Some(Varlen::rows(&lengths, self.device)?))
        } else {
            let mask = upload(&Tensor::f_from_slice(&mask)?.f_view(shape)?, self.device)?;
            (vec![3, shape[0], shape[1]], Some(mask), None)
        };
        let columns = upload(&columns.f_view(shape.as_slice())?, self.device)?;
        Ok((self.forward(&columns, mask.as_ref(), varlen.as_ref())?, starts, mask))
    }

    /// The last hidden states of ids, positions and types: `[3, B, T]` with the mask `[B, T]`, or
    /// `[3, N]` with the offsets of rows.
    fn forward(&self, columns: &Tensor, mask: Option<&Tensor>, varlen: Option<&Varlen>) -> Result<Tensor> {
        let config = &self.config;
        let embed = |table: &Tensor, column: i64| -> Result<Tensor> {
            Ok(Tensor::f_embedding(table, &columns.f_select(0, column)?, -1, false, false)?)
        };
        let places = embed(&self.position, 1)?.f_add(&embed(&self.token_type, 2)?)?;
        let mut x = self.embedding_norm.norm(&embed(&self.word, 0)?.f_add(&places)?, config.eps)?;
        for layer in &self.layers {
            let [query, key, value] = [&layer.query, &layer.key, &layer.value].map(|affine| affine.linear(&x));
            let attended = self.attend([&query?, &key?, &value?], mask, varlen)?;
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

    /// Attention of every token to the tokens of its own row; queries, keys, values and the result
    /// have the shape of hidden states.
    fn attend(&self, qkv: [&Tensor; 3], mask: Option<&Tensor>, varlen: Option<&Varlen>) -> Result<Tensor> {
        let (heads, shape) = (self.config.heads as i64, qkv[0].size());
        if let Some(varlen) = varlen {
            let [q, k, v] = qkv.map(|x| x.f_view([shape[0], heads, -1]));
            return Ok(varlen.attend_in_rows(&q?, &k?, &v?)?.f_flatten(1, 2)?);
        }
        let (rows, tokens) = (shape[0], shape[1]);
        // [B, T, E] to [B, H, T, D].
        let [q, k, v] = qkv.map(|x| -> Result<Tensor> { Ok(x.f_view([rows, tokens, heads, -1])?.f_transpose(1, 2)?) });
        // [B, 1, 1, T].
        let mask = mask.map(|mask| mask.f_view([rows, 1, 1, tokens])).transpose()?;
        let attended = Tensor::f_scaled_dot_product_attention(&q?, &k?, &v?, mask, 0.0, false, None, false)?;
        Ok(attended.f_transpose(1, 2)?.f_reshape([rows, tokens, shape[2]])?)
    }
}
