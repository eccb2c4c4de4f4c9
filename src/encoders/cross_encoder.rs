//! Re-ranking: a cross-encoder reads the query with each of the best passages, and its scores order
//! them again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::bert::{identity, sequence_limit};
use crate::error::{Error, Kind, Result};
use crate::model::{self, Pair};
use crate::search::{Passage, Reranker, passage_text};
use crate::text::Tokenizer;

/// A cross-encoder with its tokenizer.
pub struct CrossEncoder {
    /// A mutex, because tensors are not shared between threads.
    model: Mutex<model::CrossEncoderModel>,
    tokenizer: Tokenizer,
    max_tokens: usize,
    directory: PathBuf,
    sha256: String,
}

/// The cross-encoders that this process has loaded.
static LOADED: Mutex<Vec<Weak<CrossEncoder>>> = Mutex::new(Vec::new());

impl CrossEncoder {
    /// Loads the cross-encoder in `dir`.
    ///
    /// # Errors
    /// [`Kind::Model`] for a directory without such a model and its `tokenizer.json`.
    pub fn load(dir: &Path) -> Result<Self> {
        let directory =
            dir.canonicalize().map_err(|error| Error::io(Kind::Model, "open the cross-encoder", dir, &error))?;
        let (model, tokenizer) = (model::CrossEncoderModel::load(dir)?, Tokenizer::load(dir)?);
        let max_tokens = sequence_limit(dir)?.map_or(model.max_tokens(), |limit| limit.min(model.max_tokens()));
        let (ids, types) = tokenizer.encode_pair("a", "b", max_tokens)?;
        if ids.len() < 5 || types.last() != Some(&1) {
            let why = "tokenizer.json does not put [CLS], [SEP] and [SEP] around two texts, the second with type 1";
            return Err(Error::new(Kind::Model, why)
                .at_path(dir.join("tokenizer.json"))
                .hint("save the tokenizer again with transformers' AutoTokenizer and save_pretrained"));
        }
        let sha256 = identity(dir)?;
        Ok(Self { model: Mutex::new(model), tokenizer, max_tokens, directory, sha256 })
    }

    /// Loads a cross-encoder once per process: callers share it while one of them holds it.
    ///
    /// # Errors
    /// As [`model::CrossEncoderModel::load`].
    pub fn shared(dir: &Path) -> Result<Arc<Self>> {
        let real = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        // The lock is held while a model is loaded, so that two threads do not load it twice.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|encoder| encoder.strong_count() > 0);
        if let Some(encoder) = loaded.iter().filter_map(Weak::upgrade).find(|encoder| encoder.directory == real) {
            return Ok(encoder);
        }
        let encoder = Arc::new(Self::load(dir)?);
        loaded.push(Arc::downgrade(&encoder));
        Ok(encoder)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// SHA-256 of the model's configuration, weights and tokenizer, in hex.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

impl Reranker for CrossEncoder {
    fn scores(&self, query: &str, passages: &[Passage]) -> Result<Vec<f32>> {
        let pair = |passage: &Passage| {
            let (ids, types) = self.tokenizer.encode_pair(query, &passage_text("", passage), self.max_tokens)?;
            Ok(Pair { ids, types })
        };
        let pairs: Vec<Pair> = passages.iter().map(pair).collect::<Result<_>>()?;
        let scores = self.model.lock().unwrap_or_else(PoisonError::into_inner).scores(&pairs)?;
        if scores.iter().any(|score| !score.is_finite()) {
            return Err(Error::new(Kind::Numeric, "the cross-encoder returned a score that is not finite")
                .at_path(&self.directory)
                .hint("the weights of the model may be damaged"));
        }
        Ok(scores)
    }
}
