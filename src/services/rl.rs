//! Estimators and losses for scripts: tables in, tables out.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::config::LossGraph;
use crate::error::{Error, Kind, Result};
use crate::rl::plain;

/// Carries out `rl.advantages` or `rl.loss` on `{ name, rows, options }`, `rl.value_loss` on lists of numbers, `rl.entropy`
/// on lists of logits.
pub(super) fn call(function: &str, arguments: &Json) -> Result<Json> {
    answer(function, arguments).map_err(|error| {
        // The place is to be the program's line.
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
                _ => return Err(Error::new(Kind::Usage, "`logits` is a list of lists of numbers")),
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
            let mut told = json!({ "advantages": found.advantages, "counted": found.counted });
            if found.targets.iter().flatten().any(|asked| *asked) {
                told["returns"] = json!(found.returns);
                told["targets"] = json!(found.targets);
            }
            Ok(told)
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
        _ => Err(Error::new(Kind::Internal, format!("no service `{function}`"))),
    }
}

fn numbers(name: &str, list: &Json) -> Result<Vec<f64>> {
    let wrong = || Error::new(Kind::Usage, format!("`{name}` is a list of numbers"));
    match list {
        Json::Array(list) => list.iter().map(|number| number.as_f64().ok_or_else(wrong)).collect(),
        Json::Object(table) if table.is_empty() => Ok(Vec::new()),
        _ => Err(wrong()),
    }
}
