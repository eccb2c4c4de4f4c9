//! Prompts: the ids of an observation, continuing the last step's ids wherever that is exact.
//!
//! Token in, token out: the prompt of a step that continues the last one is the last prompt's ids, the sampled ids,
//! and the ids of what the environment added; nothing sampled is ever tokenised again.

use std::sync::Arc;

use serde_json::Value;

use super::attempt::{Stop, stop_of};
use crate::error::{Error, Kind};
use crate::mdp::{Message, Observation, Status};
use crate::script::Failure;
use crate::text::{Extension, Renderer};

/// What a step showed and got, from which a later prompt is continued.
#[derive(Clone)]
pub(super) struct Last {
    pub(super) shown: Option<Vec<Message>>,
    /// Schemas that were shown; a conversation goes on with the same ones.
    pub(super) tools: Arc<[Value]>,
    pub(super) ids: Vec<u32>,
    pub(super) response: Vec<u32>,
    pub(super) text: String,
}

/// What the policy is shown at a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub observation: Observation,
    pub ids: Vec<u32>,
    /// It does not extend the last prompt and reply: it starts a new training row.
    pub new_row: bool,
    /// Which of the conversations it continues, where it does.
    pub(super) continues: Option<usize>,
    /// It ends with the reply prefix.
    pub prefixed: bool,
}

impl Prompt {
    /// The ids of an observation. `last`: the last steps of the conversations that it may continue, the latest last.
    pub(super) fn of(
        renderer: &Renderer,
        tools: &[Value],
        observation: Observation,
        last: &[Last],
    ) -> Result<Self, Stop> {
        let count = last.len();
        let messages = match &observation {
            Observation::Messages(messages) => messages,
            Observation::Text(text) => {
                let ids = renderer.tokenizer().encode(text)?;
                return Ok(Self::raw(observation, ids, last));
            }
            Observation::TokenIds(ids) => {
                let ids = ids.clone();
                return Ok(Self::raw(observation, ids, last));
            }
        };
        if let Some(hash) = messages.iter().find_map(|message| message.content.first_image()) {
            let error = Error::new(
                Kind::Env,
                format!("the observation holds the image {hash} and this policy can't see images"),
            )
            .hint("use a vision model, or describe the image in text");
            return Err(Stop::Failed(Failure::new(Status::EnvError, error)));
        }
        let prefixed = renderer.prefixes(messages, tools).map_err(stop_of)?;
        for (place, last) in last.iter().enumerate().rev() {
            if let Some(shown) = &last.shown
                && (std::ptr::eq(&raw const *last.tools, tools) || *last.tools == *tools)
                && let Extension::Appends(added) =
                    renderer.extend(shown, &last.response, &last.text, messages, tools).map_err(stop_of)?
            {
                let ids = [last.ids.as_slice(), &last.response, &added].concat();
                return Ok(Self::new(observation, ids, Some(place), count, prefixed));
            }
        }
        let ids = renderer.prompt(messages, tools).map_err(stop_of)?;
        Ok(Self::new(observation, ids, None, count, prefixed))
    }

    /// A row goes on only with the step right before it.
    fn new(observation: Observation, ids: Vec<u32>, continues: Option<usize>, count: usize, prefixed: bool) -> Self {
        let new_row = continues.is_none_or(|place| place + 1 != count);
        Self { observation, ids, new_row, continues, prefixed }
    }

    fn raw(observation: Observation, ids: Vec<u32>, last: &[Last]) -> Self {
        let continues = last.iter().rposition(|last| {
            let (prompt, response) = (&last.ids, &last.response);
            ids.len() >= prompt.len() + response.len()
                && ids.starts_with(prompt)
                && ids[prompt.len()..].starts_with(response)
        });
        Self::new(observation, ids, continues, last.len(), false)
    }

    /// Refuses ids that no policy can read.
    pub(super) fn check_ids(&self, renderer: &Renderer) -> Result<(), Failure> {
        let vocabulary = renderer.tokenizer().vocab_size();
        let message = match self.ids.iter().find(|id| **id as usize >= vocabulary) {
            _ if self.ids.is_empty() => "the observation is empty: there is nothing to answer".to_owned(),
            Some(id) => format!("the observation has the token id {id}; the vocabulary ends at {}", vocabulary - 1),
            None => return Ok(()),
        };
        Err(Failure::new(Status::EnvError, Error::new(Kind::Env, message)))
    }

    /// The messages that were shown, if it was messages.
    pub(super) fn messages(&self) -> Option<Vec<Message>> {
        match &self.observation {
            Observation::Messages(messages) => Some(messages.clone()),
            Observation::Text(_) | Observation::TokenIds(_) => None,
        }
    }
}
