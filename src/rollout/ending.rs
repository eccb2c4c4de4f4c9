//! Trajectories without steps, failed ones, and the check of their rewards.

use serde_json::Value;

use super::Spec;
use crate::error::{Error, Kind, Subject};
use crate::mdp::{Status, Trajectory};
use crate::script::{Failure, StepResult, Worker};

/// Sums of finite numbers may still be infinite or NaN.
pub(super) fn summable(trajectory: &Trajectory) -> Result<(), Failure> {
    let parts = trajectory.reward_parts.iter().map(|(name, sum)| (format!("the parts `{name}`"), *sum));
    for (what, sum) in parts.chain([("the rewards of the steps".to_owned(), trajectory.total_reward())]) {
        if !sum.is_finite() {
            let sum = if sum.is_nan() { "NaN" } else { "infinity" };
            let error = Error::new(Kind::Env, format!("{what} add up to {sum}")).hint("keep rewards small");
            return Err(Failure::new(Status::EnvError, error));
        }
    }
    Ok(())
}

/// A trajectory without steps.
pub(super) fn empty(spec: &Spec, task: Value, script_hash: &str) -> Trajectory {
    Trajectory {
        id: spec.id.clone(),
        split: spec.split,
        task_index: spec.task_index,
        task,
        group: spec.group,
        sample: spec.sample,
        seed: spec.env_seed,
        script_hash: script_hash.to_owned(),
        status: Status::Aborted,
        ..Trajectory::default()
    }
}

/// Adds the parts of a reward to a trajectory, and rewards for steps before the last.
pub(super) fn credit(trajectory: &mut Trajectory, result: &StepResult) {
    for (name, value) in &result.parts {
        *trajectory.reward_parts.entry(name.clone()).or_insert(0.0) += value;
    }
    for (step, reward) in &result.earlier {
        if let Some(step) = trajectory.steps.get_mut(*step) {
            step.reward += reward;
        }
    }
}

/// Adds the row and its columns to the error of a row without a reference.
pub(super) fn of_row(error: Error, worker: &Worker, spec: &Spec, task: &Value) -> Error {
    if error.subject.as_deref() != Some(&Subject::Reference) {
        return error;
    }
    let location = worker.place_of_row(spec.split, spec.task_index);
    let message = format!("{} in row {} of data.{} ({location})", error.message, spec.task_index, spec.split.name());
    let columns: Vec<&str> = task.as_object().into_iter().flat_map(|row| row.keys()).map(String::as_str).collect();
    let hint = if columns.is_empty() {
        "the task has no columns".to_owned()
    } else {
        format!("the task's columns: {}; `columns` of the dataset renames them", columns.join(", "))
    };
    Error { message, ..error }.hint(hint)
}

pub(super) fn fail(trajectory: &mut Trajectory, worker: &Worker, failure: &Failure) {
    trajectory.status = failure.status;
    trajectory.error = Some(worker.error_record(failure));
}
