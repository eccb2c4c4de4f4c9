//! A reward model: a transformer with a linear head over the hidden state of the last token, as in
//! transformers' `…ForSequenceClassification` (a discriminative reward model with one label, or a
//! classifier with several).

use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::encoder::take;
use super::{Config, Model, Packed, json_file, weights, zeros};
use r1_base::error::{self, Error, Result};

const CLASS: &str = "ForSequenceClassification";
const HEAD: &str = "score.weight";

/// See the module documentation.
#[derive(Debug)]
pub struct RewardModel {
    trunk: Model,
    /// `[L, E]`, L labels.
    head: Tensor,
    /// Trailing ids of this value are not read: transformers scores the last other token.
    padding: Option<u32>,
}

impl RewardModel {
    /// Loads `config.json` and the safetensors in `dir`.
    ///
    /// # Errors
    /// `Kind::Model` for a model of another class, and as [`Model::load`].
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        let path = dir.join("config.json");
        let json = json_file::read_json(&path, "config.json")?;
        let config = trunk_config(&json).map_err(|error| error.at_path(&path))?;
        let width = config.hidden_size as i64;
        let missing = || {
            Error::new(error::Kind::Model, format!("`{HEAD}` is missing in the weights"))
                .at_path(dir)
                .hint("a reward model has a linear head over the last hidden state under this name")
        };
        let shape = weights::shape_of(&weights::files(dir)?, HEAD)?.ok_or_else(missing)?;
        let labels = shape.first().copied().filter(|labels| *labels > 0).ok_or_else(missing)?;
        let head = zeros(&[labels, width], kind, device)?;
        let trunk = Model::load_with_head(config, dir, (device, kind), (HEAD, &head))?;
        let padding = json["pad_token_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        Ok(Self { trunk, head, padding })
    }

    /// The transformer.
    pub fn trunk(&self) -> &Model {
        &self.trunk
    }

    /// Scores of each row: one number per label, before a softmax. Rows are computed together,
    /// without padding.
    ///
    /// # Errors
    /// `Kind::Model` for a row without ids or with an id outside the vocabulary.
    pub fn scores(&self, rows: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let vocab = self.trunk.config.vocab_size;
        let mut last = Vec::with_capacity(rows.len());
        let mut start = 0;
        for row in rows {
            if row.is_empty() {
                return Err(Error::new(error::Kind::Model, "a text without tokens has no score"));
            }
            if let Some(id) = row.iter().find(|id| **id as usize >= vocab) {
                let message = format!("token id {id} is outside the vocabulary of {vocab}");
                return Err(Error::new(error::Kind::Model, message));
            }
            // With padding alone transformers takes the first token.
            let at = row.iter().rposition(|id| Some(*id) != self.padding).unwrap_or(0);
            last.push((start + at) as i64);
            start += row.len();
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let _guard = tch::no_grad_guard();
        let device = self.trunk.device();
        let hidden = take(&self.trunk.forward(&Packed::from_rows(rows, device)?)?, &last, device)?;
        let scores = hidden.f_linear(&self.head, None::<&Tensor>)?.f_to_kind(Kind::Float)?;
        let flat: Vec<f32> = scores.f_view(-1)?.f_to_device(Device::Cpu)?.try_into()?;
        let labels = self.head.size()[0] as usize;
        Ok(flat.chunks(labels).map(<[f32]>::to_vec).collect())
    }
}

/// The configuration of the transformer in a classifier's `config.json`.
fn trunk_config(json: &Value) -> Result<Config> {
    let class = json["architectures"].as_array().and_then(|classes| classes.first()?.as_str());
    let Some(family) = class.and_then(|class| class.strip_suffix(CLASS)) else {
        let architectures = &json["architectures"];
        let message = format!("`architectures` is {architectures} in config.json; a reward model is a …{CLASS}");
        return Err(Error::new(error::Kind::Model, message)
            .hint("models that generate text are judges (docs/guide/rewards.md) or score texts with r1.logprobs"));
    };
    let mut config = json.clone();
    // Gemma's classifiers have another prefix than its language models, but the same `model_type`.
    config["architectures"] =
        if config["model_type"].is_null() { json!([format!("{family}ForCausalLM")]) } else { json!(null) };
    // The output head, which such a checkpoint does not have, is not allocated.
    config["tie_word_embeddings"] = json!(true);
    for unused in ["num_labels", "classifier_dropout"] {
        if let Some(object) = config.as_object_mut() {
            object.remove(unused);
        }
    }
    Config::from_json(&config)
}
