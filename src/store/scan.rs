//! Columns of stored trajectories, one value per trajectory, read without the other columns of the
//! files.
//!
//! A file has one row per step. A column here is made of one or two columns of the file: the value
//! of the trajectory's first or last row, or a sum, a mean or a list over its rows. Prompts are not
//! read: `read_trajectories` restores them. The checksum is not compared either, because that would
//! read whole files; `r1 traj verify` does it.

use std::fs::File;
use std::panic;
use std::path::PathBuf;

use arrow_array::cast::AsArray;
use arrow_array::types as arrow;
use arrow_array::{ArrayRef, RecordBatch};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use serde::Deserialize;

use super::columns::{ColumnSource, TrajectoryColumn};
use super::files::failed;
use super::read::{check_format, check_places};
use super::scan_values::{self, ColumnValues};
use super::table::as_views;
use super::trajectories::parquet_failed;
use super::trajectory_row::damaged;
use crate::error::{Error, Kind, Result};
use crate::mdp::{CallKind, ServerReply, Split};

/// FileRows that are decoded at once.
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
    // The reader trusts sizes in pages, whose checksum is not compared.
    let read = panic::catch_unwind(|| read_columns(file, columns));
    read.unwrap_or_else(|_| Err(damaged("its pages can't be decoded").at_path(&file.path)))
}

fn read_columns(file: &TrajectoryFile, columns: &[&'static TrajectoryColumn]) -> Result<Vec<ColumnValues>> {
    let path = &file.path;
    let what = "read trajectories";
    let opened = File::open(path).map_err(|e| failed(what, path, &e))?;
    let metadata = ArrowReaderMetadata::load(&opened, ArrowReaderOptions::new());
    let metadata = as_views(metadata.map_err(|e| parquet_failed(what, path, &e))?);
    let described = metadata.metadata().file_metadata();
    check_format(described, path)?;
    check_places(metadata.metadata(), &opened).map_err(|error| error.at_path(path))?;
    let read: Vec<&str> =
        columns.iter().flat_map(|column| column.read()).copied().chain(["trajectory", "step"]).collect();
    // `columns` matches prefixes of paths.
    let schema = described.schema_descr();
    let roots = schema.root_schema().get_fields().iter().enumerate();
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
            add.to(column.source, values, sum)
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

/// Sum and number of the values of the trajectory that is being read.
#[derive(Clone, Copy, Default)]
struct RunningMean {
    sum: f64,
    count: f64,
}

impl RunningMean {
    fn add(&mut self, values: impl Iterator<Item = f64>) -> f64 {
        for value in values.filter(|value| !value.is_nan()) {
            self.sum += value;
            self.count += 1.0;
        }
        self.sum / self.count
    }
}

/// FileRows of a file that are added to the values of trajectories.
struct FileRows<'a> {
    batch: &'a RecordBatch,
    starts: &'a [bool],
    step: u64,
}

impl FileRows<'_> {
    fn to(&self, source: ColumnSource, values: &mut ColumnValues, mean: &mut RunningMean) -> Result<(), WrongType> {
        match source {
            ColumnSource::Step => self.fold(values, 0.0, |_, _| self.step as f64),
            ColumnSource::Number(name) => {
                let numbers = self.numbers(name)?;
                self.first(|row| values.push_number(numbers[row]));
            }
            ColumnSource::Text(name) | ColumnSource::Json(name) => {
                let texts = self.texts(name)?;
                self.first(|row| values.push_text(texts[row]));
            }
            ColumnSource::LastText(name) => {
                let texts = self.texts(name)?;
                for (row, &start) in self.starts.iter().enumerate() {
                    values.replace_text(start, texts[row]);
                }
            }
            ColumnSource::Steps => {
                let numbers = self.numbers("step")?;
                self.fold(values, 0.0, |row, steps| steps + f64::from(u8::from(!numbers[row].is_nan())));
            }
            ColumnSource::Tokens => {
                let (ends, servers) = (self.ends("response_ids")?, self.texts("server")?);
                let length = |row: usize| ends.map_or(0.0, |ends| f64::from(ends[row + 1] - ends[row]));
                self.fold(values, 0.0, |row, tokens| tokens + length(row) + served_tokens(servers[row]));
            }
            ColumnSource::Calls => {
                let tools = self.texts("tools")?;
                self.fold(values, 0.0, |row, calls| calls + policy_calls(tools[row]));
            }
            ColumnSource::Mean(name) => {
                let numbers = self.numbers(name)?;
                self.mean(values, mean, |row| std::iter::once(numbers[row]));
            }
            ColumnSource::MeanOfItems(name) => {
                let lists = self.lists(name)?;
                self.mean(values, mean, |row| lists.items(row));
            }
            ColumnSource::Mismatch => {
                let (learner, sampler) = (self.lists("learner_logprobs")?, self.lists("logprobs")?);
                self.fold(values, f64::NAN, |row, largest| {
                    let pairs = learner.items(row).zip(sampler.items(row));
                    // NaN is no largest value.
                    pairs.fold(largest, |largest, (learner, sampler)| largest.max((learner - sampler).abs()))
                });
            }
            ColumnSource::Numbers(name) => {
                let (numbers, steps) = (self.numbers(name)?, self.numbers("step")?);
                let number = |row: usize| serde_json::Number::from_f64(numbers[row]);
                let text = |row| number(row).map_or_else(|| "null".to_owned(), |number| number.to_string());
                self.list(values, |row| (!steps[row].is_nan()).then(|| text(row)));
            }
            ColumnSource::Texts(name) => {
                let texts = self.texts(name)?;
                self.list(values, |row| serde_json::to_string(texts[row]?).ok());
            }
            ColumnSource::Joined(name) => {
                let texts = self.texts(name)?;
                let items = |row: usize| Some(texts[row]?.trim().strip_prefix('[')?.strip_suffix(']')?.to_owned());
                self.list(values, |row| items(row).filter(|items| !items.is_empty()));
            }
        }
        Ok(())
    }

    /// Calls `push` for the rows that begin a trajectory.
    fn first(&self, push: impl FnMut(usize)) {
        self.starts.iter().enumerate().filter(|(_, start)| **start).map(|(row, _)| row).for_each(push);
    }

    /// A number per trajectory, computed from the number of its rows before.
    fn fold(&self, values: &mut ColumnValues, initial: f64, add: impl Fn(usize, f64) -> f64) {
        for (row, &start) in self.starts.iter().enumerate() {
            if start {
                values.push_number(initial);
            }
            values.change_number(|before| add(row, before));
        }
    }

    fn mean<I: Iterator<Item = f64>>(
        &self,
        values: &mut ColumnValues,
        mean: &mut RunningMean,
        items: impl Fn(usize) -> I,
    ) {
        for (row, &start) in self.starts.iter().enumerate() {
            if start {
                *mean = RunningMean::default();
                values.push_number(f64::NAN);
            }
            let now = mean.add(items(row));
            values.change_number(|_| now);
        }
    }

    /// A JSON list per trajectory of the items of its rows.
    fn list(&self, values: &mut ColumnValues, items: impl Fn(usize) -> Option<String>) {
        for (row, &start) in self.starts.iter().enumerate() {
            if start {
                values.push_text(Some("[]"));
            }
            if let Some(items) = items(row) {
                values.add_item(&items);
            }
        }
    }

    /// The array of a column; `None` if the file does not have it.
    fn array(&self, name: &str) -> Option<&ArrayRef> {
        self.batch.column_by_name(name)
    }

    fn numbers(&self, name: &'static str) -> Result<Vec<f64>, WrongType> {
        match self.array(name) {
            None => Ok(vec![f64::NAN; self.batch.num_rows()]),
            Some(array) => scan_values::numbers(array).ok_or(WrongType(name)),
        }
    }

    fn texts(&self, name: &'static str) -> Result<Vec<Option<&str>>, WrongType> {
        match self.array(name) {
            None => Ok(vec![None; self.batch.num_rows()]),
            Some(array) => scan_values::texts(array).ok_or(WrongType(name)),
        }
    }

    fn lists(&self, name: &'static str) -> Result<NumberLists<'_>, WrongType> {
        let Some(ends) = self.ends(name)? else { return Ok(NumberLists(None)) };
        let items = self.array(name).and_then(|array| scan_values::numbers(array.as_list::<i32>().values()));
        Ok(NumberLists(Some((ends, items.ok_or(WrongType(name))?))))
    }

    /// Where the lists of a column end; the first number is where the first one begins.
    fn ends(&self, name: &'static str) -> Result<Option<&[i32]>, WrongType> {
        let Some(array) = self.array(name) else { return Ok(None) };
        array.as_list_opt::<i32>().map(|lists| Some(lists.value_offsets())).ok_or(WrongType(name))
    }
}

/// A list of numbers per row: where they end, and all of them. `None`: the file has no such column.
struct NumberLists<'a>(Option<(&'a [i32], Vec<f64>)>);

impl NumberLists<'_> {
    fn items(&self, row: usize) -> impl Iterator<Item = f64> {
        let items = self.0.as_ref().and_then(|(ends, items)| {
            let (start, end) = (usize::try_from(ends[row]).ok()?, usize::try_from(ends[row + 1]).ok()?);
            items.get(start..end)
        });
        items.unwrap_or_default().iter().copied()
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
