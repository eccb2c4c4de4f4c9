//! The rows of a file of trajectories: one per step, with the values of the step's trajectory. The
//! fields are the columns, in order. Structured values are JSON text.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record;
use crate::error::{Error, Kind, Result};
use crate::mdp::{CallKind, ErrorRecord, FinishReason, Fork, Limit, Routing, Split, Status, Step, StepSeconds};
use crate::mdp::{Support, ToolRecord, TrainedTokens, Trajectory};

/// A step and its trajectory. A trajectory without steps has one row, whose columns of a step are
/// null. Files of older versions lack the columns that have a default, and some of the nullable
/// ones.
#[derive(Serialize, Deserialize)]
pub(super) struct TrajectoryRow {
    /// Index of the trajectory in the file.
    pub(super) trajectory: u32,
    id: Rc<str>,
    #[serde(default)]
    split: Split,
    group: u64,
    sample: u32,
    parent: Option<Rc<str>>,
    forked_at: Option<u32>,
    task_index: u64,
    task: Rc<str>,
    seed: u64,
    policy_version: u64,
    script_hash: Rc<str>,
    status: Status,
    truncated_by: Option<Limit>,
    #[serde(default)]
    dropped: bool,
    retries: Option<u32>,
    #[serde(default)]
    seconds: f64,
    error: Option<Rc<str>>,
    error_fields: Option<Rc<str>>,
    total_reward: f64,
    outcome_reward: f64,
    reward_parts: Rc<str>,
    advantage: Option<f64>,
    messages: Rc<str>,
    step: Option<u32>,
    /// Number of leading ids of the prompt that are those of the prompt and reply of the row before
    /// it. Null in format 1, which has no such ids.
    prompt_shared: Option<u32>,
    /// The other ids of the prompt.
    prompt_ids: Option<Vec<u32>>,
    /// Number of sampled tokens; for a server as it counts them. The list of their ids takes longer
    /// to read.
    tokens: Option<u32>,
    response_ids: Option<Vec<u32>>,
    logprobs: Option<Vec<f32>>,
    policy_versions: Option<Vec<u64>>,
    support_ids: Option<Vec<u32>>,
    support_ends: Option<Vec<u32>>,
    advantages: Option<Vec<f64>>,
    values: Option<Vec<f32>>,
    returns: Option<Vec<f32>>,
    learner_logprobs: Option<Vec<f32>>,
    reference_logprobs: Option<Vec<f32>>,
    entropies: Option<Vec<f32>>,
    loss_mask: Option<Vec<bool>>,
    clipped: Option<Vec<bool>>,
    routing: Option<Vec<u16>>,
    routing_start: Option<u32>,
    routing_width: Option<u32>,
    privileged: Option<String>,
    next_privileged: Option<String>,
    text: Option<String>,
    finish_reason: Option<FinishReason>,
    reward: Option<f64>,
    terminated: Option<bool>,
    truncated: Option<bool>,
    tools: Option<String>,
    #[serde(default)]
    record: String,
    prefilled: Option<u32>,
    new_row: Option<bool>,
    next_prompt_ids: Option<Vec<u32>>,
    server: Option<String>,
    context_seconds: Option<f64>,
    sampling_seconds: Option<f64>,
    environment_seconds: Option<f64>,
    initial_state: Option<Rc<str>>,
    state: Option<String>,
}

impl TrajectoryRow {
    /// The rows of a trajectory. `previous` has the ids of prompt and reply of the row before, and
    /// receives those of the last row.
    pub(super) fn of_trajectory(
        position: u32,
        trajectory: &Trajectory,
        policy_version: u64,
        previous: &mut Vec<u32>,
    ) -> Result<Vec<Self>> {
        let mut versions = trajectory.steps.iter().flat_map(|step| &step.policy_versions);
        let policy_version = versions.next().copied().unwrap_or(policy_version);
        // Texts that the rows of a trajectory share.
        let id: Rc<str> = trajectory.id.as_str().into();
        let parent: Option<Rc<str>> = trajectory.fork.as_ref().map(|fork| fork.parent.as_str().into());
        let task: Rc<str> = json(&trajectory.task)?.into();
        let script_hash: Rc<str> = trajectory.script_hash.as_str().into();
        let error: Option<Rc<str>> = trajectory.error_text().map(Into::into);
        let error_fields: Option<Rc<str>> = trajectory.error.as_ref().map(json).transpose()?.map(Into::into);
        let reward_parts: Rc<str> = json(&trajectory.reward_parts)?.into();
        let messages: Rc<str> = json(&trajectory.messages)?.into();
        let initial_state: Option<Rc<str>> = trajectory.initial_state.as_ref().map(json).transpose()?.map(Into::into);
        let mut row = |number: u32, step: Option<&Step>| {
            let trained = step.map(|step| &step.trained);
            let (shared, new_ids) = step.map_or((0, [].as_slice()), |step| split_shared(&step.prompt_ids, previous));
            let new_ids = new_ids.to_vec();
            if let Some(step) = step {
                previous.truncate(shared);
                previous.extend(new_ids.iter().chain(&step.response_ids));
            }
            Ok(Self {
                trajectory: position,
                id: id.clone(),
                split: trajectory.split,
                group: trajectory.group,
                sample: trajectory.sample,
                parent: parent.clone(),
                forked_at: trajectory.fork.as_ref().map(|fork| fork.step),
                task_index: trajectory.task_index,
                task: task.clone(),
                seed: trajectory.seed,
                policy_version,
                script_hash: script_hash.clone(),
                status: trajectory.status,
                truncated_by: trajectory.truncated_by,
                dropped: trajectory.dropped,
                retries: Some(trajectory.retries),
                seconds: trajectory.seconds,
                error: error.clone(),
                error_fields: error_fields.clone(),
                total_reward: trajectory.total_reward(),
                outcome_reward: trajectory.outcome_reward,
                reward_parts: reward_parts.clone(),
                advantage: trained.and_then(TrainedTokens::advantage),
                messages: messages.clone(),
                step: step.map(|_| number),
                prompt_shared: step.map(|_| shared as u32),
                prompt_ids: step.map(|_| new_ids),
                tokens: step.map(|step| u32::try_from(step.response_tokens()).unwrap_or(u32::MAX)),
                response_ids: step.map(|step| step.response_ids.clone()),
                logprobs: step.map(|step| step.logprobs.clone()),
                policy_versions: step.and_then(|step| computed(&step.policy_versions)),
                support_ids: step.map(|step| step.support.ids.clone()),
                support_ends: step.map(|step| step.support.ends.clone()),
                advantages: trained.and_then(|trained| computed(&trained.advantages)),
                values: trained.and_then(|trained| computed(&trained.values)),
                returns: trained.and_then(|trained| computed(&trained.returns)),
                learner_logprobs: trained.and_then(|trained| computed(&trained.learner_logprobs)),
                reference_logprobs: trained.and_then(|trained| computed(&trained.reference_logprobs)),
                entropies: trained.and_then(|trained| computed(&trained.entropies)),
                loss_mask: trained.and_then(|trained| computed(&trained.loss_mask)),
                clipped: trained.and_then(|trained| computed(&trained.clipped)),
                routing: step.map(|step| step.routing.experts.clone()),
                routing_start: step.map(|step| step.routing.start),
                routing_width: step.map(|step| step.routing.width),
                privileged: step.and_then(|step| step.privileged.clone()),
                next_privileged: step.and_then(|step| step.next_privileged.clone()),
                text: step.map(|step| step.text.clone()),
                finish_reason: step.map(|step| step.finish_reason),
                reward: step.map(|step| step.reward),
                terminated: step.map(|step| step.terminated),
                truncated: step.map(|step| step.truncated),
                tools: step.map(|step| json(&step.tools)).transpose()?,
                record: json(&record::of_step(trajectory, number, step))?,
                prefilled: step.map(|step| step.prefilled),
                new_row: step.map(|step| step.new_row),
                next_prompt_ids: step.map(|step| step.next_prompt_ids.clone()),
                server: step.and_then(|step| step.server.as_ref()).map(json).transpose()?,
                context_seconds: step.map(|step| step.seconds.context),
                sampling_seconds: step.map(|step| step.seconds.sampling),
                environment_seconds: step.map(|step| step.seconds.environment),
                initial_state: initial_state.clone(),
                state: step.and_then(|step| step.state.as_ref()).map(json).transpose()?,
            })
        };
        if trajectory.steps.is_empty() {
            return Ok(vec![row(0, None)?]);
        }
        trajectory.steps.iter().zip(0..).map(|(step, number)| row(number, Some(step))).collect()
    }

    /// Appends the row to the trajectories before it; `last` is the position of the last one, and
    /// `previous` has the ids of prompt and reply of the row before.
    ///
    /// # Errors
    /// [`Kind::Store`] for a value that has no meaning, with its column.
    pub(super) fn append(
        mut self,
        trajectories: &mut Vec<Trajectory>,
        last: &mut Option<u32>,
        previous: &mut Vec<u32>,
    ) -> Result<()> {
        self.restore_prompt(previous)?;
        if last.replace(self.trajectory) != Some(self.trajectory) {
            trajectories.push(self.trajectory()?);
        }
        let Some(trajectory) = trajectories.last_mut() else { return Ok(()) };
        let calls = if self.record.is_empty() { Vec::new() } else { parse("record", &self.record)? };
        if self.step.is_some() {
            trajectory.steps.push(self.step()?);
        }
        let tools = trajectory.steps.last().map_or(&[][..], |step| &step.tools);
        trajectory
            .record
            .extend(record::expand(calls, tools).map_err(|why| damaged(format!("column `record`: {why}")))?);
        Ok(())
    }

    /// Makes `prompt_ids` the whole prompt.
    fn restore_prompt(&mut self, previous: &mut Vec<u32>) -> Result<()> {
        let Some(new_ids) = &mut self.prompt_ids else { return Ok(()) };
        let shared = self.prompt_shared.unwrap_or(0) as usize;
        if shared > previous.len() {
            let length = previous.len();
            return Err(damaged(format!("column `prompt_shared`: {shared} ids of a row before with {length}")));
        }
        previous.truncate(shared);
        previous.append(new_ids);
        new_ids.clone_from(previous);
        previous.extend(self.response_ids.iter().flatten());
        Ok(())
    }

    fn trajectory(&self) -> Result<Trajectory> {
        let reward_parts: BTreeMap<String, Option<f64>> = parse("reward_parts", &self.reward_parts)?;
        let fork = match &self.parent {
            Some(parent) => {
                Some(Fork { parent: parent.as_ref().to_owned(), step: there("forked_at", self.forked_at)? })
            }
            None => None,
        };
        Ok(Trajectory {
            id: self.id.as_ref().to_owned(),
            split: self.split,
            task_index: self.task_index,
            task: parse("task", &self.task)?,
            group: self.group,
            sample: self.sample,
            fork,
            seed: self.seed,
            script_hash: self.script_hash.as_ref().to_owned(),
            status: self.status,
            truncated_by: self.truncated_by,
            dropped: self.dropped,
            retries: self.retries.unwrap_or(0),
            seconds: self.seconds,
            error: match (&self.error_fields, &self.error) {
                (Some(fields), _) => Some(parse("error_fields", fields)?),
                (None, text) => text.as_deref().map(ErrorRecord::of_text),
            },
            steps: Vec::new(),
            outcome_reward: self.outcome_reward,
            reward_parts: reward_parts.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect(),
            messages: parse("messages", &self.messages)?,
            record: Vec::new(),
            initial_state: self.initial_state.as_deref().map(|state| parse("initial_state", state)).transpose()?,
        })
    }

    fn step(self) -> Result<Step> {
        let tools: Vec<StoredTool> = parse("tools", &there("tools", self.tools)?)?;
        Ok(Step {
            prompt_ids: there("prompt_ids", self.prompt_ids)?,
            response_ids: there("response_ids", self.response_ids)?,
            logprobs: there("logprobs", self.logprobs)?,
            policy_versions: self.policy_versions.unwrap_or_default(),
            support: Support { ids: self.support_ids.unwrap_or_default(), ends: self.support_ends.unwrap_or_default() },
            text: there("text", self.text)?,
            finish_reason: there("finish_reason", self.finish_reason)?,
            reward: there("reward", self.reward)?,
            terminated: there("terminated", self.terminated)?,
            truncated: there("truncated", self.truncated)?,
            tools: tools.into_iter().map(ToolRecord::from).collect(),
            prefilled: there("prefilled", self.prefilled)?,
            new_row: there("new_row", self.new_row)?,
            routing: Routing {
                experts: self.routing.unwrap_or_default(),
                start: self.routing_start.unwrap_or(0),
                width: self.routing_width.unwrap_or(0),
            },
            privileged: self.privileged,
            next_privileged: self.next_privileged,
            next_prompt_ids: self.next_prompt_ids.unwrap_or_default(),
            server: self.server.map(|reply| parse("server", &reply)).transpose()?,
            seconds: StepSeconds {
                context: self.context_seconds.unwrap_or(0.0),
                sampling: self.sampling_seconds.unwrap_or(0.0),
                environment: self.environment_seconds.unwrap_or(0.0),
            },
            state: self.state.map(|state| parse("state", &state)).transpose()?,
            generated: false,
            trained: TrainedTokens {
                advantages: self.advantages.unwrap_or_default(),
                values: self.values.unwrap_or_default(),
                returns: self.returns.unwrap_or_default(),
                learner_logprobs: self.learner_logprobs.unwrap_or_default(),
                reference_logprobs: self.reference_logprobs.unwrap_or_default(),
                entropies: self.entropies.unwrap_or_default(),
                loss_mask: self.loss_mask.unwrap_or_default(),
                clipped: self.clipped.unwrap_or_default(),
            },
        })
    }
}

/// The length of the common start of a prompt and the row before, and the rest of the prompt.
fn split_shared<'a>(prompt: &'a [u32], previous: &[u32]) -> (usize, &'a [u32]) {
    let shared = prompt.iter().zip(previous).take_while(|(a, b)| a == b).count();
    (shared, &prompt[shared..])
}

/// A list, or null if it was not computed.
fn computed<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}

pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Store, format!("damaged file of trajectories: {what}"))
}

pub(super) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::new(Kind::Internal, format!("can't write JSON: {e}")))
}

fn parse<T: DeserializeOwned>(column: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| damaged(format!("column `{column}`: {e}")))
}

/// A value that each row of a step has.
fn there<T>(column: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| damaged(format!("column `{column}` is missing or null")))
}

/// JSON form of a tool record; non-finite numbers are null.
#[derive(Deserialize)]
struct StoredTool {
    name: String,
    arguments: Value,
    #[serde(default)]
    kind: CallKind,
    output: String,
    ok: bool,
    reward: Option<f64>,
    seconds: Option<f64>,
    #[serde(default)]
    retries: u32,
    #[serde(default)]
    cached: bool,
    #[serde(default)]
    hidden: bool,
}

impl From<StoredTool> for ToolRecord {
    fn from(row: StoredTool) -> Self {
        Self {
            name: row.name,
            arguments: row.arguments,
            kind: row.kind,
            output: row.output,
            ok: row.ok,
            reward: row.reward.unwrap_or(f64::NAN),
            seconds: row.seconds.unwrap_or(f64::NAN),
            retries: row.retries,
            cached: row.cached,
            hidden: row.hidden,
        }
    }
}
