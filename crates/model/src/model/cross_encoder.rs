//! Cross-encoders: `BertForSequenceClassification` checkpoints of transformers with one label (such
//! as ms-marco-MiniLM), from the token ids of a query and a passage to one score, in f32 on the
//! CPU.
//!
//! Nogueira and Cho, "Passage Re-ranking with BERT", arXiv:1901.04085: query and passage are one
//! row, and a linear head over the pooled first token gives the score. Names of parameters are the
//! keys of the checkpoint.

use std::path::Path;

use super::encoder::{Affine, BATCH_TOKENS, Encoder, batches};
use super::weights;
use r1_base::error::{Error, Kind, Result};

const CLASS: &str = "BertForSequenceClassification";

/// See the module documentation.
#[derive(Debug)]
pub struct CrossEncoderModel {
    encoder: Encoder,
    pooler: Affine,
    classifier: Affine,
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
    /// `Kind::Model` for a model of another class or with several labels, and as [`Encoder::load`].
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let json = weights::read_json(&path, "config.json")?;
        let class = &json["architectures"][0];
        if class != CLASS {
            let why =
                format!("`architectures` is {} in config.json; a cross-encoder is a {CLASS}", json["architectures"]);
            return Err(Error::new(Kind::Model, why)
                .at_path(path)
                .hint("models of the class BertModel are encoders: `r1 index build --encoder DIR`"));
        }
        let head = weights::shape_of(&weights::files(dir)?, "classifier.weight")?.ok_or_else(|| {
            Error::new(Kind::Model, "`classifier.weight` is missing in the weights")
                .at_path(dir)
                .hint("a cross-encoder has a linear head over the pooled first token under this name")
        })?;
        let labels = head.first().copied().unwrap_or(0);
        if labels != 1 {
            let why = format!("the model has {labels} labels; a cross-encoder that ranks passages has one");
            return Err(Error::new(Kind::Model, why).at_path(dir));
        }
        let (encoder, (pooler, classifier)) = Encoder::load_with_head(dir, |maker, hidden| {
            let pooler = maker.linear("pooler.dense", hidden, hidden)?;
            maker.prefix = "";
            Ok((pooler, maker.linear("classifier", 1, hidden)?))
        })?;
        Ok(Self { encoder, pooler, classifier })
    }

    /// Most tokens of a row.
    pub fn max_tokens(&self) -> usize {
        self.encoder.max_tokens()
    }

    /// The score of every pair: the logit, without a sigmoid. Pairs of similar length are computed
    /// together, with padding.
    ///
    /// # Errors
    /// `Kind::Model` for a pair without ids, with too many, or with an id or a type that the model
    /// does not have.
    pub fn scores(&self, pairs: &[Pair]) -> Result<Vec<f32>> {
        self.scores_in_batches(pairs, BATCH_TOKENS)
    }

    pub(super) fn scores_in_batches(&self, pairs: &[Pair], tokens: usize) -> Result<Vec<f32>> {
        for pair in pairs {
            self.encoder.check(&pair.ids)?;
            let types = self.encoder.types();
            if pair.types.len() != pair.ids.len() || pair.types.iter().any(|kind| *kind as usize >= types) {
                let why = format!("a pair has types of tokens that the model does not have; it has {types}");
                return Err(Error::new(Kind::Model, why));
            }
        }
        let _guard = tch::no_grad_guard();
        let mut scores = vec![0.0; pairs.len()];
        for batch in batches(&pairs.iter().map(|pair| pair.ids.len()).collect::<Vec<_>>(), tokens) {
            let ids: Vec<&[u32]> = batch.iter().map(|at| pairs[*at].ids.as_slice()).collect();
            let types: Vec<&[u32]> = batch.iter().map(|at| pairs[*at].types.as_slice()).collect();
            let (hidden, _) = self.encoder.hidden(&ids, Some(&types))?;
            let pooled = self.pooler.linear(&hidden.f_select(1, 0)?)?.f_tanh()?;
            let batch_scores: Vec<f32> = self.classifier.linear(&pooled)?.f_view(-1)?.try_into()?;
            batch.iter().zip(batch_scores).for_each(|(at, score)| scores[*at] = score);
        }
        Ok(scores)
    }
}
