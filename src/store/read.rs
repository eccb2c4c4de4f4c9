//! Reads trajectories from Parquet.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::files::failed;
use super::record;
use super::trajectories::{FORMAT, FORMAT_KEY, SUM_KEY, parquet_failed};
use crate::error::{Error, Kind, Result};
use crate::mdp::{
    CallKind, ErrorRecord, FinishReason, Fork, Limit, Routing, Split, Status, Step, Support, ToolRecord, Trajectory,
};

/// Reads a file of trajectories. Refuses damaged files, missing columns and other format versions.
pub fn read_trajectories(path: &Path) -> Result<Vec<Trajectory>> {
    let what = "read trajectories";
    let file = File::open(path).map_err(|e| failed(what, path, &e))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| parquet_failed(what, path, &e))?;
    let metadata = |key: &str| {
        let all = builder.metadata().file_metadata().key_value_metadata()?;
        all.iter().find(|pair| pair.key == key)?.value.as_deref()
    };
    if metadata(FORMAT_KEY) != Some(FORMAT) {
        return Err(Error::new(Kind::Store, "not a file of trajectories that this r1 reads").at_path(path));
    }
    // Files of the first versions of r1 have no checksum.
    if let Some(sum) = metadata(SUM_KEY) {
        check_sum(path, sum)?;
    }
    let reader = builder.build().map_err(|e| parquet_failed(what, path, &e))?;
    let mut trajectories = Vec::new();
    let mut last = None;
    for batch in reader {
        let batch = batch.map_err(|e| Error::new(Kind::Store, format!("can't {what}: {e}")).at_path(path))?;
        append(&batch, &mut trajectories, &mut last).map_err(|e| e.at_path(path))?;
    }
    Ok(trajectories)
}

/// Compares the pages of a file with the checksum in its footer.
fn check_sum(path: &Path, sum: &str) -> Result<()> {
    let wrong = || damaged("checksum mismatch").at_path(path);
    let (bytes, crc) = sum.split_once(':').ok_or_else(wrong)?;
    let bytes: u64 = bytes.parse().map_err(|_| wrong())?;
    let file = File::open(path).map_err(|e| failed("read trajectories", path, &e))?;
    let (mut pages, mut buffer, mut read, mut found) = (file.take(bytes), vec![0; 1 << 20], 0_u64, 0);
    loop {
        let count = pages.read(&mut buffer).map_err(|e| failed("read trajectories", path, &e))?;
        if count == 0 {
            break;
        }
        found = crc32c::crc32c_append(found, &buffer[..count]);
        read += count as u64;
    }
    if read == bytes && format!("{found:08x}") == crc { Ok(()) } else { Err(wrong()) }
}

/// Appends the rows of a batch; `last` is the position of the trajectory that the next row may
/// continue.
fn append(batch: &RecordBatch, trajectories: &mut Vec<Trajectory>, last: &mut Option<u32>) -> Result<()> {
    let columns = Columns(batch);
    for row in 0..batch.num_rows() {
        let position: u32 = columns.required::<UInt32Type>("trajectory", row)?;
        if *last != Some(position) {
            trajectories.push(columns.trajectory(row)?);
            *last = Some(position);
        }
        if let (Some(trajectory), Some(_)) = (trajectories.last_mut(), columns.value::<UInt32Type>("step", row)?) {
            trajectory.steps.push(columns.step(row)?);
        }
        // Older files have no record.
        if let (Some(trajectory), Some(_)) = (trajectories.last_mut(), batch.column_by_name("record")) {
            let tools = trajectory.steps.last().map_or(&[][..], |step| &step.tools);
            let exchanges = record::expand(columns.json("record", row)?, tools);
            trajectory.record.extend(exchanges.map_err(|why| damaged(format!("column `record`, row {row}: {why}")))?);
        }
    }
    Ok(())
}

/// Typed access to the columns of a batch by name.
struct Columns<'a>(&'a RecordBatch);

impl Columns<'_> {
    fn trajectory(&self, row: usize) -> Result<Trajectory> {
        let status = self.text("status", row)?;
        let parts: std::collections::BTreeMap<String, Option<f64>> = self.json("reward_parts", row)?;
        Ok(Trajectory {
            id: self.text("id", row)?.to_owned(),
            split: self.split(row)?,
            task_index: self.required::<UInt64Type>("task_index", row)?,
            task: self.json("task", row)?,
            group: self.required::<UInt64Type>("group", row)?,
            sample: self.required::<UInt32Type>("sample", row)?,
            fork: self.fork(row)?,
            seed: self.required::<UInt64Type>("seed", row)?,
            script_hash: self.text("script_hash", row)?.to_owned(),
            status: Status::ALL
                .into_iter()
                .find(|known| known.name() == status)
                .ok_or_else(|| damaged(format!("unknown status `{status}`")))?,
            // Older files do not have these columns.
            truncated_by: match self.0.column_by_name("truncated_by") {
                Some(_) => self.limit(row)?,
                None => None,
            },
            retries: match self.0.column_by_name("retries") {
                Some(_) => self.required::<UInt32Type>("retries", row)?,
                None => 0,
            },
            seconds: match self.0.column_by_name("seconds") {
                Some(_) => self.required::<Float64Type>("seconds", row)?,
                None => 0.0,
            },
            error: self.error(row)?,
            steps: Vec::new(),
            outcome_reward: self.required::<Float64Type>("outcome_reward", row)?,
            reward_parts: parts.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect(),
            messages: self.json("messages", row)?,
            record: Vec::new(),
        })
    }

    /// Split of the trajectory; older files have no column for it.
    fn split(&self, row: usize) -> Result<Split> {
        let Some(name) = self.text_if_there("split", row)? else { return Ok(Split::Train) };
        let known = Split::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or_else(|| damaged(format!("unknown split `{name}`")))
    }

    /// The fields of an error; in files that lack the column, its text.
    fn error(&self, row: usize) -> Result<Option<ErrorRecord>> {
        match self.text_if_there("error_fields", row)? {
            Some(fields) => {
                let wrong = |e| damaged(format!("column `error_fields`, row {row}: {e}"));
                serde_json::from_str(&fields).map(Some).map_err(wrong)
            }
            None => Ok(self.optional_text("error", row)?.map(ErrorRecord::of_text)),
        }
    }

    fn limit(&self, row: usize) -> Result<Option<Limit>> {
        let Some(name) = self.optional_text("truncated_by", row)? else { return Ok(None) };
        let known = Limit::ALL.into_iter().find(|known| known.name() == name);
        known.map(Some).ok_or_else(|| damaged(format!("unknown limit `{name}`")))
    }

    /// Fork of the trajectory; older files have no column for it.
    fn fork(&self, row: usize) -> Result<Option<Fork>> {
        if self.0.column_by_name("parent").is_none() {
            return Ok(None);
        }
        let Some(parent) = self.optional_text("parent", row)? else { return Ok(None) };
        Ok(Some(Fork { parent: parent.to_owned(), step: self.required::<UInt32Type>("forked_at", row)? }))
    }

    fn step(&self, row: usize) -> Result<Step> {
        let tools: Vec<ToolRow> = self.json("tools", row)?;
        Ok(Step {
            prompt_ids: self.list::<UInt32Type>("prompt_ids", row)?,
            response_ids: self.list::<UInt32Type>("response_ids", row)?,
            logprobs: self.list::<Float32Type>("logprobs", row)?,
            // Older files do not have this column.
            support: match self.0.column_by_name("support_ids") {
                Some(_) => Support {
                    ids: self.list::<UInt32Type>("support_ids", row)?,
                    ends: self.list::<UInt32Type>("support_ends", row)?,
                },
                None => Support::default(),
            },
            text: self.text("text", row)?.to_owned(),
            finish_reason: match self.text("finish_reason", row)? {
                "stop" => FinishReason::Stop,
                "stop_string" => FinishReason::StopString,
                "length" => FinishReason::Length,
                "deadline" => FinishReason::Deadline,
                other => return Err(damaged(format!("unknown finish_reason `{other}`"))),
            },
            reward: self.required::<Float64Type>("reward", row)?,
            terminated: self.flag("terminated", row)?,
            truncated: self.flag("truncated", row)?,
            tools: tools.into_iter().map(ToolRecord::from).collect(),
            prefilled: self.required::<UInt32Type>("prefilled", row)?,
            new_row: self.flag("new_row", row)?,
            // Older files do not have these columns.
            routing: match self.0.column_by_name("routing") {
                Some(_) => Routing {
                    experts: self.list::<UInt16Type>("routing", row)?,
                    start: self.value::<UInt32Type>("routing_start", row)?.unwrap_or(0),
                    width: self.value::<UInt32Type>("routing_width", row)?.unwrap_or(0),
                },
                None => Routing::default(),
            },
            privileged: self.text_if_there("privileged", row)?,
            next_privileged: self.text_if_there("next_privileged", row)?,
            // Older files do not have this column.
            next_prompt_ids: match self.0.column_by_name("next_prompt_ids") {
                Some(_) => self.list::<UInt32Type>("next_prompt_ids", row)?,
                None => Vec::new(),
            },
            server: match self.text_if_there("server", row)? {
                Some(reply) => Some(
                    serde_json::from_str(&reply)
                        .map_err(|error| damaged(format!("column `server`, row {row}: {error}")))?,
                ),
                None => None,
            },
        })
    }

    /// A nullable string in a column that older files do not have.
    fn text_if_there(&self, name: &str, row: usize) -> Result<Option<String>> {
        if self.0.column_by_name(name).is_none() {
            return Ok(None);
        }
        Ok(self.optional_text(name, row)?.map(str::to_owned))
    }

    fn column(&self, name: &str) -> Result<&ArrayRef> {
        self.0.column_by_name(name).ok_or_else(|| damaged(format!("no column `{name}`")))
    }

    /// A number; `None` for null.
    fn value<T: ArrowPrimitiveType>(&self, name: &str, row: usize) -> Result<Option<T::Native>> {
        let column: &PrimitiveArray<T> = self.column(name)?.as_primitive_opt().ok_or_else(|| wrong_type(name))?;
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    fn required<T: ArrowPrimitiveType>(&self, name: &str, row: usize) -> Result<T::Native> {
        self.value::<T>(name, row)?.ok_or_else(|| null(name, row))
    }

    fn flag(&self, name: &str, row: usize) -> Result<bool> {
        let column = self.column(name)?.as_boolean_opt().ok_or_else(|| wrong_type(name))?;
        column.is_valid(row).then(|| column.value(row)).ok_or_else(|| null(name, row))
    }

    fn optional_text(&self, name: &str, row: usize) -> Result<Option<&str>> {
        let column = self.column(name)?.as_string_opt::<i32>().ok_or_else(|| wrong_type(name))?;
        Ok(column.is_valid(row).then(|| column.value(row)))
    }

    fn text(&self, name: &str, row: usize) -> Result<&str> {
        self.optional_text(name, row)?.ok_or_else(|| null(name, row))
    }

    fn json<T: DeserializeOwned>(&self, name: &str, row: usize) -> Result<T> {
        serde_json::from_str(self.text(name, row)?).map_err(|e| damaged(format!("column `{name}`, row {row}: {e}")))
    }

    fn list<T: ArrowPrimitiveType>(&self, name: &str, row: usize) -> Result<Vec<T::Native>> {
        let column = self.column(name)?.as_list_opt::<i32>().ok_or_else(|| wrong_type(name))?;
        if !column.is_valid(row) {
            return Err(null(name, row));
        }
        let values = column.value(row);
        let values: &PrimitiveArray<T> = values.as_primitive_opt().ok_or_else(|| wrong_type(name))?;
        Ok(values.values().to_vec())
    }
}

/// JSON form of a tool record; non-finite numbers are null.
#[derive(Deserialize)]
struct ToolRow {
    name: String,
    arguments: Value,
    #[serde(default)]
    kind: CallKind,
    output: String,
    ok: bool,
    reward: Option<f64>,
    seconds: Option<f64>,
    #[serde(default)]
    retries: u32,
    #[serde(default)]
    cached: bool,
    #[serde(default)]
    hidden: bool,
}

impl From<ToolRow> for ToolRecord {
    fn from(row: ToolRow) -> Self {
        Self {
            name: row.name,
            arguments: row.arguments,
            kind: row.kind,
            output: row.output,
            ok: row.ok,
            reward: row.reward.unwrap_or(f64::NAN),
            seconds: row.seconds.unwrap_or(f64::NAN),
            retries: row.retries,
            cached: row.cached,
            hidden: row.hidden,
        }
    }
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Store, format!("damaged file of trajectories: {what}"))
}

fn wrong_type(name: &str) -> Error {
    damaged(format!("column `{name}` has another type"))
}

fn null(name: &str, row: usize) -> Error {
    damaged(format!("column `{name}`, row {row} is null"))
}

#[cfg(test)]
mod tests;
