//! Formats whose results stand inside the policy's own turn: the policy writes a program and stops, the environment
//! goes on with what it printed, then the policy goes on. One assistant turn holds it all.

use crate::error::Result;
use crate::mdp::{Message, Role};
use crate::text::format::{Behind, Turn};

/// What such a format looks like.
pub(in crate::text) trait Style {
    /// Whether a reply (not ended by an end-of-turn token) waits for a result.
    fn waits(&self, reply: &str) -> bool;

    /// What stands behind a text that waits: the results of its calls.
    fn answers(&self, before: &str, results: &[Message]) -> Result<Vec<String>>;

    /// Results that answer no call, as a user's message: a line each, without the line breaks around.
    fn stray(&self, results: &[Message]) -> Result<String>;

    /// Finds the results inside one assistant's text: `(text, by the policy)`.
    fn split(&self, text: &str) -> Vec<(String, bool)>;

    /// A message's text, with its calls where the text lacks them.
    fn written(&self, message: &Message) -> Result<String>;
}

/// A text for each result, with its place among them.
pub(super) fn one_by_one(results: &[Message], text: impl Fn(usize, &str) -> String) -> Vec<String> {
    results.iter().enumerate().map(|(place, result)| text(place, &result.content.text())).collect()
}

/// A conversation's turns: results behind a program join the policy's turn, and so does the reply behind them.
/// A result that answers no program (the policy ended its turn without closing the block) is a user's turn.
pub(in crate::text) fn turns(messages: &[Message], behind: &Behind<'_>, style: &dyn Style) -> Result<Vec<Turn>> {
    let mut turns: Vec<Turn> = Vec::new();
    // Whether the policy's last turn waits for a result, and whether it has one already.
    let (mut waiting, mut answered) = (behind.open, false);
    let mut rest = messages;
    while let Some(message) = rest.first() {
        // Results side by side are one answer.
        let count = rest.iter().take_while(|next| next.role == Role::Tool).count().max(1);
        let results = &rest[..count];
        rest = &rest[count..];
        match message.role {
            Role::Tool if waiting => {
                if turns.last().is_none_or(|turn| turn.role != Role::Assistant) {
                    let parts = Vec::new();
                    turns.push(Turn {
                        parts,
                        ended: false,
                        continued: true,
                        ..Turn::new(Role::Assistant, String::new())
                    });
                }
                if let Some(turn) = turns.last_mut() {
                    let before = turn.parts.last().map_or(behind.reply, |(text, _)| text.as_str());
                    let answers = style.answers(before, results)?;
                    turn.parts.extend(answers.into_iter().map(|answer| (answer, false)));
                }
                answered = true;
            }
            Role::Tool => turns.push(Turn::new(Role::User, style.stray(results)?)),
            Role::Assistant => {
                let parts = style.split(&style.written(message)?);
                waiting = parts.last().is_some_and(|(text, sampled)| *sampled && style.waits(text));
                let ended = !waiting && parts.last().is_none_or(|(_, sampled)| *sampled);
                match turns.last_mut() {
                    Some(turn) if answered => {
                        turn.parts.extend(parts);
                        turn.ended = ended;
                    }
                    _ => {
                        let reasoning = message.reasoning_content.clone().filter(|reasoning| !reasoning.is_empty());
                        turns.push(Turn { parts, reasoning, ended, ..Turn::new(Role::Assistant, String::new()) });
                    }
                }
                answered = false;
            }
            Role::System | Role::User => {
                turns.push(Turn::new(message.role, message.content.text()));
                (waiting, answered) = (false, false);
            }
        }
    }
    Ok(turns)
}
