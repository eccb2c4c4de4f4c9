//! Writes trajectories to Parquet: one file per training step or evaluation, one row per step of a
//! trajectory.
//!
//! Values of a whole trajectory are repeated in each of its rows (dictionary encoding stores them
//! once). A trajectory that failed before its first step has one row with null step columns.
//! Structured values (task, messages, tools, reward parts) are JSON text, which pandas, DuckDB and
//! Polars can read.

use std::borrow::Borrow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};
use serde_arrow::schema::{SchemaLike, TracingOptions};

use super::RunDir;
use super::files::{self, failed, write_atomic};
use super::trajectory_row::{TrajectoryRow, json};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Split, Trajectory};

/// Format version in the file's metadata; it increases when the meaning of a column changes.
pub(super) const FORMAT: &str = "2";
/// Earlier formats that are read. In format 1 `prompt_ids` has the whole prompt.
pub(super) const EARLIER_FORMATS: [&str; 1] = ["1"];
pub(super) const FORMAT_KEY: &str = "r1.format";
/// Metadata key of the number of bytes before the footer and their CRC-32C in hexadecimal
/// (`81920:1a2b3c4d`).
pub(super) const SUM_KEY: &str = "r1.crc32c";
/// Metadata key of the [`StepTasks`] of a training step, as JSON.
pub(super) const TASKS_KEY: &str = "r1.tasks";

/// Where the tasks of a training step are in the data: what its rows do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTasks {
    /// Number of tasks that the run had drawn before the step.
    pub position: u64,
    /// Number of usable rows of the training data.
    pub rows: u64,
    pub order: TaskOrder,
    /// Positions of the first groups, which a step before had begun (`rollout.oversample`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<u64>,
    /// Positions of the groups that a later step continues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<u64>,
    /// Positions and rows of the groups that were dropped before they were complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<(u64, u64)>,
    /// Samples of a group that are not stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra_samples: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl StepTasks {
    /// The position in the data of the group with this number.
    pub fn position_of(&self, number: u64) -> u64 {
        let carried = self.carried.len() as u64;
        match self.carried.get(number as usize) {
            Some(position) => *position,
            None => self.position.saturating_add(number - carried),
        }
    }

    /// The number of the group at this position of the data.
    pub fn number_of(&self, position: u64) -> u64 {
        let carried = self.carried.iter().position(|carried| *carried == position);
        carried.map_or(position.saturating_sub(self.position) + self.carried.len() as u64, |index| index as u64)
    }
}

/// How the rows of a step are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskOrder {
    /// Each row once in an epoch, the next `rows` positions.
    #[default]
    Epochs,
    /// By their success rates (`data.curriculum`, `row_weight`).
    Curriculum,
    /// Several datasets by their weights, each in epochs of its own.
    Mixed,
    /// A program named rows.
    Chosen,
}

/// Columns with a different number for most tokens.
const NUMBERS_OF_TOKENS: [&str; 6] =
    ["logprobs", "values", "returns", "learner_logprobs", "reference_logprobs", "entropies"];

/// Rows per batch. The text of a batch must stay below 2 GiB.
const BATCH: usize = 128;
/// Encoded bytes after which a row group is closed.
const ROW_GROUP_BYTES: usize = 64 << 20;

impl RunDir {
    /// Writes `trajectories/step-STEP.parquet` and returns its path. `policy_version` is the number
    /// of weight updates before the rollout. Only tests have no `tasks`.
    pub fn write_trajectories<T: Borrow<Trajectory>>(
        &self,
        step: u64,
        policy_version: u64,
        tasks: Option<&StepTasks>,
        trajectories: &[T],
    ) -> Result<PathBuf> {
        let path = self.trajectories_path(Split::Train, step);
        // The next checkpoint syncs the directory: a resumed run samples the steps after it again.
        files::replace(&path, |file| encode(file, &|_| policy_version, tasks, trajectories, &path))?;
        Ok(path)
    }

    /// Writes `evaluations/step-STEP.parquet`: trajectories of the evaluation after training step
    /// STEP. An earlier file of this step is replaced.
    pub fn write_evaluation(&self, step: u64, policy_version: u64, trajectories: &[Trajectory]) -> Result<PathBuf> {
        let path = self.trajectories_path(Split::Eval, step);
        files::make_dir(&self.evaluations())?;
        write_trajectories(&path, policy_version, trajectories)?;
        Ok(path)
    }
}

/// Writes a file of trajectories atomically, as [`RunDir::write_trajectories`].
pub fn write_trajectories(path: &Path, policy_version: u64, trajectories: &[Trajectory]) -> Result<()> {
    write_atomic(path, |file| encode(file, &|_| policy_version, None, trajectories, path))
}

/// Writes trajectories of several files as one, atomically, each with its policy version.
pub fn write_selected(path: &Path, policy_versions: &[u64], trajectories: &[Trajectory]) -> Result<()> {
    let version = |position: u32| policy_versions.get(position as usize).copied().unwrap_or_default();
    write_atomic(path, |file| encode(file, &version, None, trajectories, path))
}

fn encode<T: Borrow<Trajectory>>(
    file: &mut (dyn Write + Send),
    policy_version: &dyn Fn(u32) -> u64,
    tasks: Option<&StepTasks>,
    trajectories: &[T],
    path: &Path,
) -> Result<()> {
    let mut metadata = vec![KeyValue::new(FORMAT_KEY.to_owned(), FORMAT.to_owned())];
    if let Some(tasks) = tasks {
        metadata.push(KeyValue::new(TASKS_KEY.to_owned(), json(tasks)?));
    }
    let mut properties = WriterProperties::builder();
    // Numbers that are seldom equal take less space without a dictionary.
    for name in NUMBERS_OF_TOKENS {
        let column = ColumnPath::from(vec![name.to_owned(), "list".to_owned(), "element".to_owned()]);
        properties = properties.set_column_dictionary_enabled(column, false);
    }
    let properties = properties
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(format!("r1 {}", env!("CARGO_PKG_VERSION")))
        // Page indices are disabled: they follow the pages, outside the checksum, and are never
        // read.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(metadata))
        .build();
    let store = |e: ParquetError| parquet_failed("write trajectories", path, &e);
    let fields = fields()?;
    let summed = Summed { file, bytes: 0, crc: 0 };
    let schema = Arc::new(Schema::new(fields.clone()));
    let mut writer = ArrowWriter::try_new(summed, schema, Some(properties)).map_err(store)?;
    let (mut rows, mut previous) = (Vec::new(), Vec::new());
    for (trajectory, position) in trajectories.iter().zip(0_u32..) {
        let (trajectory, version) = (trajectory.borrow(), policy_version(position));
        rows.extend(TrajectoryRow::of_trajectory(position, trajectory, version, &mut previous)?);
        if rows.len() >= BATCH || position as usize + 1 == trajectories.len() {
            writer.write(&serde_arrow::to_record_batch(&fields, &rows).map_err(|e| internal(&e))?).map_err(store)?;
            rows.clear();
        }
        if writer.in_progress_size() > ROW_GROUP_BYTES {
            writer.flush().map_err(store)?;
            // A row group is read alone.
            previous.clear();
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
fn fields() -> Result<Vec<FieldRef>> {
    let options = TracingOptions::default()
        .strings_as_large_utf8(false)
        .sequence_as_large_list(false)
        .enums_without_data_as_strings(true);
    let fields: Vec<FieldRef> = SchemaLike::from_type::<TrajectoryRow>(options).map_err(|e| internal(&e))?;
    // The names of enums are text, not the keys of a dictionary.
    let plain = |field: FieldRef| match field.data_type() {
        DataType::Dictionary(..) => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
        _ => field,
    };
    Ok(fields.into_iter().map(plain).collect())
}

fn internal(error: &serde_arrow::Error) -> Error {
    Error::new(Kind::Internal, format!("can't make a table of trajectories: {}", error.message()))
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
        encode::<Trajectory>(&mut File::create(&path).unwrap(), &|_| 0, None, &[], &path).unwrap();
        let metadata = ArrowReaderMetadata::load(&File::open(&path).unwrap(), ArrowReaderOptions::new()).unwrap();
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/store.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: String = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
        for field in metadata.schema().fields() {
            let name = format!("`{}`", field.name());
            assert!(rows.contains(&name), "docs/reference/store.md does not document the column {name}");
        }
    }

    /// Other programs read the columns by these types.
    #[test]
    fn columns_are_plain_text_numbers_and_lists() {
        let types = fields().unwrap().into_iter().map(|field| (field.name().clone(), field.data_type().clone()));
        let types: std::collections::BTreeMap<String, DataType> = types.collect();
        for name in ["split", "status", "truncated_by", "finish_reason", "messages", "tools", "text"] {
            assert_eq!(types[name], DataType::Utf8, "{name}");
        }
        let list = |name: &str| match &types[name] {
            DataType::List(items) => items.data_type().clone(),
            other => panic!("{name}: {other}"),
        };
        let lists = ["prompt_ids", "logprobs", "routing"].map(list);
        assert_eq!(lists, [DataType::UInt32, DataType::Float32, DataType::UInt16]);
        assert_eq!((&types["group"], &types["step"]), (&DataType::UInt64, &DataType::UInt32));
    }

    #[test]
    fn full_disk_is_reported() {
        let Ok(mut full) = File::options().write(true).open("/dev/full") else { return };
        let error = encode::<Trajectory>(&mut full, &|_| 0, None, &[], Path::new("runs/x/step.parquet")).unwrap_err();
        assert_eq!(error.kind, Kind::Store);
        assert_eq!(error.message, "can't write trajectories: no space left on device");
        assert_eq!(error.place.as_deref(), Some("runs/x/step.parquet"));
        assert!(error.hint.unwrap().contains("--resume"));
    }
}
