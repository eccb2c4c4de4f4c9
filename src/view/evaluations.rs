//! Results of evaluations: the report of `r1 eval`, and the evaluations during training.

use serde_json::{Value, json};

use crate::error::Result;
use crate::mdp::Split;
use crate::store::{StoredRun, read_json};

/// `report` is `report.json` of `r1 eval`; `steps` are those with stored trajectories.
pub(super) fn evaluations(run: &StoredRun) -> Result<Value> {
    let file = |name: &str| -> Result<Value> {
        let path = run.path().join(name);
        if path.is_file() { read_json(&path) } else { Ok(Value::Null) }
    };
    Ok(
        json!({ "report": file("report.json")?, "evaluation": file("evaluation.json")?, "steps": run.steps(Split::Eval)? }),
    )
}
