//! Text encoders: from token ids to one vector per text.
//!
//! A checkpoint is a BERT, RoBERTa or XLM-R encoder (`bert.rs`), or a decoder, whose last token has
//! seen the whole text (Qwen3-Embedding, arXiv:2506.05176; E5-Mistral, arXiv:2401.00368).

use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::batch::starts;
use super::bert::{Bert, is_bert};
use super::{Config, HostTransfer, Model, Packed, json_file, upload};
use crate::native;
use r1_base::error::{self, Error, Result};
use r1_base::schema::names;
use r1_base::{DeviceChoice, Dtype};

/// Tokens of a batch, padding included.
pub(super) const BATCH_TOKENS: usize = 8192;
/// The same on a GPU.
const GPU_BATCH_TOKENS: usize = 32_768;

names! {
    /// Pooling of the hidden states of a text to one vector.
    #[derive(Default)]
    pub enum Pooling {
        /// The mean over all tokens, special tokens included.
        #[default]
        Mean = "mean",
        /// The first token, `[CLS]`.
        Cls = "cls",
        /// The last token.
        Last = "last",
    }
}

/// A text encoder. See the module documentation.
#[derive(Debug)]
pub struct Encoder {
    layers: EncoderLayers,
}

#[derive(Debug)]
enum EncoderLayers {
    Bert(Bert),
    Decoder(Box<Model>),
}

impl Encoder {
    /// Loads `config.json` and the safetensors in `dir`.
    ///
    /// # Errors
    /// `Kind::Model` for a model of another family, and for weights that do not match the
    /// configuration; `Kind::Device` for a device that this machine does not have.
    pub fn load(dir: &Path, device: DeviceChoice, dtype: Dtype) -> Result<Self> {
        let device = native::device(device)?;
        let kind = native::compute_kind(dtype, device);
        let path = dir.join("config.json");
        let json = json_file::read_json(&path, "config.json")?;
        let layers = if is_bert(&json) {
            EncoderLayers::Bert(Bert::load(dir, &json, (device, kind), |_, _| Ok(()))?.0)
        } else {
            let config = decoder_config(&json).map_err(|error| error.at_path(&path))?;
            EncoderLayers::Decoder(Box::new(Model::load_without_head(config, dir, (device, kind))?))
        };
        Ok(Self { layers })
    }

    /// Dimension of a vector.
    pub fn dimension(&self) -> usize {
        match &self.layers {
            EncoderLayers::Bert(bert) => bert.dimension(),
            EncoderLayers::Decoder(model) => model.config.hidden_size,
        }
    }

    /// Maximum number of tokens of a text.
    pub fn max_tokens(&self) -> usize {
        match &self.layers {
            EncoderLayers::Bert(bert) => bert.max_tokens(),
            EncoderLayers::Decoder(model) => model.config.longest_context(),
        }
    }

    /// Whether attention is causal, so that only the last token has seen the whole text.
    pub fn is_causal(&self) -> bool {
        matches!(self.layers, EncoderLayers::Decoder(_))
    }

    /// Whether it is on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.device().is_cuda()
    }

    fn device(&self) -> Device {
        match &self.layers {
            EncoderLayers::Bert(bert) => bert.device,
            EncoderLayers::Decoder(model) => model.device(),
        }
    }

    /// Vectors of texts, given as token ids with the special tokens: `[texts, E]`, one after the
    /// other, not normalised. Texts of similar length are computed together. The device is waited
    /// for once, after all batches are queued.
    ///
    /// # Errors
    /// `Kind::Model` for a text without ids, with more than [`max_tokens`](Self::max_tokens), or
    /// with an id outside the vocabulary.
    pub fn encode(&self, rows: &[&[u32]], pooling: Pooling) -> Result<Vec<f32>> {
        let tokens = if self.is_on_gpu() { GPU_BATCH_TOKENS } else { BATCH_TOKENS };
        self.encode_in_batches(rows, pooling, tokens)
    }

    pub(super) fn encode_in_batches(&self, rows: &[&[u32]], pooling: Pooling, tokens: usize) -> Result<Vec<f32>> {
        let vocab = match &self.layers {
            EncoderLayers::Bert(bert) => bert.vocab(),
            EncoderLayers::Decoder(model) => model.config.vocab_size,
        };
        rows.iter().try_for_each(|row| check_row(row, self.max_tokens(), vocab))?;
        let _guard = tch::no_grad_guard();
        let mut queued = Vec::new();
        for batch in batches(&rows.iter().map(|row| row.len()).collect::<Vec<_>>(), tokens) {
            let batch_rows: Vec<&[u32]> = batch.iter().map(|at| rows[*at]).collect();
            let pooled = self.pooled(&batch_rows, pooling)?;
            queued.push((batch, HostTransfer::start(&[pooled], self.device())?));
        }
        let dimension = self.dimension();
        let mut vectors = vec![0.0; rows.len() * dimension];
        for (batch, transfer) in queued {
            for pooled in transfer.wait()? {
                let pooled: Vec<f32> = pooled.f_view(-1)?.try_into()?;
                for (at, vector) in batch.iter().zip(pooled.chunks_exact(dimension)) {
                    vectors[at * dimension..][..dimension].copy_from_slice(vector);
                }
            }
        }
        Ok(vectors)
    }

    /// Pooled hidden states `[B, E]` f32 of rows, on the device.
    pub(super) fn pooled(&self, rows: &[&[u32]], pooling: Pooling) -> Result<Tensor> {
        let (hidden, starts, mask) = match &self.layers {
            EncoderLayers::Bert(bert) => bert.hidden(rows, None)?,
            EncoderLayers::Decoder(model) => {
                let batch = Packed::from_rows(rows, model.device())?;
                (model.forward(&batch)?, starts(&batch.lengths), None)
            }
        };
        let lengths = || rows.iter().map(|row| row.len() as i64);
        let places: Vec<i64> = match (pooling, &mask) {
            (Pooling::Cls, _) => starts,
            (Pooling::Last, _) => starts.iter().zip(lengths()).map(|(start, length)| start + length - 1).collect(),
            (Pooling::Mean, Some(mask)) => {
                let weight = mask.f_to_kind(Kind::Float)?.f_unsqueeze(-1)?;
                let sum = hidden.f_mul(&weight)?.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Float)?;
                return Ok(sum.f_div(&weight.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Float)?)?);
            }
            (Pooling::Mean, None) => return mean_of_rows(&hidden, &lengths().collect::<Vec<_>>(), self.device()),
        };
        Ok(take(&hidden, &places, self.device())?.f_to_kind(Kind::Float)?)
    }

    /// Runs the code paths of a GPU on the CPU, for tests.
    #[cfg(test)]
    pub(super) fn use_gpu_paths(&mut self) {
        match &mut self.layers {
            EncoderLayers::Bert(bert) => bert.varlen = true,
            EncoderLayers::Decoder(model) => model.use_gpu_paths(),
        }
    }
}

/// Hidden states `[N, E]` at places of `[…, E]`.
pub(super) fn take(hidden: &Tensor, places: &[i64], device: Device) -> Result<Tensor> {
    let width = hidden.size().last().copied().unwrap_or_default();
    Ok(hidden.f_view([-1, width])?.f_index_select(0, &upload(&Tensor::f_from_slice(places)?, device)?)?)
}

/// Means `[B, E]` f32 of the hidden states `[N, E]` of rows: a product with a matrix of zeros and
/// ones, whose sums have a fixed order.
fn mean_of_rows(hidden: &Tensor, lengths: &[i64], device: Device) -> Result<Tensor> {
    let row_of_token: Vec<i64> =
        (0..).zip(lengths).flat_map(|(row, length)| std::iter::repeat_n(row, *length as usize)).collect();
    let row_of_token = upload(&Tensor::f_from_slice(&row_of_token)?.f_unsqueeze(0)?, device)?;
    let numbers: Vec<i64> = (0..lengths.len() as i64).collect();
    let numbers = upload(&Tensor::f_from_slice(&numbers)?.f_unsqueeze(1)?, device)?;
    let lengths = upload(&Tensor::f_from_slice(lengths)?.f_unsqueeze(1)?, device)?;
    let sums = row_of_token.f_eq_tensor(&numbers)?.f_to_kind(Kind::Float)?.f_mm(&hidden.f_to_kind(Kind::Float)?)?;
    Ok(sums.f_div(&lengths)?)
}

/// Refuses a text that an encoder can't compute.
pub(super) fn check_row(row: &[u32], limit: usize, vocab: usize) -> Result<()> {
    let wrong = |why: String| Err(Error::new(error::Kind::Model, why));
    if row.is_empty() {
        return wrong("a text without tokens has no vector".to_owned());
    }
    if row.len() > limit {
        return wrong(format!("a text has {} tokens; the encoder has {limit}", row.len()));
    }
    if let Some(id) = row.iter().find(|id| **id as usize >= vocab) {
        return wrong(format!("token id {id} is outside the vocabulary of {vocab}"));
    }
    Ok(())
}

/// The configuration of a decoder as an encoder: its class is `…ForCausalLM`, or `…Model` without
/// the output head, which is not read.
fn decoder_config(json: &Value) -> Result<Config> {
    if !json["auto_map"]["AutoModel"].is_null() {
        return Err(Error::new(error::Kind::Model, "`auto_map` names code of the repository, which r1 does not run"));
    }
    let mut config = json.clone();
    let class = config["architectures"][0].as_str().and_then(|class| class.strip_suffix("Model"));
    if let Some(family) = class {
        config["architectures"] = json!([format!("{family}ForCausalLM")]);
    }
    config["tie_word_embeddings"] = json!(true);
    Config::from_json(&config).map_err(|error| {
        let hint = error.hint.clone().unwrap_or_default();
        error.hint(format!("encoders are BertModel, RobertaModel, XLMRobertaModel and decoders; {hint}"))
    })
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
