//! Replies of a model in this process.
//!
//! Prompts are extended token in, token out, as in a rollout, so that the conversation's key-value
//! cache stays valid.

use std::sync::Arc;

use serde_json::Value;

use super::chat::{AnswerEvent, ModelReply, ShowAnswer};
use crate::cli::generation;
use crate::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Completion, Observation, Request, Sampling, StreamSeed};
use crate::rollout::{ContinuedTurn, prompt_ids};
use crate::script::{GenerateRequest, SampledText};
use crate::telemetry::Interrupt;
use crate::text::{Event, Renderer, Tokenizer};

/// A model with its tokenizer.
pub(super) struct Local {
    name: String,
    engine: Engine,
    renderer: Arc<Renderer>,
    sampling: Sampling,
    /// The last turn, which the next prompt extends if its ids stay the same.
    last: Option<ContinuedTurn>,
}

impl Local {
    pub(super) fn new(name: String, engine: Engine, renderer: Arc<Renderer>, sampling: Sampling) -> Self {
        Self { name, engine, renderer, sampling, last: None }
    }

    pub(super) fn title(&self) -> String {
        self.name.clone()
    }

    /// Maximum tokens of prompt plus reply.
    pub(super) fn max_context(&self) -> usize {
        self.engine.capacity()
    }

    /// Maximum prompt tokens of a context policy.
    pub(super) fn prompt_budget(&self) -> usize {
        let limit = self.max_context();
        limit - self.sampling.max_new_tokens.min(limit / 2)
    }

    pub(super) fn reply(
        &mut self,
        observation: &Observation,
        (tools, recipe_tools): (&[Value], Option<&Arc<Renderer>>),
        (seed, step): (u64, u32),
        interrupt: Interrupt,
        show: &mut ShowAnswer<'_>,
    ) -> Result<ModelReply> {
        let renderer = Arc::clone(recipe_tools.unwrap_or(&self.renderer));
        let prompt = self.prompt(&renderer, observation, tools)?;
        let (length, limit) = (prompt.len(), self.max_context());
        if length >= limit {
            return Err(Error::new(
                Kind::Env,
                format!("the conversation has {length} tokens and leaves no room for a reply in a context of {limit}"),
            )
            .hint("shorten the question; in a chat, /undo undoes a question and /reset clears the conversation"));
        }
        let room = limit - length;
        let mut sampling = Sampling { max_new_tokens: self.sampling.max_new_tokens.min(room), ..self.sampling.clone() };
        if recipe_tools.is_some() {
            sampling.stop.extend(renderer.stop_strings().iter().cloned());
        }
        let stop_ids = renderer.stop_ids();
        let request = Request {
            prompt_ids: prompt.clone(),
            sampling: Arc::new(sampling),
            stop_ids: Arc::clone(&stop_ids),
            seed: StreamSeed { seed, trajectory: 0, step },
            conversation: 0,
            chat: None,
        };
        let mut stream = renderer.stream(tools);
        let prefixed = matches!(observation, Observation::Messages(messages) if renderer.prefixes(messages, tools)?);
        let prefix = if prefixed { renderer.reply_prefix() } else { "" };
        stream.push(prefix).iter().for_each(|event| show_event(event, show));
        let mut characters = Characters::new(renderer.tokenizer());
        let Completion { token_ids, finish_reason, .. } =
            self.engine.generate(request, &|| interrupt.is_set(), &mut |id| {
                if !stop_ids.contains(&id)
                    && let Some(more) = characters.push(id)
                {
                    stream.push(&more).iter().for_each(|event| show_event(event, show));
                }
            })?;
        // The reply may end inside a character.
        if let Some(rest) = characters.rest() {
            stream.push(&rest).iter().for_each(|event| show_event(event, show));
        }
        stream.finish()?.0.iter().for_each(|event| show_event(event, show));

        let response = match token_ids.split_last() {
            Some((last, rest)) if stop_ids.contains(last) => rest,
            _ => &token_ids,
        };
        let text = format!("{prefix}{}", renderer.tokenizer().decode(response, false));
        let parsed = renderer.parse(&text, tools)?;
        let tokens = token_ids.len();
        self.last = match observation {
            Observation::Messages(shown) => Some(ContinuedTurn {
                shown: Some(shown.clone()),
                tools: tools.into(),
                ids: prompt,
                response: token_ids.clone(),
                text: text.clone(),
            }),
            Observation::Text(_) | Observation::TokenIds(_) => None,
        };
        Ok(ModelReply {
            action: Action { text, token_ids, tool_calls: parsed.tool_calls, errors: parsed.errors, finish_reason },
            content: parsed.content,
            reasoning: parsed.reasoning,
            prompt: Some(length),
            tokens,
            stopped: interrupt.is_set(),
        })
    }

    /// A text for the recipe's script, in a separate conversation.
    pub(super) fn generate(&mut self, request: &GenerateRequest, interrupt: Interrupt) -> Result<SampledText> {
        generation::generate(&mut self.engine, &self.renderer, &self.sampling, request, interrupt)
    }

    fn prompt(&self, renderer: &Renderer, observation: &Observation, tools: &[Value]) -> Result<Vec<u32>> {
        let messages = match observation {
            Observation::Messages(messages) => messages,
            Observation::Text(text) => return renderer.tokenizer().encode(text),
            Observation::TokenIds(ids) => return Ok(ids.clone()),
        };
        let (ids, _) = prompt_ids(renderer, tools, messages, self.last.as_slice())?;
        Ok(ids)
    }
}

pub(super) fn show_event(event: &Event, show: &mut ShowAnswer<'_>) {
    show(match event {
        Event::Content(text) => AnswerEvent::Text(text),
        Event::Reasoning(text) => AnswerEvent::Thought(text),
        Event::Call(call) => AnswerEvent::Call(call),
        Event::Error(why) => AnswerEvent::Malformed(why),
    });
}

/// Decodes ids into text, holding back incomplete characters.
struct Characters<'a> {
    tokenizer: &'a Tokenizer,
    /// The last ids: those before `begun` have been shown and are the context for decoding the
    /// others.
    ids: Vec<u32>,
    begun: usize,
}

impl<'a> Characters<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), begun: 0 }
    }

    /// The next text; `None` while a character is incomplete.
    fn push(&mut self, id: u32) -> Option<String> {
        self.ids.push(id);
        self.more(false)
    }

    /// The incomplete character at the end.
    fn rest(&mut self) -> Option<String> {
        self.more(true)
    }

    fn more(&mut self, over: bool) -> Option<String> {
        let shown = self.tokenizer.decode(&self.ids[..self.begun], false);
        let now = self.tokenizer.decode(&self.ids, false);
        if !over && now.ends_with('\u{fffd}') {
            return None;
        }
        let more = now.get(shown.len()..).filter(|more| !more.is_empty())?.to_owned();
        self.ids.drain(..self.begun);
        self.begun = self.ids.len();
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::text::train_tokenizer;

    #[test]
    fn incomplete_characters_are_held_back() {
        // A byte tokenizer: a character of several bytes has several ids.
        let dir = tempfile::tempdir().unwrap();
        train_tokenizer(["x".to_owned()].into_iter(), 272, &[]).unwrap().save(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let text = "aé€😀\n ü";
        let ids = tokenizer.encode(text).unwrap();
        assert!(ids.len() > text.chars().count());
        let mut characters = Characters::new(&tokenizer);
        let pieces: Vec<String> = ids.iter().filter_map(|&id| characters.push(id)).collect();
        assert_eq!(pieces.concat(), text);
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        assert_eq!(characters.rest(), None);
        // A reply that ends inside a character.
        let mut characters = Characters::new(&tokenizer);
        let cut = tokenizer.encode("b😀").unwrap();
        let shown: String = cut[..cut.len() - 1].iter().filter_map(|&id| characters.push(id)).collect();
        assert_eq!(shown, "b");
        assert_eq!(characters.rest().as_deref(), Some("\u{fffd}"));
    }
}
