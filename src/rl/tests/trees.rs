//! Trajectories that share steps, as tables of rows.

use serde_json::{Value, json};

use crate::rl::plain;
use crate::rl::rows::StepRow;

/// A root that is right, a fork after its first step that is wrong, another root that is wrong and
/// has the observation of the first.
fn rows() -> Vec<StepRow> {
    let row = |trajectory: u64, step: u64, anchor: &str, reward: f64| StepRow {
        anchor: Some(anchor.to_owned()),
        ..StepRow::new(0, trajectory, step, 2, reward)
    };
    let mut rows = vec![row(0, 0, "start", 0.0), row(0, 1, "room", 1.0), row(1, 0, "start", 0.0)];
    rows.extend([row(1, 1, "room", 0.0), row(2, 0, "start", 0.0), row(2, 1, "room", 0.0)]);
    rows[2].shared = Some(0);
    rows
}

fn advantages(name: &str, options: &Value) -> Vec<f64> {
    let result = plain::advantages(name, &rows(), options).unwrap();
    assert!(result.advantages.iter().all(|step| step[0].to_bits() == step[1].to_bits()));
    result.advantages.into_iter().map(|step| step[0]).collect()
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-15)
}

#[test]
fn gigpo_compares_continuations_of_one_state() {
    let actual = advantages("gigpo", &json!({ "gamma": 0.5, "mode": "mean" }));
    // Totals less their mean are 2/3, -1/3, -1/3. The value of the shared step is 1/4, the mean of
    // 1/2 and 0, and the other root has 0; the continuations of the forked state have 1 and 0; the
    // other root is alone in its room.
    let (third, start, forked) = (1.0 / 3.0, 0.125, 0.5);
    let shared = third / 2.0 + start;
    let wanted = [shared, 2.0 * third + forked, shared, -third - forked, -third - start, -third];
    assert!(close(&actual, &wanted), "{actual:?}");
    // Without the fork, steps with similar observations are one anchor state.
    let apart: Vec<StepRow> = rows().into_iter().map(|row| StepRow { shared: None, ..row }).collect();
    let actual = plain::advantages("gigpo", &apart, &json!({ "gamma": 0.5, "mode": "mean" })).unwrap();
    assert!(close(&[actual.advantages[5][0]], &[-2.0 * third]));
}

#[test]
fn a_tree_compares_leaves_and_continuations() {
    let third = 1.0 / 3.0;
    let local = advantages("tree", &json!({ "local": 1, "normalize": "none" }));
    assert!(close(&local, &[third / 2.0, 0.5, third / 2.0, -0.5, -third, -third]), "{local:?}");
    let overall = advantages("tree", &json!({ "local": 0, "normalize": "none" }));
    let grpo = advantages("grpo", &json!({ "normalize": "none" }));
    assert!(close(&overall, &grpo) && close(&grpo[..2], &[third / 2.0, 2.0 * third]), "{overall:?} {grpo:?}");
}

/// A fork after two steps continues from the state after the second step, not the first.
#[test]
fn a_fork_continues_from_its_last_shared_step() {
    let row = |trajectory: u64, step: u64, anchor: &str, reward: f64| StepRow {
        anchor: Some(anchor.to_owned()),
        shared: (trajectory == 1 && step < 2).then_some(0),
        ..StepRow::new(0, trajectory, step, 1, reward)
    };
    // The two continuations differ in their observations, but start from the same state.
    let rows = [
        row(0, 0, "start", 0.0),
        row(0, 1, "hall", 0.0),
        row(0, 2, "left", 1.0),
        row(1, 0, "start", 0.0),
        row(1, 1, "hall", 0.0),
        row(1, 2, "right", 0.0),
    ];
    let result = plain::advantages("gigpo", &rows, &json!({ "gamma": 1.0, "mode": "mean" })).unwrap();
    let step: Vec<f64> = result.advantages.into_iter().map(|step| step[0]).collect();
    assert!(close(&step, &[0.0, 0.0, 1.0, 0.0, 0.0, -1.0]), "{step:?}");
}
