//! Formats with results inside the policy's own turn: the policy writes a program and stops, the
//! environment appends its output, and the policy continues. All of it is one assistant turn.

use crate::format::Format;
use crate::tool_format::{Preceding, Turn};
use r1_base::error::Result;
use r1_base::mdp::{Message, Role};

impl Format {
    /// Whether results are inside the policy's turn.
    pub(crate) fn is_same_turn(&self) -> bool {
        self.recipe_format().map_or(self.rules().code.is_some(), |recipe_format| recipe_format.options().same_turn)
    }

    /// Whether a reply without an end-of-turn token waits for a result inside its own turn.
    pub(crate) fn leaves_open(&self, reply: &str) -> bool {
        match (self.recipe_format(), self.rules().code) {
            (Some(recipe_format), _) => {
                let stops = if recipe_format.options().same_turn { &recipe_format.options().stop[..] } else { &[] };
                stops.iter().any(|stop| reply.trim_end().ends_with(stop.trim_end()))
            }
            (None, Some(code)) => (code.waits)(reply),
            (None, None) => false,
        }
    }

    /// The texts of the results that follow `before`.
    fn answers(&self, before: &str, results: &[Message]) -> Result<Vec<String>> {
        let Some(code) = self.rules().code else { return Ok(vec![self.result(results)?]) };
        let outputs = results.iter().map(|result| result.content.text()).enumerate();
        let text = |(index, output): (usize, String)| {
            if index == 0 { code.first_result(before, &output) } else { format!("{}\n", code.result(&output)) }
        };
        Ok(outputs.map(text).collect())
    }

    /// Results without a call, as the text of a user message.
    pub(crate) fn result(&self, results: &[Message]) -> Result<String> {
        if let Some(text) = self.own_results(results)? {
            return Ok(text);
        }
        let text = |result: &Message| match self.rules().code {
            Some(code) => code.result(&result.content.text()),
            None => result.content.text(),
        };
        Ok(results.iter().map(text).collect::<Vec<_>>().join("\n"))
    }

    /// An assistant's text as text of the policy and results: `(text, by the policy)`. Calls are
    /// appended if the text lacks them. A recipe's format does not mark results.
    fn parts(&self, message: &Message) -> Result<Vec<(String, bool)>> {
        let text = message.content.text();
        let is_complete = message.tool_calls.is_empty() || self.holds_call(&text)?;
        let text = if is_complete { text } else { self.write(text, &message.tool_calls)? };
        Ok(match self.rules().code {
            Some(code) => code.split(&text),
            None => vec![(text, true)],
        })
    }
}

/// The turns of a conversation: results after a program join the policy's turn, and so does the
/// next reply. Results without a program (the policy ended its turn inside the block) are a user
/// turn.
pub(crate) fn turns(messages: &[Message], preceding: &Preceding<'_>, format: &Format) -> Result<Vec<Turn>> {
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
                    let turn = Turn::new(Role::Assistant, String::new());
                    turns.push(Turn { parts: Vec::new(), ended: false, continued: true, ..turn });
                }
                if let Some(turn) = turns.last_mut() {
                    let before = turn.parts.last().map_or(preceding.reply, |(text, _)| text.as_str());
                    let answers = format.answers(before, results)?;
                    turn.parts.extend(answers.into_iter().map(|answer| (answer, false)));
                }
                answered = true;
            }
            Role::Tool => turns.push(Turn::new(Role::User, format.result(results)?)),
            Role::Assistant => {
                let parts = format.parts(message)?;
                waiting = parts.last().is_some_and(|(text, sampled)| *sampled && format.leaves_open(text));
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
