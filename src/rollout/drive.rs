//! One trajectory: reset, then observe, sample, step until the environment or a limit ends it, then the reward.
//!
//! Token in, token out: the prompt of a step that continues the last one is the last prompt's ids, the sampled ids,
//! and the ids of what the environment added; nothing sampled is ever tokenised again.

use std::sync::Arc;

use serde_json::Value;

use crate::config::Settings;
use crate::engine::Policy;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Completion, Message, Observation, Request, Sampling, Status, Step, StreamSeed, Trajectory};
use crate::script::{Failure, Outcome, Record, Split, State, StepResult, Worker, budget};
use crate::text::{Extension, Renderer};

/// Longest prompt plus reply where neither the recipe nor a model says.
const DEFAULT_CONTEXT: usize = 4096;

/// What to try, and under which seeds.
#[derive(Clone, Debug)]
pub struct Spec {
    pub id: String,
    pub split: Split,
    /// Row of the dataset.
    pub task_index: u64,
    pub group: u64,
    pub sample: u32,
    /// Seed of the environment; the same for a whole group, so that its members try the same task.
    pub env_seed: u64,
    /// Random stream of the replies; `trajectory` also names the conversation to the policy's cache.
    pub seed: StreamSeed,
    pub sampling: Arc<Sampling>,
    pub max_steps: usize,
    /// Longest prompt plus reply, tokens.
    pub max_context: usize,
    /// Whether a trajectory that a limit cuts keeps what the policy would have seen next.
    pub next_prompt: bool,
}

impl Spec {
    /// One try at a task under a recipe's own settings, with seeds from its number.
    pub fn new(split: Split, task_index: u64, settings: &Settings) -> Self {
        Self {
            id: format!("0-{task_index}-0"),
            split,
            task_index,
            group: task_index,
            sample: 0,
            env_seed: settings.seed ^ task_index,
            seed: StreamSeed { seed: settings.seed, trajectory: task_index, step: 0 },
            sampling: Arc::new(settings.sampling.clone()),
            max_steps: settings.env.max_steps,
            max_context: if settings.policy.max_context == 0 { DEFAULT_CONTEXT } else { settings.policy.max_context },
            next_prompt: false,
        }
    }
}

/// Runs one trajectory to its end. Failures of script, tools or limits end up as its status; only what makes the
/// whole run pointless (an unreadable dataset row, a policy that is gone) is an error.
pub async fn drive(worker: &Worker, renderer: &Renderer, policy: &dyn Policy, spec: &Spec) -> Result<Trajectory> {
    let task = worker.row(spec.split, spec.task_index)?;
    let mut trajectory = Trajectory {
        id: spec.id.clone(),
        task_index: spec.task_index,
        task,
        group: spec.group,
        sample: spec.sample,
        seed: spec.env_seed,
        script_hash: worker.hash().to_owned(),
        status: Status::Aborted,
        error: None,
        steps: Vec::new(),
        outcome_reward: 0.0,
        reward_parts: std::collections::BTreeMap::new(),
        messages: Vec::new(),
        record: Vec::new(),
    };
    let record = Record::live();
    let ended = run_steps(worker, renderer, policy, spec, &record, &mut trajectory).await;
    trajectory.record = record.take();
    policy.release(spec.seed.trajectory);
    match ended {
        Ok(status) => trajectory.status = status,
        Err(End::Failed(failure)) => {
            trajectory.status = failure.status;
            trajectory.error = Some(failure.to_string());
        }
        Err(End::Fatal(error)) => return Err(error),
    }
    Ok(trajectory)
}

/// Why a trajectory stopped short.
enum End {
    Failed(Failure),
    Fatal(Error),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// What the last step showed and got, from which the next prompt is continued.
struct Last {
    shown: Option<Vec<Message>>,
    ids: Vec<u32>,
    response: Vec<u32>,
    text: String,
}

async fn run_steps(
    worker: &Worker,
    renderer: &Renderer,
    policy: &dyn Policy,
    spec: &Spec,
    record: &Record,
    trajectory: &mut Trajectory,
) -> Result<Status, End> {
    let state = worker.reset_with(&trajectory.task, spec.env_seed, record).await?;
    let mut last: Option<Last> = None;
    let mut status = Status::Truncated;
    let mut text = String::new();
    let budget = spec.max_context.saturating_sub(spec.sampling.max_new_tokens.min(spec.max_context / 2));

    for t in 0..spec.max_steps {
        let observation = worker.observe(&state, budget).await?;
        let prompt = next_prompt(renderer, worker.tools(), &observation, last.as_ref())?;
        if prompt.ids.len() > budget && worker.has_context() {
            budget::check(renderer, worker.tools(), &observation, budget).map_err(|error| worker.over_budget(error))?;
        }
        let room = spec.max_context.saturating_sub(prompt.ids.len());
        if room == 0 {
            let error = budget::overflow(renderer, worker.tools(), &observation, prompt.ids.len(), spec.max_context);
            return Err(End::Failed(Failure::new(Status::ContextOverflow, error)));
        }
        let completion = sample(policy, renderer, spec, t, &prompt.ids, room).await?;
        text = renderer.tokenizer().decode(without_stop(renderer, &completion), false);
        let reply = renderer.parse(&text, worker.tools());
        let action = Action {
            text: text.clone(),
            token_ids: completion.token_ids.clone(),
            tool_calls: reply.tool_calls,
            errors: reply.errors,
            finish_reason: completion.finish_reason,
        };
        let result = worker.step(&state, &action).await;
        // The reply that the env failed on is kept: without it nobody could look into the failure.
        let (result, failure) = match result {
            Ok(result) => (result, None),
            Err(failure) => (StepResult::default(), Some(failure)),
        };
        let cut = completion.finish_reason.is_cut();
        let out_of_steps = t + 1 == spec.max_steps && failure.is_none();
        trajectory.steps.push(Step {
            prompt_ids: prompt.ids.clone(),
            response_ids: completion.token_ids.clone(),
            logprobs: completion.logprobs,
            text: text.clone(),
            finish_reason: completion.finish_reason,
            reward: result.reward,
            terminated: result.done && !cut,
            truncated: (result.done && cut) || (out_of_steps && !result.done),
            tools: result.tools,
            prefilled: completion.prefilled as u32,
            new_row: prompt.new_row,
            next_prompt_ids: Vec::new(),
        });
        if let Some(failure) = failure {
            return Err(End::Failed(failure));
        }
        for (name, value) in result.parts {
            *trajectory.reward_parts.entry(name).or_insert(0.0) += value;
        }
        if result.done {
            status = if cut { Status::Truncated } else { Status::Terminated };
            break;
        }
        last = Some(Last { shown: prompt.shown, ids: prompt.ids, response: completion.token_ids, text: text.clone() });
    }
    if spec.next_prompt && status == Status::Truncated {
        let next = next_after_cut(worker, renderer, &state, budget, trajectory.steps.last(), last.as_ref()).await?;
        if let Some(step) = trajectory.steps.last_mut().filter(|_| next.len() <= spec.max_context) {
            step.next_prompt_ids = next;
        }
    }

    trajectory.messages = worker.messages(&state);
    let outcome = Outcome {
        text,
        steps: trajectory.steps.len(),
        terminated: status == Status::Terminated,
        truncated: status == Status::Truncated,
    };
    let reward = worker.reward(&state, &outcome).await?;
    trajectory.outcome_reward = reward.total;
    for (name, value) in reward.parts {
        *trajectory.reward_parts.entry(name).or_insert(0.0) += value;
    }
    if let Some(step) = trajectory.steps.last_mut() {
        step.reward += reward.total;
    }
    Ok(status)
}

/// What the policy would have seen after the step that a limit made the last: its own reply, if that was cut, else the
/// environment's next observation.
async fn next_after_cut(
    worker: &Worker,
    renderer: &Renderer,
    state: &State,
    budget: usize,
    step: Option<&Step>,
    last: Option<&Last>,
) -> Result<Vec<u32>, End> {
    match step {
        Some(step) if step.finish_reason.is_cut() => Ok([step.prompt_ids.as_slice(), &step.response_ids].concat()),
        Some(_) => {
            let observation = worker.observe(state, budget).await?;
            Ok(next_prompt(renderer, worker.tools(), &observation, last)?.ids)
        }
        None => Ok(Vec::new()),
    }
}

/// A prompt, and whether it starts a new training row.
struct Prompt {
    ids: Vec<u32>,
    shown: Option<Vec<Message>>,
    new_row: bool,
}

/// The ids of an observation, continuing the last step's ids wherever that is exact.
fn next_prompt(
    renderer: &Renderer,
    tools: &[Value],
    observation: &Observation,
    last: Option<&Last>,
) -> Result<Prompt, End> {
    match observation {
        Observation::Messages(messages) => {
            if let Some(hash) = messages.iter().find_map(|message| message.content.first_image()) {
                let error = Error::new(
                    Kind::Env,
                    format!("the observation holds the image {hash} and this policy can't see images"),
                )
                .hint("use a vision model, or describe the image in text");
                return Err(End::Failed(Failure::new(Status::EnvError, error)));
            }
            if let Some(last) = last
                && let Some(shown) = &last.shown
                && let Extension::Appends(added) =
                    renderer.extend(shown, &last.response, &last.text, messages, tools)?
            {
                let ids = [last.ids.as_slice(), &last.response, &added].concat();
                return Ok(Prompt { ids, shown: Some(messages.clone()), new_row: false });
            }
            let ids = renderer.prompt(messages, tools)?;
            Ok(Prompt { ids, shown: Some(messages.clone()), new_row: true })
        }
        Observation::Text(text) => Ok(raw_prompt(renderer.tokenizer().encode(text)?, last)),
        Observation::TokenIds(ids) => Ok(raw_prompt(ids.clone(), last)),
    }
}

fn raw_prompt(ids: Vec<u32>, last: Option<&Last>) -> Prompt {
    let continues = last.is_some_and(|last| {
        let (prompt, response) = (&last.ids, &last.response);
        ids.len() >= prompt.len() + response.len()
            && ids.starts_with(prompt)
            && ids[prompt.len()..].starts_with(response)
    });
    Prompt { ids, shown: None, new_row: !continues }
}

async fn sample(
    policy: &dyn Policy,
    renderer: &Renderer,
    spec: &Spec,
    step: usize,
    prompt: &[u32],
    room: usize,
) -> Result<Completion, End> {
    let mut sampling = Arc::clone(&spec.sampling);
    if sampling.max_new_tokens > room {
        sampling = Arc::new(Sampling { max_new_tokens: room, ..(*sampling).clone() });
    }
    let request = Request {
        prompt_ids: prompt.to_vec(),
        sampling,
        stop_ids: renderer.stop_ids(),
        seed: StreamSeed { step: step as u32, ..spec.seed },
        conversation: spec.seed.trajectory,
    };
    match policy.submit(request).await {
        Ok(Ok(completion)) => Ok(completion),
        Ok(Err(error)) if error.kind == Kind::Numeric => Err(End::Failed(Failure::new(Status::Aborted, error))),
        Ok(Err(error)) => Err(End::Fatal(error)),
        Err(_) => {
            let error = Error::new(Kind::Interrupted, "the policy stopped before it replied");
            Err(End::Failed(Failure::new(Status::Aborted, error)))
        }
    }
}

/// The reply's ids without the end-of-turn id, which is no part of its text.
fn without_stop<'a>(renderer: &Renderer, completion: &'a Completion) -> &'a [u32] {
    match completion.token_ids.split_last() {
        Some((last, rest)) if renderer.stop_ids().contains(last) => rest,
        _ => &completion.token_ids,
    }
}
