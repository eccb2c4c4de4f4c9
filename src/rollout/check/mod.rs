//! The contract of a recipe, tried out: trajectories with scripted replies, in two virtual machines, before anything is
//! trained.
//!
//! - `advantage`: what an estimator of the recipe's own must return
//! - `replies`: what a policy may say: nothing, noise, calls of every tool, broken calls, the task's own answer
//! - `contract`: what must hold of rows, tools, resets, states, steps
//! - `endings`: what must hold of how trajectories end, of prompts and rewards
//!
//! A script keeps its contract if every trajectory is a function of task, seed and replies, ends as no failure, and can be
//! told from others by its reward. What is found names the line and what to do.

mod advantage;
mod contract;
mod endings;
mod replies;

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::script::{LogLine, Script};
use crate::text::Renderer;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It may be meant so.
    Warning,
    /// The contract is broken.
    Error,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    /// Which rule: `settings`, `data`, `tools`, `reset`, `state`, `step`, `replies`, `reward`, `advantage`, `context`, `masks`,
    /// `limits`.
    pub rule: &'static str,
    pub message: String,
    /// `scripts/retool.lua:14`
    pub place: Option<String>,
    pub hint: Option<String>,
    /// What to type into `r1 repl SCRIPT` to see it.
    pub repeat: Vec<String>,
}

/// What a check came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// What the script printed, each line once, and the number of further lines.
    pub log: Vec<LogLine>,
    pub more_log: usize,
    /// Rows of `data.train`, and how many of them something was tried on.
    pub rows: u64,
    pub tasks: usize,
    /// Rows of `data.eval` that something was tried on: where evaluation has an environment or a context of its own.
    pub eval_tasks: usize,
    pub trajectories: usize,
    pub steps: usize,
    /// Smallest and largest reward of trajectories that did not fail.
    pub rewards: Option<(f64, f64)>,
    /// Longest prompt, tokens, and the room there is for one.
    pub longest_prompt: usize,
    pub budget: usize,
}

impl Report {
    /// The rewards, smallest and largest, as people write them.
    pub fn rewards_in_words(&self) -> Option<(String, String)> {
        self.rewards.map(|(low, high)| (endings::number(low), endings::number(high)))
    }

    /// Whether the contract is broken.
    pub fn is_broken(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Error)
    }

    /// Adds what the script printed: different lines, at most [`LINES`].
    pub(super) fn printed(&mut self, lines: Vec<LogLine>) {
        for line in lines {
            let known = self.log.iter().any(|known| known.place == line.place && known.text == line.text);
            if known || self.log.len() >= LINES {
                self.more_log += 1;
            } else {
                self.log.push(line);
            }
        }
    }

    /// Adds a finding, unless the same has been found.
    pub(super) fn add(&mut self, finding: Finding) {
        let same = |known: &Finding| {
            known.rule == finding.rule && known.place == finding.place && known.message == finding.message
        };
        if !self.findings.iter().any(same) {
            self.findings.push(finding);
        }
    }
}

impl Finding {
    pub(super) fn new(level: Level, rule: &'static str, message: impl Into<String>) -> Self {
        Self { level, rule, message: message.into(), place: None, hint: None, repeat: Vec::new() }
    }

    pub(super) fn error(rule: &'static str, error: Error) -> Self {
        let Error { message, place, hint, .. } = error;
        Self { place, hint, ..Self::new(Level::Error, rule, message) }
    }

    pub(super) fn at(mut self, place: Option<String>) -> Self {
        self.place = self.place.or(place);
        self
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

/// Lines of the script's log that a report holds.
const LINES: usize = 20;

/// What to check with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest prompt plus reply, tokens; 0: as the settings say.
    pub max_context: usize,
    /// Seconds after which no further trajectory is begun.
    pub seconds: f64,
}

/// Looks through the conversations of a recipe for supervised fine-tuning.
///
/// # Errors
/// Only for a script that does not load.
pub fn supervised(script: &Script, renderer: &Arc<Renderer>, options: &Options) -> Result<Report> {
    contract::supervised(script, renderer, options)
}

/// Tries a script out. Needs a tokio runtime with time and I/O enabled.
///
/// # Errors
/// Only for a script that does not load; what breaks the contract is in the report.
pub async fn check(script: &Script, renderer: &Arc<Renderer>, options: &Options) -> Result<Report> {
    Box::pin(contract::check(script, renderer, options)).await
}
