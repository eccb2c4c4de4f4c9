//! Prompts: the ids of an observation, continuing the last step's ids wherever that is exact.
//!
//! Token in, token out: the prompt of a step that continues the last one is the last prompt's ids, the sampled ids,
//! and the ids of what the environment added; nothing sampled is ever tokenised again.

use serde_json::Value;

use super::attempt::{Stop, stop_of};
use crate::error::{Error, Kind};
use crate::mdp::{Message, Observation, Status};
use crate::script::Failure;
use crate::text::{Extension, Renderer};

/// What the last step showed and got, from which the next prompt is continued.
#[derive(Clone)]
pub(super) struct Last {
    pub(super) shown: Option<Vec<Message>>,
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
    /// It ends with the reply prefix.
    pub prefixed: bool,
}

impl Prompt {
    /// The ids of an observation.
    pub(super) fn of(
        renderer: &Renderer,
        tools: &[Value],
        observation: Observation,
        last: Option<&Last>,
    ) -> Result<Self, Stop> {
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
        if let Some(last) = last
            && let Some(shown) = &last.shown
            && let Extension::Appends(added) =
                renderer.extend(shown, &last.response, &last.text, messages, tools).map_err(stop_of)?
        {
            let ids = [last.ids.as_slice(), &last.response, &added].concat();
            return Ok(Self { observation, ids, new_row: false, prefixed });
        }
        let ids = renderer.prompt(messages, tools).map_err(stop_of)?;
        Ok(Self { observation, ids, new_row: true, prefixed })
    }

    fn raw(observation: Observation, ids: Vec<u32>, last: Option<&Last>) -> Self {
        let continues = last.is_some_and(|last| {
            let (prompt, response) = (&last.ids, &last.response);
            ids.len() >= prompt.len() + response.len()
                && ids.starts_with(prompt)
                && ids[prompt.len()..].starts_with(response)
        });
        Self { observation, ids, new_row: !continues, prefixed: false }
    }

    /// The messages that were shown, if it was messages.
    pub(super) fn messages(&self) -> Option<Vec<Message>> {
        match &self.observation {
            Observation::Messages(messages) => Some(messages.clone()),
            Observation::Text(_) | Observation::TokenIds(_) => None,
        }
    }
}
