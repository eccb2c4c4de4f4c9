//! A trajectory under way: looked at, acted on, forked at any step, finished with its reward.
//!
//! [`drive()`](super::drive()) goes through one from beginning to end; the REPL, replays and branches go step by step.

use serde_json::Value;

use super::Spec;
use super::prompt::{Prompt, Turn};
use super::reply;
use crate::config::OnOverflow;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Completion, Fork, Limit, Request, Sampling, Status, Step, StreamSeed, Trajectory};
use crate::script::{Failure, Outcome, Record, Reward, State, StepResult, Worker, budget};
use crate::text::Renderer;

/// Where trajectories run: a script at work, and what makes tokens of its messages.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    pub worker: &'a Worker,
    pub renderer: &'a Renderer,
}

/// Why a trajectory stops short.
#[derive(Debug)]
pub enum Stop {
    /// It is the status of this one trajectory.
    Failed(Failure),
    /// It makes the whole run pointless.
    Fatal(Error),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// A recipe's own format fails for the one trajectory; what else fails in making tokens makes the run pointless.
pub(super) fn stop_of(error: Error) -> Stop {
    if error.kind == Kind::Script { Failure::new(Status::EnvError, error).into() } else { error.into() }
}

/// One try at one task, between two steps.
pub struct Attempt {
    spec: Spec,
    state: State,
    /// Steps after which it is cut off.
    max_steps: usize,
    trajectory: Trajectory,
    /// The last step; of a flow also the last steps of its other conversations, the latest last.
    last: Vec<Turn>,
    /// The prompt of the next step; `None` until [`Attempt::look`].
    shown: Option<Prompt>,
    over: Option<Status>,
    failed: Option<Status>,
}

impl Attempt {
    /// Resets the environment to `task`.
    pub async fn begin(stage: Stage<'_>, spec: Spec, task: Value, record: &Record) -> Result<Self, Failure> {
        record.set_name(&spec.id);
        let state = stage.worker.reset_within(spec.split, &task, spec.env_seed, record, spec.budget()).await?;
        let trajectory = empty(&spec, task, stage.worker.hash());
        let max_steps = spec.max_steps.unwrap_or(state.max_steps());
        let mut attempt =
            Self { spec, state, max_steps, trajectory, last: Vec::new(), shown: None, over: None, failed: None };
        if max_steps == 0 {
            attempt.truncate(Limit::MaxSteps);
        }
        Ok(attempt)
    }

    /// What writes the prompts of its environment.
    pub fn renderer<'a>(&'a self, stage: Stage<'a>) -> &'a Renderer {
        self.state.renderer().map_or(stage.renderer, |own| own)
    }

    /// The prompt of the next step. `None` if the context is full: a trajectory that has sampled something is then over,
    /// unless `env.on_overflow` is `"fail"`.
    ///
    /// # Errors
    /// [`Stop::Failed`] if the environment fails, or if a prompt that nothing was sampled before leaves no room.
    pub async fn look(&mut self, stage: Stage<'_>) -> Result<Option<&Prompt>, Stop> {
        if self.shown.is_none() && self.trajectory.truncated_by != Some(Limit::ContextOverflow) {
            match self.prompt(stage).await {
                Ok(prompt) => self.shown = Some(prompt),
                Err(Stop::Failed(failure)) if failure.status == Status::ContextOverflow && self.ends_on_overflow() => {
                    self.truncate(Limit::ContextOverflow);
                    self.end_flow(stage).await?;
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(self.shown.as_ref())
    }

    fn ends_on_overflow(&self) -> bool {
        self.state.settings().on_overflow == OnOverflow::End && !self.trajectory.steps.is_empty()
    }

    async fn prompt(&self, stage: Stage<'_>) -> Result<Prompt, Stop> {
        let (worker, renderer, budget) = (stage.worker, self.renderer(stage), self.spec.budget());
        let tools = &self.state.tools();
        let observation = worker.observe(&self.state, budget).await?;
        let prompt = Prompt::of(renderer, tools, observation, &self.last)?;
        prompt.check_ids(renderer)?;
        if prompt.ids.len() > budget && worker.has_context(&self.state) {
            let checked = budget::check(renderer, tools, &prompt.observation, budget);
            checked.map_err(|error| worker.over_budget(&self.state, error))?;
        }
        let (tokens, most) = (prompt.ids.len(), self.spec.max_context);
        if tokens >= most {
            let error = budget::overflow(renderer, tools, &prompt.observation, tokens, most);
            return Err(Failure::new(Status::ContextOverflow, error).into());
        }
        Ok(prompt)
    }

    /// Lets a flow finish that a limit has ended; what it returns belongs to the last step.
    async fn end_flow(&mut self, stage: Stage<'_>) -> Result<(), Failure> {
        let Some(limit) = self.trajectory.truncated_by.filter(|_| self.state.is_flow()) else { return Ok(()) };
        let result = stage.worker.end_flow(&self.state, limit).await?;
        self.credit(&result);
        if let Some(step) = self.trajectory.steps.last_mut() {
            step.reward += result.reward;
            step.tools.extend(result.tools);
        }
        Ok(())
    }

    /// Counts the parts of a reward, and rewards for steps before the last.
    fn credit(&mut self, result: &StepResult) {
        for (name, value) in &result.parts {
            *self.trajectory.reward_parts.entry(name.clone()).or_insert(0.0) += value;
        }
        for (step, reward) in &result.earlier {
            if let Some(step) = self.trajectory.steps.get_mut(*step) {
                step.reward += reward;
            }
        }
    }

    /// Ends it by a limit, behind its last step.
    fn truncate(&mut self, limit: Limit) {
        self.over = Some(Status::Truncated);
        self.trajectory.truncated_by = Some(limit);
        if let Some(last) = self.trajectory.steps.last_mut() {
            last.truncated = true;
        }
    }

    /// Tokens that the reply to the prompt of [`Attempt::look`] may have: `sampling.max_new_tokens`, bounded by what is left
    /// of the context and of `env.max_tokens`.
    pub fn room(&self) -> usize {
        let prompt = self.shown.as_ref().map_or(0, |prompt| prompt.ids.len());
        let left = self.tokens_left().unwrap_or(usize::MAX);
        let own = self.state.of_reply().0.unwrap_or(usize::MAX);
        self.spec.sampling.max_new_tokens.min(self.spec.max_context.saturating_sub(prompt)).min(left).min(own)
    }

    /// What is left of `env.max_tokens`; `None` without that limit.
    fn tokens_left(&self) -> Option<usize> {
        let most = self.state.settings().max_tokens;
        (most > 0).then(|| most.saturating_sub(self.trajectory.response_tokens()))
    }

    /// The request for the next reply; `None` if the context is full, as in [`Attempt::look`].
    pub async fn request(&mut self, stage: Stage<'_>) -> Result<Option<Request>, Stop> {
        let Some(prompt) = self.look(stage).await? else { return Ok(None) };
        let prompt_ids = prompt.ids.clone();
        let room = self.room();
        let mut sampling = self.spec.sampling.clone();
        if sampling.max_new_tokens > room {
            sampling = Sampling { max_new_tokens: room, ..(*sampling).clone() }.into();
        }
        let renderer = self.renderer(stage);
        let unheard = renderer.stop_strings().iter().any(|stop| !sampling.stop.contains(stop));
        if self.state.renderer().is_some() && unheard {
            let mut own = (*sampling).clone();
            own.stop.extend(renderer.stop_strings().iter().cloned());
            sampling = own.into();
        }
        let stop = self.state.of_reply().1;
        if !stop.is_empty() {
            let mut own = (*sampling).clone();
            own.stop.extend(stop);
            sampling = own.into();
        }
        Ok(Some(Request {
            prompt_ids,
            sampling,
            stop_ids: renderer.stop_ids(),
            seed: StreamSeed { step: self.trajectory.steps.len() as u32, ..self.spec.seed },
            conversation: self.spec.seed.trajectory,
        }))
    }

    /// A reply to what the policy is shown now, as the environment sees it: behind the reply prefix where there is one.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of the recipe's own format fails.
    pub(super) fn read(&self, stage: Stage<'_>, completion: &Completion) -> Result<Action> {
        reply::read(self.renderer(stage), &self.state.tools(), self.prefix(stage), completion)
    }

    /// What stands before the reply to the prompt that is shown now.
    fn prefix<'a>(&'a self, stage: Stage<'a>) -> &'a str {
        let prefixed = self.shown.as_ref().is_none_or(|prompt| prompt.prefixed);
        if prefixed { self.renderer(stage).reply_prefix() } else { "" }
    }

    /// Hands a reply to the environment. A reply on which the environment, or `parse` of the recipe's own format, fails is
    /// kept as the last step. Nothing happens if the context is full, as in [`Attempt::look`].
    pub async fn act(&mut self, stage: Stage<'_>, completion: Completion) -> Result<(), Stop> {
        self.look(stage).await?;
        let error = match self.read(stage, &completion) {
            Ok(action) => return self.take(stage, completion, action).await,
            Err(error) => error,
        };
        let text = reply::text(self.renderer(stage), self.prefix(stage), &completion);
        if let Some(prompt) = self.shown.take() {
            self.keep(&prompt, completion, text, &mut StepResult::default(), None);
        }
        Err(stop_of(error))
    }

    /// As [`Attempt::act`], with the action that the reply is taken for.
    pub async fn take(&mut self, stage: Stage<'_>, completion: Completion, action: Action) -> Result<(), Stop> {
        self.look(stage).await?;
        let Some(prompt) = self.shown.take() else { return Ok(()) };
        let tools = self.state.tools();
        let privileged = self.privileged(stage).await;
        let (privileged, result) = match privileged {
            Ok(text) => (text, stage.worker.step(&self.state, &action).await),
            Err(failure) => (None, Err(failure)),
        };
        let (mut result, failure) = match result {
            Ok(result) => (result, None),
            Err(failure) => (StepResult::default(), Some(failure)),
        };
        let (reason, response) = (completion.finish_reason, completion.token_ids.clone());
        self.keep(&prompt, completion, action.text.clone(), &mut result, privileged);
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        self.credit(&result);
        if result.done {
            self.over = Some(Status::Terminated);
            return Ok(());
        }
        let shown = prompt.messages();
        if !self.state.is_flow() {
            self.last.clear();
        } else if let Some(continued) = prompt.continues {
            self.last.remove(continued);
        }
        self.last.push(Turn { shown, tools, ids: prompt.ids, response, text: action.text });
        if result.truncated {
            self.truncate(Limit::of_reply(reason));
        } else if self.tokens_left() == Some(0) {
            self.truncate(Limit::MaxTokens);
        } else if self.trajectory.steps.len() >= self.max_steps {
            self.truncate(Limit::MaxSteps);
        }
        Ok(self.end_flow(stage).await?)
    }

    /// Adds a step: a prompt, the reply to it, and what came of that.
    fn keep(
        &mut self,
        prompt: &Prompt,
        completion: Completion,
        text: String,
        result: &mut StepResult,
        privileged: Option<String>,
    ) {
        let routed = self.trajectory.steps.last().filter(|_| !prompt.new_row);
        let routed = routed.map_or(0, |last| last.routing.start as usize + last.routing.tokens());
        self.trajectory.steps.push(Step {
            prompt_ids: prompt.ids.clone(),
            response_ids: completion.token_ids,
            logprobs: completion.logprobs,
            support: completion.support,
            text,
            finish_reason: completion.finish_reason,
            reward: result.reward,
            terminated: result.done,
            truncated: false,
            tools: std::mem::take(&mut result.tools),
            prefilled: completion.prefilled as u32,
            new_row: prompt.new_row,
            routing: completion.routing.from(routed),
            privileged,
            next_privileged: None,
            next_prompt_ids: Vec::new(),
        });
    }

    /// What a critic is shown of the state as it is, where one learns from the trajectory and the recipe has a function for it.
    async fn privileged(&self, stage: Stage<'_>) -> Result<Option<String>, Failure> {
        if !self.spec.next_prompt {
            return Ok(None);
        }
        stage.worker.privileged(&self.state, &self.trajectory.task).await
    }

    /// How it failed, once somebody has said so ([`Attempt::fail`]).
    pub fn failed(&self) -> Option<Status> {
        self.failed
    }

    /// Terminated or truncated, once it is.
    pub fn over(&self) -> Option<Status> {
        self.over
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state was changed by hand: what was shown may not hold any more.
    pub fn changed(&mut self) {
        self.shown = None;
    }

    /// The steps so far. Status, reward and messages are those of [`Attempt::finish`].
    pub fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }

    /// The outcome reward if it ended here.
    pub async fn reward(&self, stage: Stage<'_>) -> Result<Reward, Failure> {
        let outcome = Outcome {
            text: self.trajectory.steps.last().map(|step| step.text.clone()).unwrap_or_default(),
            steps: self.trajectory.steps.len(),
            calls: self.trajectory.steps.iter().map(|step| step.tools.len()).sum(),
            terminated: self.over == Some(Status::Terminated),
            truncated: self.over != Some(Status::Terminated),
            truncated_by: self.trajectory.truncated_by,
        };
        stage.worker.reward(&self.state, &outcome).await
    }

    /// Ends it: what would have come next where that was asked for, the conversation, the outcome reward.
    pub async fn finish(&mut self, stage: Stage<'_>) -> Result<(), Stop> {
        // After a full context there is no next state.
        let cut = self.over == Some(Status::Truncated) && self.trajectory.truncated_by != Some(Limit::ContextOverflow);
        if self.spec.next_prompt && (cut || self.over.is_none()) {
            let next = self.next_after_cut(stage).await?;
            let privileged = self.privileged(stage).await?;
            if let Some(step) = self.trajectory.steps.last_mut() {
                step.next_prompt_ids = next;
                step.next_privileged = privileged;
            }
        }
        self.trajectory.messages = stage.worker.messages(&self.state);
        let reward = self.reward(stage).await?;
        self.trajectory.outcome_reward = reward.total;
        for (name, value) in reward.parts {
            if self.trajectory.reward_parts.contains_key(&name) {
                return Err(stage.worker.part_of_both(&name).into());
            }
            self.trajectory.reward_parts.insert(name, value);
        }
        if let Some(step) = self.trajectory.steps.last_mut() {
            step.reward += reward.total;
        }
        summable(&self.trajectory)?;
        self.trajectory.status = self.over.unwrap_or(Status::Truncated);
        Ok(())
    }

    /// What the policy would have seen after the step that a limit made the last: the environment's next observation; its
    /// own reply where that was cut, or where the observation would not fit into the context.
    async fn next_after_cut(&self, stage: Stage<'_>) -> Result<Vec<u32>, Stop> {
        let Some(step) = self.trajectory.steps.last() else { return Ok(Vec::new()) };
        let reply = [step.prompt_ids.as_slice(), &step.response_ids].concat();
        if step.finish_reason.is_cut() {
            return Ok(reply);
        }
        let observation = match stage.worker.observe(&self.state, self.spec.budget()).await {
            Err(failure) if failure.status == Status::ContextOverflow => return Ok(reply),
            // A flow that returned `truncated` has nothing more to show.
            Err(_) if self.state.is_flow() => return Ok(reply),
            observed => observed?,
        };
        let (renderer, tools) = (self.renderer(stage), self.state.tools());
        let next = Prompt::of(renderer, &tools, observation, &self.last)?.ids;
        Ok(if next.len() <= self.spec.max_context { next } else { reply })
    }

    /// A copy that goes its own way from here: state, steps, record and sessions of tools so far, at the price of copying
    /// them (a session is brought to where it was when it is next used, by its programs once more). It may get a name and a
    /// random stream of its own in `spec`; under another name it knows what it was forked from.
    ///
    /// # Errors
    /// If the state is not plain data.
    pub fn fork(&self, spec: Spec) -> Result<Self> {
        let mut trajectory = self.trajectory.clone();
        trajectory.id.clone_from(&spec.id);
        (trajectory.group, trajectory.sample) = (spec.group, spec.sample);
        if spec.id != self.spec.id {
            let step = trajectory.steps.len() as u32;
            trajectory.fork = Some(Fork { parent: self.spec.id.clone(), step });
        }
        let state = self.state.fork()?;
        state.record().set_name(&spec.id);
        Ok(Self {
            spec,
            state,
            max_steps: self.max_steps,
            trajectory,
            last: self.last.clone(),
            shown: self.shown.clone(),
            over: self.over,
            failed: self.failed,
        })
    }

    /// What it came to, with its record.
    pub fn into_trajectory(mut self) -> Trajectory {
        self.trajectory.record = self.state.record().take();
        self.trajectory
    }

    /// Ends it as another trajectory was ended from outside.
    pub(super) fn stop_as(&mut self, other: &Trajectory) {
        self.trajectory.status = other.status;
        self.trajectory.error.clone_from(&other.error);
    }

    /// Marks it as failed.
    pub fn fail(&mut self, worker: &Worker, failure: &Failure) {
        self.failed = Some(failure.status);
        fail(&mut self.trajectory, worker, failure);
    }
}

/// Numbers that are finite one by one may still add up to something that is none.
fn summable(trajectory: &Trajectory) -> Result<(), Failure> {
    let parts = trajectory.reward_parts.iter().map(|(name, sum)| (format!("the parts `{name}`"), *sum));
    for (what, sum) in parts.chain([("the rewards of the steps".to_owned(), trajectory.total_reward())]) {
        if !sum.is_finite() {
            let sum = if sum.is_nan() { "NaN" } else { "infinity" };
            let error = Error::new(Kind::Env, format!("{what} add up to {sum}")).hint("keep rewards small");
            return Err(Failure::new(Status::EnvError, error));
        }
    }
    Ok(())
}

/// A trajectory that has not begun.
pub(super) fn empty(spec: &Spec, task: Value, script_hash: &str) -> Trajectory {
    Trajectory {
        id: spec.id.clone(),
        split: spec.split,
        task_index: spec.task_index,
        task,
        group: spec.group,
        sample: spec.sample,
        fork: None,
        seed: spec.env_seed,
        script_hash: script_hash.to_owned(),
        status: Status::Aborted,
        truncated_by: None,
        retries: 0,
        error: None,
        steps: Vec::new(),
        outcome_reward: 0.0,
        reward_parts: std::collections::BTreeMap::new(),
        messages: Vec::new(),
        record: Vec::new(),
    }
}

pub(super) fn fail(trajectory: &mut Trajectory, worker: &Worker, failure: &Failure) {
    trajectory.status = failure.status;
    trajectory.error = Some(worker.error_record(failure));
}
