//! Models that scripts name (`r1.generate(prompt, { model = … })`): the requests to them. Virtual
//! machines run on their threads, and the tensors of these models are on another one.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::config::{self, DeviceChoice};
use crate::error::{Error, Kind, Result};
use crate::mdp::{FinishReason, Message, Sampling, Seed, conversation};
use crate::schema::{self, section};

/// Models by name: a directory, a run, an id on the Hub, the embedded model. A model is opened by
/// the first request that names it. Requests are sent at once; the futures wait for the results.
pub trait NamedModels: Send + Sync {
    fn generate(&self, model: &str, request: ResponseRequest) -> BoxFuture<'static, Result<ModelResponse>>;

    /// Log-probabilities of the tokens of a text after a prompt.
    fn score(
        &self,
        model: &str,
        prompt: ModelInput,
        text: String,
        temperature: f64,
    ) -> BoxFuture<'static, Result<Vec<f64>>>;

    /// Scores a conversation or a text with a reward model, which is loaded onto the device.
    fn reward(&self, model: &str, device: DeviceChoice, prompt: ModelInput)
    -> BoxFuture<'static, Result<RewardScores>>;
}

static SHARED: OnceLock<Arc<dyn NamedModels>> = OnceLock::new();

/// Lets the scripts of this process use models by name. The first call has effect.
pub fn share_models(models: Arc<dyn NamedModels>) {
    let _ = SHARED.set(models);
}

/// The models of scripts.
///
/// # Errors
/// [`Kind::Script`] in a process that shares none.
pub(crate) fn shared_models(function: &str, model: &str) -> Result<&'static dyn NamedModels> {
    let missing = || Error::new(Kind::Script, format!("{function}: the model `{model}` can't be opened here"));
    SHARED.get().map(|models| &**models).ok_or_else(missing)
}

#[derive(Clone, Debug, PartialEq)]
pub enum ModelInput {
    Text(String),
    Ids(Vec<u32>),
    Messages(Vec<Message>),
}

impl TryFrom<Json> for ModelInput {
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
                Ok(Self::Messages(messages.into_iter().map(|read| read.message).collect()))
            }
            _ => Err(Error::new(Kind::Script, wrong)),
        }
    }
}

/// A response to generate.
#[derive(Clone, Debug)]
pub struct ResponseRequest {
    pub prompt: ModelInput,
    pub options: ResponseOptions,
    pub sampling: SamplingFields,
}

section! {
    /// Options of a response in addition to [`Sampling`].
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

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelResponse {
    /// `None` for a model without a tokenizer.
    pub text: Option<String>,
    pub token_ids: Vec<u32>,
    pub logprobs: Vec<f64>,
    pub finish_reason: FinishReason,
    pub top_logprobs: Option<Vec<Vec<TokenLogprob>>>,
}
