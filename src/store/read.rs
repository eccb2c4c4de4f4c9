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
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::error::Subject;
    use crate::mdp::{Answer, Exchange, Message, ToolCall};
    use crate::store::RunDir;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_filter("JSON has no NaN", |x| x.is_finite()).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(2, 8, 3, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..3).prop_map(Value::from),
                btree_map(".*", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn call_kind() -> impl Strategy<Value = CallKind> {
        prop::sample::select(vec![
            CallKind::Ran,
            CallKind::BadArguments,
            CallKind::Excess,
            CallKind::Unknown,
            CallKind::Malformed,
        ])
    }

    fn finite() -> impl Strategy<Value = f64> {
        any::<f64>().prop_filter("finite", |x| x.is_finite())
    }

    prop_compose! {
        fn tool()(name in ".*", arguments in value(), kind in call_kind(), output in ".*", ok: bool, reward in finite(), seconds in finite(),
            (retries, cached) in any::<(u32, bool)>())
            -> ToolRecord {
            ToolRecord { name, arguments, kind, output, ok, reward, seconds, retries, cached }
        }
    }

    prop_compose! {
        fn step()(
            prompt_ids in vec(any::<u32>(), 0..20),
            sampled in vec((any::<u32>(), any::<f32>().prop_filter("finite", |x| x.is_finite())), 0..20),
            text in ".*",
            finish_reason in prop_oneof![
                Just(FinishReason::Stop), Just(FinishReason::StopString), Just(FinishReason::Length),
                Just(FinishReason::Deadline)
            ],
            reward in finite(),
            (terminated, truncated, new_row) in any::<(bool, bool, bool)>(),
            next_prompt_ids in vec(any::<u32>(), 0..20),
            (start, experts) in (0_u32..9, vec(any::<(u16, u16)>(), 0..9)),
            (privileged, next_privileged) in (proptest::option::of(".*"), proptest::option::of(".*")),
            support in vec(vec(any::<u32>(), 0..4), 0..3),
            tools in vec(tool(), 0..3),
            prefilled: u32,
        ) -> Step {
            let (response_ids, logprobs) = sampled.into_iter().unzip();
            Step {
                prompt_ids, response_ids, logprobs, text, finish_reason, reward, terminated, truncated, tools,
                prefilled, new_row, next_prompt_ids, privileged, next_privileged,
                routing: Routing { start: if experts.is_empty() { 0 } else { start }, width: 2 * u32::from(!experts.is_empty()),
                    experts: experts.into_iter().flat_map(|(a, b)| [a, b]).collect() },
                support: support.iter().fold(Support::default(), |mut all, ids| {
                    all.push(ids);
                    all
                }),
            }
        }
    }

    prop_compose! {
        fn error()(
            kind in proptest::sample::select(Kind::ALL.to_vec()),
            message in ".*",
            (place, line, hint) in
                (proptest::option::of(".*"), proptest::option::of(".*"), proptest::option::of(".*")),
            subject in proptest::option::of(".*"),
            traceback in vec(".*", 0..3),
        ) -> ErrorRecord {
            let subject = subject.map(|name| Box::new(Subject::Setting(name)));
            ErrorRecord { kind, message, subject, place, line, hint, traceback }
        }
    }

    prop_compose! {
        fn exchange()(
            step in 0_u64..5,
            at in proptest::sample::select(vec!["reset", "context", "step", "step/2", "reward"]),
            kind in ".*",
            request in value(),
            answer in proptest::option::of(prop_oneof![
                value().prop_map(Answer::Ok),
                error().prop_map(Answer::Error),
            ]),
        ) -> Exchange {
            Exchange { step, at: at.to_owned(), kind, request, answer }
        }
    }

    /// Exchanges in the order of the trajectory's steps.
    fn in_order(mut exchanges: Vec<Exchange>) -> Vec<Exchange> {
        exchanges.sort_by_key(|exchange| exchange.step);
        exchanges
    }

    fn message() -> impl Strategy<Value = Message> {
        (".*", value(), proptest::option::of(".*")).prop_map(|(text, arguments, reasoning_content)| Message {
            tool_calls: vec![ToolCall { id: None, name: text.clone(), arguments }],
            reasoning_content,
            ..Message::assistant(text)
        })
    }

    prop_compose! {
        fn trajectory()(
            (id, script_hash) in (".*", ".*"),
            split in proptest::sample::select(Split::ALL.to_vec()),
            (task_index, group, seed, sample) in any::<(u64, u64, u64, u32)>(),
            task in value(),
            status in proptest::sample::select(Status::ALL.to_vec()),
            (truncated_by, retries) in
                (proptest::option::of(proptest::sample::select(Limit::ALL.to_vec())), any::<u32>()),
            error in proptest::option::of(error()),
            steps in vec(step(), 0..4),
            outcome_reward in finite(),
            reward_parts in btree_map(".*", finite(), 0..3),
            messages in vec(message(), 0..3),
            exchanges in vec(exchange(), 0..4),
            fork in proptest::option::of((".*", any::<u32>()).prop_map(|(parent, step)| Fork { parent, step })),
        ) -> Trajectory {
            let record = in_order(exchanges);
            Trajectory {
                id, split, task_index, task, group, sample, fork, seed, script_hash, status, truncated_by, retries, error, steps,
                outcome_reward, reward_parts, messages, record,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn stored_trajectories_round_trip(trajectories in vec(trajectory(), 0..6)) {
            let root = tempfile::tempdir().unwrap();
            let run = RunDir::create(root.path(), "demo").unwrap();
            let path = run.write_trajectories(3, 2, &trajectories, &[]).unwrap();
            prop_assert_eq!(read_trajectories(&path).unwrap(), trajectories);
        }
    }

    fn plain(id: &str, steps: usize) -> Trajectory {
        let step = Step {
            prompt_ids: vec![1, 2],
            response_ids: vec![3],
            logprobs: vec![-0.5],
            support: Support::default(),
            text: "x".to_owned(),
            finish_reason: FinishReason::Stop,
            reward: 1.0,
            terminated: true,
            truncated: false,
            tools: Vec::new(),
            prefilled: 2,
            new_row: false,
            routing: Routing { start: 0, width: 2, experts: vec![3, 1, 0, 300] },
            privileged: Some("the key is 4".to_owned()),
            next_privileged: None,
            next_prompt_ids: vec![5, 6],
        };
        Trajectory {
            id: id.to_owned(),
            split: Split::Train,
            task_index: 0,
            task: json!({"problem": "1+1"}),
            group: 0,
            sample: 0,
            fork: None,
            seed: 0,
            script_hash: String::new(),
            status: Status::Terminated,
            truncated_by: None,
            retries: 0,
            error: None,
            steps: vec![step; steps],
            outcome_reward: 1.0,
            reward_parts: std::collections::BTreeMap::new(),
            messages: Vec::new(),
            record: Vec::new(),
        }
    }

    #[test]
    fn trajectories_with_equal_ids_or_no_steps_round_trip() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let mut trajectories: Vec<Trajectory> = (0..120).map(|n| plain("same", n % 5)).collect();
        trajectories[7].reward_parts.insert("odd".to_owned(), f64::NAN);
        let path = run.write_trajectories(1, 0, &trajectories, &vec![Some(vec![0.5]); 120]).unwrap();
        let back = read_trajectories(&path).unwrap();
        assert!(back[7].reward_parts["odd"].is_nan());
        assert_eq!(back.len(), 120);
        assert!(back.iter().zip(&trajectories).all(|(a, b)| a.steps == b.steps));
    }

    /// The checksum detects flipped bytes that the compression does not.
    #[test]
    fn trajectory_file_checksum_detects_a_flipped_byte() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let path = run.write_trajectories(1, 0, &[plain("a", 2), plain("b", 1)], &[]).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!(read_trajectories(&path).unwrap().len(), 2);
        let footer = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize + 8;
        for at in 0..whole.len() - footer {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(read_trajectories(&path).unwrap_err().kind, Kind::Store, "byte {at}");
        }
    }

    #[test]
    fn damaged_and_other_files_are_refused_with_their_path() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let path = run.write_trajectories(1, 0, &[plain("a", 2)], &[]).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = read_trajectories(&path).unwrap_err();
        assert_eq!((error.kind, error.place.as_deref()), (Kind::Store, path.to_str()));
        let error = read_trajectories(&root.path().join("none.parquet")).unwrap_err();
        assert!(error.message.contains("no such file"), "{error}");
    }
}
