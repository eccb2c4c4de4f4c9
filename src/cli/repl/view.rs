//! Formats observations, tokens and rewards.

use std::collections::BTreeMap;
use std::fmt::Write;

use console::Style as Paint;
use serde_json::{Value, json};

use super::terminal::Terminal;
use crate::cli::masks;
use crate::error::Result;
use crate::mdp::{Message, Observation, Role, Step};
use crate::rollout::Attempt;
use crate::script::Reward;
use crate::telemetry::{plain, signed};
use crate::text::Renderer;
use crate::train::ShownToken;

/// Maximum lines of a message in outputs about something else.
const LINES: usize = 12;

/// An observation. `whole`: nothing is omitted.
pub(super) fn observation(terminal: &Terminal, observation: &Observation, whole: bool) -> String {
    match observation {
        Observation::Messages(list) => messages(terminal, list, whole),
        Observation::Text(text) => text.clone(),
        Observation::TokenIds(ids) => format!("{} token ids: {ids:?}", ids.len()),
    }
}

pub(super) fn messages(terminal: &Terminal, list: &[Message], whole: bool) -> String {
    let mut out = String::new();
    for message in list {
        let style = match message.role {
            Role::System => Paint::new().magenta(),
            Role::User => Paint::new().blue(),
            Role::Assistant => Paint::new().green(),
            Role::Tool => Paint::new().yellow(),
        };
        let mut text = message.content.shown();
        for call in &message.tool_calls {
            let _ = write!(text, "{}→ {} {}", if text.is_empty() { "" } else { "\n" }, call.name, call.arguments);
        }
        let lines: Vec<&str> = text.lines().collect();
        let limit = if whole { usize::MAX } else { LINES };
        let role = terminal.paint(&style, &format!("{:<10}", message.role.name()));
        let _ = writeln!(out, "  {role}{}", lines.first().unwrap_or(&""));
        for line in lines.iter().take(limit).skip(1) {
            let _ = writeln!(out, "  {:<10}{line}", "");
        }
        if lines.len() > limit {
            let _ = writeln!(out, "  {:<10}… {} more lines", "", lines.len() - limit);
        }
    }
    out
}

/// The messages added since `before`; all messages if the conversation does not extend it.
pub(super) fn news(terminal: &Terminal, before: Option<&Observation>, now: &Observation) -> String {
    if let (Some(Observation::Messages(before)), Observation::Messages(now)) = (before, now) {
        if now.starts_with(before) {
            return messages(terminal, &now[before.len()..], false);
        }
        let same = now.iter().zip(before).take_while(|(now, before)| now == before).count();
        let new = messages(terminal, &now[same..], false);
        return format!("  (rewritten from message {} on)\n{new}", same + 1);
    }
    observation(terminal, now, false)
}

/// The prompt token by token.
pub(super) struct PromptView {
    tokens: Vec<ShownToken>,
    ids: Vec<u32>,
    budget: usize,
    max_context: usize,
}

impl PromptView {
    pub(super) fn new(renderer: &Renderer, attempt: &Attempt, ids: &[u32], new_row: bool) -> Self {
        let tokenizer = renderer.tokenizer();
        let mut sampled = vec![false; ids.len()];
        if !new_row {
            // The replies of the row, at their sampled positions.
            for step in row(&attempt.trajectory().steps) {
                let (start, end) = (step.prompt_ids.len(), step.prompt_ids.len() + step.response_ids.len());
                sampled[start.min(ids.len())..end.min(ids.len())].fill(true);
            }
        }
        let shown = |(id, sampled): (&u32, &bool)| ShownToken {
            text: tokenizer.decode(&[*id], false),
            sampled: *sampled,
            special: tokenizer.decode(&[*id], true).is_empty(),
            advantage: 0.0,
        };
        let spec = attempt.spec();
        Self {
            tokens: ids.iter().zip(&sampled).map(shown).collect(),
            ids: ids.to_vec(),
            budget: spec.budget(),
            max_context: spec.max_context,
        }
    }

    pub(super) fn text(&self, colour: bool) -> Result<String> {
        masks::prompt(&self.tokens, (self.budget, self.max_context), colour)
    }

    pub(super) fn to_json(&self) -> Value {
        let texts: Vec<&str> = self.tokens.iter().map(|token| token.text.as_str()).collect();
        let sampled: Vec<bool> = self.tokens.iter().map(|token| token.sampled).collect();
        json!({
            "ids": self.ids, "texts": texts, "sampled": sampled, "budget": self.budget,
            "max_context": self.max_context,
        })
    }
}

/// The steps in the row of the last step.
fn row(steps: &[Step]) -> &[Step] {
    let begin = steps.iter().rposition(|step| step.new_row).unwrap_or(0);
    &steps[begin..]
}

/// The reward so far.
pub(super) struct Gain {
    steps: Vec<f64>,
    outcome: f64,
    parts: BTreeMap<String, f64>,
}

impl Gain {
    pub(super) fn new(attempt: &Attempt, outcome: &Reward) -> Self {
        let trajectory = attempt.trajectory();
        let mut parts = trajectory.reward_parts.clone();
        for (name, value) in &outcome.parts {
            *parts.entry(name.clone()).or_insert(0.0) += value;
        }
        Self { steps: trajectory.steps.iter().map(|step| step.reward).collect(), outcome: outcome.total, parts }
    }

    fn of_steps(&self) -> f64 {
        self.steps.iter().fold(0.0, |sum, reward| sum + reward)
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!("reward {}", signed(self.of_steps() + self.outcome));
        if self.of_steps().abs() > 0.0 {
            let each: Vec<String> = self.steps.iter().map(|reward| signed(*reward)).collect();
            let _ = write!(out, " = steps {} and outcome {}", each.join(" "), signed(self.outcome));
        }
        if !self.parts.is_empty() {
            let parts: Vec<String> =
                self.parts.iter().map(|(name, value)| format!("{name} {}", plain(*value))).collect();
            let _ = write!(out, "  ({})", parts.join(", "));
        }
        out
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "total": self.of_steps() + self.outcome, "steps": self.steps, "outcome": self.outcome, "parts": self.parts,
        })
    }
}
