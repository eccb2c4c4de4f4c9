//! Estimators and losses for scripts: tables in, tables out.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::config::LossGraph;
use crate::error::{Error, Kind, Result};
use crate::rl::plain;

/// Carries out `rl.advantages` or `rl.loss` on `{ name, rows, options }`.
pub(super) fn call(function: &str, arguments: &Json) -> Result<Json> {
    answer(function, arguments).map_err(|error| {
        // The place is to be the program's line.
        let inside = error.place.map_or_else(String::new, |place| format!("{place}: "));
        let kind = if error.kind == Kind::Usage { Kind::Script } else { error.kind };
        Error { kind, message: format!("r1.{function}: {inside}{}", error.message), place: None, hint: error.hint }
    })
}

fn answer(function: &str, arguments: &Json) -> Result<Json> {
    let name = arguments["name"].as_str().unwrap_or_default();
    let rows = plain::rows(&arguments["rows"])?;
    let options = &arguments["options"];
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
