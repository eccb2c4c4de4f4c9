//! The record column of trajectory files: each row has the external calls of its step, the first
//! row also those of `reset`, the last row also those after it.
//!
//! A program run by a tool is already in the column `tools`. Its exchange refers to that entry
//! (`{"tool": 0}`) instead of repeating code and output.

use serde_json::{Value, json};

use super::trajectories::Row;
use crate::mdp::{Answer, Exchange, ToolRecord};

/// Content of a row.
pub(super) fn of_row(row: &Row<'_>) -> Vec<Value> {
    let last = row.trajectory.steps.len().saturating_sub(1) as u64;
    let (number, tools) = row.step.map_or((0, &[][..]), |(number, step)| (u64::from(number), &step.tools[..]));
    let own = row.trajectory.record.iter().filter(|exchange| exchange.step.min(last) == number);
    own.map(|exchange| compact(exchange, tools)).collect()
}

fn compact(exchange: &Exchange, tools: &[ToolRecord]) -> Value {
    let place = tools.iter().position(|tool| {
        let (request, answer) = program(tool, exchange);
        exchange.request == request && exchange.answer == Some(Answer::Ok(answer))
    });
    let mut exchange = exchange.clone();
    if let Some(place) = place.filter(|_| exchange.kind == "tool") {
        let timed_out = match &exchange.answer {
            Some(Answer::Ok(answer)) => answer["timed_out"].clone(),
            _ => Value::Null,
        };
        let prelude = exchange.request.get("prelude").cloned();
        exchange.request = json!({ "tool": place });
        if let Some(prelude) = prelude {
            exchange.request["prelude"] = prelude;
        }
        exchange.answer = Some(Answer::Ok(json!({ "timed_out": timed_out })));
    }
    json!(exchange)
}

/// An exchange that refers to a tool call which the row does not have: its index.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoToolCall(u64);

impl std::fmt::Display for NoToolCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no tool call {}", self.0)
    }
}

/// Restores the exchanges of a row. `tools` are those of the row's step.
pub(super) fn expand(row: Vec<Exchange>, tools: &[ToolRecord]) -> Result<Vec<Exchange>, NoToolCall> {
    row.into_iter()
        .map(|mut exchange| {
            let Some(place) = exchange.request["tool"].as_u64().filter(|_| exchange.kind == "tool") else {
                return Ok(exchange);
            };
            let tool = tools.get(place as usize).ok_or(NoToolCall(place))?;
            let (request, answer) = program(tool, &exchange);
            exchange.request = request;
            exchange.answer = Some(Answer::Ok(answer));
            Ok(exchange)
        })
        .collect()
}

/// Exchange of an interpreter call, from `tool` and the remaining fields of `exchange`.
fn program(tool: &ToolRecord, exchange: &Exchange) -> (Value, Value) {
    let mut request = json!({ "tool": tool.name, "arguments": tool.arguments });
    if let Some(prelude) = exchange.request.get("prelude") {
        request["prelude"] = prelude.clone();
    }
    let timed_out = match &exchange.answer {
        Some(Answer::Ok(answer)) => answer["timed_out"].clone(),
        _ => Value::Null,
    };
    let answer = json!({ "text": tool.output, "ok": tool.ok, "timed_out": timed_out, "seconds": tool.seconds });
    (request, answer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn recorded_program_and_output_are_stored_once() {
        let tool = |output: &str| ToolRecord {
            name: "python".to_owned(),
            arguments: json!({ "code": "print(1)" }),
            kind: crate::mdp::CallKind::Ran,
            output: output.to_owned(),
            ok: true,
            reward: 0.0,
            seconds: 0.25,
            ..ToolRecord::default()
        };
        let tools = [tool("something else"), tool("1")];
        let exchange = Exchange {
            step: 0,
            at: "step/1".to_owned(),
            kind: "tool".to_owned(),
            request: json!({ "tool": "python", "arguments": { "code": "print(1)" }, "prelude": "x = 2" }),
            answer: Some(Answer::Ok(json!({ "text": "1", "ok": true, "timed_out": false, "seconds": 0.25 }))),
        };
        let kept = compact(&exchange, &tools);
        assert_eq!(kept["request"], json!({ "tool": 1, "prelude": "x = 2" }));
        assert_eq!(kept["answer"], json!({ "ok": { "timed_out": false } }));
        let row = vec![serde_json::from_value(kept.clone()).unwrap()];
        assert_eq!(expand(row, &tools).unwrap(), std::slice::from_ref(&exchange));
        let row = vec![serde_json::from_value(kept).unwrap()];
        assert_eq!(expand(row, &tools[..1]), Err(NoToolCall(1)));
        // Exchanges that are not in the column `tools` are stored whole.
        assert_eq!(compact(&exchange, &tools[..1]), json!(exchange));
    }
}
