//! Prompts: the token ids of an observation, continuing the ids of an earlier step if that is
//! exact.
//!
//! Token-in, token-out: the prompt of a step that continues an earlier one consists of the earlier
//! prompt's ids, the sampled ids, and the ids of the text added by the environment. Sampled tokens
//! are never encoded again.

use std::sync::Arc;

use serde_json::Value;

use super::served::not_messages;
use super::stage::{Stop, stop_of};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, Observation, Status};
use crate::script::Failure;
use crate::text::{Extension, Renderer};

/// A prompt and its response, which a later prompt may continue.
#[derive(Clone, Debug)]
pub(super) struct ContinuedTurn {
    /// The messages of the prompt, if it was rendered from messages.
    pub shown: Option<Vec<Message>>,
    /// The tool schemas of the prompt. Only a prompt with the same ones continues it.
    pub tools: Arc<[Value]>,
    pub ids: Vec<u32>,
    pub response: Vec<u32>,
    pub text: String,
}

/// The ids of a prompt of messages. If the messages exactly continue one of the earlier `turns`
/// (the latest first), the ids are the ids of its prompt, of its response and of the added text,
/// and the index of the turn is returned; sampled ids are not encoded again. Otherwise the messages
/// are rendered as a whole.
fn prompt_ids(
    renderer: &Renderer,
    tools: &[Value],
    messages: &[Message],
    turns: &[ContinuedTurn],
) -> Result<(Vec<u32>, Option<usize>)> {
    for (index, turn) in turns.iter().enumerate().rev() {
        if let Some(shown) = &turn.shown
            && (std::ptr::eq(&raw const *turn.tools, tools) || *turn.tools == *tools)
            && let Extension::Appends(added) = renderer.extend(shown, &turn.response, &turn.text, messages, tools)?
        {
            return Ok(([turn.ids.as_slice(), &turn.response, &added].concat(), Some(index)));
        }
    }
    Ok((renderer.prompt(messages, tools)?, None))
}

/// What the policy is asked to continue at a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub observation: Observation,
    pub ids: Vec<u32>,
    /// The prompt does not extend the previous prompt and response: it starts a new training row.
    pub new_row: bool,
    /// Index of the conversation that it continues.
    pub(super) continues: Option<usize>,
    /// The prompt ends with the reply prefix.
    pub prefixed: bool,
}

impl Prompt {
    /// The ids of an observation. `last`: the last turns of the conversations that it may continue,
    /// the latest last.
    pub(super) fn of(
        renderer: &Renderer,
        tools: &[Value],
        observation: Observation,
        last: &[ContinuedTurn],
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
        Self::refuse_images(renderer, messages)?;
        let prefixed = renderer.prefixes(messages, tools).map_err(stop_of)?;
        let (ids, continues) = prompt_ids(renderer, tools, messages, last).map_err(stop_of)?;
        Ok(Self::new(observation, ids, continues, count, prefixed))
    }

    /// The prompt for a policy behind a server, without ids, and its number of tokens by the
    /// tokenizer of `policy.tokenizer`, or 0 if it is not counted.
    pub(super) fn served(
        renderer: &Renderer,
        tools: &[Value],
        observation: Observation,
        counts: bool,
    ) -> Result<(Self, usize), Stop> {
        let Observation::Messages(messages) = &observation else { return Err(not_messages().into()) };
        Self::refuse_images(renderer, messages)?;
        let tokens = if counts { renderer.count(messages, tools).map_err(stop_of)? } else { 0 };
        Ok((Self { observation, ids: Vec::new(), new_row: true, continues: None, prefixed: false }, tokens))
    }

    /// Refuses images for a policy that reads text only.
    fn refuse_images(renderer: &Renderer, messages: &[Message]) -> Result<(), Stop> {
        let image = messages.iter().find_map(|message| message.content.images().next());
        let Some(hash) = image.filter(|_| renderer.images().is_none()) else { return Ok(()) };
        let message = format!("the observation contains the image {hash} and this policy can't see images");
        let error = Error::new(Kind::Env, message).hint("use a vision model, or describe the image in text");
        Err(Stop::Failed(Failure::new(Status::EnvError, error)))
    }

    /// A row only continues with the step right before it.
    fn new(observation: Observation, ids: Vec<u32>, continues: Option<usize>, count: usize, prefixed: bool) -> Self {
        let new_row = continues.is_none_or(|index| index + 1 != count);
        Self { observation, ids, new_row, continues, prefixed }
    }

    fn raw(observation: Observation, ids: Vec<u32>, last: &[ContinuedTurn]) -> Self {
        let continues = last.iter().rposition(|last| {
            let (prompt, response) = (&last.ids, &last.response);
            ids.len() >= prompt.len() + response.len()
                && ids.starts_with(prompt)
                && ids[prompt.len()..].starts_with(response)
        });
        Self::new(observation, ids, continues, last.len(), false)
    }

    /// Refuses empty prompts and ids of a script that are outside of the vocabulary. The policy may
    /// have sampled such an id: many models have more embeddings than their tokenizer has tokens.
    pub(super) fn check_ids(&self, renderer: &Renderer, last: &[ContinuedTurn]) -> Result<(), Failure> {
        let vocabulary = renderer.tokenizer().vocab_size();
        let sampled = |id: &u32| last.iter().any(|turn| turn.response.contains(id) || turn.ids.contains(id));
        let outside = |id: &&u32| **id as usize >= vocabulary && !sampled(id);
        let token_ids: &[u32] = if let Observation::TokenIds(ids) = &self.observation { ids } else { &[] };
        let message = match token_ids.iter().find(outside) {
            _ if self.ids.is_empty() => "the observation is empty".to_owned(),
            Some(id) => format!("the observation has the token id {id}; the vocabulary ends at {}", vocabulary - 1),
            None => return Ok(()),
        };
        Err(Failure::new(Status::EnvError, Error::new(Kind::Env, message)))
    }

    /// The messages of the prompt; `None` for text and ids.
    pub(super) fn messages(&self) -> Option<Vec<Message>> {
        match &self.observation {
            Observation::Messages(messages) => Some(messages.clone()),
            Observation::Text(_) | Observation::TokenIds(_) => None,
        }
    }
}
