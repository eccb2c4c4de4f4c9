//! Tests the contract of a recipe: runs trajectories with scripted responses, in two virtual
//! machines, before training.
//!
//! - `advantage`: results of a recipe's estimator
//! - `replies`: kinds of responses: empty, noise, calls of every tool, invalid calls, the task's
//!   own answer
//! - `contract`: rules for rows, tools, resets, states, steps
//! - `endings`: rules for how trajectories end, prompts and rewards
//! - `others`: the rows beyond those
//!
//! A script satisfies its contract if every trajectory is a function of task, seed and responses,
//! does not fail, and differs from others in its reward. Findings have the line and a hint.

mod advantage;
mod contract;
mod endings;
mod others;
mod replies;

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::script::{LogLine, Script, Split};
use crate::text::Renderer;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is a problem only if something outside the recipe is wrong, such as a server.
    Note,
    /// It may be intended.
    Warning,
    /// It violates the contract.
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Severity,
    /// The rule: `settings`, `data`, `tools`, `reset`, `state`, `step`, `replies`, `reward`,
    /// `advantage`, `context`, `masks`, `limits`.
    pub rule: &'static str,
    pub message: String,
    /// `scripts/retool.lua:14`
    pub place: Option<String>,
    pub hint: Option<String>,
    /// Input for `r1 repl SCRIPT` that shows it.
    pub repeat: Vec<String>,
}

/// Rows of a split that began a trajectory, with those that the rules were tested on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TriedRows {
    pub split: Split,
    pub tried: u64,
    pub of: u64,
}

/// What `r1 check` prints, and what decides its exit code.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    pub findings: Vec<Finding>,
    /// Lines that the script printed, without duplicates, and the number of further lines.
    pub log: Vec<LogLine>,
    pub more_log: usize,
    /// Rows of `data.train`, and the number of tested ones.
    pub rows: u64,
    pub tasks: usize,
    /// Tested rows of `data.eval`, if evaluation has its own environment or context.
    pub eval_tasks: usize,
    /// Rows that were tried beyond those.
    pub tried: Vec<TriedRows>,
    pub trajectories: usize,
    pub steps: usize,
    /// Smallest and largest reward of trajectories that did not fail.
    pub rewards: Option<(f64, f64)>,
    /// Tokens of the longest prompt, and the limit.
    pub longest_prompt: usize,
    pub budget: usize,
}

impl CheckReport {
    /// The rewards, smallest and largest, for display.
    pub fn rewards_in_words(&self) -> Option<(String, String)> {
        self.rewards.map(|(low, high)| (endings::number(low), endings::number(high)))
    }

    /// Whether the contract is violated.
    pub fn is_broken(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Severity::Error)
    }

    /// Adds lines that the script printed: without duplicates, at most [`LINES`].
    pub(super) fn printed(&mut self, lines: Vec<LogLine>) {
        for line in lines {
            let is_repeated = self.log.iter().any(|logged| logged.place == line.place && logged.text == line.text);
            if is_repeated || self.log.len() >= LINES {
                self.more_log += 1;
            } else {
                self.log.push(line);
            }
        }
    }

    /// Adds a finding, without duplicates.
    pub(super) fn add(&mut self, finding: Finding) {
        let same = |earlier: &Finding| {
            earlier.rule == finding.rule && earlier.place == finding.place && earlier.message == finding.message
        };
        if !self.findings.iter().any(same) {
            self.findings.push(finding);
        }
    }
}

impl Finding {
    pub(super) fn new(level: Severity, rule: &'static str, message: impl Into<String>) -> Self {
        Self { level, rule, message: message.into(), place: None, hint: None, repeat: Vec::new() }
    }

    pub(super) fn error(rule: &'static str, error: Error) -> Self {
        let Error { message, place: location, hint, .. } = error;
        Self { place: location, hint, ..Self::new(Severity::Error, rule, message) }
    }

    pub(super) fn at(mut self, location: Option<String>) -> Self {
        self.place = self.place.or(location);
        self
    }

    /// At the recipe's file.
    pub(super) fn at_file(self, script: &Script) -> Self {
        self.at(Some(script.path.display().to_string()))
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    pub(super) fn repeat(mut self, typed: Vec<String>) -> Self {
        self.repeat = typed;
        self
    }
}

/// Maximum lines of the script's log in a report.
const LINES: usize = 20;

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Maximum prompt plus response tokens; 0: from the settings.
    pub max_context: usize,
    /// Seconds after which no further trajectory starts.
    pub seconds: f64,
    /// Rows of each split that are tried; `None`: as many as fit into a few seconds.
    pub rows: Option<u64>,
    /// Whether the check ends early.
    pub stop: fn() -> bool,
}

/// Validates the conversations of a recipe for supervised fine-tuning.
///
/// # Errors
/// Only if the script does not load.
pub fn supervised(script: &Script, renderer: &Arc<Renderer>, options: &CheckOptions) -> Result<CheckReport> {
    others::supervised(script, renderer, options)
}

/// Tests a script. Needs a tokio runtime with time and I/O enabled.
///
/// # Errors
/// Only if the script does not load; violations of the contract are in the report.
pub async fn check(script: &Script, renderer: &Arc<Renderer>, options: &CheckOptions) -> Result<CheckReport> {
    Box::pin(contract::check(script, renderer, options)).await
}
