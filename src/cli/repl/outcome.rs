//! The result of a step, as text or as fields.

use std::fmt::Write;
use std::rc::Rc;

use serde_json::{Value, json};

use super::session::ReplSession;
use super::view;
use crate::error::Result;
use crate::mdp::{Limit, Observation, Status, Step};
use crate::telemetry::signed;

impl ReplSession {
    /// Shows the result of the last step.
    pub(super) fn show_step(&mut self, before: &Observation) -> Result<()> {
        let attempt = self.attempt()?;
        let number = attempt.trajectory().steps.len();
        let mut over = attempt.over();
        let Some(step) = attempt.trajectory().steps.last().cloned() else { return Ok(()) };
        let mut line = format!("step {number}: reward {}", signed(step.reward));
        for tool in step.policy_calls() {
            let bad = if tool.ok { "" } else { " (failed)" };
            let _ = write!(line, ", {}{bad}", tool.name);
        }
        if over.is_none() {
            match self.observation() {
                Ok(now) => {
                    let text = format!("{line}\n{}", view::news(&self.terminal, Some(before), &now));
                    let json = self.step_json(&step, number);
                    self.terminal.item("steps", &text, || json)?;
                    return self.terminal_field("observation", json!(now));
                }
                Err(error) => {
                    over = self.attempt()?.over();
                    if over.is_none() {
                        return Err(error);
                    }
                }
            }
        }
        let messages = {
            let loaded = Rc::clone(&self.loaded);
            loaded.worker.messages(self.attempt()?.state())
        };
        let messages = Observation::Messages(messages);
        let text = format!("{line}\n{}", view::news(&self.terminal, Some(before), &messages));
        let json = self.step_json(&step, number);
        self.terminal.item("steps", &text, || json)?;
        self.terminal_field("observation", json!(messages))?;
        let name = over.map_or("", Status::name);
        let reward = self.reward()?;
        let by = self.attempt()?.trajectory().truncated_by.map(Limit::name);
        let limit = by.map_or_else(String::new, |limit| format!(" by {limit}"));
        let text =
            format!("{name}{limit} after {number} step{}: {}", if number == 1 { "" } else { "s" }, reward.text());
        self.terminal.result(
            "end",
            &text,
            || json!({ "status": name, "truncated_by": by, "steps": number, "reward": reward.to_json() }),
        )
    }

    /// A step as JSON.
    fn step_json(&self, step: &Step, number: usize) -> Value {
        let branch = self.branches.get(self.current).map(|branch| branch.name.as_str());
        json!({
            "step": number, "branch": branch, "text": step.text, "reward": step.reward,
            "finish_reason": step.finish_reason.name(), "tools": step.tools,
        })
    }

    /// A field of the command's object, if there is one.
    fn terminal_field(&self, name: &str, value: Value) -> Result<()> {
        if self.terminal.is_json() { self.terminal.result(name, "", || value) } else { Ok(()) }
    }

    /// The reward if the trajectory ended here.
    pub(super) fn reward(&mut self) -> Result<view::Gain> {
        let outcome = self.outcome()?;
        self.print_log()?;
        Ok(view::Gain::new(self.attempt()?, &outcome))
    }
}
