//! Saves a session as a test: the replies and their results.

use std::fmt::Write;
use std::path::Path;
use std::rc::Rc;

use serde_json::{Value, json};

use super::session::ReplSession;
use crate::cli::new::refuse_existing;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Observation, seed_value};
use crate::rollout::Attempt;

impl ReplSession {
    /// Writes the current trajectory as a file for `r1 test`; existing files are not overwritten.
    pub(super) fn save(&mut self, path: &Path) -> Result<()> {
        refuse_existing(path)?;
        let Some(file) =
            self.opening.agent.as_ref().filter(|agent| agent.is_file()).map(|agent| agent.given().to_owned())
        else {
            return Err(Error::new(Kind::Usage, "a test needs the script's file").hint("r1 repl SCRIPT --replay …"));
        };
        // Breakpoints in the reward or the context do not apply here.
        self.terminal.passing.set(true);
        let text = self.test(&file);
        self.terminal.passing.set(false);
        let text = text?;
        std::fs::write(path, text).map_err(|e| Error::io(Kind::Store, "write", path, &e))
    }

    fn test(&mut self, file: &Path) -> Result<String> {
        let start = self.start.clone().ok_or_else(|| Error::new(Kind::Usage, "there is no trajectory yet"))?;
        let settings: Vec<String> = self
            .opening
            .in_effect
            .iter()
            .filter_map(|typed| typed.split_once('='))
            .map(|(name, value)| {
                let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                format!("[{}] = {}", quoted(name), literal(&value))
            })
            .collect();
        let options = if settings.is_empty() {
            String::new()
        } else {
            format!(", {{ settings = {{ {} }} }}", settings.join(", "))
        };
        let mut out =
            String::from("--- A session of r1 repl as a test: the same actions must have the same results.\n\n");
        let _ = writeln!(out, "local script = r1.script({}{options})\n", quoted(&file.display().to_string()));
        let which = match start.row {
            Some(row) => format!("row = {row}, split = {}", quoted(start.split.name())),
            None => format!("task = {}", literal(&start.task)),
        };
        let steps = self.attempt()?.trajectory().steps.clone();
        let count = steps.len();
        let shown = self.observations()?;
        let name = format!("{count} step{} of {}", if count == 1 { "" } else { "s" }, file.display());
        let _ = writeln!(out, "test({}, function()", quoted(&name));
        let _ = writeln!(
            out,
            "  local trajectory = script:reset {{ {which}, seed = {} }}",
            literal(&seed_value(start.seed))
        );
        if shown.iter().any(|shown| matches!(shown, Observation::Messages(_))) {
            out.push_str("  local shown\n");
        }
        if let Some(first) = shown.first() {
            observed(&mut out, None, first);
        }
        for (index, step) in steps.iter().enumerate() {
            let _ = writeln!(out, "\n  local step = trajectory:step({})", text(&step.text));
            let _ = writeln!(out, "  expect(step.reward):near({:?})", step.reward);
            let over = index + 1 == count && self.attempt()?.over().is_some();
            let _ = writeln!(out, "  expect(step.done):equals({over})");
            if let Some(now) = shown.get(index + 1) {
                observed(&mut out, Some(&shown[index]), now);
            }
            for (position, tool) in step.tools.iter().enumerate() {
                let _ = writeln!(out, "  expect(step.tools[{}].output):equals({})", position + 1, text(&tool.output));
            }
        }
        let outcome = self.outcome()?;
        let steps: f64 = self.attempt()?.trajectory().steps.iter().fold(0.0, |sum, step| sum + step.reward);
        let total = steps + outcome.total;
        let _ = writeln!(out, "\n  local reward, parts = trajectory:reward()\n  expect(reward):near({total:?})");
        for (name, value) in outcome.parts {
            let _ = writeln!(out, "  expect(parts[{}]):near({value:?})", quoted(&name));
        }
        out.push_str("end)\n");
        Ok(out)
    }

    /// The observations before each step, and after the last one if the trajectory has not ended.
    fn observations(&mut self) -> Result<Vec<Observation>> {
        let loaded = Rc::clone(&self.loaded);
        let stage = loaded.stage();
        let (mut branch_past, mut attempt) = {
            let branch = self.branch()?;
            let copy = |attempt: &Attempt| attempt.fork(attempt.spec().clone());
            (branch.past.iter().map(copy).collect::<Result<Vec<_>>>()?, copy(&branch.attempt)?)
        };
        let over = attempt.over().is_some();
        let mut shown = Vec::new();
        for (index, attempt) in branch_past.iter_mut().chain((!over).then_some(&mut attempt)).enumerate() {
            if attempt.trajectory().steps.len() != index {
                return Err(Error::new(Kind::Usage, "typed code has changed the state: a test could not repeat it")
                    .hint(":undo undoes the change; :reset starts again"));
            }
            let record = attempt.state().record().clone();
            let looked = self.wait(&record, attempt.observe(stage))?;
            let prompt = looked.map_err(|stop| self.stopped(stop))?;
            shown.extend(prompt.map(|prompt| prompt.observation.clone()));
        }
        Ok(shown)
    }
}

/// Compares observations: completely, or only the part after `before` if the observation extends
/// it.
fn observed(out: &mut String, before: Option<&Observation>, now: &Observation) {
    let (messages, before) = match (now, before) {
        (Observation::Text(shown), _) => {
            let _ = writeln!(out, "  expect(trajectory:observe()):equals({})", text(shown));
            return;
        }
        (Observation::TokenIds(ids), _) => {
            let _ = writeln!(out, "  expect(trajectory:observe().token_ids):equals {}", literal(&json!(ids)));
            return;
        }
        (Observation::Messages(now), Some(Observation::Messages(before))) if now.starts_with(before) => {
            (now, before.len())
        }
        (Observation::Messages(now), _) => (now, 0),
    };
    let _ = writeln!(out, "  shown = trajectory:observe()\n  expect(#shown):equals({})", messages.len());
    for (index, message) in messages.iter().enumerate().skip(before) {
        let _ = writeln!(out, "  expect(shown[{}]):equals {}", index + 1, literal(&json!(message)));
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(out, "\\{:03}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A text of several lines in long brackets.
fn text(text: &str) -> String {
    let plain = text.chars().all(|c| c == '\n' || !c.is_control());
    if !text.contains('\n') || !plain {
        return quoted(text);
    }
    let level = (0..=text.len()).map(|count| "=".repeat(count)).find(|level| !text.contains(&format!("]{level}")));
    let level = level.unwrap_or_default();
    // A line break directly after the opening brackets is not part of the text.
    format!("[{level}[\n{text}]{level}]")
}

/// Fields of messages, which are written without quotes.
const NAMES: [&str; 7] = ["role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name", "arguments"];

/// Plain data as a Lua literal.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(string) => text(string),
        Value::Array(items) => format!("{{ {} }}", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let key = |name: &String| {
                if NAMES.contains(&name.as_str()) { name.clone() } else { format!("[{}]", quoted(name)) }
            };
            let field = |(name, value): (&String, &Value)| format!("{} = {}", key(name), literal(value));
            format!("{{ {} }}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_texts_are_read_back_unchanged() {
        assert_eq!(text("a \"b\" \\"), "\"a \\\"b\\\" \\\\\"");
        assert_eq!(text("x = [[1]]\ny"), "[=[\nx = [[1]]\ny]=]");
        assert_eq!(text("a]\nb]=]"), "[==[\na]\nb]=]]==]");
        assert_eq!(quoted("\u{1}9"), "\"\\0019\"");
        assert_eq!(literal(&serde_json::json!({ "a b": [1, null, "x"] })), "{ [\"a b\"] = { 1, nil, \"x\" } }");
    }
}
