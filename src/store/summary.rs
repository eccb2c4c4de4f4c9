//! Summaries of stored trajectories: what a table of many trajectories shows, read from a few
//! columns. Prompts and messages are not read. The checksum of a file is not compared, which would
//! read all of it; [`read_trajectories`](super::read_trajectories) does so.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use parquet::arrow::ProjectionMask;
use serde::de::IgnoredAny;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::read::{WHAT, open};
use super::trajectories::parquet_failed;
use crate::error::{Error, Kind, Result};

/// Columns of a summary. Files of earlier versions lack some.
const COLUMNS: [&str; 25] = [
    "trajectory",
    "id",
    "group",
    "sample",
    "parent",
    "forked_at",
    "task_index",
    "task",
    "policy_version",
    "script_hash",
    "status",
    "truncated_by",
    "retries",
    "seconds",
    "error",
    "total_reward",
    "outcome_reward",
    "reward_parts",
    "advantage",
    "step",
    "response_ids",
    "tools",
    "server",
    "logprobs",
    "learner_logprobs",
];

/// Longest excerpts of tasks and errors, in characters.
const EXCERPT: usize = 160;

/// A trajectory in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrajectorySummary {
    pub id: String,
    pub group: u64,
    pub sample: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_at: Option<u32>,
    pub task_index: u64,
    /// The beginning of the task's first text.
    pub task: Arc<str>,
    pub policy_version: u64,
    pub script_hash: Arc<str>,
    pub status: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<String>,
    pub retries: u32,
    /// Wall time of the attempt; 0 where it was not measured.
    pub seconds: f64,
    /// The beginning of the failure's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub reward: f64,
    pub outcome: f64,
    pub parts: RewardParts,
    /// Mean advantage of its steps; `None` for a trajectory that was not trained on.
    pub advantage: Option<f64>,
    /// Number of steps.
    pub steps: u32,
    /// Sampled tokens.
    pub tokens: u64,
    /// Tool calls, those of the script included.
    pub calls: u32,
    /// Mean absolute difference between the log-probabilities of sampler and learner; `None` in
    /// files without those of the learner.
    pub mismatch: Option<f64>,
    /// First row in the file, and number of rows.
    #[serde(skip)]
    pub rows: (usize, usize),
}

/// Parts of a reward. Trajectories with the same parts share their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewardParts {
    names: Arc<[String]>,
    values: Vec<f64>,
}

impl RewardParts {
    /// The value of a part; `None` if it is not there, or not a finite number.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find(|(key, _)| *key == name).map(|(_, value)| value).filter(|value| value.is_finite())
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.names().zip(self.values.iter().copied())
    }

    /// From JSON; `before` has the parts of another trajectory.
    fn parse(text: &str, before: Option<&Self>) -> Self {
        let fields: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let shared = before.filter(|before| before.names().eq(fields.keys().map(String::as_str)));
        let names = shared.map_or_else(|| fields.keys().cloned().collect(), |before| Arc::clone(&before.names));
        Self { names, values: fields.values().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect() }
    }
}

impl Serialize for RewardParts {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Sums over the rows of a trajectory.
#[derive(Default)]
struct Sums {
    advantage: (f64, u32),
    mismatch: (f64, u64),
}

/// The summaries of a file of trajectories, in the file's order.
///
/// # Errors
/// [`Kind::Store`] for a file that is damaged or has no trajectories.
pub fn read_summaries(path: &Path) -> Result<Vec<TrajectorySummary>> {
    let mut summaries: Vec<TrajectorySummary> = Vec::new();
    let (mut sums, mut last, mut number) = (Sums::default(), None, 0);
    for batch in batches(path)? {
        let batch = batch?;
        let columns = Columns(&batch);
        for row in 0..batch.num_rows() {
            if last.replace(columns.int("trajectory", row)) != Some(columns.int("trajectory", row)) {
                if let Some(summary) = summaries.last_mut() {
                    std::mem::take(&mut sums).finish(summary);
                }
                let summary = columns.summary(row, number, summaries.last());
                summaries.push(summary);
            }
            if let Some(summary) = summaries.last_mut() {
                columns.add_step(row, summary, &mut sums);
            }
            number += 1;
        }
    }
    if let Some(summary) = summaries.last_mut() {
        sums.finish(summary);
    }
    Ok(summaries)
}

fn batches(path: &Path) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
    let builder = open(path)?;
    let names = builder.schema().fields().iter().enumerate();
    let roots: Vec<usize> =
        names.filter(|(_, field)| COLUMNS.contains(&field.name().as_str())).map(|(at, _)| at).collect();
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
    let reader = builder.with_projection(mask).build().map_err(|error| parquet_failed(WHAT, path, &error))?;
    let location = path.to_owned();
    Ok(reader.map(move |batch| {
        batch.map_err(|error| Error::new(Kind::Store, format!("can't {WHAT}: {error}")).at_path(&location))
    }))
}

/// The columns of a batch. A column that is missing, null or of another type has no value.
struct Columns<'a>(&'a RecordBatch);

impl Columns<'_> {
    fn column(&self, name: &str, row: usize) -> Option<&dyn Array> {
        self.0.column_by_name(name).filter(|column| column.is_valid(row)).map(AsRef::as_ref)
    }

    fn text(&self, name: &str, row: usize) -> Option<&str> {
        Some(self.column(name, row)?.as_string_opt::<i32>()?.value(row))
    }

    fn int(&self, name: &str, row: usize) -> Option<u64> {
        let column = self.column(name, row)?;
        let wide = column.as_primitive_opt::<UInt64Type>().map(|column| column.value(row));
        wide.or_else(|| Some(u64::from(column.as_primitive_opt::<UInt32Type>()?.value(row))))
    }

    fn number(&self, name: &str, row: usize) -> Option<f64> {
        Some(self.column(name, row)?.as_primitive_opt::<Float64Type>()?.value(row))
    }

    /// The summary without its sums. Texts are shared with the trajectory `before` it, which is often
    /// one of the same task.
    fn summary(&self, row: usize, number: usize, before: Option<&TrajectorySummary>) -> TrajectorySummary {
        let text = |name| self.text(name, row).unwrap_or_default();
        let shared = |text: &str, of: fn(&TrajectorySummary) -> &Arc<str>| -> Arc<str> {
            before.map(of).filter(|before| before.as_ref() == text).map_or_else(|| text.into(), Arc::clone)
        };
        let small = |name| self.int(name, row).map(|value| value as u32);
        TrajectorySummary {
            id: text("id").to_owned(),
            group: self.int("group", row).unwrap_or_default(),
            sample: small("sample").unwrap_or_default(),
            parent: self.text("parent", row).map(str::to_owned),
            forked_at: small("forked_at"),
            task_index: self.int("task_index", row).unwrap_or_default(),
            task: shared(&first_text(text("task")), |before| &before.task),
            policy_version: self.int("policy_version", row).unwrap_or_default(),
            script_hash: shared(text("script_hash").get(..12).unwrap_or_default(), |before| &before.script_hash),
            status: shared(text("status"), |before| &before.status),
            truncated_by: self.text("truncated_by", row).map(str::to_owned),
            retries: small("retries").unwrap_or_default(),
            seconds: self.number("seconds", row).unwrap_or_default(),
            error: self.text("error", row).map(excerpt),
            reward: self.number("total_reward", row).unwrap_or_default(),
            outcome: self.number("outcome_reward", row).unwrap_or_default(),
            parts: RewardParts::parse(text("reward_parts"), before.map(|before| &before.parts)),
            rows: (number, 0),
            ..TrajectorySummary::default()
        }
    }

    fn add_step(&self, row: usize, summary: &mut TrajectorySummary, sums: &mut Sums) {
        summary.rows.1 += 1;
        if self.column("step", row).is_none() {
            return;
        }
        summary.steps += 1;
        let sampled = self.column("response_ids", row).and_then(|column| column.as_list_opt::<i32>());
        summary.tokens += sampled.map_or(0, |lists| u64::try_from(lists.value_length(row)).unwrap_or_default());
        if let Some(reply) = self.text("server", row) {
            // The server counted them.
            let reply: Value = serde_json::from_str(reply).unwrap_or_default();
            summary.tokens += reply["usage"]["response_tokens"].as_u64().unwrap_or_default();
        }
        let calls = self.text("tools", row).filter(|text| *text != "[]");
        let calls = calls.and_then(|text| serde_json::from_str::<Vec<IgnoredAny>>(text).ok());
        summary.calls += calls.map_or(0, |calls| calls.len() as u32);
        if let Some(advantage) = self.number("advantage", row) {
            sums.advantage = (sums.advantage.0 + advantage, sums.advantage.1 + 1);
        }
        if let (Some(sampler), Some(learner)) = (self.floats("logprobs", row), self.floats("learner_logprobs", row)) {
            for (a, b) in sampler.iter().zip(&learner).filter(|(a, b)| a.is_finite() && b.is_finite()) {
                sums.mismatch = (sums.mismatch.0 + f64::from((a - b).abs()), sums.mismatch.1 + 1);
            }
        }
    }

    fn floats(&self, name: &str, row: usize) -> Option<Vec<f32>> {
        let list = self.column(name, row)?.as_list_opt::<i32>()?.value(row);
        Some(list.as_primitive_opt::<Float32Type>()?.values().to_vec())
    }
}

impl Sums {
    fn finish(self, summary: &mut TrajectorySummary) {
        let (advantage, mismatch) = (self.advantage, self.mismatch);
        summary.advantage = (advantage.1 > 0).then(|| advantage.0 / f64::from(advantage.1));
        summary.mismatch = (mismatch.1 > 0).then(|| mismatch.0 / mismatch.1 as f64);
    }
}

/// The beginning of the first text in a task, which names it best.
fn first_text(task: &str) -> String {
    const NAMES: [&str; 6] = ["question", "problem", "prompt", "task", "text", "instruction"];
    let task: Value = serde_json::from_str(task).unwrap_or_default();
    let named = NAMES.iter().find_map(|name| task[name].as_str());
    let first = || task.as_object()?.values().find_map(Value::as_str);
    named
        .or_else(first)
        .map_or_else(|| if task.is_null() { String::new() } else { excerpt(&task.to_string()) }, excerpt)
}

fn excerpt(text: &str) -> String {
    let mut start: String = text.chars().take(EXCERPT + 1).collect();
    if start.chars().count() > EXCERPT {
        start.pop();
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::mdp::{Status, ToolRecord, Trajectory, testing};
    use crate::store::{RunDir, read_trajectory};

    #[test]
    fn a_summary_has_the_sums_of_a_trajectory_and_its_rows() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let mut step = testing::step(&[1, 2], &[3, 4, 5]);
        step.reward = 0.5;
        step.tools = vec![ToolRecord::default(); 2];
        let first = Trajectory {
            id: "1-0-0".to_owned(),
            task: json!({ "n": 1, "question": "x".repeat(500) }),
            outcome_reward: 1.0,
            reward_parts: [("x".to_owned(), 2.0)].into(),
            ..testing::trajectory(vec![step.clone(), step])
        };
        let failed = Trajectory { id: "1-0-1".to_owned(), status: Status::EnvError, ..testing::trajectory(vec![]) };
        let all = [first, failed];
        let path = run.write_trajectories(1, 7, &all, &[Some(vec![1.0, 2.0]), None]).unwrap();
        let read = read_summaries(&path).unwrap();
        assert_eq!((read.len(), read[0].rows, read[1].rows), (2, (0, 2), (2, 1)));
        let one = &read[0];
        assert_eq!((one.steps, one.tokens, one.calls, one.policy_version), (2, 6, 4, 7));
        assert_eq!((one.reward, one.outcome, one.advantage, one.mismatch), (1.0, 1.0, Some(1.5), None));
        assert_eq!((one.parts.get("x"), serde_json::to_value(&one.parts).unwrap()), (Some(2.0), json!({ "x": 2.0 })));
        assert_eq!((one.task.chars().count(), one.task.ends_with("x…")), (EXCERPT + 1, true));
        assert_eq!((read[1].status.as_ref(), read[1].steps, read[1].advantage), ("env_error", 0, None));
        let (read_first, advantages) = read_trajectory(&path, one.rows).unwrap();
        assert_eq!((&read_first, advantages), (&all[0], vec![Some(1.0), Some(2.0)]));
        assert_eq!(read_trajectory(&path, read[1].rows).unwrap(), (all[1].clone(), vec![None]));
        assert_eq!(read_trajectory(&path, (9, 1)).unwrap_err().kind, Kind::Store);
    }

    #[test]
    fn a_summary_of_another_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        std::fs::write(&path, "no table").unwrap();
        let error = read_summaries(&path).unwrap_err();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Store, path.to_str()));
    }
}
