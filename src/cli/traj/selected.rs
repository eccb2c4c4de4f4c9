//! The trajectories that a command reads: files of a run, a condition, and columns as rows.

use std::thread;

use serde_json::{Map, Value};

use super::super::args::OutputArgs;
use super::super::recorded::stop_if_interrupted;
use super::super::traj_args::SelectionArgs;
use crate::error::{Error, Kind, Result, without_control_characters};
use crate::mdp::Split;
use crate::script::Condition;
use crate::store::{ColumnValues, StoredRun, TRAJECTORY_COLUMNS, TrajectoryColumn, TrajectoryFile, scan_trajectories};
use crate::telemetry::{Interrupt, Reporter, ctrl_c, is_interrupted};

/// Files that are read at the same time, at most.
const THREADS: usize = 8;

/// The selected files of a run, and the condition on their trajectories.
pub(super) struct Selected {
    pub(super) run: StoredRun,
    pub(super) files: Vec<TrajectoryFile>,
    pub(super) reporter: Reporter,
    condition: Option<Condition>,
    interrupt: Interrupt,
}

/// Columns of a file, with the rows for which the condition holds.
pub(super) struct ScannedFile {
    columns: Vec<&'static TrajectoryColumn>,
    values: Vec<ColumnValues>,
    pub(super) rows: Vec<usize>,
    /// Number of trajectories, with those for which the condition does not hold.
    pub(super) total: usize,
}

impl ScannedFile {
    fn values(&self, column: &str) -> Option<&ColumnValues> {
        let index = self.columns.iter().position(|read| read.name == column)?;
        self.values.get(index)
    }

    /// The numbers of a column that was read, of all rows.
    pub(super) fn numbers(&self, column: &str) -> &[f64] {
        self.values(column).map_or(&[], ColumnValues::numbers)
    }

    pub(super) fn texts(&self, column: &str) -> &[Option<String>] {
        self.values(column).map_or(&[], ColumnValues::texts)
    }

    /// A value as JSON.
    pub(super) fn json(&self, column: &str, row: usize) -> Value {
        self.values(column).map_or(Value::Null, |values| values.json(row))
    }
}

/// A column by its name.
pub(super) fn column(name: &str) -> Result<&'static TrajectoryColumn> {
    TrajectoryColumn::named(name).ok_or_else(|| Error::new(Kind::Internal, format!("there is no column {name}")))
}

impl Selected {
    pub(super) fn open(args: &SelectionArgs, condition: Option<&str>, output: OutputArgs) -> Result<Self> {
        let interrupt = ctrl_c();
        let names: Vec<&str> = TRAJECTORY_COLUMNS.iter().map(|column| column.name).collect();
        let condition = condition.map(|text| Condition::new(text, &names, is_interrupted)).transpose()?;
        let run = StoredRun::open(&args.run, &args.runs_dir)?;
        let split = if args.eval { Split::Eval } else { Split::Train };
        let all = run.files(split)?;
        let Some((first, last)) = all.first().zip(all.last()).map(|(first, last)| (first.step, last.step)) else {
            let other = if args.eval { Split::Train } else { Split::Eval };
            let error = Error::new(Kind::Store, "the run has no stored trajectories").at_path(run.path());
            let has_other = !run.files(other)?.is_empty();
            return Err(match (has_other, args.eval) {
                (true, true) => error.hint("it has trajectories of training: leave out --eval"),
                (true, false) => error.hint("it has trajectories of evaluations: --eval"),
                _ => error,
            });
        };
        let from = if args.last == 0 { 0 } else { all.len().saturating_sub(args.last) };
        let in_range =
            |file: &TrajectoryFile| args.steps.is_none_or(|steps| (steps.first..=steps.last).contains(&file.step));
        let files: Vec<TrajectoryFile> = all.into_iter().skip(from).filter(in_range).collect();
        if files.is_empty() {
            return Err(Error::new(Kind::Usage, "no step of the run is in the range")
                .at("--steps")
                .hint(format!("it has the steps {first} to {last}")));
        }
        Ok(Self { run, files, condition, reporter: output.reporter(), interrupt })
    }

    /// The columns that the condition uses.
    pub(super) fn condition_columns(&self) -> &[&'static str] {
        self.condition.as_ref().map_or(&[], Condition::columns)
    }

    /// Reads columns of one file.
    pub(super) fn scan(&self, file: &TrajectoryFile, columns: &[&'static str]) -> Result<ScannedFile> {
        stop_if_interrupted(self.interrupt)?;
        let columns = self.columns(columns)?;
        self.select(file, &columns, scan_trajectories(file, &columns)?)
    }

    /// The columns of the condition, then others.
    fn columns(&self, others: &[&'static str]) -> Result<Vec<&'static TrajectoryColumn>> {
        let condition = self.condition_columns();
        let mut names = condition.to_vec();
        names.extend(others.iter().filter(|name| !condition.contains(name)));
        // A column with a value for each trajectory, to count them.
        if names.is_empty() {
            names.push("step");
        }
        names.iter().map(|name| column(name)).collect()
    }

    /// Selects the rows of a file for which the condition holds.
    fn select(
        &self,
        file: &TrajectoryFile,
        columns: &[&'static TrajectoryColumn],
        values: Vec<ColumnValues>,
    ) -> Result<ScannedFile> {
        let total = values.first().map_or(0, ColumnValues::count);
        let rows = match &self.condition {
            None => (0..total).collect(),
            Some(condition) => {
                let used = &values[..condition.columns().len()];
                let holds = condition.select(used, total).map_err(|error| error.at_path(&file.path))?;
                (0..total).filter(|row| holds[*row]).collect()
            }
        };
        Ok(ScannedFile { columns: columns.to_vec(), values, rows, total })
    }

    /// Calls `each` for every file, with these columns. A file that can't be read is left out with
    /// a warning, unless it is the only one.
    ///
    /// # Errors
    /// The first error, if no file can be read; errors of `each`.
    pub(super) fn each(
        &self,
        columns: &[&'static str],
        mut each: impl FnMut(usize, &TrajectoryFile, ScannedFile) -> Result<()>,
    ) -> Result<()> {
        let columns = &self.columns(columns)?;
        let mut damage = Damage::default();
        let at_once = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        for (first, files) in self.files.chunks(at_once).enumerate().map(|(chunk, files)| (chunk * at_once, files)) {
            stop_if_interrupted(self.interrupt)?;
            let scanned: Vec<Result<Vec<ColumnValues>>> = thread::scope(|scope| {
                let read = |file| scope.spawn(move || scan_trajectories(file, columns));
                let threads: Vec<_> = files.iter().map(read).collect();
                let panicked = |_| Err(Error::new(Kind::Store, "a file can't be read: its content is damaged"));
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
            });
            for ((index, file), values) in (first..).zip(files).zip(scanned) {
                if let Some(values) = damage.or_warn(values, &self.reporter)? {
                    each(index, file, self.select(file, columns, values)?)?;
                }
            }
        }
        damage.unless_all(self.files.len())
    }
}

/// Files that could not be read.
#[derive(Default)]
pub(super) struct Damage {
    count: usize,
    first: Option<Error>,
}

impl Damage {
    /// A result, or a warning for a file that can't be read.
    pub(super) fn or_warn<T>(&mut self, read: Result<T>, reporter: &Reporter) -> Result<Option<T>> {
        match read {
            Err(error) if error.kind == Kind::Store => {
                reporter.warn(&error.to_string());
                self.count += 1;
                self.first.get_or_insert(error.hint("`r1 traj verify RUN` checks every file"));
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// The first error, if none of the files could be read.
    pub(super) fn unless_all(self, files: usize) -> Result<()> {
        match self.first {
            Some(error) if self.count == files => Err(error),
            _ => Ok(()),
        }
    }
}

/// A result as an event.
pub(super) fn event(name: &str, fields: &Value) -> Value {
    let mut event = Map::from_iter([("event".to_owned(), Value::from(name))]);
    event.extend(fields.as_object().cloned().unwrap_or_default());
    Value::Object(event)
}

/// Replaces control characters in all texts of a value, for a terminal.
pub(super) fn harmless(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let std::borrow::Cow::Owned(clean) = without_control_characters(text) {
                *text = clean;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(harmless),
        Value::Object(fields) => {
            let clean = |(name, mut value): (String, Value)| {
                harmless(&mut value);
                (without_control_characters(&name).into_owned(), value)
            };
            *fields = std::mem::take(fields).into_iter().map(clean).collect::<Map<String, Value>>();
        }
        _ => {}
    }
}
