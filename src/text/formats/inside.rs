//! Formats whose results stand inside the policy's own turn: the policy writes a program and stops, the environment
//! goes on with what it printed, then the policy goes on. One assistant turn holds it all.

use crate::mdp::{Message, Role};
use crate::text::format::{Behind, Turn};

/// What such a format looks like.
pub(in crate::text) struct Style {
    /// Whether a reply (not ended by an end-of-turn token) waits for a result.
    pub waits: fn(&str) -> bool,
    /// The first result behind a text that waits, and those behind it: a line each, without the line breaks around.
    pub first: fn(&str, &str) -> String,
    pub result: fn(&str) -> String,
    /// Finds the results inside one assistant's text: `(text, by the policy)`.
    pub split: fn(&str) -> Vec<(String, bool)>,
    /// A message's text, with its calls where the text lacks them.
    pub written: fn(&Message) -> String,
}

/// A conversation's turns: results behind a program join the policy's turn, and so does the reply behind them.
/// A result that answers no program (the policy ended its turn without closing the block) is a user's turn.
pub(in crate::text) fn turns(messages: &[Message], behind: &Behind<'_>, style: &Style) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    // Whether the policy's last turn waits for a result, and whether it has one already.
    let (mut waiting, mut answered) = (behind.open, false);
    // Whether the last turn holds results that answer no program.
    let mut stray = false;
    for message in messages {
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
                let output = message.content.text();
                if let Some(turn) = turns.last_mut() {
                    let before = turn.parts.last().map_or(behind.reply, |(text, _)| text.as_str());
                    let result = if answered {
                        format!("{}\n", (style.result)(&output))
                    } else {
                        (style.first)(before, &output)
                    };
                    turn.parts.push((result, false));
                }
                answered = true;
            }
            Role::Tool if stray => {
                if let Some((content, _)) = turns.last_mut().and_then(|turn| turn.parts.last_mut()) {
                    content.push('\n');
                    content.push_str(&(style.result)(&message.content.text()));
                }
            }
            Role::Tool => {
                turns.push(Turn::new(Role::User, (style.result)(&message.content.text())));
                stray = true;
            }
            Role::Assistant => {
                let parts = (style.split)(&(style.written)(message));
                waiting = parts.last().is_some_and(|(text, sampled)| *sampled && (style.waits)(text));
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
                (answered, stray) = (false, false);
            }
            Role::System | Role::User => {
                turns.push(Turn::new(message.role, message.content.text()));
                (waiting, answered, stray) = (false, false, false);
            }
        }
    }
    turns
}
