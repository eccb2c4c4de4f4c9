//! Tables of trajectories and of groups: filtered, sorted, and sent in pages, so that a run with
//! 100,000 trajectories is shown at once. The filter is a Luau expression, as of `r1 traj where`.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::rows::{NotedRow, ReadFiles, Stamp, StepRows, TableRow, columns, stamp};
use super::{Query, View};
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Split;
use crate::script::Condition;
use crate::store::{CURATION, ColumnValues, Curation, TRAJECTORY_COLUMNS, scan_trajectories};

/// Rows of a page, at most.
const PAGE: usize = 1000;
/// Longest time of a filter.
const FILTER_TIME: Duration = Duration::from_secs(30);

/// Columns that can be sorted; also `reward_parts.NAME`.
const SORTED: &str = "id step group sample task task_index status truncated_by reward advantage steps tokens \
                      tool_calls seconds policy_version tags quality excluded";
const PARTS: &str = "reward_parts.";

/// Columns of a filter that are notes. `excluded` is nil or a text, so that `not excluded` holds
/// for trajectories without notes.
const NOTES: [&str; 4] = ["excluded", "quality", "tags", "note"];

/// What has been read and selected.
#[derive(Debug, Default)]
pub(super) struct TrajectoryTables {
    pub(super) files: ReadFiles,
    filtered: Mutex<Filtered>,
    /// The last selection; a page requests the next rows of the same one.
    selected: Mutex<Option<(TableSelection, Arc<Vec<At>>)>>,
}

/// For which rows of files the last filter holds: a run that goes on adds files.
#[derive(Debug, Default)]
struct Filtered {
    text: String,
    notes: Stamp,
    files: BTreeMap<PathBuf, (Stamp, Arc<Vec<bool>>)>,
}

/// A file, and a trajectory in it.
type At = (usize, usize);

/// What decides which rows a table has, and their order.
#[derive(Debug, PartialEq)]
struct TableSelection {
    files: Vec<(PathBuf, Stamp)>,
    text: String,
    sort: String,
    notes: Stamp,
}

thread_local! {
    /// When the filter that runs on this thread ends.
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn is_late() -> bool {
    END.get().is_some_and(|end| Instant::now() > end)
}

/// A value of a sorted column.
#[derive(Clone, Debug, PartialEq)]
enum SortKey {
    Number(f64),
    Text(String),
}

impl SortKey {
    /// Values that are missing are last, in both directions.
    fn order(&self, other: &Self, descending: bool) -> Ordering {
        let is_missing = |key: &Self| match key {
            Self::Number(number) => number.is_nan(),
            Self::Text(text) => text.is_empty(),
        };
        let order = match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => Ordering::Equal,
        };
        let missing = is_missing(self).cmp(&is_missing(other));
        missing.then(if descending { order.reverse() } else { order })
    }
}

impl From<f64> for SortKey {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for SortKey {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl NotedRow<'_> {
    fn key(&self, column: &str) -> SortKey {
        let row = self.row;
        let notes = self.notes;
        match column {
            "id" => row.id.as_str().into(),
            "step" => (self.step as f64).into(),
            "group" => (row.group as f64).into(),
            "sample" => (row.sample as f64).into(),
            "task" => row.task.as_ref().into(),
            "task_index" => (row.task_index as f64).into(),
            "status" => row.status.as_ref().into(),
            "truncated_by" => row.truncated_by.as_deref().unwrap_or_default().into(),
            "reward" => row.reward.into(),
            "advantage" => row.advantage.into(),
            "steps" => (row.steps as f64).into(),
            "tokens" => (row.tokens as f64).into(),
            "tool_calls" => (row.tool_calls as f64).into(),
            "seconds" => row.seconds.into(),
            "policy_version" => (row.policy_version as f64).into(),
            "tags" => notes.map_or_else(String::new, |notes| notes.tags.join(" ")).as_str().into(),
            "quality" => notes.and_then(|notes| notes.quality).map_or(f64::NAN, f64::from).into(),
            "excluded" => notes.map_or(f64::NAN, |notes| f64::from(u8::from(notes.exclude))).into(),
            _ => row.reward_parts.get(column.strip_prefix(PARTS).unwrap_or_default()).into(),
        }
    }
}

/// A page of a table.
#[derive(Serialize)]
struct TablePage<T> {
    /// Trajectories of the run, and rows that the filter selects.
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
struct GroupRow {
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
    const COLUMNS: &str = "step group task count mean std min max tokens steps failures";

    fn key(&self, column: &str) -> SortKey {
        match serde_json::to_value(self).unwrap_or_default().get(column) {
            Some(Value::String(text)) => text.as_str().into(),
            value => value.and_then(Value::as_f64).unwrap_or(f64::NAN).into(),
        }
    }

    fn add(&mut self, row: &TableRow) {
        let first = self.count == 0;
        self.count += 1;
        (self.mean, self.squares) = (self.mean + row.reward, self.squares + row.reward * row.reward);
        self.min = if first { row.reward } else { self.min.min(row.reward) };
        self.max = if first { row.reward } else { self.max.max(row.reward) };
        self.tokens += row.tokens as f64;
        self.steps += row.steps as f64;
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
struct SelectedRows {
    files: Vec<Arc<StepRows>>,
    notes: BTreeMap<String, Curation>,
    at: Arc<Vec<At>>,
}

impl SelectedRows {
    fn row(&self, (file, index): At) -> NotedRow<'_> {
        let file = &self.files[file];
        let row = &file.rows[index];
        NotedRow { step: file.file.step, row, notes: self.notes.get(&row.id) }
    }

    fn page<T: Serialize>(&self, matching: usize, rows: Vec<T>) -> Result<Value> {
        // The first and the last trajectory have the parts of almost every run.
        let first = self.files.iter().find_map(|file| file.rows.first());
        let ends = first.into_iter().chain(self.files.iter().rev().find_map(|file| file.rows.last()));
        let parts: BTreeSet<String> =
            ends.flat_map(|row| row.reward_parts.names().map(str::to_owned).collect::<Vec<_>>()).collect();
        let damaged = self.files.iter().filter_map(|file| file.damage.clone()).collect();
        let total = self.files.iter().map(|file| file.rows.len()).sum();
        let page = TablePage { total, matching, rows, parts: parts.into_iter().collect(), damaged };
        serde_json::to_value(page)
            .map_err(|error| Error::new(Kind::Internal, format!("can't write the table as JSON: {error}")))
    }
}

/// `-reward`: the column, and whether the largest value is first.
fn order(sort: &str) -> (&str, bool) {
    sort.strip_prefix('-').map_or((sort, false), |name| (name, true))
}

fn check_column(name: &str, columns: &str) -> Result<()> {
    if columns.split_whitespace().any(|column| column == name) {
        return Ok(());
    }
    let hint = suggest(name, columns.split_whitespace());
    Err(Error::new(Kind::Usage, format!("there is no column `{name}`")).hint(hint))
}

/// The values of a column of notes for the rows of a file.
fn noted(column: &str, file: &StepRows, notes: &BTreeMap<String, Curation>) -> ColumnValues {
    let notes = file.rows.iter().map(|row| notes.get(&row.id));
    match column {
        "quality" => ColumnValues::Numbers(
            notes.map(|one| one.and_then(|one| one.quality).map_or(f64::NAN, f64::from)).collect(),
        ),
        "excluded" => {
            ColumnValues::Texts(notes.map(|one| one.filter(|one| one.exclude).map(|_| "excluded".to_owned())).collect())
        }
        "note" => ColumnValues::Texts(notes.map(|one| one.map(|one| one.note.clone())).collect()),
        _ => ColumnValues::Json(
            notes.map(|one| serde_json::to_string(one.map_or(&[][..], |one| one.tags.as_slice())).ok()).collect(),
        ),
    }
}

impl View {
    fn select(&self, query: Query<'_>, sort: &str) -> Result<SelectedRows> {
        let run = self.run(query.text("run")?)?;
        let name = query.get("split").unwrap_or("train");
        let split = Split::ALL.into_iter().find(|split| split.name() == name);
        let split = split.ok_or_else(|| Error::new(Kind::Usage, format!("there is no split `{name}`")))?;
        let text = query.get("where").unwrap_or_default().trim().to_owned();
        let (column, descending) = order(sort);
        if !column.is_empty() && !column.starts_with(PARTS) {
            check_column(column, SORTED)?;
        }
        let files = self.tables.files.load(&run, split, query.number("step")?)?;
        let notes_stamp = stamp(&run.path().join(CURATION));
        let mut selected = SelectedRows { files, notes: Self::notes(&run)?, at: Arc::default() };
        let files = selected.files.iter().map(|file| (file.file.path.clone(), file.stamp)).collect();
        let selection = TableSelection { files, text: text.clone(), sort: sort.to_owned(), notes: notes_stamp };
        let last = || self.tables.selected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, at)) = last().as_ref().filter(|(same, _)| *same == selection) {
            selected.at = Arc::clone(at);
            return Ok(selected);
        }
        let holds = if text.is_empty() { None } else { Some(self.filter(&selected, &text, notes_stamp)?) };
        let mut at = Vec::new();
        for (file, rows) in selected.files.iter().enumerate() {
            let holds = holds.as_ref().map(|all| all[file].as_slice());
            let is_selected = |index: &usize| holds.is_none_or(|holds| holds.get(*index) == Some(&true));
            at.extend((0..rows.rows.len()).filter(is_selected).map(|index| (file, index)));
        }
        if !column.is_empty() {
            let mut keys: Vec<(SortKey, At)> = at.into_iter().map(|at| (selected.row(at).key(column), at)).collect();
            keys.sort_by(|a, b| a.0.order(&b.0, descending));
            at = keys.into_iter().map(|(_, at)| at).collect();
        }
        selected.at = Arc::new(at);
        *last() = Some((selection, Arc::clone(&selected.at)));
        Ok(selected)
    }

    /// For which rows of each file a condition holds.
    fn filter(&self, selected: &SelectedRows, text: &str, notes: Stamp) -> Result<Vec<Arc<Vec<bool>>>> {
        let names: Vec<&'static str> = TRAJECTORY_COLUMNS.iter().map(|column| column.name).chain(NOTES).collect();
        let condition = Condition::new(text, &names, is_late)?;
        let mut filtered = self.tables.filtered.lock().unwrap_or_else(PoisonError::into_inner);
        if (filtered.text.as_str(), filtered.notes) != (text, notes) {
            *filtered = Filtered { text: text.to_owned(), notes, ..Filtered::default() };
        }
        END.set(Some(Instant::now() + FILTER_TIME));
        let mut all = Vec::new();
        for file in &selected.files {
            let before = filtered.files.get(&file.file.path).filter(|(stamp, _)| *stamp == file.stamp);
            let holds = match before {
                Some((_, holds)) => Arc::clone(holds),
                None => Arc::new(holds(&condition, file, &selected.notes)?),
            };
            filtered.files.insert(file.file.path.clone(), (file.stamp, Arc::clone(&holds)));
            all.push(holds);
        }
        Ok(all)
    }

    /// A page of trajectories: `run`, `split`, `step`, `where`, `sort` (a column, `-` before it for
    /// the largest first), `offset`, `limit`.
    pub(super) fn trajectories(&self, query: Query<'_>) -> Result<Value> {
        let selected = self.select(query, query.get("sort").unwrap_or("-step"))?;
        let (offset, limit) = window(query)?;
        let rows = selected.at.iter().skip(offset).take(limit).map(|at| selected.row(*at)).collect();
        selected.page(selected.at.len(), rows)
    }

    /// A page of groups, of the trajectories that the filter selects.
    pub(super) fn groups(&self, query: Query<'_>) -> Result<Value> {
        let (column, descending) = order(query.get("sort").unwrap_or("-step"));
        check_column(column, GroupRow::COLUMNS)?;
        let selected = self.select(query, "")?;
        let mut groups: BTreeMap<(u64, u64), GroupRow> = BTreeMap::new();
        for NotedRow { step, row, .. } in selected.at.iter().map(|at| selected.row(*at)) {
            let new = || GroupRow { step, group: row.group, task: Arc::clone(&row.task), ..GroupRow::default() };
            groups.entry((step, row.group)).or_insert_with(new).add(row);
        }
        let mut groups: Vec<GroupRow> = groups.into_values().collect();
        groups.iter_mut().for_each(GroupRow::finish);
        let mut keyed: Vec<_> = groups.into_iter().map(|group| (group.key(column), group)).collect();
        keyed.sort_by(|a, b| a.0.order(&b.0, descending));
        let (offset, limit) = window(query)?;
        selected.page(keyed.len(), keyed.into_iter().skip(offset).take(limit).map(|(_, group)| group).collect())
    }
}

/// For which rows of a file a condition holds; none of a damaged file.
fn holds(condition: &Condition, file: &StepRows, notes: &BTreeMap<String, Curation>) -> Result<Vec<bool>> {
    if file.damage.is_some() {
        return Ok(Vec::new());
    }
    let (of_notes, stored): (Vec<&str>, Vec<&str>) = condition.columns().iter().partition(|name| NOTES.contains(*name));
    let mut read = scan_trajectories(&file.file, &columns(stored)?)?.into_iter();
    // In the order of the condition's columns.
    let of = |name: &&'static str| {
        if of_notes.contains(name) { Some(noted(name, file, notes)) } else { read.next() }
    };
    let values: Vec<ColumnValues> = condition.columns().iter().filter_map(of).collect();
    condition.select(&values, file.rows.len()).map_err(|error| match error.kind {
        Kind::Interrupted => {
            Error::new(Kind::Usage, format!("the filter takes longer than {} seconds", FILTER_TIME.as_secs()))
        }
        _ => error,
    })
}

fn window(query: Query<'_>) -> Result<(usize, usize)> {
    let number = |name| query.number(name).map(|value| value.and_then(|value| usize::try_from(value).ok()));
    Ok((number("offset")?.unwrap_or(0), number("limit")?.unwrap_or(PAGE).min(PAGE)))
}

#[cfg(test)]
mod tests;
