//! The record column of trajectory files: each row has the external calls of its step, the first
//! row also the calls of `reset`, the last row also the calls after the last step.
//!
//! A program run by a tool is already in the column `tools`. Its exchange refers to that entry
//! (`{"tool": 0}`) instead of repeating code and output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::mdp::{Answer, ExternalCall, InterpreterOutput, InterpreterRequest, Step, ToolRecord, Trajectory};

/// The stored request of a program that is in the column `tools`.
#[derive(Serialize, Deserialize)]
struct ProgramPlace {
    /// Its place there.
    tool: usize,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    prelude: String,
}

/// The stored answer of such a program: what the column does not have.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ProgramEnd {
    timed_out: bool,
}

/// The calls of a row: of step `number` of a trajectory.
pub(super) fn of_step(trajectory: &Trajectory, number: u32, step: Option<&Step>) -> Vec<Value> {
    let last = trajectory.steps.len().saturating_sub(1) as u64;
    let tools = step.map_or(&[][..], |step| &step.tools);
    let calls = trajectory.record.iter().filter(|call| call.step.min(last) == u64::from(number));
    calls.map(|call| compact(call, tools)).collect()
}

fn compact(exchange: &ExternalCall, tools: &[ToolRecord]) -> Value {
    let index = exchange.program().and_then(|(request, output)| {
        let (prelude, timed_out) = (request.prelude.clone(), output.timed_out);
        let call = (request, output);
        let tool = tools.iter().position(|tool| program(tool, prelude.clone(), timed_out) == call)?;
        Some((ProgramPlace { tool, prelude }, ProgramEnd { timed_out }))
    });
    match index {
        Some((index, end)) => {
            let (request, answer) = (json!(index), Some(Answer::Ok(json!(end))));
            json!(ExternalCall { request, answer, at: exchange.at.clone(), kind: exchange.kind.clone(), ..*exchange })
        }
        None => json!(exchange),
    }
}

/// An exchange that refers to a tool call which the row does not have: its index.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool call {0}")]
pub(super) struct NoToolCall(usize);

/// Restores the exchanges of a row. `tools` has the calls of the row's step.
pub(super) fn expand(row: Vec<ExternalCall>, tools: &[ToolRecord]) -> Result<Vec<ExternalCall>, NoToolCall> {
    row.into_iter()
        .map(|mut exchange| {
            if exchange.kind != "tool" {
                return Ok(exchange);
            }
            let Ok(ProgramPlace { tool, prelude }) = ProgramPlace::deserialize(&exchange.request) else {
                return Ok(exchange);
            };
            let called = tools.get(tool).ok_or(NoToolCall(tool))?;
            let end = match &exchange.answer {
                Some(Answer::Ok(answer)) => ProgramEnd::deserialize(answer).unwrap_or_default(),
                _ => ProgramEnd::default(),
            };
            let (request, output) = program(called, prelude, end.timed_out);
            (exchange.request, exchange.answer) = (json!(request), Some(Answer::Ok(json!(output))));
            Ok(exchange)
        })
        .collect()
}

/// Program and output of an interpreter call, from `tool` and what the column does not have.
fn program(tool: &ToolRecord, prelude: String, timed_out: bool) -> (InterpreterRequest, InterpreterOutput) {
    let (tool_name, arguments) = (tool.name.clone(), tool.arguments.clone());
    let request = InterpreterRequest { tool: tool_name, arguments, prelude, files: BTreeMap::new() };
    (
        request,
        InterpreterOutput {
            text: tool.output.clone(),
            ok: tool.ok,
            timed_out,
            seconds: tool.seconds,
            ..InterpreterOutput::default()
        },
    )
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
        let exchange = ExternalCall {
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
