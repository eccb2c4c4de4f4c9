//! Replays a stored trajectory: the environment runs again with the responses and external calls of
//! the record. The same script must give the same trajectory; for another script the first
//! difference is shown.

use std::fmt;

use serde_json::json;

use super::Spec;
use super::attempt::Attempt;
use super::drive::never_begun;
use super::stage::{Stage, Stop};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, Limit, ServerCompletion, Status, Step, ToolRecord, Trajectory};
use crate::script::{Record, RecordDifference, Strictness};
use crate::text::Renderer;

#[derive(Debug)]
pub struct Replayed {
    pub trajectory: Trajectory,
    /// The environment would continue after the last recorded response.
    pub unfinished: bool,
    /// The first external call that the record does not contain.
    pub left: Option<RecordDifference>,
}

/// Runs a trajectory again, with the recorded responses.
///
/// # Errors
/// Only failures that prevent any replay, such as a tokenizer that cannot encode; failures of the
/// script are the status of the new trajectory.
pub async fn replay(stage: Stage<'_>, recorded: &Trajectory, spec: Spec, strictness: Strictness) -> Result<Replayed> {
    let record = Record::replay(recorded.record.clone(), strictness);
    let mut unfinished = false;
    let trajectory = match Attempt::begin(stage, spec.clone(), recorded.task.clone(), &record).await {
        Err(failure) => never_begun(stage, &spec, recorded.task.clone(), &failure),
        Ok(mut attempt) => {
            match run_recorded(stage, recorded, &mut attempt).await {
                Ok(done) => unfinished = !done,
                Err(Stop::Failed(failure)) => attempt.fail(stage.worker, &failure),
                Err(Stop::Fatal(error)) => return Err(error),
            }
            attempt.into_trajectory()
        }
    };
    Ok(Replayed { trajectory, unfinished, left: record.close() })
}

/// Runs the recorded responses; returns whether the trajectory would continue.
async fn run_recorded(stage: Stage<'_>, recorded: &Trajectory, attempt: &mut Attempt) -> Result<bool, Stop> {
    for step in &recorded.steps {
        if attempt.over().is_some() {
            break;
        }
        attempt.act(stage, completion(step)).await?;
    }
    let failed = recorded.status.is_failure();
    if attempt.over().is_none() && (failed || recorded.truncated_by == Some(Limit::ContextOverflow)) {
        // It ended before the next response: while making the prompt, or while sampling.
        let over = attempt.observe(stage).await?.is_none();
        let served = attempt.spec().served;
        if failed && !over {
            let of_policy = match recorded.status {
                Status::Aborted | Status::PolicyError => true,
                Status::ContextOverflow => served,
                _ => false,
            };
            if of_policy {
                attempt.stop_as(recorded);
            }
            return Ok(of_policy);
        }
        if served && !over {
            // Only the server has the limit that it reported.
            attempt.overflow(stage, Error::new(Kind::Env, "the context of the server is full")).await?;
        }
    }
    let done = attempt.over().is_some();
    attempt.finish(stage).await?;
    Ok(done)
}

/// The response of a stored step, as the policy returned it.
pub fn completion(step: &Step) -> Completion {
    Completion {
        token_ids: step.response_ids.clone(),
        logprobs: step.logprobs.clone(),
        policy_versions: step.policy_versions.clone(),
        support: step.support.clone(),
        routing: step.routing.clone(),
        finish_reason: step.finish_reason,
        prefilled: step.prefilled as usize,
        server: step.server.as_deref().map(|reply| {
            let (text, reply) = (step.text.clone(), reply.clone());
            Box::new(ServerCompletion { text, reply })
        }),
        ..Completion::default()
    }
}

/// The first difference between a replay and the record.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ReplayMismatch {
    /// From 1; `None` for fields of the whole trajectory.
    pub step: Option<usize>,
    pub field: &'static str,
    pub recorded: String,
    pub now: String,
}

impl fmt::Display for ReplayMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "step {step}, {}", self.field),
            None => f.write_str(self.field),
        }
    }
}

/// The first difference between a trajectory and its replay. Except for times and caches, all
/// fields must be bit-identical.
pub fn first_difference(renderer: &Renderer, recorded: &Trajectory, replayed: &Replayed) -> Option<ReplayMismatch> {
    let now = &replayed.trajectory;
    let left = replayed.left.as_ref();
    let external_call = |difference: &RecordDifference| {
        let show = |side: &Option<(String, serde_json::Value)>| match side {
            Some((kind, request)) => format!("{kind} {request:#}"),
            None => "nothing".to_owned(),
        };
        Some(ReplayMismatch {
            step: (!difference.at.starts_with("re")).then_some(difference.step as usize + 1),
            field: "the external calls of the script",
            recorded: show(&difference.recorded),
            now: show(&difference.requested),
        })
    };
    if let Some(left) = left.filter(|left| left.at.starts_with("reset")) {
        return external_call(left);
    }
    let text = |ids: &[u32]| renderer.tokenizer().decode(ids, false);
    let same_outcome = recorded.outcome_reward.to_bits() == now.outcome_reward.to_bits();
    for (index, (old, new)) in recorded.steps.iter().zip(&now.steps).enumerate() {
        let differs = |field, recorded: String, now: String| {
            Some(ReplayMismatch { step: Some(index + 1), field, recorded, now }).filter(|it| it.recorded != it.now)
        };
        let here = |at: &str| left.filter(|left| left.step == index as u64 && left.at.starts_with(at));
        if let Some(left) = here("context") {
            return external_call(left);
        }
        if old.prompt_ids != new.prompt_ids {
            let by_text = differs("prompt", text(&old.prompt_ids), text(&new.prompt_ids));
            return by_text
                .or_else(|| differs("prompt ids", format!("{:?}", old.prompt_ids), format!("{:?}", new.prompt_ids)));
        }
        let prompt =
            |step: &Step| step.server.as_ref().map_or_else(String::new, |server| format!("{:#}", json!(server.prompt)));
        if let Some(mismatch) = differs("prompt", prompt(old), prompt(new)) {
            return Some(mismatch);
        }
        if let Some(left) = here("step") {
            return external_call(left);
        }
        let last = index + 1 == recorded.steps.len();
        let reward = |step: &Step| if last && !same_outcome { String::new() } else { number(step.reward) };
        let mismatch = differs("new_row", old.new_row.to_string(), new.new_row.to_string())
            .or_else(|| differs("text", old.text.clone(), new.text.clone()))
            .or_else(|| differs("tools", tools(old), tools(new)))
            .or_else(|| differs("reward", reward(old), reward(new)))
            .or_else(|| differs("terminated", old.terminated.to_string(), new.terminated.to_string()))
            .or_else(|| differs("truncated", old.truncated.to_string(), new.truncated.to_string()));
        if mismatch.is_some() {
            return mismatch;
        }
    }
    if let Some(left) = left {
        return external_call(left);
    }
    let differs = |field, recorded: String, now: String| {
        Some(ReplayMismatch { step: None, field, recorded, now }).filter(|it| it.recorded != it.now)
    };
    let steps = |trajectory: &Trajectory, more: bool| {
        format!("{}{}", trajectory.steps.len(), if more { ", and it would continue" } else { "" })
    };
    let end = |trajectory: &Trajectory| match &trajectory.error {
        Some(error) => format!("{}\n{error}", trajectory.status.name()),
        None => trajectory.status.name().to_owned(),
    };
    let limit = |trajectory: &Trajectory| trajectory.truncated_by.map_or("", Limit::name).to_owned();
    let next = |trajectory: &Trajectory| trajectory.steps.last().map_or_else(String::new, |s| text(&s.next_prompt_ids));
    let pretty = |value: serde_json::Value| format!("{value:#}");
    differs("status", end(recorded), end(now))
        .or_else(|| differs("steps", steps(recorded, false), steps(now, replayed.unfinished)))
        // Older files do not contain the limit.
        .or_else(|| recorded.truncated_by.and_then(|_| differs("truncated by", limit(recorded), limit(now))))
        .or_else(|| differs("outcome reward", number(recorded.outcome_reward), number(now.outcome_reward)))
        .or_else(|| differs("reward parts", parts(recorded), parts(now)))
        .or_else(|| differs("messages", pretty(json!(recorded.messages)), pretty(json!(now.messages))))
        .or_else(|| differs("next prompt", next(recorded), next(now)))
}

/// A number in full precision: equal text means equal bits.
fn number(number: f64) -> String {
    if number.is_nan() { "NaN".to_owned() } else { format!("{number:?}") }
}

fn parts(trajectory: &Trajectory) -> String {
    let parts = trajectory.reward_parts.iter().map(|(name, value)| format!("{name} = {}\n", number(*value)));
    parts.collect::<Vec<_>>().concat()
}

fn tools(step: &Step) -> String {
    let timeless: Vec<ToolRecord> = step.tools.iter().map(|tool| ToolRecord { seconds: 0.0, ..tool.clone() }).collect();
    format!("{:#}", json!(timeless))
}
