//! Re-ranking: a cross-encoder reads the query with each of the best passages, and its scores order
//! them again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::Value as Json;

use super::sentence_modules::longest_text;
use super::text_encoder::identity;
use super::{Checkpoints, not_finite, tokenized, wrong_tokenizer};
use crate::error::{Error, Kind, Result};
use crate::model::{self, Pair, PairFormat};
use crate::search::{Passage, Reranker, passage_text};
use crate::text::Tokenizer;

/// The question of Qwen3-Reranker (arXiv:2506.05176), before and after query and passage, and its
/// answers.
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
                      Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
                      <|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";
const ANSWERS: [&str; 2] = ["yes", "no"];
/// Most tokens of the question.
const QUESTION_TOKENS: usize = 8192;

/// A cross-encoder with its tokenizer.
pub struct CrossEncoder {
    /// A mutex, because tensors are not shared between threads.
    model: Mutex<model::CrossEncoderModel>,
    tokenizer: Tokenizer,
    format: PairFormat,
    /// The ids of the question's beginning and end, and of its answers.
    question: [Vec<u32>; 2],
    answers: [u32; 2],
    max_tokens: usize,
    directory: PathBuf,
    loaded_as: Checkpoints,
    sha256: String,
}

/// The cross-encoders that this process has loaded.
static LOADED: Mutex<Vec<Weak<CrossEncoder>>> = Mutex::new(Vec::new());

impl CrossEncoder {
    /// Loads the cross-encoder in `dir`.
    ///
    /// # Errors
    /// [`Kind::Model`] for a directory without such a model and its `tokenizer.json`.
    pub fn load(dir: &Path, loaded_as: Checkpoints) -> Result<Self> {
        let directory =
            dir.canonicalize().map_err(|error| Error::io(Kind::Model, "open the cross-encoder", dir, &error))?;
        let model = model::CrossEncoderModel::load(dir, loaded_as.device, loaded_as.dtype)?;
        let tokenizer = Tokenizer::load(dir)?;
        let format = model.format();
        let mut max_tokens = longest_text(dir)?.unwrap_or(usize::MAX).min(model.max_tokens());
        let (mut question, mut answers) = ([Vec::new(), Vec::new()], [0, 0]);
        if format == PairFormat::Question {
            let id = |token: &str| {
                let why = || format!("tokenizer.json has no token `{token}`, which the question needs");
                tokenizer.id_of(token).ok_or_else(|| wrong_tokenizer(dir, why()))
            };
            for token in ["<|im_start|>", "<|im_end|>", "<think>", "</think>"] {
                id(token)?;
            }
            question = [tokenizer.encode(BEFORE)?, tokenizer.encode(AFTER)?];
            answers = [id(ANSWERS[0])?, id(ANSWERS[1])?];
            check_answers(dir, answers)?;
            max_tokens = max_tokens.min(QUESTION_TOKENS);
        } else {
            let (ids, types) = tokenizer.encode_pair("a", "b", max_tokens)?;
            if ids.len() < 5 || (format == PairFormat::Types && types.last() != Some(&1)) {
                let why = "tokenizer.json does not put [CLS], [SEP] and [SEP] around two texts, the second with type 1";
                return Err(wrong_tokenizer(dir, why));
            }
        }
        let (model, sha256) = (Mutex::new(model), identity(dir)?);
        Ok(Self { model, tokenizer, format, question, answers, max_tokens, directory, loaded_as, sha256 })
    }

    /// Loads a cross-encoder once per process: callers share it while one of them holds it.
    ///
    /// # Errors
    /// As [`model::CrossEncoderModel::load`].
    pub fn shared(dir: &Path, loaded_as: Checkpoints) -> Result<Arc<Self>> {
        let real = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        // The lock is held while a model is loaded, so that two threads do not load it twice.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|encoder| encoder.strong_count() > 0);
        let same = |encoder: &Arc<Self>| encoder.directory == real && encoder.loaded_as == loaded_as;
        if let Some(encoder) = loaded.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(encoder);
        }
        let encoder = Arc::new(Self::load(dir, loaded_as)?);
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

    /// A query and a passage as one row.
    fn pair(&self, query: &str, passage: &str) -> Result<Pair> {
        if self.format == PairFormat::Question {
            let text = format!("<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {passage}");
            let [before, after] = &self.question;
            let room = self.max_tokens.saturating_sub(before.len() + after.len());
            let text = self.tokenizer.encode(&text)?;
            let ids = [before, &text[..room.min(text.len())], after].concat();
            return Ok(Pair { types: vec![0; ids.len()], ids });
        }
        let (ids, mut types) = self.tokenizer.encode_pair(query, passage, self.max_tokens)?;
        if self.format == PairFormat::OneType {
            types.fill(0);
        }
        Ok(Pair { ids, types })
    }
}

/// Refuses a reranker whose files name other answers than the question's.
fn check_answers(dir: &Path, answers: [u32; 2]) -> Result<()> {
    let modules = dir.join("modules.json");
    if !modules.exists() {
        return Ok(());
    }
    let json = model::read_json(&modules, "the modules")?;
    let is_score = |module: &&Json| module["type"].as_str().is_some_and(|class| class.ends_with(".LogitScore"));
    let score = json.as_array().and_then(|all| all.iter().find(is_score));
    let folder = score.and_then(|module| module["path"].as_str()).unwrap_or_default();
    let path = dir.join(folder).join("config.json");
    let score = match score {
        Some(_) => model::read_json(&path, "the answers")?,
        None => Json::Null,
    };
    if [&score["true_token_id"], &score["false_token_id"]] == answers.map(Json::from).each_ref() {
        return Ok(());
    }
    let why = format!("the answers are not those of Qwen3-Reranker, {ANSWERS:?} with the ids {answers:?}");
    Err(Error::new(Kind::Model, why).at_path(if folder.is_empty() { modules } else { path }))
}

impl Reranker for CrossEncoder {
    fn scores(&self, query: &str, passages: &[Passage]) -> Result<Vec<f32>> {
        let pairs = tokenized(passages, |passage| self.pair(query, &passage_text("", passage)))?;
        let scores = self.model.lock().unwrap_or_else(PoisonError::into_inner).scores(&pairs, self.answers)?;
        if scores.iter().any(|score| !score.is_finite()) {
            return Err(not_finite("the cross-encoder returned a score that is not finite", &self.directory));
        }
        Ok(scores)
    }
}
