//! Tables of trajectories and of groups: filtered, sorted, and sent in pages, so that a run with
//! 100,000 trajectories is shown at once. Summaries are kept in memory; a file is read again when it
//! has changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use super::filter::{Cell, Filter};
use super::{Query, View};
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Split;
use crate::store::{CURATION, Curation, StoredRun, TrajectorySummary, read_summaries};

/// Rows of a page, at most.
const PAGE: usize = 1000;
/// Threads that read files, at most.
const THREADS: usize = 8;

/// Columns of trajectories; also `parts.NAME`.
const COLUMNS: [&str; 20] = [
    "id",
    "step",
    "group",
    "sample",
    "task",
    "task_index",
    "status",
    "truncated_by",
    "reward",
    "outcome",
    "advantage",
    "mismatch",
    "steps",
    "tokens",
    "calls",
    "seconds",
    "policy_version",
    "tags",
    "quality",
    "excluded",
];

/// Summaries by file.
#[derive(Debug, Default)]
pub(super) struct Tables {
    files: Mutex<BTreeMap<PathBuf, (Stamp, Arc<StepTable>)>>,
    /// The last selection; a page asks for the next rows of the same one.
    selected: Mutex<Option<(Selection, Arc<Vec<At>>)>>,
}

/// When a file was changed, and its length.
type Stamp = (Option<SystemTime>, u64);

/// A file, and a trajectory in it.
type At = (usize, usize);

/// What decides which rows a table has, and their order.
#[derive(Debug, PartialEq)]
struct Selection {
    files: Vec<Stamp>,
    run: PathBuf,
    words: [String; 3],
    notes: Stamp,
}

/// The summaries of a step.
#[derive(Debug)]
pub(super) struct StepTable {
    pub(super) step: u64,
    pub(super) rows: Vec<TrajectorySummary>,
    /// Why the file can't be read.
    damage: Option<String>,
}

fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).map_or((None, 0), |metadata| (metadata.modified().ok(), metadata.len()))
}

impl Tables {
    /// The summaries of all steps of a split, or of one of them.
    pub(super) fn load(
        &self,
        run: &StoredRun,
        split: Split,
        only: Option<u64>,
    ) -> Result<Vec<(Stamp, Arc<StepTable>)>> {
        let steps: Vec<u64> =
            run.steps(split)?.into_iter().filter(|step| only.is_none_or(|only| only == *step)).collect();
        let read = |steps: &[u64]| -> Vec<_> {
            steps.iter().map(|step| self.file(&run.trajectories_path(split, *step), *step)).collect()
        };
        // Unpacking many files takes seconds; each thread has a part of the steps.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let parts = steps.chunks(steps.len().div_ceil(threads).max(1));
        let failed = |_| Error::new(Kind::Internal, "a thread that reads trajectories has failed");
        std::thread::scope(|scope| {
            let read = &read;
            let parts: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
            let all = parts.into_iter().map(|part| part.join().map_err(failed)).collect::<Result<Vec<_>>>()?;
            Ok(all.into_iter().flatten().collect())
        })
    }

    fn file(&self, path: &Path, step: u64) -> (Stamp, Arc<StepTable>) {
        let stamp = stamp(path);
        let files = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = files().get(path).filter(|(read, _)| *read == stamp) {
            return read.clone();
        }
        let (rows, damage) = match read_summaries(path) {
            Ok(rows) => (rows, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let read = (stamp, Arc::new(StepTable { step, rows, damage }));
        files().insert(path.to_owned(), read.clone());
        read
    }

    /// The step of a trajectory, and its index there.
    ///
    /// # Errors
    /// [`Kind::Usage`] for one that the run does not have.
    pub(super) fn find(&self, run: &StoredRun, id: &str) -> Result<(Split, Arc<StepTable>, usize)> {
        let missing = || Error::new(Kind::Usage, format!("the run has no trajectory `{id}`"));
        let (split, step) = Split::of_id(id).ok_or_else(missing)?;
        let (_, table) = self.load(run, split, Some(step))?.pop().ok_or_else(missing)?;
        if let Some(damage) = &table.damage {
            return Err(Error::new(Kind::Store, damage.clone()));
        }
        let index = table.rows.iter().position(|row| row.id == id);
        let ids = || table.rows.iter().map(|row| row.id.as_str());
        let index = index.ok_or_else(|| missing().hint(suggest(id, ids())))?;
        Ok((split, table, index))
    }
}

/// A row as the page receives it.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    pub(super) step: u64,
    #[serde(flatten)]
    pub(super) summary: &'a TrajectorySummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) notes: Option<&'a Curation>,
}

impl Row<'_> {
    /// The value of a column; nil for a part that the trajectory does not have.
    fn column(&self, name: &str) -> Cell {
        let row = self.summary;
        match name {
            "id" => row.id.as_str().into(),
            "step" => (self.step as f64).into(),
            "group" => (row.group as f64).into(),
            "sample" => f64::from(row.sample).into(),
            "task" => row.task.as_ref().into(),
            "task_index" => (row.task_index as f64).into(),
            "status" => row.status.as_ref().into(),
            "truncated_by" => row.truncated_by.as_deref().into(),
            "reward" => row.reward.into(),
            "outcome" => row.outcome.into(),
            "advantage" => row.advantage.into(),
            "mismatch" => row.mismatch.into(),
            "steps" => f64::from(row.steps).into(),
            "tokens" => (row.tokens as f64).into(),
            "calls" => f64::from(row.calls).into(),
            "seconds" => row.seconds.into(),
            "policy_version" => (row.policy_version as f64).into(),
            "tags" => self
                .notes
                .filter(|notes| !notes.tags.is_empty())
                .map_or(Cell::Nil, |notes| Cell::Text(notes.tags.join(" "))),
            "quality" => self.notes.and_then(|notes| notes.quality).map(f64::from).into(),
            "excluded" => Cell::Boolean(self.notes.is_some_and(|notes| notes.exclude)),
            _ => name.strip_prefix("parts.").and_then(|part| row.parts.get(part)).into(),
        }
    }
}

/// A page of a table.
#[derive(Serialize)]
pub(super) struct TablePage<T> {
    /// Rows of the run, and those that the filter selects.
    total: usize,
    matching: usize,
    rows: Vec<T>,
    /// Names of reward parts.
    parts: Vec<String>,
    /// Files that can't be read, with the reason.
    damaged: Vec<String>,
}

/// Values of the trajectories of a group.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct GroupRow {
    step: u64,
    group: u64,
    task: Arc<str>,
    count: usize,
    mean: f64,
    std: f64,
    min: f64,
    max: f64,
    tokens: f64,
    steps: f64,
    failures: usize,
    #[serde(skip)]
    squares: f64,
}

impl GroupRow {
    fn column(&self, name: &str) -> Option<Cell> {
        Some(match name {
            "step" => (self.step as f64).into(),
            "group" => (self.group as f64).into(),
            "task" => self.task.as_ref().into(),
            "count" => (self.count as f64).into(),
            "mean" => self.mean.into(),
            "std" => self.std.into(),
            "min" => self.min.into(),
            "max" => self.max.into(),
            "tokens" => self.tokens.into(),
            "steps" => self.steps.into(),
            "failures" => (self.failures as f64).into(),
            _ => return None,
        })
    }

    fn add(&mut self, row: &TrajectorySummary) {
        let first = self.count == 0;
        self.count += 1;
        (self.mean, self.squares) = (self.mean + row.reward, self.squares + row.reward * row.reward);
        self.min = if first { row.reward } else { self.min.min(row.reward) };
        self.max = if first { row.reward } else { self.max.max(row.reward) };
        self.tokens += row.tokens as f64;
        self.steps += f64::from(row.steps);
        self.failures += usize::from(!matches!(row.status.as_ref(), "terminated" | "truncated"));
    }

    /// Turns sums into means.
    fn finish(&mut self) {
        let count = self.count as f64;
        for sum in [&mut self.mean, &mut self.squares, &mut self.tokens, &mut self.steps] {
            *sum /= count;
        }
        self.std = (self.squares - self.mean * self.mean).max(0.0).sqrt();
    }
}

/// The rows of a run in a split, and which of them are selected.
struct Selected {
    files: Vec<Arc<StepTable>>,
    notes: BTreeMap<String, Curation>,
    at: Arc<Vec<At>>,
}

impl Selected {
    fn row(&self, (file, index): At) -> Row<'_> {
        let table = &self.files[file];
        let summary = &table.rows[index];
        Row { step: table.step, summary, notes: self.notes.get(&summary.id) }
    }

    fn page<T>(&self, matching: usize, rows: Vec<T>) -> TablePage<T> {
        let all = || self.files.iter().flat_map(|file| &file.rows);
        // The first and the last trajectory have the parts of almost every run.
        let ends = all().next().into_iter().chain(self.files.iter().rev().find_map(|file| file.rows.last()));
        let parts: std::collections::BTreeSet<String> =
            ends.flat_map(|row| row.parts.names().map(str::to_owned)).collect();
        let damaged = self.files.iter().filter_map(|file| file.damage.clone()).collect();
        let total = self.files.iter().map(|file| file.rows.len()).sum();
        TablePage { total, matching, rows, parts: parts.into_iter().collect(), damaged }
    }
}

/// `-reward`: the column, and whether the largest value is first.
fn order(sort: &str) -> (&str, bool) {
    sort.strip_prefix('-').map_or((sort, false), |name| (name, true))
}

fn no_column<'a>(name: &str, columns: impl IntoIterator<Item = &'a str> + Clone) -> Error {
    Error::new(Kind::Usage, format!("there is no column `{name}`")).hint(suggest(name, columns))
}

impl View {
    fn select(&self, query: Query<'_>, sort: &str) -> Result<Selected> {
        let run = self.run(query.text("run")?)?;
        let split = query.get("split").unwrap_or("train");
        let is_named = |one: &Split| one.name() == split;
        let split = Split::ALL
            .into_iter()
            .find(is_named)
            .ok_or_else(|| Error::new(Kind::Usage, format!("there is no split `{split}`")))?;
        let text = query.get("where").unwrap_or_default().trim();
        let filter = if text.is_empty() { None } else { Some(Filter::parse(text, &COLUMNS)?) };
        let (column, descending) = order(sort);
        if !COLUMNS.contains(&column) && !column.starts_with("parts.") && !column.is_empty() {
            return Err(no_column(column, COLUMNS));
        }
        let (stamps, files) = self.tables.load(&run, split, query.number("step")?)?.into_iter().unzip();
        let notes_stamp = stamp(&run.path().join(CURATION));
        let notes = Self::notes(&run)?;
        let words = [split.name().to_owned(), text.to_owned(), sort.to_owned()];
        let selection = Selection { files: stamps, run: run.path().to_owned(), words, notes: notes_stamp };
        let mut selected = Selected { files, notes, at: Arc::default() };
        let last = || self.tables.selected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, at)) = last().as_ref().filter(|(same, _)| *same == selection) {
            selected.at = Arc::clone(at);
            return Ok(selected);
        }
        let all = selected.files.iter().enumerate();
        let all = all.flat_map(|(file, table)| (0..table.rows.len()).map(move |index| (file, index)));
        let matches =
            |at: &At| filter.as_ref().is_none_or(|filter| filter.matches(|name| selected.row(*at).column(name)));
        let mut at: Vec<At> = all.filter(matches).collect();
        if !column.is_empty() {
            let mut keys: Vec<(Cell, At)> = at.into_iter().map(|at| (selected.row(at).column(column), at)).collect();
            keys.sort_by(|a, b| a.0.order(&b.0, descending));
            at = keys.into_iter().map(|(_, at)| at).collect();
        }
        selected.at = Arc::new(at);
        *last() = Some((selection, Arc::clone(&selected.at)));
        Ok(selected)
    }

    /// A page of trajectories: `run`, `split`, `step`, `where`, `sort` (a column, `-` before it for
    /// the largest first), `offset`, `limit`.
    pub(super) fn trajectories(&self, query: Query<'_>) -> Result<serde_json::Value> {
        let selected = self.select(query, query.get("sort").unwrap_or("-step"))?;
        let (offset, limit) = window(query)?;
        let rows: Vec<Row<'_>> = selected.at.iter().skip(offset).take(limit).map(|at| selected.row(*at)).collect();
        value(&selected.page(selected.at.len(), rows))
    }

    /// A page of groups, of the trajectories that the filter selects.
    pub(super) fn groups(&self, query: Query<'_>) -> Result<serde_json::Value> {
        let selected = self.select(query, "")?;
        let mut groups: BTreeMap<(u64, u64), GroupRow> = BTreeMap::new();
        for row in selected.at.iter().map(|at| selected.row(*at)) {
            let new = || GroupRow {
                step: row.step,
                group: row.summary.group,
                task: row.summary.task.clone(),
                ..GroupRow::default()
            };
            groups.entry((row.step, row.summary.group)).or_insert_with(new).add(row.summary);
        }
        let mut groups: Vec<GroupRow> = groups.into_values().collect();
        groups.iter_mut().for_each(GroupRow::finish);
        let (column, descending) = order(query.get("sort").unwrap_or("-step"));
        if GroupRow::default().column(column).is_none() {
            let columns =
                ["step", "group", "task", "count", "mean", "std", "min", "max", "tokens", "steps", "failures"];
            return Err(no_column(column, columns));
        }
        let key = |row: &GroupRow| row.column(column).unwrap_or(Cell::Nil);
        groups.sort_by(|a, b| key(a).order(&key(b), descending));
        let (offset, limit) = window(query)?;
        let matching = groups.len();
        value(&selected.page(matching, groups.into_iter().skip(offset).take(limit).collect()))
    }
}

fn value(page: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(page)
        .map_err(|error| Error::new(Kind::Internal, format!("can't write the table as JSON: {error}")))
}

fn window(query: Query<'_>) -> Result<(usize, usize)> {
    let number = |name| query.number(name).map(|value| value.and_then(|value| usize::try_from(value).ok()));
    Ok((number("offset")?.unwrap_or(0), number("limit")?.unwrap_or(PAGE).min(PAGE)))
}

#[cfg(test)]
mod tests;
