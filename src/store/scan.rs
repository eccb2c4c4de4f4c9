//! Columns of stored trajectories, one value per trajectory, read without the other columns of the
//! files.
//!
//! A file has one row per step. A column here is made of one or two columns of the file: the value
//! of the trajectory's first or last row, or a sum, a mean or a list over its rows. Prompts are not
//! read: `read_trajectories` restores them. The checksum is not compared either, because that would
//! read whole files; `r1 traj verify` does it.

use std::fs::File;
use std::path::PathBuf;

use arrow_array::cast::AsArray;
use arrow_array::types as arrow;
use arrow_array::{Array, ArrayRef, RecordBatch};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use serde::Deserialize;
use serde_json::Value;

use super::columns::{ColumnFold, TrajectoryColumn};
use super::files::failed;
use super::read::{check_format, without_panic};
use super::scan_values::{self, ColumnValues};
use super::table::as_views;
use super::trajectories::parquet_failed;
use super::trajectory_row::damaged;
use crate::error::{Error, Kind, Result};
use crate::mdp::{CallKind, ServerReply, Split};

/// Number of rows that are decoded at once.
const BATCH: usize = 2048;

/// A file of trajectories of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrajectoryFile {
    pub split: Split,
    /// Training step; of an evaluation, the step after which it was.
    pub step: u64,
    pub path: PathBuf,
}

/// Reads columns of a file: a list of values for each, with one value per trajectory in the order
/// of the file. A column that the file does not have is NaN or `None`.
///
/// # Errors
/// [`Kind::Store`] for a file that can't be read, or that has no trajectories.
pub fn scan_trajectories(file: &TrajectoryFile, columns: &[&'static TrajectoryColumn]) -> Result<Vec<ColumnValues>> {
    without_panic(&file.path, || read_columns(file, columns))
}

fn read_columns(file: &TrajectoryFile, columns: &[&'static TrajectoryColumn]) -> Result<Vec<ColumnValues>> {
    let path = &file.path;
    let what = "read trajectories";
    let opened = File::open(path).map_err(|e| failed(what, path, &e))?;
    let metadata = ArrowReaderMetadata::load(&opened, ArrowReaderOptions::new());
    let metadata = as_views(metadata.map_err(|e| parquet_failed(what, path, &e))?);
    let described = metadata.metadata().file_metadata();
    check_format(described, path)?;
    // `columns` matches prefixes of paths.
    let schema = described.schema_descr();
    let fields = schema.root_schema().get_fields();
    let has = |name: &str| fields.iter().any(|field| field.name() == name);
    let read = columns.iter().flat_map(|column| column.read_of(has)).copied();
    let read: Vec<&str> = read.chain(["trajectory", "step"]).collect();
    let roots = fields.iter().enumerate();
    let roots = roots.filter(|(_, field)| read.contains(&field.name())).map(|(index, _)| index);
    let mask = ProjectionMask::roots(schema, roots);
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(opened, metadata.clone());
    let reader = reader.with_projection(mask).with_batch_size(BATCH).build();
    let mut values: Vec<ColumnValues> = columns.iter().map(|column| ColumnValues::empty(column.kind())).collect();
    let mut sums = vec![RunningMean::default(); columns.len()];
    let mut last = None;
    for batch in reader.map_err(|e| parquet_failed(what, path, &e))? {
        let batch = batch.map_err(|e| Error::new(Kind::Store, format!("can't {what}: {e}")).at_path(path))?;
        let starts = starts(&batch, &mut last).map_err(|error| error.at_path(path))?;
        for ((column, values), sum) in columns.iter().zip(&mut values).zip(&mut sums) {
            let add = FileRows { batch: &batch, starts: &starts, step: file.step };
            add.to(column, values, sum)
                .map_err(|WrongType(name)| damaged(format!("column `{name}` has another type")).at_path(path))?;
        }
    }
    Ok(values)
}

/// Which rows begin a trajectory. `last` is the number of the one before.
fn starts(batch: &RecordBatch, last: &mut Option<u32>) -> Result<Vec<bool>> {
    let column = batch.column_by_name("trajectory").and_then(|column| column.as_primitive_opt::<arrow::UInt32Type>());
    let column = column.ok_or_else(|| damaged("column `trajectory` is missing or has another type"))?;
    Ok(column.iter().map(|number| last.replace(number.unwrap_or_default()) != number).collect())
}

/// A column of a file that has not the type of its name.
struct WrongType(&'static str);

/// Rows of a file that are added to the values of trajectories.
struct FileRows<'a> {
    batch: &'a RecordBatch,
    starts: &'a [bool],
    step: u64,
}

/// Sum and number of the values of the trajectory that is being read.
type RunningMean = (f64, f64);

impl FileRows<'_> {
    fn to(
        &self,
        column: &'static TrajectoryColumn,
        values: &mut ColumnValues,
        mean: &mut RunningMean,
    ) -> Result<(), WrongType> {
        let name = column.read.first().copied().unwrap_or_default();
        match column.fold {
            ColumnFold::File => self.number(values, 0.0, |_, _, _| self.step as f64),
            ColumnFold::Number => {
                let numbers = self.numbers(name)?;
                self.number(values, f64::NAN, |row, start, before| if start { numbers[row] } else { before });
            }
            ColumnFold::Steps => {
                let numbers = self.numbers(name)?;
                self.number(values, 0.0, |row, _, steps| steps + f64::from(u8::from(!numbers[row].is_nan())));
            }
            ColumnFold::Tokens if self.batch.column_by_name(name).is_some() => {
                let counts = self.numbers(name)?;
                // NaN for a row that is no step.
                self.number(values, 0.0, |row, _, tokens| tokens + counts[row].max(0.0));
            }
            ColumnFold::Tokens => {
                let (ids, servers) = (self.lists("response_ids", |_| Some(Vec::new()))?, self.texts("server")?);
                self.number(values, 0.0, |row, _, tokens| {
                    tokens + ids.range(row).len() as f64 + served_tokens(servers[row])
                });
            }
            ColumnFold::Calls => {
                let tools = self.texts(name)?;
                self.number(values, 0.0, |row, _, calls| calls + policy_calls(tools[row]));
            }
            ColumnFold::Mean => {
                let numbers = self.numbers(name)?;
                self.mean(values, mean, |row| &numbers[row..=row]);
            }
            ColumnFold::MeanOfItems => {
                let lists = self.lists(name, scan_values::numbers)?;
                self.mean(values, mean, |row| lists.items(row));
            }
            ColumnFold::Mismatch => {
                let [learner, sampler] = [name, "logprobs"].map(|name| self.lists(name, scan_values::numbers));
                let (learner, sampler) = (learner?, sampler?);
                self.number(values, f64::NAN, |row, _, largest| {
                    let pairs = learner.items(row).iter().zip(sampler.items(row));
                    // NaN is no largest value.
                    pairs.fold(largest, |largest, (learner, sampler)| largest.max((learner - sampler).abs()))
                });
            }
            ColumnFold::Text | ColumnFold::Json | ColumnFold::LastText => {
                let (texts, is_last) = (self.texts(name)?, matches!(column.fold, ColumnFold::LastText));
                self.text(values, |row, start, text| {
                    if start || is_last {
                        *text = texts[row].map(str::to_owned);
                    }
                });
            }
            ColumnFold::Flag => {
                let flags = self.numbers(name)?;
                self.flag(values, column.name, |row| flags[row] > 0.0);
            }
            ColumnFold::Trained => {
                // Files of format 1 have the advantage alone.
                let array = column.read.iter().find_map(|name| self.batch.column_by_name(name));
                self.flag(values, column.name, |row| array.is_some_and(|array| array.is_valid(row)));
            }
            ColumnFold::Numbers => {
                let (numbers, steps) = (self.numbers(name)?, self.numbers("step")?);
                self.list(values, |row| (!steps[row].is_nan()).then(|| Value::from(numbers[row]).to_string()));
            }
            ColumnFold::Texts => {
                let texts = self.texts(name)?;
                self.list(values, |row| texts[row].map(|text| Value::from(text).to_string()));
            }
            ColumnFold::Joined => {
                let texts = self.texts(name)?;
                let items = |row: usize| Some(texts[row]?.strip_prefix('[')?.strip_suffix(']')?.to_owned());
                self.list(values, |row| items(row).filter(|items| !items.is_empty()));
            }
        }
        Ok(())
    }

    /// A number per trajectory: `add` gets a row, whether it is the first one, and the number
    /// before.
    fn number(&self, values: &mut ColumnValues, initial: f64, mut add: impl FnMut(usize, bool, f64) -> f64) {
        let ColumnValues::Numbers(numbers) = values else { return };
        for (row, &start) in self.starts.iter().enumerate() {
            let before = if start { None } else { numbers.pop() };
            numbers.push(add(row, start, before.unwrap_or(initial)));
        }
    }

    fn mean<'a>(&self, values: &mut ColumnValues, mean: &mut RunningMean, items: impl Fn(usize) -> &'a [f64]) {
        self.number(values, f64::NAN, |row, start, _| {
            if start {
                *mean = (0.0, 0.0);
            }
            for item in items(row).iter().filter(|item| !item.is_nan()) {
                *mean = (mean.0 + item, mean.1 + 1.0);
            }
            mean.0 / mean.1
        });
    }

    /// A text per trajectory.
    fn text(&self, values: &mut ColumnValues, mut add: impl FnMut(usize, bool, &mut Option<String>)) {
        let (ColumnValues::Texts(texts) | ColumnValues::Json(texts)) = values else { return };
        for (row, &start) in self.starts.iter().enumerate() {
            let mut text = if start { None } else { texts.pop().flatten() };
            add(row, start, &mut text);
            texts.push(text);
        }
    }

    /// A text per trajectory, if one of its rows has the flag.
    fn flag(&self, values: &mut ColumnValues, name: &str, has: impl Fn(usize) -> bool) {
        self.text(values, |row, _, text| {
            if has(row) {
                *text = Some(name.to_owned());
            }
        });
    }

    /// A JSON list per trajectory of the items of its rows.
    fn list(&self, values: &mut ColumnValues, items: impl Fn(usize) -> Option<String>) {
        self.text(values, |row, _, text| {
            let list = text.get_or_insert_with(|| "[]".to_owned());
            if let Some(items) = items(row) {
                list.truncate(list.len() - 1);
                list.push_str(if list.len() > 1 { "," } else { "" });
                list.push_str(&items);
                list.push(']');
            }
        });
    }

    /// The values of a column; `missing` if the file does not have it.
    fn read<'a, T>(
        &'a self,
        name: &'static str,
        missing: T,
        convert: impl FnOnce(&'a ArrayRef) -> Option<T>,
    ) -> Result<T, WrongType> {
        self.batch.column_by_name(name).map_or(Ok(missing), |array| convert(array).ok_or(WrongType(name)))
    }

    fn numbers(&self, name: &'static str) -> Result<Vec<f64>, WrongType> {
        self.read(name, vec![f64::NAN; self.batch.num_rows()], scan_values::numbers)
    }

    fn texts(&self, name: &'static str) -> Result<Vec<Option<&str>>, WrongType> {
        self.read(name, vec![None; self.batch.num_rows()], scan_values::texts)
    }

    fn lists(
        &self,
        name: &'static str,
        items: fn(&ArrayRef) -> Option<Vec<f64>>,
    ) -> Result<NumberLists<'_>, WrongType> {
        self.read(name, NumberLists::default(), |array| {
            let lists = array.as_list_opt::<i32>()?;
            Some(NumberLists { ends: lists.value_offsets(), items: items(lists.values())? })
        })
    }
}

/// A list of numbers per row: where they end, after where the first one begins, and all of them.
#[derive(Default)]
struct NumberLists<'a> {
    ends: &'a [i32],
    items: Vec<f64>,
}

impl NumberLists<'_> {
    fn range(&self, row: usize) -> std::ops::Range<usize> {
        let end = |row: usize| self.ends.get(row).and_then(|end| usize::try_from(*end).ok()).unwrap_or(0);
        end(row)..end(row + 1)
    }

    fn items(&self, row: usize) -> &[f64] {
        self.items.get(self.range(row)).unwrap_or_default()
    }
}

fn served_tokens(server: Option<&str>) -> f64 {
    let reply = server.and_then(|text| serde_json::from_str::<ServerReply>(text).ok());
    reply.map_or(0.0, |reply| reply.usage.response_tokens as f64)
}

/// The calls in the column `tools` that `Trajectory::tool_calls` counts.
fn policy_calls(tools: Option<&str>) -> f64 {
    #[derive(Deserialize)]
    struct CountedCall {
        #[serde(default)]
        kind: CallKind,
        #[serde(default)]
        hidden: bool,
    }
    let text = tools.unwrap_or("[]");
    if text == "[]" {
        return 0.0;
    }
    let calls: Vec<CountedCall> = serde_json::from_str(text).unwrap_or_default();
    calls.iter().filter(|call| call.kind.is_known() && !call.hidden).count() as f64
}

#[cfg(test)]
mod tests;
