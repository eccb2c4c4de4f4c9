//! Calls of `r1.model`: open models, which score ids and generate text.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::request::calls;
use crate::config::{self, PolicySettings};
use crate::error::{Error, Kind, Result};
use crate::mdp::{FinishReason, Message, Sampling, Seed, conversation};
use crate::schema::{self, section};

calls! {
    /// Calls of models. `model` is the number of an open one.
    pub enum ModelCall {
        /// Opens a model; `policy.model` is its directory, a run or a name. The number of the
        /// model.
        OpenModel {
            policy: Box<PolicySettings>,
            /// Tool-call format; selected by the model's files if not set.
            format: Option<String>,
        } -> u64;
        /// Closes a model.
        CloseModel { model: u64 } -> ();
        /// `config.json` of the model.
        ModelConfig { model: u64 } -> Json;
        /// The directory of the model's tokenizer and template.
        ModelDir { model: u64 } -> PathBuf;
        /// The directory of the tokenizer and template of a path or name, which is not opened.
        TextDir { name: String } -> PathBuf;
        /// For each id after the first: its log-probability, and the `top` most likely ids at its
        /// position.
        Logprobs { model: u64, ids: Vec<u32>, top: usize, temperature: f64 } -> ScoredIds;
        /// Log-probabilities of the tokens of a text after a prompt.
        Score { model: u64, prompt: Prompt, text: String, temperature: f64 } -> Vec<f64>;
        /// Opens a reward model: a directory, or an id on the Hub. The number of the reward model.
        OpenRewardModel { name: String } -> u64;
        /// Scores a conversation or a text with a reward model: one number per label.
        Reward { model: u64, prompt: Prompt } -> RewardScores;
        /// V logits for each id.
        Logits { model: u64, ids: Vec<u32> } -> Vec<Vec<f64>>;
        /// Generates a response.
        Generate { model: u64, prompt: Prompt, options: ResponseOptions, sampling: SamplingFields } -> Response;
    }
}

/// The input of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Json")]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Messages(Vec<Message>),
}

impl TryFrom<Json> for Prompt {
    type Error = Error;

    fn try_from(prompt: Json) -> Result<Self> {
        let wrong = "the prompt must be a list of token ids, a list of messages, or text";
        match prompt {
            Json::String(text) => Ok(Self::Text(text)),
            Json::Array(ref list) if list.first().is_some_and(Json::is_u64) => {
                let ids = Vec::deserialize(&prompt).map_err(|_| Error::new(Kind::Script, wrong))?;
                Ok(Self::Ids(ids))
            }
            Json::Array(ref list) if list.first().is_some_and(Json::is_object) => {
                let messages = conversation::messages(&prompt, "prompt").map_err(|invalid| invalid.of_script())?;
                Ok(Self::Messages(messages.into_iter().map(|message| message.message).collect()))
            }
            _ => Err(Error::new(Kind::Script, wrong)),
        }
    }
}

section! {
    /// Options of a response in addition to those of [`Sampling`].
    pub struct ResponseOptions: "" {
        /// Token ids that end a response, in addition to the model's own.
        stop_ids: Vec<u32> = Vec::new();
        /// Does not end a response at the model's own ids.
        ignore_eos: bool = false;
        /// Seed of the response.
        seed: Seed = Seed::default();
        /// Schemas of tools, for the chat template.
        tools: Vec<Json> = Vec::new();
    }
}

/// Fields of [`Sampling`] that replace the defaults of a model or a recipe.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct SamplingFields(Map<String, Json>);

impl SamplingFields {
    /// The sampling settings with these fields.
    ///
    /// # Errors
    /// Unknown fields and values of another type.
    pub fn over(self, defaults: &Sampling) -> Result<Sampling> {
        schema::read("sampling", &Json::Object(self.0), defaults).map_err(config::refused)
    }
}

impl From<Map<String, Json>> for SamplingFields {
    fn from(fields: Map<String, Json>) -> Self {
        Self(fields)
    }
}

/// Result of a reward model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardScores {
    /// One number per label, before a softmax.
    pub scores: Vec<f64>,
    /// Number of tokens read.
    pub tokens: usize,
}

/// A token id at a position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f64,
}

/// Log-probabilities of ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScoredIds {
    pub logprobs: Vec<f64>,
    /// The most likely ids by position.
    pub top: Vec<Vec<TokenLogprob>>,
}

/// A generated response.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Response {
    /// `None` for a model without a tokenizer.
    pub text: Option<String>,
    pub token_ids: Vec<u32>,
    pub logprobs: Vec<f64>,
    pub finish_reason: FinishReason,
    pub top_logprobs: Option<Vec<Vec<TokenLogprob>>>,
}
