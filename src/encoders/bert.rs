//! Text encoders of BERT checkpoints with their tokenizers.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::error::{Error, Kind, Result};
use crate::model::{self, Pooling};
use crate::search::{EncoderOptions, Similarity, TextEncoder};
use crate::text::Tokenizer;

/// Options of an encoder. Options that are not set are read from the files of the model.
#[derive(Clone, Debug, Default)]
pub struct EncoderSettings {
    /// Default: the pooling in `1_Pooling/config.json`, or the mean.
    pub pooling: Option<Pooling>,
    pub query_prefix: String,
    pub passage_prefix: String,
    pub similarity: Similarity,
}

/// A model with its tokenizer.
struct BertModel {
    /// A mutex, because tensors are not shared between threads.
    model: Mutex<model::Encoder>,
    tokenizer: Tokenizer,
    pooling: Pooling,
    options: EncoderOptions,
    dimension: usize,
    directory: PathBuf,
    sha256: String,
}

/// Loads the encoder in `dir`.
///
/// # Errors
/// [`Kind::Model`] for a directory without a BERT model in safetensors and its `tokenizer.json`.
pub fn load_encoder(dir: &Path, settings: EncoderSettings) -> Result<Arc<dyn TextEncoder>> {
    let pooling = match settings.pooling {
        Some(pooling) => pooling,
        None => Pooling::of(dir)?.unwrap_or_default(),
    };
    let limit = sequence_limit(dir)?;
    let EncoderSettings { query_prefix, passage_prefix, similarity, .. } = settings;
    let max_tokens = limit.unwrap_or(usize::MAX);
    let options = EncoderOptions { pooling: String::new(), query_prefix, passage_prefix, max_tokens, similarity };
    load(dir, pooling, options)
}

/// Loads the encoder in `dir` with the options of an index.
///
/// # Errors
/// As [`load_encoder`].
pub(super) fn load_index_encoder(dir: &Path, options: &EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
    load(dir, Pooling::named("pooling", &options.pooling)?, options.clone())
}

fn load(dir: &Path, pooling: Pooling, options: EncoderOptions) -> Result<Arc<dyn TextEncoder>> {
    let model = model::Encoder::load(dir)?;
    let tokenizer = Tokenizer::load(dir)?;
    let special = tokenizer.encode_truncated("", usize::MAX)?;
    if special.len() != 2 {
        let why = "tokenizer.json does not put [CLS] and [SEP] around a text";
        return Err(Error::new(Kind::Model, why)
            .at_path(dir.join("tokenizer.json"))
            .hint("save the tokenizer again with transformers' AutoTokenizer and save_pretrained"));
    }
    let max_tokens = options.max_tokens.min(model.max_tokens());
    if max_tokens <= special.len() {
        let why = format!("the encoder reads at most {max_tokens} tokens, which leaves none for a text");
        return Err(Error::new(Kind::Model, why).at_path(dir));
    }
    let directory = dir.canonicalize().map_err(|error| Error::io(Kind::Model, "open", dir, &error))?;
    let sha256 = identity(dir)?;
    let dimension = model.dimension();
    let options = EncoderOptions { pooling: pooling.name().to_owned(), max_tokens, ..options };
    let model = Mutex::new(model);
    Ok(Arc::new(BertModel { model, tokenizer, pooling, options, dimension, directory, sha256 }))
}

/// `max_seq_length` of a sentence-transformers model.
pub(super) fn sequence_limit(dir: &Path) -> Result<Option<usize>> {
    let path = dir.join("sentence_bert_config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| Error::io(Kind::Model, "read", &path, &error);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).map_err(failed)?)
        .map_err(|error| Error::new(Kind::Model, format!("the file is not JSON: {error}")).at_path(&path))?;
    Ok(json["max_seq_length"].as_u64().map(|limit| limit as usize))
}

/// SHA-256 over the names and contents of the files that vectors and scores depend on.
pub(super) fn identity(dir: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    let mut files = vec![dir.join("config.json"), dir.join("tokenizer.json")];
    files.extend(model::weight_files(dir)?);
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let mut read = || -> std::io::Result<()> {
            let mut file = File::open(&path)?;
            hash.update(file.metadata()?.len().to_le_bytes());
            loop {
                let count = file.read(&mut buffer)?;
                if count == 0 {
                    return Ok(());
                }
                hash.update(&buffer[..count]);
            }
        };
        read().map_err(|error| Error::io(Kind::Model, "read", &path, &error))?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

impl TextEncoder for BertModel {
    fn sha256(&self) -> &str {
        &self.sha256
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn options(&self) -> &EncoderOptions {
        &self.options
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn encode(&self, texts: &[String]) -> Result<Vec<f32>> {
        let limit = self.options.max_tokens;
        let rows: Vec<Vec<u32>> =
            texts.iter().map(|text| self.tokenizer.encode_truncated(text, limit)).collect::<Result<_>>()?;
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vectors = model.encode(&rows, self.pooling)?;
        drop(model);
        for vector in vectors.chunks_exact_mut(self.dimension) {
            let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
            if !length.is_finite() {
                return Err(Error::new(Kind::Numeric, "the encoder returned a vector that is not finite")
                    .at_path(&self.directory)
                    .hint("the weights of the model may be damaged"));
            }
            if self.options.similarity == Similarity::Dot {
                continue;
            }
            // As torch.nn.functional.normalize.
            let scale = 1.0 / length.max(1e-12);
            for number in vector {
                *number = (f64::from(*number) * scale) as f32;
            }
        }
        Ok(vectors)
    }
}
