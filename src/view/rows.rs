//! The trajectories of a run as rows of a table, read from the columns of their files. Rows are
//! kept in memory; a file is read again when it has changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::{Error, Kind, Result, clip, suggest};
use crate::mdp::{Split, Trajectory};
use crate::store::{
    ColumnValues, Curation, StoredRun, TrajectoryColumn, TrajectoryFile, read_trajectories, scan_trajectories,
};

/// Columns of a file that a row is made of.
const READ: &str = "id group sample parent forked_at task_index task status truncated_by dropped reward reward_parts \
                    advantage steps tokens tool_calls error seconds policy_version";

/// Longest excerpts of tasks and errors, in characters.
const EXCERPT: usize = 160;
/// Threads that read files, at most.
const THREADS: usize = 8;

/// A trajectory in a table. Numbers that are not stored are NaN, which is null in JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TableRow {
    pub(super) id: String,
    pub(super) group: u64,
    pub(super) sample: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<String>,
    pub(super) forked_at: f64,
    pub(super) task_index: u64,
    /// The beginning of the task's first text.
    pub(super) task: Arc<str>,
    pub(super) status: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) truncated_by: Option<Arc<str>>,
    /// `trainer.filter` dropped its group.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) dropped: bool,
    pub(super) reward: f64,
    pub(super) reward_parts: RewardParts,
    pub(super) advantage: f64,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) tool_calls: u64,
    pub(super) seconds: f64,
    pub(super) policy_version: u64,
    /// The beginning of the failure's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// Parts of a reward. Trajectories with the same parts share their names.
#[derive(Clone, Debug)]
pub(super) struct RewardParts {
    names: Arc<[String]>,
    values: Vec<f64>,
}

impl RewardParts {
    /// The value of a part; NaN if it is not there.
    pub(super) fn get(&self, name: &str) -> f64 {
        self.iter().find(|(key, _)| *key == name).map_or(f64::NAN, |(_, value)| value)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
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

/// When a file was changed, and its length.
pub(super) type Stamp = (Option<SystemTime>, u64);

pub(super) fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).map_or((None, 0), |metadata| (metadata.modified().ok(), metadata.len()))
}

/// The rows of a file.
#[derive(Debug)]
pub(super) struct StepRows {
    pub(super) file: TrajectoryFile,
    pub(super) stamp: Stamp,
    pub(super) rows: Vec<TableRow>,
    /// Why the file can't be read.
    pub(super) damage: Option<String>,
}

/// All of a file.
#[derive(Debug)]
pub(super) struct WholeFile {
    pub(super) trajectories: Vec<Trajectory>,
    /// Of each trajectory, the JSON list of the advantages of its steps.
    pub(super) advantages: Vec<Option<String>>,
}

/// What has been read of files.
#[derive(Debug, Default)]
pub(super) struct ReadFiles {
    rows: Mutex<BTreeMap<PathBuf, Arc<StepRows>>>,
    /// The last one: a reader goes from one trajectory of a step to the next.
    whole: Mutex<Option<(PathBuf, Stamp, Arc<WholeFile>)>>,
}

impl ReadFiles {
    /// The rows of all steps of a split, or of one of them.
    pub(super) fn load(&self, run: &StoredRun, split: Split, only: Option<u64>) -> Result<Vec<Arc<StepRows>>> {
        let mut files = run.files(split)?;
        files.retain(|file| only.is_none_or(|only| only == file.step));
        let read = |files: &[TrajectoryFile]| files.iter().map(|file| self.step(file)).collect::<Vec<_>>();
        // Unpacking many files takes seconds; each thread has a part of the steps.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let parts = files.chunks(files.len().div_ceil(threads).max(1));
        let failed = |_| Error::new(Kind::Internal, "a thread that reads trajectories has failed");
        std::thread::scope(|scope| {
            let parts: Vec<_> = parts.map(|part| scope.spawn(|| read(part))).collect();
            let all = parts.into_iter().map(|part| part.join().map_err(failed)).collect::<Result<Vec<_>>>()?;
            Ok(all.into_iter().flatten().collect())
        })
    }

    fn step(&self, file: &TrajectoryFile) -> Arc<StepRows> {
        let stamp = stamp(&file.path);
        let all = || self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = all().get(&file.path).filter(|read| read.stamp == stamp) {
            return Arc::clone(read);
        }
        // The library of Parquet panics on some damaged files.
        let read = std::panic::catch_unwind(|| rows(file));
        let damaged = |_| Err(Error::new(Kind::Store, "damaged file of trajectories").at_path(&file.path));
        let (rows, damage) = match read.unwrap_or_else(damaged) {
            Ok(rows) => (rows, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let read = Arc::new(StepRows { file: file.clone(), stamp, rows, damage });
        all().insert(file.path.clone(), Arc::clone(&read));
        read
    }

    /// The step of a trajectory, and its index there.
    ///
    /// # Errors
    /// [`Kind::Usage`] for one that the run does not have.
    pub(super) fn find(&self, run: &StoredRun, id: &str) -> Result<(Arc<StepRows>, usize)> {
        let missing = || Error::new(Kind::Usage, format!("the run has no trajectory `{id}`"));
        let (split, step) = Split::of_id(id).ok_or_else(missing)?;
        let step = self.load(run, split, Some(step))?.pop().ok_or_else(missing)?;
        if let Some(damage) = &step.damage {
            return Err(Error::new(Kind::Store, damage.clone()));
        }
        let index = step.rows.iter().position(|row| row.id == id);
        let index = index.ok_or_else(|| missing().hint(suggest(id, step.rows.iter().map(|row| row.id.as_str()))))?;
        Ok((step, index))
    }

    /// All of a file. Prompts are stored as differences from the row before, so that a trajectory
    /// can't be read alone.
    pub(super) fn whole(&self, step: &StepRows) -> Result<Arc<WholeFile>> {
        let path = &step.file.path;
        let mut last = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, whole)) = last.as_ref().filter(|(same, stamp, _)| same == path && *stamp == step.stamp) {
            return Ok(Arc::clone(whole));
        }
        let trajectories = read_trajectories(path)?;
        let advantages = scan_trajectories(&step.file, &columns(["advantages"])?)?;
        let advantages = advantages.first().map_or(&[][..], ColumnValues::texts).to_vec();
        let whole = Arc::new(WholeFile { trajectories, advantages });
        *last = Some((path.clone(), step.stamp, Arc::clone(&whole)));
        Ok(whole)
    }
}

/// Columns by their names.
pub(super) fn columns<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static TrajectoryColumn>> {
    let missing = |name: &str| Error::new(Kind::Internal, format!("there is no column {name}"));
    names.into_iter().map(|name| TrajectoryColumn::named(name).ok_or_else(|| missing(name))).collect()
}

/// Reads the rows of a file.
fn rows(file: &TrajectoryFile) -> Result<Vec<TableRow>> {
    let values = scan_trajectories(file, &columns(READ.split_whitespace())?)?;
    let of = |name: &str| READ.split_whitespace().position(|read| read == name).and_then(|at| values.get(at));
    let number = |name: &str, row: usize| of(name).and_then(|one| one.numbers().get(row).copied()).unwrap_or(f64::NAN);
    let text = |name: &str, row: usize| of(name).and_then(|one| one.texts().get(row)?.as_deref());
    let mut rows: Vec<TableRow> = Vec::new();
    // The task of the row before, and its excerpt: trajectories of a group have the same one.
    let mut task: (&str, Arc<str>) = ("", "".into());
    for row in 0..of("id").map_or(0, |ids| ids.texts().len()) {
        let before = rows.last();
        // Texts are shared with the row before, which is often one of the same task.
        let shared = |text: &str, before: Option<&Arc<str>>| -> Arc<str> {
            before.filter(|before| before.as_ref() == text).map_or_else(|| text.into(), Arc::clone)
        };
        let integer = |name| number(name, row) as u64;
        let of_row = text("task", row).unwrap_or_default();
        if task.0 != of_row {
            task = (of_row, first_text(of_row).into());
        }
        let read = TableRow {
            id: text("id", row).unwrap_or_default().to_owned(),
            group: integer("group"),
            sample: integer("sample"),
            parent: text("parent", row).map(str::to_owned),
            forked_at: number("forked_at", row),
            task_index: integer("task_index"),
            task: Arc::clone(&task.1),
            status: shared(text("status", row).unwrap_or_default(), before.map(|one| &one.status)),
            truncated_by: text("truncated_by", row).map(Arc::from),
            dropped: text("dropped", row).is_some(),
            reward: number("reward", row),
            reward_parts: RewardParts::parse(
                text("reward_parts", row).unwrap_or_default(),
                before.map(|one| &one.reward_parts),
            ),
            advantage: number("advantage", row),
            steps: integer("steps"),
            tokens: integer("tokens"),
            tool_calls: integer("tool_calls"),
            seconds: number("seconds", row),
            policy_version: integer("policy_version"),
            error: text("error", row).map(|text| clip(text, EXCERPT)),
        };
        rows.push(read);
    }
    Ok(rows)
}

/// The beginning of the first text in a task, which names it best.
fn first_text(task: &str) -> String {
    const NAMES: [&str; 6] = ["question", "problem", "prompt", "task", "text", "instruction"];
    let task: Value = serde_json::from_str(task).unwrap_or_default();
    let named = NAMES.iter().find_map(|name| task[*name].as_str());
    let first = || task.as_object()?.values().find_map(Value::as_str);
    let whole = || if task.is_null() { String::new() } else { task.to_string() };
    clip(&named.or_else(first).map_or_else(whole, str::to_owned), EXCERPT)
}

/// A row as the page receives it.
#[derive(Serialize)]
pub(super) struct NotedRow<'a> {
    pub(super) step: u64,
    #[serde(flatten)]
    pub(super) row: &'a TableRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) notes: Option<&'a Curation>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_named_by_its_first_text() {
        assert_eq!(first_text(r#"{"n":1,"answer":"2","question":"1+1?"}"#), "1+1?");
        assert_eq!(first_text(r#"{"n":1,"answer":"2"}"#), "2");
        assert_eq!((first_text(r#"{"n":1}"#), first_text("")), (r#"{"n":1}"#.to_owned(), String::new()));
        let long = first_text(&format!(r#"{{"text":"{}"}}"#, "é".repeat(500)));
        assert!(long.chars().count() == EXCERPT + 1 && long.ends_with("é…"));
    }
}
