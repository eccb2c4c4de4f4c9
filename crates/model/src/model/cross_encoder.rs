//! Cross-encoders, from the token ids of a query and a passage to one score:
//!
//! - `BertForSequenceClassification` (ms-marco-MiniLM), `RobertaForSequenceClassification` and
//!   `XLMRobertaForSequenceClassification` (bge-reranker-v2-m3) of transformers with one label: a
//!   linear head over the first token (Nogueira and Cho, "Passage Re-ranking with BERT",
//!   arXiv:1901.04085)
//! - decoders that answer a question about query and passage with one of two tokens
//!   (Qwen3-Reranker, arXiv:2506.05176): the difference of the logits
//!
//! Names of parameters are the keys of the checkpoint.

use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::batch::starts;
use super::bert::{Affine, Bert, is_bert, is_roberta};
use super::encoder::{BATCH_TOKENS, batches, check_row, take};
use super::{Architecture, HostTransfer, Model, Packed, json_file, upload, weights};
use crate::native;
use r1_base::error::{self, Error, Result};
use r1_base::{DeviceChoice, Dtype};

const CLASS: &str = "ForSequenceClassification";

/// How a cross-encoder reads a query and a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairFormat {
    /// As two texts; tokens of the passage have the type 1.
    Types,
    /// As two texts; all tokens have the type 0.
    OneType,
    /// In the text of a question whose answer is the next token.
    Question,
}

/// See the module documentation.
#[derive(Debug)]
pub struct CrossEncoderModel {
    layers: CrossEncoderLayers,
}

#[derive(Debug)]
enum CrossEncoderLayers {
    /// With the two projections of the head.
    Bert(Bert, [Affine; 2]),
    Decoder(Box<Model>),
}

/// A query and a passage as one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Token ids, with the special tokens.
    pub ids: Vec<u32>,
    /// The type of every token: 0 for the query, 1 for the passage.
    pub types: Vec<u32>,
}

impl CrossEncoderModel {
    /// Loads `config.json` and the safetensors in `dir`.
    ///
    /// # Errors
    /// `Kind::Model` for a model of another class or with several labels, and for weights that do
    /// not match the configuration; `Kind::Device` for a device that this machine does not have.
    pub fn load(dir: &Path, device: DeviceChoice, dtype: Dtype) -> Result<Self> {
        let device = native::device(device)?;
        let kind = native::compute_kind(dtype, device);
        let path = dir.join("config.json");
        let json = json_file::read_json(&path, "config.json")?;
        let class = json["architectures"][0].as_str().unwrap_or_default();
        if class == Architecture::Qwen3.class() {
            return Ok(Self { layers: CrossEncoderLayers::Decoder(Box::new(Model::load(dir, device, kind)?)) });
        }
        if !class.ends_with(CLASS) || !is_bert(&json) {
            let classes =
                format!("Bert{CLASS}, Roberta{CLASS}, XLMRoberta{CLASS} or a {}", Architecture::Qwen3.class());
            let why =
                format!("`architectures` is {} in config.json; a cross-encoder is a {classes}", json["architectures"]);
            return Err(Error::new(error::Kind::Model, why)
                .at_path(path)
                .hint("models of the class …Model are encoders: `r1 index build --encoder DIR`"));
        }
        let (bert, head) = classifier(dir, &json, (device, kind))?;
        Ok(Self { layers: CrossEncoderLayers::Bert(bert, head) })
    }

    /// Most tokens of a row.
    pub fn max_tokens(&self) -> usize {
        match &self.layers {
            CrossEncoderLayers::Bert(bert, _) => bert.max_tokens(),
            CrossEncoderLayers::Decoder(model) => model.config.longest_context(),
        }
    }

    /// How a query and a passage become a row.
    pub fn format(&self) -> PairFormat {
        match &self.layers {
            CrossEncoderLayers::Bert(bert, _) if bert.types() > 1 => PairFormat::Types,
            CrossEncoderLayers::Bert(..) => PairFormat::OneType,
            CrossEncoderLayers::Decoder(_) => PairFormat::Question,
        }
    }

    /// The score of every pair: the logit, without a sigmoid; for a decoder, the difference of the
    /// logits of the two `answers`. Pairs of similar length are computed together.
    ///
    /// # Errors
    /// `Kind::Model` for a pair without ids, with too many, or with an id or a type that the model
    /// does not have.
    pub fn scores(&self, pairs: &[Pair], answers: [u32; 2]) -> Result<Vec<f32>> {
        self.scores_in_batches(pairs, answers, BATCH_TOKENS)
    }

    pub(super) fn scores_in_batches(&self, pairs: &[Pair], answers: [u32; 2], tokens: usize) -> Result<Vec<f32>> {
        let (vocab, types, device) = match &self.layers {
            CrossEncoderLayers::Bert(bert, _) => (bert.vocab(), bert.types(), bert.device),
            CrossEncoderLayers::Decoder(model) => (model.config.vocab_size, usize::MAX, model.device()),
        };
        check_row(&answers, answers.len(), vocab)?;
        for pair in pairs {
            check_row(&pair.ids, self.max_tokens(), vocab)?;
            if pair.types.len() != pair.ids.len() || pair.types.iter().any(|kind| *kind as usize >= types) {
                let why = format!("a pair has types of tokens that the model does not have; it has {types}");
                return Err(Error::new(error::Kind::Model, why));
            }
        }
        let _guard = tch::no_grad_guard();
        let mut queued = Vec::new();
        for batch in batches(&pairs.iter().map(|pair| pair.ids.len()).collect::<Vec<_>>(), tokens) {
            let batch_pairs: Vec<&Pair> = batch.iter().map(|at| &pairs[*at]).collect();
            let scores = self.logits(&batch_pairs, answers)?.f_to_kind(Kind::Float)?;
            queued.push((batch, HostTransfer::start(&[scores], device)?));
        }
        let mut scores = vec![0.0; pairs.len()];
        for (batch, transfer) in queued {
            for batch_scores in transfer.wait()? {
                let batch_scores: Vec<f32> = batch_scores.f_view(-1)?.try_into()?;
                batch.iter().zip(batch_scores).for_each(|(at, score)| scores[*at] = score);
            }
        }
        Ok(scores)
    }

    /// Scores `[B]` of pairs, on the device.
    pub(super) fn logits(&self, pairs: &[&Pair], answers: [u32; 2]) -> Result<Tensor> {
        let ids: Vec<&[u32]> = pairs.iter().map(|pair| pair.ids.as_slice()).collect();
        match &self.layers {
            CrossEncoderLayers::Bert(bert, [dense, output]) => {
                let types: Vec<&[u32]> = pairs.iter().map(|pair| pair.types.as_slice()).collect();
                let (hidden, starts, _) = bert.hidden(&ids, Some(&types))?;
                let first = take(&hidden, &starts, bert.device)?;
                Ok(output.linear(&dense.linear(&first)?.f_tanh()?)?.f_view(-1)?)
            }
            CrossEncoderLayers::Decoder(model) => {
                let batch = Packed::from_rows(&ids, model.device())?;
                let ends = starts(&batch.lengths).into_iter().zip(&batch.lengths);
                let last: Vec<i64> = ends.map(|(start, length)| start + length - 1).collect();
                let hidden = take(&model.forward(&batch)?, &last, model.device())?;
                let answers = upload(&Tensor::f_from_slice(&answers.map(i64::from))?, model.device())?;
                let logits = model.logits_of(&hidden, &answers)?;
                Ok(logits.f_select(1, 0)?.f_sub(&logits.f_select(1, 1)?)?)
            }
        }
    }

    /// Runs the code paths of a GPU on the CPU, for tests.
    #[cfg(test)]
    pub(super) fn use_gpu_paths(&mut self) {
        match &mut self.layers {
            CrossEncoderLayers::Bert(bert, _) => bert.varlen = true,
            CrossEncoderLayers::Decoder(model) => model.use_gpu_paths(),
        }
    }
}

/// An encoder and the two projections of its head, which has one label.
fn classifier(dir: &Path, json: &Value, options: (Device, Kind)) -> Result<(Bert, [Affine; 2])> {
    // The first projection of BERT is part of the encoder.
    let (dense, output) =
        if is_roberta(json) { ("classifier.dense", "classifier.out_proj") } else { ("pooler.dense", "classifier") };
    let name = format!("{output}.weight");
    let shape = weights::shape_of(&weights::files(dir)?, &name)?.ok_or_else(|| {
        Error::new(error::Kind::Model, format!("`{name}` is missing in the weights"))
            .at_path(dir)
            .hint("a cross-encoder has a linear head over the first token under this name")
    })?;
    let labels = shape.first().copied().unwrap_or(0);
    if labels != 1 {
        let why = format!("the model has {labels} labels; a cross-encoder that ranks passages has one");
        return Err(Error::new(error::Kind::Model, why).at_path(dir));
    }
    Bert::load(dir, json, options, |maker, hidden| {
        let mut projection = |name: &str, outputs: usize| {
            if name.starts_with("classifier") {
                maker.prefix = "";
            }
            maker.linear(name, outputs, hidden)
        };
        Ok([projection(dense, hidden)?, projection(output, 1)?])
    })
}
