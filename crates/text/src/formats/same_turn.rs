//! Formats with results inside the policy's own turn: the policy writes a program and stops, the
//! environment appends its output, and the policy continues. All of it is one assistant turn.

use crate::tool_format::Preceding;
use crate::tool_format::Turn;
use r1_base::error::Result;
use r1_base::mdp::{Message, Role};

/// A format with results inside the policy's turn.
pub(crate) trait SameTurn {
    /// Whether a reply (not ended by an end-of-turn token) waits for a result.
    fn waits(&self, reply: &str) -> bool;

    /// The texts of the results that follow `before`.
    fn answers(&self, before: &str, results: &[Message]) -> Result<Vec<String>>;

    /// Results without a call, as the text of a user message.
    fn results_without_call(&self, results: &[Message]) -> Result<String>;

    /// Finds the results inside one assistant's text: `(text, by the policy)`.
    fn split(&self, text: &str) -> Vec<(String, bool)>;

    /// A message's text; calls are appended if the text lacks them.
    fn written(&self, message: &Message) -> Result<String>;
}

/// One text per result, from its index and output.
pub(super) fn one_by_one(results: &[Message], text: impl Fn(usize, &str) -> String) -> Vec<String> {
    results.iter().enumerate().map(|(index, result)| text(index, &result.content.text())).collect()
}

/// The turns of a conversation: results after a program join the policy's turn, and so does the
/// next reply. Results without a program (the policy ended its turn inside the block) are a user
/// turn.
pub(crate) fn turns(messages: &[Message], preceding: &Preceding<'_>, style: &dyn SameTurn) -> Result<Vec<Turn>> {
    let mut turns: Vec<Turn> = Vec::new();
    // Whether the policy's last turn waits for a result, and whether it already has one.
    let (mut waiting, mut answered) = (preceding.open, false);
    let mut rest = messages;
    while let Some(message) = rest.first() {
        // Consecutive results belong to one reply.
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
                    let before = turn.parts.last().map_or(preceding.reply, |(text, _)| text.as_str());
                    let answers = style.answers(before, results)?;
                    turn.parts.extend(answers.into_iter().map(|answer| (answer, false)));
                }
                answered = true;
            }
            Role::Tool => turns.push(Turn::new(Role::User, style.results_without_call(results)?)),
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
