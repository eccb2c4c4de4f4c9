//! The files of sentence-transformers beside a model: `modules.json` names what follows the
//! transformer (pooling, normalisation), `config_sentence_transformers.json` the prompts and the
//! similarity, and `sentence_bert_config.json` the longest text. A part that would change vectors
//! and is not supported is refused.

use std::path::Path;

use serde_json::Value as Json;

use crate::error::{Error, Kind, Result};
use crate::model::{Pooling, read_json};
use crate::search::Similarity;

const LIMITS: &str = "sentence_bert_config.json";

/// What the files say; a model without them has the default.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SentenceModules {
    pub(super) pooling: Option<Pooling>,
    /// Whether vectors have unit length.
    pub(super) normalizes: bool,
    pub(super) query_prompt: String,
    pub(super) passage_prompt: String,
    pub(super) similarity: Option<Similarity>,
    pub(super) max_tokens: Option<usize>,
    /// Whether texts are to be in lower case.
    pub(super) lowercases: bool,
}

impl SentenceModules {
    /// Reads the files in `dir`, for a model with hidden states of the size `dimension`.
    ///
    /// # Errors
    /// [`Kind::Model`] for a file that can't be read, and for a part that is not supported, by its
    /// name.
    pub(super) fn read(dir: &Path, dimension: usize) -> Result<Self> {
        let mut modules = Self::default();
        modules.read_modules(dir, dimension)?;
        modules.read_prompts(dir)?;
        modules.read_limits(dir)?;
        Ok(modules)
    }

    fn read_modules(&mut self, dir: &Path, dimension: usize) -> Result<()> {
        let path = dir.join("modules.json");
        let Some(json) = optional(&path)? else {
            self.pooling = pooling(&dir.join("1_Pooling/config.json"), dimension)?;
            return Ok(());
        };
        let refuse = |why: String| Err(refused(&path, why));
        for (index, module) in json.as_array().into_iter().flatten().enumerate() {
            // The last part of the name of the class, which has moved between versions.
            let class = module["type"].as_str().and_then(|class| class.rsplit('.').next()).unwrap_or_default();
            let folder = module["path"].as_str().unwrap_or_default();
            match (index, class) {
                (0, "Transformer") if folder.is_empty() => {}
                (0, "Transformer") => {
                    return refuse(format!("the transformer is in the folder {folder:?}, not beside it"));
                }
                (1.., "Pooling") if self.pooling.is_none() && !self.normalizes => {
                    if Path::new(folder).file_name().is_none_or(|name| name != folder) {
                        return refuse(format!("the path of Pooling is {folder:?}; it is the name of a folder"));
                    }
                    self.pooling = pooling(&dir.join(folder).join("config.json"), dimension)?;
                }
                (1.., "Normalize") if self.pooling.is_some() => self.normalizes = true,
                _ => {
                    let class = if class.is_empty() { module["type"].to_string() } else { class.to_owned() };
                    let supported = "supported are Transformer, Pooling and Normalize, in this order";
                    return refuse(format!("module {index} is {class}, which is not supported there; {supported}"));
                }
            }
        }
        if self.pooling.is_none() {
            return refuse("it has no Pooling, so that a text has no single vector".to_owned());
        }
        Ok(())
    }

    fn read_prompts(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join("config_sentence_transformers.json");
        let Some(json) = optional(&path)? else { return Ok(()) };
        let prompt = |names: &[&str]| -> Result<String> {
            match names.iter().map(|name| (name, &json["prompts"][name])).find(|(_, prompt)| !prompt.is_null()) {
                None => Ok(String::new()),
                Some((_, Json::String(prompt))) => Ok(prompt.clone()),
                Some((name, other)) => {
                    Err(refused(&path, format!("the prompt `{name}` is {other}; it must be a text")))
                }
            }
        };
        self.query_prompt = prompt(&["query"])?;
        self.passage_prompt = prompt(&["document", "passage", "corpus"])?;
        let default_name = &json["default_prompt_name"];
        if default_name.as_str().is_some_and(|name| json["prompts"][name].is_null()) {
            let why = format!("`default_prompt_name` is {default_name}, which is not in `prompts`");
            return Err(refused(&path, why));
        }
        let name = &json["similarity_fn_name"];
        self.similarity = Similarity::ALL.into_iter().find(|similarity| *name == similarity.name());
        if self.similarity.is_none() && !name.is_null() {
            return Err(refused(&path, format!("`similarity_fn_name` is {name}; supported are cosine and dot")));
        }
        Ok(())
    }

    fn read_limits(&mut self, dir: &Path) -> Result<()> {
        let path = dir.join(LIMITS);
        self.max_tokens = longest_text(dir)?;
        let Some(json) = optional(&path)? else { return Ok(()) };
        for field in ["query_length", "document_length", "query_expansion"] {
            if !json[field].is_null() {
                return Err(refused(&path, format!("`{field}` is {}, which is not supported", json[field])));
            }
        }
        self.lowercases = json["do_lower_case"] == true;
        Ok(())
    }
}

/// The longest text in tokens: `max_seq_length`, or else `model_max_length` of the tokenizer.
pub(super) fn longest_text(dir: &Path) -> Result<Option<usize>> {
    let path = dir.join(LIMITS);
    let limit = optional(&path)?.map(|json| json["max_seq_length"].clone()).unwrap_or_default();
    match limit.as_u64().filter(|tokens| *tokens > 0) {
        Some(tokens) => Ok(Some(tokens as usize)),
        None if limit.is_null() => {
            // transformers writes a number above u64 for a tokenizer without a limit.
            let tokenizer = optional(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
            Ok(tokenizer["model_max_length"].as_u64().filter(|tokens| *tokens > 0).map(|tokens| tokens as usize))
        }
        None => Err(refused(&path, format!("`max_seq_length` is {limit}; it must be a whole number above 0"))),
    }
}

/// The pooling in the file of a module; `None` without the file.
fn pooling(path: &Path, dimension: usize) -> Result<Option<Pooling>> {
    let Some(json) = optional(path)? else { return Ok(None) };
    let on: Vec<&str> = match (&json["pooling_mode"], json.as_object()) {
        (Json::String(mode), _) => vec![mode],
        (Json::Array(modes), _) => modes.iter().map(|mode| mode.as_str().unwrap_or("?")).collect(),
        (_, Some(fields)) => {
            let modes = fields.iter().filter(|(name, value)| name.starts_with("pooling_mode_") && **value == true);
            modes.map(|(name, _)| name.trim_start_matches("pooling_mode_")).collect()
        }
        _ => Vec::new(),
    };
    for field in ["word_embedding_dimension", "embedding_dimension"] {
        if json[field].as_u64().is_some_and(|size| size != dimension as u64) {
            let why = format!("`{field}` is {}, but the model has hidden states of {dimension} numbers", json[field]);
            return Err(refused(path, why));
        }
    }
    if json["include_prompt"] == false {
        return Err(refused(path, "`include_prompt` is false: pooling without the prompt is not supported".to_owned()));
    }
    match on[..] {
        ["mean" | "mean_tokens"] => Ok(Some(Pooling::Mean)),
        ["cls" | "cls_token"] => Ok(Some(Pooling::Cls)),
        ["lasttoken"] => Ok(Some(Pooling::Last)),
        _ => {
            let modes = if on.is_empty() { "none".to_owned() } else { on.join(", ") };
            Err(refused(path, format!("the pooling of this model is not supported: {modes}"))
                .hint("mean, cls and lasttoken are supported"))
        }
    }
}

/// A JSON file that a model may have.
fn optional(path: &Path) -> Result<Option<Json>> {
    if path.exists() { read_json(path, "the file").map(Some) } else { Ok(None) }
}

fn refused(path: &Path, why: String) -> Error {
    Error::new(Kind::Model, why).at_path(path)
}
