//! Replies of a model in this process.

use std::sync::Arc;

use super::chat::{AnswerEvent, ModelReply, ShowAnswer};
use crate::engine::Engine;
use crate::error::Result;
use crate::mdp::{Completion, Request};
use crate::rollout::{Attempt, Stage};
use crate::telemetry::Interrupt;
use crate::text::{Event, Tokenizer};

/// A model in this process.
pub(super) struct Local {
    pub(super) name: String,
    pub(super) engine: Engine,
}

impl Local {
    pub(super) fn reply(
        &mut self,
        (stage, attempt): (Stage<'_>, &Attempt),
        request: Request,
        interrupt: Interrupt,
        show: &mut ShowAnswer<'_>,
    ) -> Result<ModelReply> {
        let (renderer, tools) = (attempt.renderer(stage), attempt.state().tools());
        let (prompt, stop_ids) = (request.prompt_ids.len(), Arc::clone(&request.stop_ids));
        let mut stream = renderer.stream(&tools);
        stream.push(attempt.prefix(stage)).iter().for_each(|event| show_event(event, show));
        let mut characters = Characters::new(renderer.tokenizer());
        let completion = self.engine.generate(request, &|| interrupt.is_set(), &mut |id| {
            if !stop_ids.contains(&id)
                && let Some(more) = characters.push(id)
            {
                stream.push(&more).iter().for_each(|event| show_event(event, show));
            }
        })?;
        // The reply may end inside a character.
        if let Some(rest) = characters.rest() {
            for event in &stream.push(&rest) {
                show_event(event, show);
            }
        }
        let (events, read) = stream.finish()?;
        for event in &events {
            show_event(event, show);
        }
        let (content, reasoning, stopped) = (read.content, read.reasoning, interrupt.is_set());
        Ok(ModelReply { completion, content, reasoning, prompt: Some(prompt), stopped })
    }

    /// A response that is not shown.
    pub(super) fn sample(&mut self, request: Request, interrupt: Interrupt) -> Result<Completion> {
        self.engine.generate(request, &|| interrupt.is_set(), &mut |_| ())
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
