//! Token in, token out: a conversation that continues after a sampled reply keeps all of its ids.
//!
//! [`Renderer::extend`] returns only the ids after the reply. There are three ways, cheapest first:
//! a result inside the policy's own turn is text of the format alone; a template whose messages
//! depend only on their neighbours (see `turns`) is extended from the learned texts; any other is
//! rendered with and without the new messages, and the rendering must begin with the previous text.

use serde_json::Value;

use super::image_marks;
use super::marks::end_of_prefix;
use super::pieces::Pieces;
use super::renderer::Renderer;
use super::stream::find;
use super::tool_format::{Preceding, Turn};
use super::turns::Next;
use r1_base::error::Result;
use r1_base::mdp::{Message, Role};

/// The continuation of a conversation after a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The next prompt is the prompt, the reply and these ids.
    Appends(Vec<u32>),
    /// The next prompt does not begin with the last prompt and its reply: render it anew.
    Rewrites,
}

/// Maximum number of positions tried for the end of a reply that the template formats differently.
const ENDS_TRIED: usize = 64;

impl Renderer {
    /// The ids after a prompt for `shown` and the reply `response_ids` that give the prompt for
    /// `now`.
    ///
    /// `now` must be `shown`, an assistant message equivalent to the reply, and further messages.
    /// Sampled ids are never tokenized again: if the environment's message formats the reply
    /// differently (parsed calls, stripped space), the sampled ids stay.
    pub fn extend(
        &self,
        shown: &[Message],
        response_ids: &[u32],
        reply_text: &str,
        now: &[Message],
        tools: &[Value],
    ) -> Result<Extension> {
        self.check_images(now)?;
        let Some((reply, rest)) = now.get(shown.len()..).and_then(<[Message]>::split_first) else {
            return Ok(Extension::Rewrites);
        };
        if now[..shown.len()] != *shown || !self.is_reply(reply, reply_text, tools)? {
            return Ok(Extension::Rewrites);
        }
        let ended = response_ids.last().is_some_and(|id| self.stop_ids.contains(id));
        let open = !ended && self.format.leaves_open(reply_text);
        // Results of calls that the template renders can't be rendered without those calls.
        let shown_turn = self.turns(std::slice::from_ref(reply), &Preceding::default(), tools)?;
        let native = self.format.rules().hides_headers || shown_turn.first().is_some_and(|turn| !turn.calls.is_empty());
        let turns = self.turns(rest, &Preceding { open, reply: reply_text }, tools)?;
        let mut pieces = Pieces::default();
        match turns.split_first() {
            // Only a result inside the policy's own turn: no template is needed.
            Some((turn, [])) if turn.continued && turn.is_answered() => {
                for (text, sampled) in &turn.parts {
                    pieces.push(text, *sampled);
                }
            }
            _ => match self.append(&turns, ended).filter(|_| !native) {
                Some(appended) => pieces.append(appended),
                None => match self.compare(shown, reply_text, now, tools, ended)? {
                    Some(text) => pieces.push(&text, false),
                    None => return Ok(Extension::Rewrites),
                },
            },
        }
        image_marks::check_printed(&pieces.text(), rest)?;
        if !turns.last().is_some_and(Turn::is_answered) {
            pieces.push(&self.reply_prefix, false);
        }
        Ok(Extension::Appends(pieces.encode(&self.tokenizer)?.0))
    }

    /// The text after a reply, from the learned texts of the template.
    fn append(&self, turns: &[Turn], ended: bool) -> Option<Pieces> {
        let between = self.between.as_ref()?;
        let mut pieces = Pieces::default();
        if turns.first().is_none_or(|turn| !turn.continued) {
            let next = turns.first().map_or(Next::Prompt, |turn| Next::Message(turn.role));
            let text = between.get(Role::Assistant, next)?;
            pieces.push(if ended { text.strip_prefix(self.marker.as_str()).unwrap_or(text) } else { text }, false);
        }
        pieces.append(between.compose(turns, Next::Prompt, &self.marker)?);
        Some(pieces)
    }

    /// The text after a reply, from two renderings; `None` if the template changes earlier text.
    fn compare(
        &self,
        shown: &[Message],
        reply_text: &str,
        now: &[Message],
        tools: &[Value],
        ended: bool,
    ) -> Result<Option<String>> {
        let render = |messages| self.render(&self.turns(messages, &Preceding::default(), tools)?, tools, Next::Prompt);
        let (before, after) = (render(shown)?, render(now)?);
        let Some(grown) = after.strip_prefix(&before) else { return Ok(None) };
        if self.ends.is_empty() {
            return Ok(end_of_prefix(grown, reply_text).map(|end| grown[end..].to_owned()));
        }
        let sampled = self.parse(reply_text, tools)?;
        let mut ends = None;
        for (end, length) in self.ends_in(grown).take(ENDS_TRIED) {
            let printed = &grown[..end];
            // A result inside the turn is between the reply and the end of the turn.
            if let Some(reply_end) = end_of_prefix(printed, reply_text) {
                ends = Some((reply_end, end, length));
            } else if self.parse(printed, tools)?.equals_without_ids(&sampled) {
                ends = Some((end, end, length));
            }
            if ends.is_some() {
                break;
            }
        }
        let Some((reply_end, end, length)) = ends else { return Ok(None) };
        let (inside, rest) = (&grown[reply_end..end], &grown[end..]);
        let closing = if ended && inside.trim().is_empty() { &rest[length..] } else { rest };
        let inside = if inside.trim().is_empty() { "" } else { inside };
        Ok(Some(format!("{inside}{closing}")))
    }

    /// Positions and lengths of all end-of-turn texts in a rendering.
    fn ends_in<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, usize)> + 't {
        let tags: Vec<&str> = self.ends.iter().map(String::as_str).collect();
        let mut from = 0;
        std::iter::from_fn(move || {
            let (at, tag) = find(&text[from..], &tags)?;
            let end = from + at;
            from = end + tag.len();
            Some((end, tag.len()))
        })
    }

    /// Whether an assistant message is equivalent to a reply.
    fn is_reply(&self, message: &Message, reply: &str, tools: &[Value]) -> Result<bool> {
        if message.role != Role::Assistant {
            return Ok(false);
        }
        let bare = message.reasoning_content.is_none();
        if bare && matches!(&message.content, r1_base::mdp::Content::Text(text) if text == reply) {
            return Ok(true);
        }
        let turns = self.turns_as_given(std::slice::from_ref(message), &Preceding::default(), tools)?;
        let Some(turn) = turns.first() else { return Ok(false) };
        // Reasoning kept in its own field is not in the content, even if the prompt opened it.
        let apart = turn.reasoning.is_some() || !turn.calls.is_empty() || self.format.rules().hides_headers;
        let begun = self.opens_thinking && !apart;
        let mut written = self.format.read(&turn.content(), begun, &self.code_tool, tools)?;
        if let Some(reasoning) = &turn.reasoning {
            written.reasoning = Some(reasoning.trim().to_owned());
        }
        written.tool_calls.extend(turn.calls.iter().cloned());
        Ok(written.equals_without_ids(&self.parse(reply, tools)?))
    }
}
