//! Text encoders of checkpoints with their tokenizers.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::sentence_modules::SentenceModules;
use super::{Checkpoints, not_finite, tokenized, wrong_tokenizer};
use crate::error::{Error, Kind, Result};
use crate::model::{self, Pooling};
use crate::search::{EncoderOptions, Similarity, TextEncoder};
use crate::text::Tokenizer;

/// Options of an encoder. Options that are not set are read from the files of the model.
#[derive(Clone, Debug, Default)]
pub struct EncoderSettings {
    /// Default: the pooling of `modules.json` or `1_Pooling/config.json`; else the last token for a
    /// decoder, and the mean for other models.
    pub pooling: Option<Pooling>,
    /// Default: the prompt `query`, or nothing.
    pub query_prefix: Option<String>,
    /// Default: the prompt `document`, `passage` or `corpus`, or nothing.
    pub passage_prefix: Option<String>,
    /// Default: `similarity_fn_name`, or the cosine.
    pub similarity: Option<Similarity>,
}

/// A model with its tokenizer.
struct LoadedEncoder {
    /// A mutex, because tensors are not shared between threads.
    model: Mutex<model::Encoder>,
    tokenizer: Tokenizer,
    pooling: Pooling,
    options: EncoderOptions,
    dimension: usize,
    on_gpu: bool,
    directory: PathBuf,
    sha256: String,
}

/// Loads the encoder in `dir`.
///
/// # Errors
/// [`Kind::Model`] for a directory without such a model in safetensors and its `tokenizer.json`.
pub fn load_encoder(dir: &Path, settings: EncoderSettings, how: Checkpoints) -> Result<Arc<dyn TextEncoder>> {
    let model = model::Encoder::load(dir, how.device, how.dtype)?;
    let modules = SentenceModules::read(dir, model.dimension())?;
    let default_pooling = if model.is_causal() { Pooling::Last } else { Pooling::Mean };
    let pooling = settings.pooling.or(modules.pooling).unwrap_or(default_pooling);
    let similarity = match settings.similarity.or(modules.similarity).unwrap_or_default() {
        // The inner product of vectors of unit length is the cosine.
        Similarity::Dot if modules.normalizes => Similarity::Cosine,
        similarity => similarity,
    };
    let options = EncoderOptions {
        pooling: pooling.name().to_owned(),
        query_prefix: settings.query_prefix.unwrap_or(modules.query_prompt),
        passage_prefix: settings.passage_prefix.unwrap_or(modules.passage_prompt),
        max_tokens: modules.max_tokens.unwrap_or(usize::MAX),
        similarity,
    };
    let encoder = LoadedEncoder::new(dir, model, options)?;
    if modules.lowercases && encoder.tokenizer.encode("A a")? != encoder.tokenizer.encode("a a")? {
        return Err(Error::new(Kind::Model, "`do_lower_case` is true, but tokenizer.json does not lowercase texts")
            .at_path(dir.join("sentence_bert_config.json"))
            .hint("add the normalizer Lowercase to tokenizer.json"));
    }
    Ok(Arc::new(encoder))
}

/// Loads the encoder in `dir` with the options of an index.
///
/// # Errors
/// As [`load_encoder`].
pub(super) fn load_index_encoder(
    dir: &Path,
    options: &EncoderOptions,
    how: Checkpoints,
) -> Result<Arc<dyn TextEncoder>> {
    let model = model::Encoder::load(dir, how.device, how.dtype)?;
    Ok(Arc::new(LoadedEncoder::new(dir, model, options.clone())?))
}

impl LoadedEncoder {
    fn new(dir: &Path, model: model::Encoder, options: EncoderOptions) -> Result<Self> {
        let pooling = Pooling::named("pooling", &options.pooling)?;
        let tokenizer = Tokenizer::load(dir)?;
        let special = tokenizer.encode_truncated("", usize::MAX)?;
        if !model.is_causal() && special.len() != 2 {
            return Err(wrong_tokenizer(dir, "tokenizer.json does not put [CLS] and [SEP] around a text"));
        }
        let config = dir.join("tokenizer_config.json");
        if special.is_empty()
            && config.exists()
            && model::read_json(&config, "the tokenizer's configuration")?["add_eos_token"] == true
        {
            return Err(wrong_tokenizer(dir, "tokenizer.json adds no token at the end, but `add_eos_token` is true"));
        }
        let max_tokens = options.max_tokens.min(model.max_tokens());
        if max_tokens <= special.len() {
            let why = format!("the encoder reads at most {max_tokens} tokens, which leaves none for a text");
            return Err(Error::new(Kind::Model, why).at_path(dir));
        }
        let directory = dir.canonicalize().map_err(|error| Error::io(Kind::Model, "open", dir, &error))?;
        let (sha256, dimension, on_gpu) = (identity(dir)?, model.dimension(), model.is_on_gpu());
        let options = EncoderOptions { max_tokens, ..options };
        let model = Mutex::new(model);
        Ok(Self { model, tokenizer, pooling, options, dimension, on_gpu, directory, sha256 })
    }
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

impl TextEncoder for LoadedEncoder {
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

    fn is_on_gpu(&self) -> bool {
        self.on_gpu
    }

    fn encode(&self, texts: &[String]) -> Result<Vec<f32>> {
        let limit = self.options.max_tokens;
        let rows = tokenized(texts, |text| self.tokenizer.encode_truncated(text, limit))?;
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vectors = model.encode(&rows, self.pooling)?;
        drop(model);
        for vector in vectors.chunks_exact_mut(self.dimension) {
            let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
            if !length.is_finite() {
                return Err(not_finite("the encoder returned a vector that is not finite", &self.directory));
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
