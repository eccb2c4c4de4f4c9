//! Tests of reading trajectories back.
#![allow(clippy::unwrap_used)]
use std::fs;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{RecordBatch, new_null_array};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::error::Subject;
use crate::mdp::{
    Answer, CallKind, ErrorRecord, ExternalCall, FinishReason, Fork, Limit, Message, Routing, ServerReply, Split,
    Status, Step, StepSeconds, Support, ToolCall, ToolRecord, TrainedTokens, Usage, testing,
};
use crate::store::{RunDir, TaskOrder};

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
        (retries, cached, hidden) in any::<(u32, bool, bool)>())
        -> ToolRecord {
        ToolRecord { name, arguments, kind, output, ok, reward, seconds, retries, cached, hidden }
    }
}

fn number() -> impl Strategy<Value = f32> {
    any::<f32>().prop_filter("finite", |x| x.is_finite())
}

prop_compose! {
    fn trained_tokens()(
        advantages in vec(finite(), 0..4),
        columns in vec(vec(number(), 0..4), 5),
        (loss_mask, clipped) in (vec(any::<bool>(), 0..4), vec(any::<bool>(), 0..4)),
    ) -> TrainedTokens {
        let [values, returns, learner_logprobs, reference_logprobs, entropies] = columns.try_into().unwrap();
        TrainedTokens { advantages, values, returns, learner_logprobs, reference_logprobs, entropies, loss_mask, clipped }
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
        server in proptest::option::of(server_reply()),
        trained in trained_tokens(),
        (context, sampling, environment) in (finite(), finite(), finite()),
        state in proptest::option::of(value()),
    ) -> Step {
        let (response_ids, logprobs): (Vec<u32>, Vec<f32>) = sampled.into_iter().unzip();
        let policy_versions = response_ids.iter().filter(|_| start > 3).map(|id| u64::from(id % 3)).collect();
        Step {
            prompt_ids, response_ids, logprobs, policy_versions, text, finish_reason, reward, terminated, truncated, tools,
            prefilled, new_row, next_prompt_ids, privileged, next_privileged,
            routing: Routing { start: if experts.is_empty() { 0 } else { start }, width: 2 * u32::from(!experts.is_empty()),
                experts: experts.into_iter().flat_map(|(a, b)| [a, b]).collect() },
            support: support.iter().fold(Support::default(), |mut all, ids| {
                all.push(ids);
                all
            }),
            server,
            seconds: StepSeconds { context, sampling, environment },
            state,
            generated: false,
            trained,
        }
    }
}

fn server_reply() -> impl Strategy<Value = Box<ServerReply>> {
    (vec(message(), 0..2), any::<(u64, u64)>(), finite(), ".*").prop_map(|(prompt, tokens, seconds, text)| {
        let usage = Usage { prompt_tokens: tokens.0, response_tokens: tokens.1 };
        let tool_calls = vec![ToolCall { id: Some(text.clone()), name: text.clone(), arguments: Value::Null }];
        let reasoning = Some(text.clone());
        Box::new(ServerReply { prompt, tool_calls, errors: vec![text], reasoning, usage, seconds, retries: 3 })
    })
}

prop_compose! {
    fn error()(
        kind in proptest::sample::select(Kind::ALL.to_vec()),
        message in ".*",
        (location, line, hint) in
            (proptest::option::of(".*"), proptest::option::of(".*"), proptest::option::of(".*")),
        subject in proptest::option::of(".*"),
        traceback in vec(".*", 0..3),
    ) -> ErrorRecord {
        let subject = subject.map(|name| Box::new(Subject::Setting(name)));
        ErrorRecord { kind, message, subject, place: location, line, hint, traceback }
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
    ) -> ExternalCall {
        ExternalCall { step, at: at.to_owned(), kind, request, answer }
    }
}

/// Exchanges in the order of the trajectory's steps.
fn in_order(mut exchanges: Vec<ExternalCall>) -> Vec<ExternalCall> {
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
        (truncated_by, dropped, retries, seconds) in
            (proptest::option::of(proptest::sample::select(Limit::ALL.to_vec())), any::<bool>(), any::<u32>(), finite()),
        error in proptest::option::of(error()),
        steps in vec(step(), 0..4),
        outcome_reward in finite(),
        reward_parts in btree_map(".*", finite(), 0..3),
        messages in vec(message(), 0..3),
        exchanges in vec(exchange(), 0..4),
        fork in proptest::option::of((".*", any::<u32>()).prop_map(|(parent, step)| Fork { parent, step })),
        initial_state in proptest::option::of(value()),
    ) -> Trajectory {
        let record = in_order(exchanges);
        Trajectory {
            id, split, task_index, task, group, sample, fork, seed, script_hash, status, truncated_by, dropped, retries, seconds, error,
            steps, outcome_reward, reward_parts, messages, record, initial_state,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn stored_trajectories_round_trip(trajectories in vec(trajectory(), 0..6)) {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "demo").unwrap();
        let path = run.write_trajectories(3, 2, None, &trajectories).unwrap();
        prop_assert_eq!(read_trajectories(&path).unwrap(), trajectories);
    }
}

fn plain(id: &str, steps: usize) -> Trajectory {
    let step = Step {
        text: "x".to_owned(),
        reward: 1.0,
        terminated: true,
        prefilled: 2,
        routing: Routing { start: 0, width: 2, experts: vec![3, 1, 0, 300] },
        privileged: Some("the key is 4".to_owned()),
        next_prompt_ids: vec![5, 6],
        ..testing::step(&[1, 2], &[3])
    };
    Trajectory {
        id: id.to_owned(),
        task: json!({"problem": "1+1"}),
        outcome_reward: 1.0,
        ..testing::trajectory(vec![step; steps])
    }
}

#[test]
fn trajectories_with_equal_ids_or_no_steps_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), "demo").unwrap();
    let mut trajectories: Vec<Trajectory> = (0..120).map(|n| plain("same", n % 5)).collect();
    trajectories[8].dropped = true;
    trajectories[7].reward_parts.insert("odd".to_owned(), f64::NAN);
    let tasks =
        StepTasks { position: 1 << 60, rows: 7, order: TaskOrder::Mixed, carried: vec![3], ..StepTasks::default() };
    let path = run.write_trajectories(1, 0, Some(&tasks), &trajectories).unwrap();
    assert_eq!(read_step_tasks(&path).unwrap(), Some(tasks));
    let back = read_trajectories(&path).unwrap();
    assert_eq!(back.iter().filter(|one| one.dropped).count(), 1);
    assert!(back[8].dropped && back[7].reward_parts["odd"].is_nan());
    assert_eq!(back.len(), 120);
    assert!(back.iter().zip(&trajectories).all(|(a, b)| a.steps == b.steps));
}

/// Prompts have common starts with the row before: the step before, or another trajectory.
#[test]
fn the_start_of_a_prompt_that_the_row_before_has_is_stored_once() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), "demo").unwrap();
    let steps = |last: u32| {
        let first = testing::step(&[1, 2, 3, 4], &[5, last]);
        vec![first, testing::step(&[1, 2, 3, 4, 5, last, 7, 8], &[9]), testing::step(&[1, 2, 30], &[])]
    };
    let trajectories = [6, 60].map(|last| Trajectory { id: last.to_string(), ..testing::trajectory(steps(last)) });
    let path = run.write_trajectories(1, 0, None, &trajectories).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap().build().unwrap();
    let batch = reader.map(|batch| batch.unwrap()).next().unwrap();
    let shared = batch.column_by_name("prompt_shared").unwrap().as_primitive::<UInt32Type>().values().to_vec();
    assert_eq!(shared, [0, 6, 2, 2, 6, 2]);
    let new_ids = batch.column_by_name("prompt_ids").unwrap().as_list::<i32>().clone();
    let new_ids = |row: usize| new_ids.value(row).as_primitive::<UInt32Type>().values().to_vec();
    assert_eq!([0, 1, 2, 3].map(new_ids), [vec![1, 2, 3, 4], vec![7, 8], vec![30], vec![3, 4]]);
    assert_eq!(read_trajectories(&path).unwrap(), trajectories);
    // Numbers of tokens are not in dictionaries.
    let metadata = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap().metadata().clone();
    let columns = metadata.row_group(0).columns();
    let has_dictionary = |name: &str| {
        let column = columns.iter().find(|column| column.column_path().string() == name).unwrap();
        column.dictionary_page_offset().is_some()
    };
    assert_eq!(["logprobs.list.element", "response_ids.list.element"].map(has_dictionary), [false, true]);
}

/// A file of the version before: two trajectories of each of two tasks, one of them with two steps.
#[test]
fn files_of_format_1_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trajectories-format-1.parquet");
    let read = read_trajectories(&path).unwrap();
    let lengths = |trajectory: &Trajectory| {
        let of = |step: &Step| (step.prompt_ids.len(), step.response_ids.len());
        trajectory.steps.iter().map(of).collect::<Vec<_>>()
    };
    let lengths: Vec<_> = read.iter().map(lengths).collect();
    assert_eq!(lengths, [vec![(43, 11)], vec![(43, 9), (62, 11)], vec![(48, 11)], vec![(48, 11)]]);
    let [first, second] = &read[1].steps[..] else { panic!("two steps") };
    assert!(second.prompt_ids.starts_with(&[&first.prompt_ids[..], &first.response_ids].concat()));
    assert!(read.iter().flat_map(|trajectory| &trajectory.steps).all(|step| step.trained.is_empty()));
}

/// The checksum detects flipped bytes that the compression does not. A flipped byte of the footer,
/// which has no checksum, is refused, or changes nothing that is read. Each byte takes a read of
/// all columns, so that only every fifth one is flipped.
#[test]
fn flipped_bytes_of_a_trajectory_file_are_refused_or_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), "demo").unwrap();
    let path = run.write_trajectories(1, 0, None, &[plain("a", 2)]).unwrap();
    let whole = fs::read(&path).unwrap();
    let expected = read_trajectories(&path).unwrap();
    assert_eq!(expected.len(), 1);
    let footer = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize + 8;
    for at in (0..whole.len()).step_by(5) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        match read_trajectories(&path) {
            Err(error) => {
                assert_eq!((error.kind, error.place.as_deref()), (Kind::Store, path.to_str()), "byte {at}: {error}");
            }
            Ok(read) => {
                assert!(at >= whole.len() - footer, "byte {at}");
                assert_eq!(read, expected, "byte {at}");
            }
        }
    }
}

#[test]
fn damaged_and_other_files_are_refused_with_their_path() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), "demo").unwrap();
    let path = run.write_trajectories(1, 0, None, &[plain("a", 2)]).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = read_trajectories(&path).unwrap_err();
    assert_eq!((error.kind, error.place.as_deref()), (Kind::Store, path.to_str()));
    let error = read_trajectories(&root.path().join("none.parquet")).unwrap_err();
    assert!(error.message.contains("no such file"), "{error}");
}

/// Writes the trajectories again after `change`, without a checksum, as the first versions of r1.
fn rewritten(trajectories: &[Trajectory], change: impl Fn(&RecordBatch) -> RecordBatch) -> Result<Vec<Trajectory>> {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), "demo").unwrap();
    let path = run.write_trajectories(1, 0, None, trajectories).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap().build().unwrap();
    let batches: Vec<RecordBatch> = reader.map(|batch| change(&batch.unwrap())).collect();
    let format = KeyValue::new(FORMAT_KEY.to_owned(), EARLIER_FORMATS[0].to_owned());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![format])).build();
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batches[0].schema(), Some(properties)).unwrap();
    for batch in &batches {
        writer.write(batch).unwrap();
    }
    writer.close().unwrap();
    read_trajectories(&path).map_err(|error| Error { place: None, ..error })
}

#[test]
fn files_of_the_first_version_lack_columns() {
    let newer = [
        "split",
        "parent",
        "forked_at",
        "truncated_by",
        "retries",
        "seconds",
        "error_fields",
        "support_ids",
        "support_ends",
        "prompt_shared",
        "advantages",
        "values",
        "returns",
        "learner_logprobs",
        "reference_logprobs",
        "entropies",
        "loss_mask",
        "clipped",
        "routing",
        "routing_start",
        "routing_width",
        "privileged",
        "next_privileged",
        "record",
        "next_prompt_ids",
        "server",
        "context_seconds",
        "sampling_seconds",
        "environment_seconds",
        "initial_state",
        "state",
    ];
    let failed = Trajectory { status: Status::EnvError, error: Some(ErrorRecord::of_text("lost")), ..plain("b", 0) };
    let read = rewritten(&[plain("a", 1), failed.clone()], |batch| {
        let fields = batch.schema();
        let kept = fields.fields().iter().zip(0..).filter(|(field, _)| !newer.contains(&field.name().as_str()));
        batch.project(&kept.map(|(_, index)| index).collect::<Vec<usize>>()).unwrap()
    });
    let mut expected = plain("a", 1);
    for step in &mut expected.steps {
        (step.routing, step.privileged) = (Routing::default(), None);
        step.next_prompt_ids.clear();
    }
    assert_eq!(read.unwrap(), [expected, failed]);
}

#[test]
fn columns_that_are_missing_null_or_of_another_type_are_refused() {
    let without = |name: &'static str, replace: Option<&'static str>| {
        let read = rewritten(&[plain("a", 1)], |batch| {
            let schema = batch.schema();
            let columns = schema.fields().iter().zip(batch.columns()).filter_map(|(field, column)| match replace {
                _ if field.name() != name => Some((field.name(), column.clone(), true)),
                None => None,
                Some("null") => Some((field.name(), new_null_array(column.data_type(), batch.num_rows()), true)),
                Some(other) => Some((field.name(), batch.column_by_name(other).unwrap().clone(), true)),
            });
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        });
        read.unwrap_err().to_string()
    };
    let damaged = "damaged file of trajectories: ";
    assert_eq!(without("prompt_ids", Some("null")), format!("{damaged}column `prompt_ids` is missing or null, row 0"));
    assert_eq!(without("text", None), format!("{damaged}column `text` is missing or null, row 0"));
    assert_eq!(
        without("messages", Some("id")),
        format!("{damaged}column `messages`: expected value at line 1 column 1, row 0")
    );
    assert_eq!(without("task", None), format!("{damaged}deserialization failed: missing field `task`"));
    for (name, other, why) in [("status", "id", "unknown variant `a`"), ("seed", "null", ""), ("logprobs", "text", "")]
    {
        let refusal = without(name, Some(other));
        assert!(refusal.starts_with(damaged) && refusal.contains(why), "{name}: {refusal}");
    }
}
