//! External calls of a script (clock, HTTP, programs, models) and their results, for replays. Parts
//! of a record that other modules read have a type here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ErrorRecord, FinishReason, OutputFile, Support};

/// One call of a script whose result is not a function of state, action and seed: a program run, an
/// HTTP request, the clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExternalCall {
    /// Completed steps of the trajectory at the time of the call.
    pub step: u64,
    /// The location of the call: the function of the script (`reset`, `context`, `step`, `reward`),
    /// and after a slash the number of each concurrent branch, such as a tool call (`step/2`).
    pub at: String,
    /// `tool`, `http`, `process`, `clock`, `generate`, `fs`.
    pub kind: String,
    pub request: Value,
    /// `None`: no result before a time limit.
    pub answer: Option<Answer>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ok(Value),
    /// The host failed; the script sees an error.
    Error(ErrorRecord),
}

/// The answer of a call that may fail in a way that the script can handle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome<T> {
    Ok(T),
    Failed(Failed),
}

/// The reason why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub error: String,
    /// The host that was reached for is not declared by the recipe.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undeclared: bool,
}

/// The answer of `generate`: a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeneratedText {
    pub text: String,
    pub finish_reason: FinishReason,
    /// `None` if the server does not report it.
    pub tokens: Option<u64>,
    /// Tokens of the prompt, if the policy is behind a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Set where the tokens are trained on.
    #[serde(flatten)]
    pub sampled: Option<SampledTokens>,
}

/// Tokens that the policy sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledTokens {
    pub prompt_ids: Vec<u32>,
    pub token_ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    #[serde(default, skip_serializing_if = "Support::is_whole")]
    pub support: Support,
}

/// The request of `tool`: a program of an interpreter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterpreterRequest {
    pub tool: String,
    pub arguments: Value,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prelude: String,
    /// SHA-256 (hex) of the files that the script passes with the call, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

/// The result of a program, formatted for the policy; the answer of `tool`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterpreterOutput {
    /// The printed text, then the error if there is one; without the last line break. If nothing
    /// was printed and the last statement is an expression with a value, that value.
    pub text: String,
    /// The program ended by itself and without an error.
    pub ok: bool,
    /// The program was stopped at its time limit.
    pub timed_out: bool,
    /// Wall time of the program in seconds, without waiting for a free interpreter.
    pub seconds: f64,
    /// Files that the program wrote, if the tool keeps them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<OutputFile>,
    /// Hashes of the images that the policy sees after the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
}

impl ExternalCall {
    pub fn program(&self) -> Option<(InterpreterRequest, InterpreterOutput)> {
        let Some(Answer::Ok(answer)) = self.answer.as_ref().filter(|_| self.kind == "tool") else { return None };
        Some((InterpreterRequest::deserialize(&self.request).ok()?, InterpreterOutput::deserialize(answer).ok()?))
    }

    /// The text that the policy generated in this call, if its tokens are trained on.
    pub fn generated(&self) -> Option<(GeneratedText, SampledTokens)> {
        #[derive(Deserialize)]
        struct Generation {
            train: bool,
        }
        let Some(Answer::Ok(answer)) = self.answer.as_ref().filter(|_| self.kind == "generate") else { return None };
        if !Generation::deserialize(&self.request).ok()?.train {
            return None;
        }
        let mut text = GeneratedText::deserialize(answer).ok()?;
        let sampled = text.sampled.take()?;
        Some((text, sampled))
    }
}
