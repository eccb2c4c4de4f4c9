//! Writes trajectories to Parquet: one file per training step or evaluation, one row per step of a
//! trajectory.
//!
//! Values of a whole trajectory are repeated in each of its rows (dictionary encoding stores them
//! once). A trajectory that failed before its first step has one row with null step columns.
//! Structured values (task, messages, tools, reward parts) are JSON text, which pandas, DuckDB and
//! Polars can read.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::{Float32Type, UInt16Type, UInt32Type};
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use serde::Serialize;

use super::files::{self, failed, write_atomic};
use super::{RunDir, record};
use crate::error::{Error, Kind, Result};
use crate::mdp::{ErrorRecord, Limit, Split, Step, Trajectory};

/// Format version in the file's metadata; it increases when the meaning of a column changes.
pub(super) const FORMAT: &str = "1";
pub(super) const FORMAT_KEY: &str = "r1.format";
/// Metadata key of the number of bytes before the footer and their CRC-32C in hexadecimal
/// (`81920:1a2b3c4d`).
pub(super) const SUM_KEY: &str = "r1.crc32c";

/// Rows per batch. The text of a batch must stay below 2 GiB.
const BATCH: usize = 128;
/// Encoded bytes after which a row group is closed.
const ROW_GROUP_BYTES: usize = 64 << 20;

impl RunDir {
    /// Writes `trajectories/step-STEP.parquet` and returns its path. `advantages` is empty or has
    /// one list per trajectory with one value per step, `None` for excluded trajectories.
    /// `policy_version` is the number of weight updates before the rollout.
    pub fn write_trajectories(
        &self,
        step: u64,
        policy_version: u64,
        trajectories: &[Trajectory],
        advantages: &[Option<Vec<f64>>],
    ) -> Result<PathBuf> {
        if !advantages.is_empty() && advantages.len() != trajectories.len() {
            let (wrong, right) = (advantages.len(), trajectories.len());
            return Err(Error::new(Kind::Internal, format!("{wrong} advantages for {right} trajectories")));
        }
        let path = self.trajectories_path(Split::Train, step);
        write_trajectories(&path, policy_version, trajectories, advantages)?;
        Ok(path)
    }

    /// Writes `evaluations/step-STEP.parquet`: trajectories of the evaluation after training step
    /// STEP. An earlier file of this step is replaced.
    pub fn write_evaluation(&self, step: u64, policy_version: u64, trajectories: &[Trajectory]) -> Result<PathBuf> {
        let path = self.trajectories_path(Split::Eval, step);
        files::make_dir(&self.evaluations())?;
        write_trajectories(&path, policy_version, trajectories, &[])?;
        Ok(path)
    }
}

/// Writes a file of trajectories atomically, as [`RunDir::write_trajectories`].
pub fn write_trajectories(
    path: &Path,
    policy_version: u64,
    trajectories: &[Trajectory],
    advantages: &[Option<Vec<f64>>],
) -> Result<()> {
    write_atomic(path, |file| encode(file, policy_version, trajectories, advantages, path))
}

/// One row of the file.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    /// Index of the trajectory in the file.
    position: u32,
    pub(super) trajectory: &'a Trajectory,
    advantage: Option<f64>,
    /// `None` for a trajectory without steps.
    pub(super) step: Option<(u32, &'a Step)>,
}

fn encode(
    file: &mut (dyn Write + Send),
    policy_version: u64,
    trajectories: &[Trajectory],
    advantages: &[Option<Vec<f64>>],
    path: &Path,
) -> Result<()> {
    let rows: Vec<Row<'_>> = trajectories
        .iter()
        .zip(0_u32..)
        .flat_map(|(trajectory, position)| {
            let own = advantages.get(position as usize).and_then(Option::as_ref);
            let steps = trajectory.steps.iter().zip(0_u32..).map(move |(step, number)| {
                let advantage = own.and_then(|own| own.get(number as usize)).copied();
                Row { position, trajectory, advantage, step: Some((number, step)) }
            });
            let none = Row { position, trajectory, advantage: None, step: None };
            let empty = trajectory.steps.is_empty().then_some(none);
            steps.chain(empty)
        })
        .collect();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(format!("r1 {}", env!("CARGO_PKG_VERSION")))
        // Page indices are disabled: they follow the pages, outside the checksum, and are never
        // read.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(vec![KeyValue::new(FORMAT_KEY.to_owned(), FORMAT.to_owned())]))
        .build();
    let store = |e: ParquetError| parquet_failed("write trajectories", path, &e);
    let schema = columns(&[], policy_version)?.schema();
    let summed = Summed { file, bytes: 0, crc: 0 };
    let mut writer = ArrowWriter::try_new(summed, Arc::clone(&schema), Some(properties)).map_err(store)?;
    for chunk in rows.chunks(BATCH) {
        writer.write(&columns(chunk, policy_version)?).map_err(store)?;
        if writer.in_progress_size() > ROW_GROUP_BYTES {
            writer.flush().map_err(store)?;
        }
    }
    // All pages are written; the footer follows.
    writer.flush().map_err(store)?;
    writer.sync().map_err(|e| failed("write trajectories", path, &e))?;
    let Summed { bytes, crc, .. } = writer.inner();
    let sum = format!("{bytes}:{crc:08x}");
    writer.append_key_value_metadata(KeyValue::new(SUM_KEY.to_owned(), sum));
    writer.close().map_err(store)?;
    Ok(())
}

/// A writer that computes the checksum of its data.
struct Summed<'a> {
    file: &'a mut (dyn Write + Send),
    bytes: u64,
    crc: u32,
}

impl Write for Summed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.crc = crc32c::crc32c_append(self.crc, &buffer[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Columns of the file, in order.
fn columns(rows: &[Row<'_>], policy_version: u64) -> Result<RecordBatch> {
    let text = |f: fn(&Trajectory) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| f(row.trajectory))))
    };
    let count = |f: fn(&Trajectory) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| f(row.trajectory))))
    };
    let number = |f: fn(&Trajectory) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| f(row.trajectory))))
    };
    let small = |f: fn(&Row<'_>) -> Option<u32>| -> ArrayRef { Arc::new(rows.iter().map(f).collect::<UInt32Array>()) };
    let flag = |f: fn(&Step) -> bool| -> ArrayRef {
        Arc::new(rows.iter().map(|row| row.step.map(|(_, step)| f(step))).collect::<BooleanArray>())
    };
    let step_text = |f: fn(&Step) -> &str| -> ArrayRef {
        Arc::new(rows.iter().map(|row| row.step.map(|(_, step)| f(step))).collect::<StringArray>())
    };
    let ids = |f: fn(&Step) -> &[u32]| -> ArrayRef {
        let lists = rows.iter().map(|row| row.step.map(|(_, step)| f(step).iter().copied().map(Some)));
        Arc::new(ListArray::from_iter_primitive::<UInt32Type, _, _>(lists))
    };
    let maybe = |f: fn(&Step) -> Option<&str>| -> ArrayRef {
        Arc::new(rows.iter().map(|row| row.step.and_then(|(_, step)| f(step))).collect::<StringArray>())
    };
    let routing = rows.iter().map(|row| row.step.map(|(_, step)| step.routing.experts.iter().copied().map(Some)));
    let logprobs = rows.iter().map(|row| row.step.map(|(_, step)| step.logprobs.iter().copied().map(Some)));
    let tools: Result<StringArray> =
        rows.iter().map(|row| row.step.map(|(_, step)| json(&step.tools)).transpose()).collect();

    let record: Result<StringArray> = rows.iter().map(|row| json(&record::of_row(row)).map(Some)).collect();

    let limit = rows.iter().map(|row| row.trajectory.truncated_by.map(Limit::name));
    let limit: ArrayRef = Arc::new(limit.collect::<StringArray>());
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("trajectory", small(|row| Some(row.position)), false),
        ("id", text(|t| &t.id), false),
        ("split", text(|t| t.split.name()), false),
        ("group", count(|t| t.group), false),
        ("sample", small(|row| Some(row.trajectory.sample)), false),
        ("parent", Arc::new(rows.iter().map(parent).collect::<StringArray>()), true),
        ("forked_at", small(|row| row.trajectory.fork.as_ref().map(|fork| fork.step)), true),
        ("task_index", count(|t| t.task_index), false),
        ("task", json_column(rows, |t| json(&t.task))?, false),
        ("seed", count(|t| t.seed), false),
        ("policy_version", Arc::new(UInt64Array::from(vec![policy_version; rows.len()])), false),
        ("script_hash", text(|t| &t.script_hash), false),
        ("status", text(|t| t.status.name()), false),
        ("truncated_by", limit, true),
        ("retries", small(|row| Some(row.trajectory.retries)), true),
        ("seconds", number(|t| t.seconds), false),
        ("error", error_column(rows, |error| Ok(error.to_string()))?, true),
        ("error_fields", error_column(rows, json)?, true),
        ("total_reward", number(Trajectory::total_reward), false),
        ("outcome_reward", number(|t| t.outcome_reward), false),
        ("reward_parts", json_column(rows, |t| json(&t.reward_parts))?, false),
        ("advantage", Arc::new(rows.iter().map(|row| row.advantage).collect::<Float64Array>()), true),
        ("messages", json_column(rows, |t| json(&t.messages))?, false),
        ("step", small(|row| row.step.map(|(number, _)| number)), true),
        ("prompt_ids", ids(|step| &step.prompt_ids), true),
        ("response_ids", ids(|step| &step.response_ids), true),
        ("logprobs", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(logprobs)), true),
        ("support_ids", ids(|step| &step.support.ids), true),
        ("support_ends", ids(|step| &step.support.ends), true),
        ("routing", Arc::new(ListArray::from_iter_primitive::<UInt16Type, _, _>(routing)), true),
        ("routing_start", small(|row| row.step.map(|(_, step)| step.routing.start)), true),
        ("routing_width", small(|row| row.step.map(|(_, step)| step.routing.width)), true),
        ("privileged", maybe(|step| step.privileged.as_deref()), true),
        ("next_privileged", maybe(|step| step.next_privileged.as_deref()), true),
        ("text", step_text(|step| &step.text), true),
        ("finish_reason", step_text(|step| step.finish_reason.name()), true),
        ("reward", Arc::new(rows.iter().map(|r| r.step.map(|(_, s)| s.reward)).collect::<Float64Array>()), true),
        ("terminated", flag(|step| step.terminated), true),
        ("truncated", flag(|step| step.truncated), true),
        ("tools", Arc::new(tools?), true),
        ("record", Arc::new(record?), false),
        ("prefilled", small(|row| row.step.map(|(_, step)| step.prefilled)), true),
        ("new_row", flag(|step| step.new_row), true),
        ("next_prompt_ids", ids(|step| &step.next_prompt_ids), true),
        ("server", server_column(rows)?, true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns)
        .map_err(|e| Error::new(Kind::Internal, format!("can't make a table of trajectories: {e}")))
}

/// Id of the trajectory that a row's trajectory was forked from.
fn parent<'a>(row: &Row<'a>) -> Option<&'a str> {
    row.trajectory.fork.as_ref().map(|fork| fork.parent.as_str())
}

/// A JSON column of per-trajectory values, each serialised once and repeated over the rows.
fn json_column(rows: &[Row<'_>], of: impl Fn(&Trajectory) -> Result<String>) -> Result<ArrayRef> {
    let mut last: Option<(u32, String)> = None;
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        let value = match last.take() {
            Some((position, value)) if position == row.position => value,
            _ => of(row.trajectory)?,
        };
        values.push(value.clone());
        last = Some((row.position, value));
    }
    Ok(Arc::new(StringArray::from_iter_values(values)))
}

/// The replies of a server as the policy.
fn server_column(rows: &[Row<'_>]) -> Result<ArrayRef> {
    let replies = rows.iter().map(|row| row.step.and_then(|(_, step)| step.server.as_ref()).map(json).transpose());
    Ok(Arc::new(replies.collect::<Result<StringArray>>()?))
}

/// A text for each row of a trajectory that failed.
fn error_column(rows: &[Row<'_>], of: impl Fn(&ErrorRecord) -> Result<String>) -> Result<ArrayRef> {
    let texts = rows.iter().map(|row| row.trajectory.error.as_ref().map(&of).transpose());
    Ok(Arc::new(texts.collect::<Result<StringArray>>()?))
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::new(Kind::Internal, format!("can't write JSON: {e}")))
}

/// Converts a Parquet error; an inner I/O error (a full disk) keeps its message and hint.
pub(super) fn parquet_failed(what: &str, path: &Path, error: &ParquetError) -> Error {
    if let ParquetError::External(inner) = error
        && let Some(io) = inner.downcast_ref::<io::Error>()
    {
        return failed(what, path, io);
    }
    Error::new(Kind::Store, format!("can't {what}: {error}")).at_path(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;

    use super::*;

    #[test]
    fn every_trajectory_column_is_documented() {
        use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        encode(&mut File::create(&path).unwrap(), 0, &[], &[], &path).unwrap();
        let metadata = ArrowReaderMetadata::load(&File::open(&path).unwrap(), ArrowReaderOptions::new()).unwrap();
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/outputs.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: String = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
        for field in metadata.schema().fields() {
            let name = format!("`{}`", field.name());
            assert!(rows.contains(&name), "docs/reference/outputs.md does not document the column {name}");
        }
    }

    #[test]
    fn full_disk_is_reported() {
        let Ok(mut full) = File::options().write(true).open("/dev/full") else { return };
        let error = encode(&mut full, 0, &[], &[], Path::new("runs/x/step.parquet")).unwrap_err();
        assert_eq!(error.kind, Kind::Store);
        assert_eq!(error.message, "can't write trajectories: no space left on device");
        assert_eq!(error.place.as_deref(), Some("runs/x/step.parquet"));
        assert!(error.hint.unwrap().contains("--resume"));
    }

    #[test]
    fn advantages_must_match_the_trajectories() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        assert_eq!(run.write_trajectories(1, 0, &[], &[None]).unwrap_err().kind, Kind::Internal);
    }
}
