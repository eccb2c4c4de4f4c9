//! What a trajectory used: tools, seconds, and the price of its tokens.

use serde::Deserialize;

use crate::mdp::{Answer, GeneratedText, Step, ToolRecord, Trajectory};

/// The calls of tools that were run, or of one of them.
pub(super) fn calls<'a>(trajectory: &'a Trajectory, name: Option<&'a str>) -> impl Iterator<Item = &'a ToolRecord> {
    let all = trajectory.steps.iter().flat_map(Step::policy_calls);
    all.filter(move |call| call.kind.is_known() && name.is_none_or(|name| call.name == name))
}

/// The names of the tools that were called.
pub(super) fn tools_of(trajectory: &Trajectory) -> impl Iterator<Item = &str> {
    calls(trajectory, None).map(|call| call.name.as_str())
}

/// Wall time of the calls.
pub(super) fn tool_seconds(trajectory: &Trajectory, name: Option<&str>) -> f64 {
    calls(trajectory, name).map(|call| call.seconds).sum()
}

/// Price of the tokens of a trajectory: in its steps, and in the texts that its script had the
/// policy generate. `price` is for prompt and response tokens, per million.
pub(super) fn cost(trajectory: &Trajectory, price: (f64, f64)) -> f64 {
    let steps = trajectory.steps.iter().map(|step| (step.prompt_tokens(), step.response_tokens()));
    let texts = trajectory.record.iter().filter_map(|call| {
        let Some(Answer::Ok(answer)) = call.answer.as_ref().filter(|_| call.kind == "generate") else { return None };
        // The text of another model.
        if !call.request["model"].is_null() {
            return None;
        }
        let GeneratedText { tokens, prompt_tokens, .. } = GeneratedText::deserialize(answer).ok()?;
        Some((prompt_tokens.unwrap_or(0) as usize, tokens.unwrap_or(0) as usize))
    });
    let (prompt, response) = steps.chain(texts).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (prompt as f64 * price.0 + response as f64 * price.1) / 1e6
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mdp::{ExternalCall, ServerReply, Usage, testing};

    #[test]
    fn the_price_is_that_of_steps_and_of_texts_of_the_policy() {
        let mut step = testing::step(&[], &[]);
        let usage = Usage { prompt_tokens: 1000, response_tokens: 200 };
        step.server = Some(Box::new(ServerReply { usage, ..ServerReply::default() }));
        let mut one = testing::trajectory(vec![step]);
        assert!((cost(&one, (2.0, 10.0)) - 0.004).abs() < 1e-12);
        let generated = |model: serde_json::Value| ExternalCall {
            step: 0,
            at: "step".to_owned(),
            kind: "generate".to_owned(),
            request: json!({ "model": model, "train": false }),
            answer: Some(Answer::Ok(
                json!({ "text": "x", "finish_reason": "stop", "tokens": 100, "prompt_tokens": 500 }),
            )),
        };
        one.record = vec![generated(json!(null)), generated(json!("judge"))];
        assert!((cost(&one, (2.0, 10.0)) - 0.006).abs() < 1e-12, "{}", cost(&one, (2.0, 10.0)));
    }
}
