//! Estimators and losses for scripts, on plain data.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::config::LossGraph;
use crate::error::{Error, Kind, Result};
use crate::rl::plain;

/// Calls `rl.advantages` or `rl.loss` with `{ name, rows, options }`, `rl.value_loss` with lists of
/// numbers, `rl.entropy` with lists of logits.
pub(super) fn call(function: &str, arguments: &Json) -> Result<Json> {
    answer(function, arguments).map_err(|error| {
        // The place of the error is the line of the program, which the caller adds.
        let inside = error.place.map_or_else(String::new, |place| format!("{place}: "));
        let kind = if error.kind == Kind::Usage { Kind::Script } else { error.kind };
        Error { kind, message: format!("r1.{function}: {inside}{}", error.message), place: None, ..error }
    })
}

fn answer(function: &str, arguments: &Json) -> Result<Json> {
    let options = &arguments["options"];
    match function {
        "rl.value_loss" => {
            let list = |name: &str| numbers(name, &arguments[name]);
            let found = plain::value_loss(&list("values")?, &list("values_old")?, &list("returns")?, options)?;
            return Ok(json!({ "loss": found.loss, "gradient": found.gradient, "clip_frac": found.clip_frac }));
        }
        "rl.entropy" => {
            let lists = match &arguments["logits"] {
                Json::Array(lists) => lists.as_slice(),
                Json::Object(table) if table.is_empty() => &[],
                _ => return Err(Error::new(Kind::Usage, "`logits` must be a list of lists of numbers")),
            };
            let logits: Vec<Vec<f64>> = lists.iter().map(|list| numbers("logits", list)).collect::<Result<_>>()?;
            return Ok(json!(plain::entropy(&logits, arguments["temperature"].as_f64().unwrap_or(1.0))?));
        }
        _ => {}
    }
    let name = arguments["name"].as_str().unwrap_or_default();
    let rows = plain::rows(&arguments["rows"])?;
    match function {
        "rl.advantages" => {
            let found = plain::advantages(name, &rows, options)?;
            let mut result = json!({ "advantages": found.advantages, "counted": found.counted });
            if found.targets.iter().flatten().any(|is_target| *is_target) {
                result["returns"] = json!(found.returns);
                result["targets"] = json!(found.targets);
            }
            Ok(result)
        }
        "rl.loss" => {
            let report = match &arguments["graph"] {
                Json::Null => plain::loss(name, &rows, options)?,
                graph => {
                    let graph = LossGraph::deserialize(graph)
                        .map_err(|error| Error::new(Kind::Internal, format!("the loss's graph: {error}")))?;
                    plain::custom_loss(&graph, &rows, options)?
                }
            };
            Ok(json!({ "loss": report.loss, "gradient": report.gradient, "metrics": report.metrics }))
        }
        _ => Err(Error::new(Kind::Internal, format!("unknown service `{function}`"))),
    }
}

fn numbers(name: &str, list: &Json) -> Result<Vec<f64>> {
    let wrong = || Error::new(Kind::Usage, format!("`{name}` must be a list of numbers"));
    match list {
        Json::Array(list) => list.iter().map(|number| number.as_f64().ok_or_else(wrong)).collect(),
        Json::Object(table) if table.is_empty() => Ok(Vec::new()),
        _ => Err(wrong()),
    }
}
