//! Tests of reading columns.
#![allow(clippy::unwrap_used, clippy::float_cmp)]
use std::fs;

use serde_json::json;

use super::*;
use crate::mdp::{CallKind, Fork, ServerReply, Step, ToolRecord, TrainedTokens, Trajectory, Usage, testing};
use crate::store::{RunDir, TRAJECTORY_COLUMNS};

fn call(kind: CallKind, hidden: bool) -> ToolRecord {
    ToolRecord { name: "add".to_owned(), kind, hidden, ..ToolRecord::default() }
}

/// Three trajectories: of two steps with calls, without steps, and of a server.
fn trajectories() -> Vec<Trajectory> {
    let step = |reward: f64, text: &str, tools: Vec<ToolRecord>| Step {
        reward,
        text: text.to_owned(),
        tools,
        ..testing::step(&[1, 2], &[3, 4, 5])
    };
    let calls = vec![call(CallKind::Ran, false), call(CallKind::Ran, true), call(CallKind::Unknown, false)];
    let mut steps = vec![step(0.5, "a \"quoted\" reply", calls), step(1.0, "the end", Vec::new())];
    steps[0].trained = TrainedTokens {
        advantages: vec![1.0, 2.0, 3.0],
        learner_logprobs: vec![-1.0, -0.5, -3.5],
        entropies: vec![0.5, 1.0, 1.5],
        clipped: vec![true, false, false],
        loss_mask: vec![true; 3],
        ..TrainedTokens::default()
    };
    steps[1].trained = TrainedTokens { advantages: vec![4.0; 3], clipped: vec![false; 3], ..TrainedTokens::default() };
    let first = Trajectory {
        id: "4-0-0".to_owned(),
        group: 7,
        task: json!({ "level": 5 }),
        fork: Some(Fork { parent: "4-0-9".to_owned(), step: 1 }),
        reward_parts: [("accuracy".to_owned(), 1.0)].into(),
        ..testing::trajectory(steps)
    };
    let reply = ServerReply { usage: Usage { prompt_tokens: 9, response_tokens: 40 }, ..ServerReply::default() };
    let served = Step { server: Some(Box::new(reply)), reward: -1.0, ..Step::default() };
    let of = |id: &str, steps| Trajectory { id: id.to_owned(), ..testing::trajectory(steps) };
    let dropped = Trajectory { dropped: true, ..of("4-0-2", vec![served]) };
    vec![first, of("4-0-1", Vec::new()), dropped]
}

/// A file of step 4 in a new directory.
fn written(trajectories: &[Trajectory]) -> (tempfile::TempDir, TrajectoryFile) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path(), "demo").unwrap();
    let path = run.write_trajectories(4, 3, None, trajectories).unwrap();
    (root, TrajectoryFile { split: Split::Train, step: 4, path })
}

fn column(file: &TrajectoryFile, name: &str) -> ColumnValues {
    let column = TrajectoryColumn::named(name).unwrap();
    let values = scan_trajectories(file, &[column]).unwrap().remove(0);
    assert_eq!(std::mem::discriminant(&values), std::mem::discriminant(&ColumnValues::empty(column.kind())), "{name}");
    values
}

#[test]
fn a_column_has_a_value_for_each_trajectory() {
    let (_root, file) = written(&trajectories());
    let numbers = |name: &str| column(&file, name).numbers().to_vec();
    assert_eq!(numbers("step"), [4.0; 3]);
    assert_eq!(numbers("group"), [7.0, 0.0, 0.0]);
    assert_eq!(numbers("reward"), [1.5, 0.0, -1.0]);
    assert_eq!(numbers("steps"), [2.0, 0.0, 1.0]);
    assert_eq!(numbers("tokens"), [6.0, 0.0, 40.0]);
    assert_eq!(numbers("tool_calls"), [1.0, 0.0, 0.0]);
    assert_eq!(numbers("policy_version"), [3.0; 3]);
    let stored = |name: &str| {
        let numbers = numbers(name);
        assert!(numbers[1..].iter().all(|number| number.is_nan()), "{name}: {numbers:?}");
        numbers[0]
    };
    assert_eq!([stored("advantage"), stored("mismatch"), stored("entropy")], [3.0, 2.5, 1.0]);
    assert_eq!(stored("clipped"), 1.0 / 6.0);
    assert!(stored("value").is_nan());
    let texts = |name: &str| {
        let values = column(&file, name);
        values.texts().iter().map(|text| text.clone().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(texts("id"), ["4-0-0", "4-0-1", "4-0-2"]);
    assert_eq!(texts("parent"), ["4-0-9", "", ""]);
    assert_eq!([texts("dropped"), texts("trained")], [["", "", "dropped"], ["trained", "", ""]]);
    assert_eq!(texts("reply"), ["the end", "", ""]);
    assert_eq!(texts("finish_reason"), ["stop", "", "stop"]);
    assert_eq!(texts("task")[0], "{\"level\":5}");
    assert_eq!(texts("reward_parts")[0], "{\"accuracy\":1.0}");
    assert_eq!(texts("advantages"), ["[2.0,4.0]", "[]", "[null]"]);
    assert_eq!(texts("rewards"), ["[0.5,1.0]", "[]", "[-1.0]"]);
    assert_eq!(texts("replies"), [r#"["a \"quoted\" reply","the end"]"#, "[]", "[\"\"]"]);
    let tools: Vec<ToolRecord> = serde_json::from_str(&texts("tools")[0]).unwrap();
    assert_eq!(tools.len(), 3);
}

/// A trajectory may begin in one batch of rows and end in the next one.
#[test]
fn trajectories_are_continued_in_the_next_batch() {
    let step = Step { reward: 1.0, ..testing::step(&[1], &[2]) };
    let of = |id: usize| Trajectory { id: id.to_string(), ..testing::trajectory(vec![step.clone(); 7]) };
    let (_root, file) = written(&(0..1000).map(of).collect::<Vec<_>>());
    assert_eq!(column(&file, "steps").numbers(), [7.0; 1000]);
    assert_eq!(column(&file, "tokens").numbers(), [7.0; 1000]);
    assert_eq!(column(&file, "rewards").texts().last().unwrap().as_deref(), Some("[1.0,1.0,1.0,1.0,1.0,1.0,1.0]"));
}

/// The same numbers as of the trajectories that are read whole.
#[test]
fn columns_agree_with_whole_trajectories() {
    let all = trajectories();
    let (_root, file) = written(&all);
    let expected = |of: fn(&Trajectory) -> f64| all.iter().map(of).collect::<Vec<f64>>();
    assert_eq!(column(&file, "reward").numbers(), expected(Trajectory::total_reward));
    assert_eq!(column(&file, "tokens").numbers(), expected(|one| one.response_tokens() as f64));
    assert_eq!(column(&file, "tool_calls").numbers(), expected(|one| one.tool_calls() as f64));
}

/// A file of the version before has no columns of the update.
#[test]
fn files_of_format_1_are_scanned() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trajectories-format-1.parquet");
    let file = TrajectoryFile { split: Split::Train, step: 1, path };
    assert_eq!(column(&file, "steps").numbers(), [1.0, 2.0, 1.0, 1.0]);
    assert_eq!(column(&file, "tokens").numbers(), [11.0, 20.0, 11.0, 11.0]);
    assert!(column(&file, "mismatch").numbers().iter().all(|number| number.is_nan()));
    assert_eq!(column(&file, "dropped").texts(), [const { None }; 4]);
    let advantages = column(&file, "advantage");
    let trained = column(&file, "trained");
    let is_trained = advantages.numbers().iter().map(|advantage| !advantage.is_nan());
    assert!(trained.texts().iter().map(Option::is_some).eq(is_trained), "{trained:?} {advantages:?}");
    assert!(trained.texts().iter().any(Option::is_some));
}

/// A flipped byte gives other values or an error, and ends nothing.
#[test]
fn damaged_files_are_refused_or_read_without_a_panic() {
    let (root, file) = written(&trajectories());
    let whole = fs::read(&file.path).unwrap();
    let columns: Vec<&TrajectoryColumn> = TRAJECTORY_COLUMNS.iter().collect();
    let footer = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize + 8;
    let pages = whole.len() - footer;
    let places: Vec<usize> = (0..pages).step_by(7).chain((pages..whole.len()).step_by(3)).collect();
    let mut refused = 0;
    for &at in &places {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        fs::write(&file.path, &bytes).unwrap();
        match scan_trajectories(&file, &columns) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!((error.kind, error.place.as_deref()), (Kind::Store, file.path.to_str()), "byte {at}");
                refused += 1;
            }
        }
    }
    assert!(refused > places.len() / 2, "{refused} of {}", places.len());
    fs::write(&file.path, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(scan_trajectories(&file, &columns).unwrap_err().kind, Kind::Store);
    let missing = TrajectoryFile { path: root.path().join("none.parquet"), ..file };
    assert!(scan_trajectories(&missing, &columns).unwrap_err().message.contains("no such file"));
}
