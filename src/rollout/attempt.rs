//! A trajectory in progress: observe, act, fork at any step, finish with the reward.
//!
//! [`drive()`](super::drive()) runs a whole one; REPL, chat, replays and branches run single steps.

use std::sync::Arc;

use serde_json::Value;

use super::Spec;
use super::ending::{credit, empty, fail, summable};
use super::prompt::{ContinuedTurn, Prompt};
use super::stage::{Stage, Stop, stop_of};
use super::step_trace::StepTrace;
use super::{reply, served};
use crate::config::OnOverflow;
use crate::error::{Error, Result};
use crate::mdp::{
    Action, Completion, Fork, Limit, Request, Sampling, ServerReply, Status, Step, StreamSeed, Trajectory,
};
use crate::script::{Failure, Record, Reward, State, StepResult, TrajectoryOutcome, Worker, budget};
use crate::text::Renderer;

/// One attempt at one task, between two steps.
pub struct Attempt {
    spec: Spec,
    state: State,
    /// Maximum number of steps.
    max_steps: usize,
    /// Response tokens that do not count for `env.max_tokens`.
    earlier_tokens: usize,
    trajectory: Trajectory,
    trace: StepTrace,
    /// The last step; of a flow also the last steps of its other conversations, the latest last.
    last: Vec<ContinuedTurn>,
    /// The prompt of the next step; `None` until [`Attempt::observe`].
    shown: Option<Prompt>,
    over: Option<Status>,
    failed: Option<Status>,
}

impl Attempt {
    /// Resets the environment to `task`.
    pub async fn begin(stage: Stage<'_>, spec: Spec, task: Value, record: &Record) -> Result<Self, Failure> {
        record.set_name(&spec.id);
        let state = stage.worker.reset_within(spec.split, &task, spec.env_seed, record, spec.budget()).await?;
        Ok(Self::of_state(stage, spec, task, state))
    }

    /// An attempt whose environment was reset by the caller.
    pub fn of_state(stage: Stage<'_>, spec: Spec, task: Value, state: State) -> Self {
        let trace = StepTrace::new(&state);
        let trajectory = Trajectory { initial_state: trace.state(), ..empty(&spec, task, stage.worker.hash()) };
        let max_steps = spec.max_steps.unwrap_or(state.max_steps());
        let (last, earlier_tokens, shown, over, failed) = (Vec::new(), 0, None, None, None);
        let mut attempt = Self { spec, state, max_steps, earlier_tokens, trajectory, trace, last, shown, over, failed };
        if max_steps == 0 {
            attempt.truncate(Limit::MaxSteps);
        }
        attempt
    }

    /// Continues with a state that was changed outside of the script, such as by a user's next
    /// question. The limits of steps and tokens count from here.
    pub fn resume(&mut self, state: State) {
        self.max_steps = self.trajectory.steps.len() + self.spec.max_steps.unwrap_or(state.max_steps());
        self.earlier_tokens = self.trajectory.response_tokens();
        (self.state, self.shown, self.over) = (state, None, None);
        self.trajectory.truncated_by = None;
    }

    pub fn renderer<'a>(&'a self, stage: Stage<'a>) -> &'a Renderer {
        self.state.renderer().map_or(stage.renderer, |renderer| renderer)
    }

    /// The prompt of the next step: calls the context policy and encodes its observation. `None` if
    /// the context is full: a trajectory with at least one step is then over, unless
    /// `env.on_overflow` is `"fail"`.
    ///
    /// # Errors
    /// [`Stop::Failed`] if the environment fails, or if the first prompt leaves no room for a
    /// response.
    pub async fn observe(&mut self, stage: Stage<'_>) -> Result<Option<&Prompt>, Stop> {
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

    /// Ends the trajectory after the server has refused its prompt as too long, as
    /// [`Attempt::observe`] does for a full context.
    pub(super) async fn overflow(&mut self, stage: Stage<'_>, error: Error) -> Result<(), Stop> {
        if !self.ends_on_overflow() {
            return Err(Failure::new(Status::ContextOverflow, error).into());
        }
        self.truncate(Limit::ContextOverflow);
        Ok(self.end_flow(stage).await?)
    }

    fn ends_on_overflow(&self) -> bool {
        self.state.settings().on_overflow == OnOverflow::End && !self.trajectory.steps.is_empty()
    }

    async fn prompt(&self, stage: Stage<'_>) -> Result<Prompt, Stop> {
        let (worker, renderer, budget) = (stage.worker, self.renderer(stage), self.spec.budget());
        let tools = &self.state.tools();
        let observation = worker.observe(&self.state, budget).await?;
        let (prompt, tokens) = if self.spec.served {
            let counts = self.spec.max_context > 0 || worker.has_context(&self.state);
            Prompt::served(renderer, tools, observation, counts)?
        } else {
            let prompt = Prompt::of(renderer, tools, observation, &self.last)?;
            prompt.check_ids(renderer, &self.last)?;
            let tokens = prompt.ids.len();
            (prompt, tokens)
        };
        if tokens > budget && worker.has_context(&self.state) {
            let checked = budget::check(renderer, tools, &prompt.observation, budget, false);
            checked.map_err(|error| worker.over_budget(&self.state, error))?;
        }
        let limit = self.spec.most_tokens();
        if tokens >= limit {
            let error = budget::overflow(renderer, tools, &prompt.observation, tokens, limit);
            return Err(Failure::new(Status::ContextOverflow, error).into());
        }
        Ok(prompt)
    }

    /// Lets a flow finish that a limit has ended; rewards that it returns belong to the last step.
    async fn end_flow(&mut self, stage: Stage<'_>) -> Result<(), Failure> {
        let Some(limit) = self.trajectory.truncated_by.filter(|_| self.state.is_flow()) else { return Ok(()) };
        let result = stage.worker.end_flow(&self.state, limit).await?;
        credit(&mut self.trajectory, &result);
        if let Some(step) = self.trajectory.steps.last_mut() {
            step.reward += result.reward;
            step.tools.extend(result.tools);
        }
        Ok(())
    }

    /// Truncates the trajectory after its last step.
    fn truncate(&mut self, limit: Limit) {
        self.over = Some(Status::Truncated);
        self.trajectory.truncated_by = Some(limit);
        if let Some(last) = self.trajectory.steps.last_mut() {
            last.truncated = true;
        }
    }

    /// Maximum tokens of the response to the prompt of [`Attempt::observe`]:
    /// `sampling.max_new_tokens`, bounded by the rest of the context and of `env.max_tokens`.
    pub fn room(&self) -> usize {
        let prompt = self.shown.as_ref().map_or(0, |prompt| prompt.ids.len());
        let left = self.tokens_left().unwrap_or(usize::MAX);
        let reply_limit = self.state.of_reply().0.unwrap_or(usize::MAX);
        self.spec.sampling.max_new_tokens.min(self.spec.most_tokens().saturating_sub(prompt)).min(left).min(reply_limit)
    }

    /// Rest of `env.max_tokens`; `None` without that limit.
    fn tokens_left(&self) -> Option<usize> {
        let limit = self.state.settings().max_tokens;
        (limit > 0).then(|| (limit + self.earlier_tokens).saturating_sub(self.trajectory.response_tokens()))
    }

    /// The request for the next response; `None` if the context is full, as in
    /// [`Attempt::observe`].
    pub async fn request(&mut self, stage: Stage<'_>) -> Result<Option<Request>, Stop> {
        let Some(prompt) = self.observe(stage).await? else { return Ok(None) };
        let prompt_ids = prompt.ids.clone();
        self.trace.observed();
        let room = self.room();
        let mut sampling = self.spec.sampling.clone();
        if sampling.max_new_tokens > room {
            sampling = Sampling { max_new_tokens: room, ..(*sampling).clone() }.into();
        }
        let renderer = self.renderer(stage);
        let stop_strings_missing = renderer.stop_strings().iter().any(|stop| !sampling.stop.contains(stop));
        if self.state.renderer().is_some() && stop_strings_missing {
            let mut changed = (*sampling).clone();
            changed.stop.extend(renderer.stop_strings().iter().cloned());
            sampling = changed.into();
        }
        let stop = self.state.of_reply().1;
        if !stop.is_empty() {
            let mut changed = (*sampling).clone();
            changed.stop.extend(stop);
            sampling = changed.into();
        }
        let chat = match self.shown.as_ref().filter(|_| self.spec.served) {
            Some(Prompt { observation, .. }) => {
                let chat = served::chat(renderer, &self.state.tools(), observation, &self.trajectory);
                Some(chat.map_err(stop_of)?.into())
            }
            None => None,
        };
        Ok(Some(Request {
            prompt_ids,
            chat,
            sampling,
            stop_ids: renderer.stop_ids(),
            seed: StreamSeed { step: self.trajectory.steps.len() as u32, ..self.spec.seed },
            conversation: self.spec.seed.trajectory,
        }))
    }

    /// The action of a response to the current prompt, with the reply prefix if there is one.
    ///
    /// # Errors
    /// `Kind::Script` if `parse` of the recipe's own format fails.
    pub fn read(&self, stage: Stage<'_>, completion: &Completion) -> Result<Action> {
        reply::read(self.renderer(stage), &self.state.tools(), self.prefix(stage), completion)
    }

    /// The texts that end a sampled response to the current prompt.
    pub(super) fn stop_strings(&self, stage: Stage<'_>) -> Vec<String> {
        let format = self.renderer(stage).stop_strings().iter();
        format.chain(&self.spec.sampling.stop).chain(&self.state.of_reply().1).cloned().collect()
    }

    /// The text of a response to the current prompt, with the reply prefix if there is one.
    pub fn text(&self, stage: Stage<'_>, completion: &Completion) -> String {
        reply::text(self.renderer(stage), self.prefix(stage), completion)
    }

    /// Keeps the ids of a response that the environment does not take, so that the next prompt can
    /// extend them, and returns its text.
    pub fn keep_reply(&mut self, stage: Stage<'_>, completion: &Completion) -> String {
        let text = self.text(stage, completion);
        if let Some(prompt) = self.shown.take() {
            let tools = self.state.tools();
            self.keep_turn(prompt, tools, completion.token_ids.clone(), text.clone());
        }
        text
    }

    /// The prefix of the response to the current prompt.
    pub fn prefix<'a>(&'a self, stage: Stage<'a>) -> &'a str {
        let prefixed = self.shown.as_ref().is_none_or(|prompt| prompt.prefixed);
        if prefixed { self.renderer(stage).reply_prefix() } else { "" }
    }

    /// Passes a response to the environment. If the environment or `parse` of the recipe's own
    /// format fails, the response is kept as the last step. Does nothing if the context is full, as
    /// in [`Attempt::observe`].
    pub async fn act(&mut self, stage: Stage<'_>, completion: Completion) -> Result<(), Stop> {
        self.observe(stage).await?;
        let error = match self.read(stage, &completion) {
            Ok(action) => return self.take(stage, completion, action).await,
            Err(error) => error,
        };
        let text = self.text(stage, &completion);
        if let Some(prompt) = self.shown.take() {
            self.keep(&prompt, completion, text, &mut StepResult::default(), None);
        }
        Err(stop_of(error))
    }

    /// As [`Attempt::act`], with a given action for the response.
    pub async fn take(&mut self, stage: Stage<'_>, completion: Completion, action: Action) -> Result<(), Stop> {
        self.observe(stage).await?;
        let Some(prompt) = self.shown.take() else { return Ok(()) };
        self.trace.sampled();
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
        credit(&mut self.trajectory, &result);
        self.keep_turn(prompt, tools, response, action.text);
        if result.done {
            self.over = Some(Status::Terminated);
            return Ok(());
        }
        if result.truncated {
            self.truncate(Limit::of_reply(reason));
        } else if self.tokens_left() == Some(0) {
            self.truncate(Limit::MaxTokens);
        } else if self.trajectory.steps.len() >= self.max_steps {
            self.truncate(Limit::MaxSteps);
        }
        Ok(self.end_flow(stage).await?)
    }

    /// Keeps the ids of a turn, which the next prompt extends.
    fn keep_turn(&mut self, prompt: Prompt, tools: Arc<[Value]>, response: Vec<u32>, text: String) {
        let shown = prompt.messages();
        if !self.state.is_flow() {
            self.last.clear();
        } else if let Some(continued) = prompt.continues {
            self.last.remove(continued);
        }
        self.last.push(ContinuedTurn { shown, tools, ids: prompt.ids, response, text });
    }

    /// Adds a step: prompt, response and result.
    fn keep(
        &mut self,
        prompt: &Prompt,
        completion: Completion,
        text: String,
        result: &mut StepResult,
        privileged: Option<String>,
    ) {
        let recorded = |reply| ServerReply { prompt: prompt.messages().unwrap_or_default(), ..reply };
        let server = completion.server.map(|server| Box::new(recorded(server.reply)));
        let routed = self.trajectory.steps.last().filter(|_| !prompt.new_row);
        let routed = routed.map_or(0, |last| last.routing.start as usize + last.routing.tokens());
        let (seconds, state) = self.trace.end(&self.state);
        self.trajectory.steps.push(Step {
            prompt_ids: prompt.ids.clone(),
            response_ids: completion.token_ids,
            logprobs: completion.logprobs,
            policy_versions: completion.policy_versions,
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
            server,
            seconds,
            state,
            ..Step::default()
        });
    }

    /// The critic's privileged observation of the current state, if a critic is trained and the
    /// recipe defines one.
    async fn privileged(&self, stage: Stage<'_>) -> Result<Option<String>, Failure> {
        if !self.spec.next_prompt {
            return Ok(None);
        }
        stage.worker.privileged(&self.state, &self.trajectory.task).await
    }

    /// The status of the failure, after [`Attempt::fail`].
    pub fn failed(&self) -> Option<Status> {
        self.failed
    }

    /// Terminated or truncated, once the trajectory is over.
    pub fn over(&self) -> Option<Status> {
        self.over
    }

    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Marks the state as changed by hand: the current prompt is discarded.
    pub fn changed(&mut self) {
        self.shown = None;
    }

    /// The steps so far. [`Attempt::finish`] sets status, reward and messages.
    pub fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }

    /// The outcome reward if the trajectory ended now.
    pub async fn reward(&self, stage: Stage<'_>) -> Result<Reward, Failure> {
        let outcome = TrajectoryOutcome {
            text: self.trajectory.steps.last().map(|step| step.text.clone()).unwrap_or_default(),
            token_ids: self.trajectory.steps.iter().flat_map(|step| step.response_ids.iter().copied()).collect(),
            steps: self.trajectory.steps.len(),
            calls: self.trajectory.steps.iter().map(|step| step.policy_calls().count()).sum(),
            terminated: self.over == Some(Status::Terminated),
            truncated: self.over != Some(Status::Terminated),
            truncated_by: self.trajectory.truncated_by,
        };
        stage.worker.reward(&self.state, &outcome).await
    }

    /// Ends the trajectory: the next prompt if it is needed, the conversation, the outcome reward.
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

    /// The prompt after the last step of a truncated trajectory: the environment's next
    /// observation, or prompt and response if the response was truncated or the observation does
    /// not fit into the context.
    async fn next_after_cut(&self, stage: Stage<'_>) -> Result<Vec<u32>, Stop> {
        let Some(step) = self.trajectory.steps.last() else { return Ok(Vec::new()) };
        let reply = [step.prompt_ids.as_slice(), &step.response_ids].concat();
        if step.finish_reason.is_cut() {
            return Ok(reply);
        }
        let observation = match stage.worker.observe(&self.state, self.spec.budget()).await {
            Err(failure) if failure.status == Status::ContextOverflow => return Ok(reply),
            // A flow that returned `truncated` has no further observation.
            Err(_) if self.state.is_flow() => return Ok(reply),
            observed => observed?,
        };
        let (renderer, tools) = (self.renderer(stage), self.state.tools());
        let next = Prompt::of(renderer, &tools, observation, &self.last)?.ids;
        Ok(if next.len() <= self.spec.max_context { next } else { reply })
    }

    /// An independent copy: state, steps, record and tool sessions so far. A session is restored on
    /// its next use by running its programs again. `spec` may set another name and random stream;
    /// under another name the fork is recorded.
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
            earlier_tokens: self.earlier_tokens,
            trajectory,
            trace: self.trace.clone(),
            last: self.last.clone(),
            shown: self.shown.clone(),
            over: self.over,
            failed: self.failed,
        })
    }

    /// The trajectory with its record.
    pub fn into_trajectory(mut self) -> Trajectory {
        self.trajectory.record = self.state.record().take();
        self.trajectory
    }

    /// Ends it with the status of another trajectory.
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
