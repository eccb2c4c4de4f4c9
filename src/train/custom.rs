//! A recipe's own estimator: its Lua function `advantage`, called once for each group.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::error::{Error, Kind, Result};
use crate::rl::advantages::Advantages;
use crate::rl::rows::{Batch, Path, StepRow};
use crate::script::Worker;

/// Advantages (and a critic's targets) by the recipe's function.
///
/// # Errors
/// `Kind::Script` with the place in the script where it fails or gives something else than it must.
pub(super) fn advantages(worker: &Worker, steps: &[StepRow], critic: bool) -> Result<Advantages> {
    let batch = Batch::new(steps, false)?;
    let mut groups: BTreeMap<u64, Vec<&Path>> = BTreeMap::new();
    for path in batch.counted() {
        groups.entry(path.group).or_default().push(path);
    }
    let mut found = Advantages::none(steps);
    for paths in groups.values() {
        let group: Vec<Value> = paths.iter().map(|path| describe(&batch, path, paths)).collect();
        let (advantages, returns) = worker.advantage(&Value::Array(group))?;
        let advantages = by_step(worker, "advantages", &advantages, &batch, paths)?;
        let returns = match (&returns, critic) {
            (Value::Null, true) => {
                return Err(worker.broken_advantage(
                    "advantage must return a second list, of returns by step: what the critic should have said",
                ));
            }
            (Value::Null, false) => None,
            (returns, _) => Some(by_step(worker, "returns", returns, &batch, paths)?),
        };
        for (number, path) in paths.iter().enumerate() {
            for (place, &row) in path.rows.iter().enumerate() {
                found.counted[row] = true;
                for (own, _) in found.advantages[row].iter_mut().zip(&steps[row].mask).filter(|(_, mask)| **mask) {
                    *own = advantages[number][place];
                }
                let first = steps[row].mask.iter().position(|sampled| *sampled);
                if let (Some(returns), Some(first)) = (&returns, first) {
                    found.returns[row][first] = returns[number][place];
                    found.targets[row][first] = true;
                }
            }
        }
    }
    found.share(steps);
    Ok(found)
}

/// A trajectory as the function sees it.
fn describe(batch: &Batch<'_>, path: &Path, group: &[&Path]) -> Value {
    let steps: Vec<&StepRow> = batch.steps(path).collect();
    let last = steps.last();
    let mut described = json!({
        "total": path.total,
        "rewards": steps.iter().map(|row| row.reward()).collect::<Vec<_>>(),
        "tokens": steps.iter().map(|row| row.sampled()).collect::<Vec<_>>(),
        "terminated": last.is_some_and(|row| row.terminated),
        "truncated": last.is_some_and(|row| row.truncated),
    });
    let shared: Vec<u64> = steps.iter().map_while(|row| row.shared).collect();
    if let Some(taker) = shared.last() {
        let number = |path: &&Path| path.rows.first().map(|&row| batch.rows[row].trajectory);
        let parent = group.iter().position(|other| number(other) == Some(*taker)).map(|place| place + 1);
        described["fork"] = json!({ "parent": parent, "step": shared.len() });
    }
    let values: Option<Vec<f64>> = steps.iter().map(|row| row.state_value()).collect();
    if let Some(values) = values {
        described["values"] = json!(values);
        described["next_value"] = json!(last.and_then(|row| row.next_value));
    }
    described
}

/// The function's answer for one group: for each trajectory a number, or a number for each step.
fn by_step(worker: &Worker, what: &str, answer: &Value, batch: &Batch<'_>, paths: &[&Path]) -> Result<Vec<Vec<f64>>> {
    let broken = |why: String| Err(worker.broken_advantage(&why));
    let Some(list) = answer.as_array() else {
        return broken(format!("advantage must return {what} as a list with an entry for each trajectory"));
    };
    if list.len() != paths.len() {
        return broken(format!("advantage returned {} {what} for {} trajectories", list.len(), paths.len()));
    }
    let mut all = Vec::with_capacity(paths.len());
    for (number, (entry, path)) in list.iter().zip(paths).enumerate() {
        let steps = path.rows.len();
        let numbers: Option<Vec<f64>> = match entry {
            Value::Number(one) => one.as_f64().map(|one| vec![one; steps]),
            Value::Array(many) if many.len() == steps => many.iter().map(Value::as_f64).collect(),
            _ => None,
        };
        match numbers {
            Some(numbers) if numbers.iter().all(|number| number.is_finite()) => all.push(numbers),
            _ => {
                let place = path.rows.first().map_or(0, |&row| batch.rows[row].trajectory);
                return Err(Error {
                    message: format!(
                        "advantage returned {entry} as {what} of trajectory {}, which has {steps} steps; give a number \
                         or a list of one a step",
                        number + 1
                    ),
                    kind: Kind::Script,
                    ..worker.broken_advantage("")
                }
                .hint(format!("it is number {place} of the step")));
            }
        }
    }
    Ok(all)
}
