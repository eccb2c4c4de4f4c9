//! One trajectory: its conversation, its steps token by token, and what changed between the prompts
//! of two steps.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

use super::rows::NotedRow;
use super::tokens::token_text;
use super::{Query, View, json};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Routing, Support, Trajectory};
use crate::store::StoredRun;

/// Longest time for the differences of two prompts; later ones are then shown as a whole.
const TIME: Duration = Duration::from_millis(200);

/// A part of a prompt, relative to the prompt and the reply of the step before.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum PromptPart {
    /// The next tokens of the step before.
    Keep(usize),
    /// Tokens of the step before that the context policy left out.
    Drop(usize),
    /// New tokens.
    Add(Vec<u32>),
}

/// The answer; steps are without `prompt_ids`, which are in `prompts`.
#[derive(Serialize)]
struct TrajectoryPage<'a> {
    run: String,
    path: String,
    split: &'static str,
    summary: NotedRow<'a>,
    trajectory: &'a Trajectory,
    /// Of each step; null where nothing was trained.
    advantages: Vec<Option<f64>>,
    prompts: Vec<Vec<PromptPart>>,
    prompt_tokens: Vec<usize>,
    /// Texts of token ids; empty without the tokenizer.
    texts: BTreeMap<u32, String>,
    /// The trajectories of its group.
    group: Vec<NotedRow<'a>>,
}

impl View {
    /// `run`, `id`.
    pub(super) fn trajectory(&self, query: Query<'_>) -> Result<String> {
        let name = query.text("run")?;
        let run = self.run(name)?;
        self.shown(name, &run, query.text("id")?)
    }

    pub(super) fn shown(&self, name: &str, run: &StoredRun, id: &str) -> Result<String> {
        let (step, index) = self.tables.files.find(run, id)?;
        let notes = Self::notes(run)?;
        let noted = |row| NotedRow { step: step.file.step, row, notes: notes.get(&row.id) };
        let summary = &step.rows[index];
        let whole = self.tables.files.whole(&step)?;
        let missing = || Error::new(Kind::Store, format!("the file has no trajectory {id}")).at_path(&step.file.path);
        let mut trajectory = whole.trajectories.get(index).ok_or_else(missing)?.clone();
        let advantages = whole.advantages.get(index).and_then(Option::as_deref);
        let advantages = advantages.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let prompts = prompts(&trajectory);
        let prompt_tokens = trajectory.steps.iter().map(|step| step.prompt_ids.len()).collect();
        let texts = self.texts(run, &prompts, &trajectory);
        for step in &mut trajectory.steps {
            step.prompt_ids.clear();
            (step.routing, step.support) = (Routing::default(), Support::default());
        }
        json(&TrajectoryPage {
            run: name.to_owned(),
            path: run.path().display().to_string(),
            split: step.file.split.name(),
            summary: noted(summary),
            trajectory: &trajectory,
            advantages,
            prompts,
            prompt_tokens,
            texts,
            group: step.rows.iter().filter(|other| other.group == summary.group).map(noted).collect(),
        })
    }

    fn texts(&self, run: &StoredRun, prompts: &[Vec<PromptPart>], trajectory: &Trajectory) -> BTreeMap<u32, String> {
        let Some(tokens) = self.vocabularies.of(run) else { return BTreeMap::new() };
        let added =
            prompts.iter().flatten().filter_map(|part| if let PromptPart::Add(ids) = part { Some(ids) } else { None });
        let ids = added.chain(trajectory.steps.iter().map(|step| &step.response_ids)).flatten();
        ids.filter_map(|id| Some((*id, token_text(tokens.get(*id as usize)?)))).collect()
    }
}

/// The prompt of each step as changes of the step before, so that the size of an answer does not
/// grow with the square of the number of steps.
fn prompts(trajectory: &Trajectory) -> Vec<Vec<PromptPart>> {
    let mut before: Vec<u32> = Vec::new();
    let mut all = Vec::new();
    for step in &trajectory.steps {
        all.push(changes(&before, &step.prompt_ids));
        before.clone_from(&step.prompt_ids);
        before.extend(&step.response_ids);
    }
    all
}

fn changes(was: &[u32], is: &[u32]) -> Vec<PromptPart> {
    let mut parts = Vec::new();
    let mut add = |part: PromptPart| {
        if !matches!(&part, PromptPart::Keep(0) | PromptPart::Drop(0)) && part != PromptPart::Add(Vec::new()) {
            parts.push(part);
        }
    };
    let common = was.iter().zip(is).take_while(|(a, b)| a == b).count();
    add(PromptPart::Keep(common));
    let (was, is) = (&was[common..], &is[common..]);
    if was.is_empty() {
        add(PromptPart::Add(is.to_vec()));
        return parts;
    }
    for op in capture_diff_slices_deadline(Algorithm::Myers, was, is, Some(Instant::now() + TIME)) {
        if let DiffOp::Equal { len, .. } = op {
            add(PromptPart::Keep(len));
        } else {
            add(PromptPart::Drop(op.old_range().len()));
            add(PromptPart::Add(is[op.new_range()].to_vec()));
        }
    }
    parts
}

#[cfg(test)]
pub(super) mod tests;
