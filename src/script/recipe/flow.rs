//! Flows: a function of the recipe that runs its own loop over `policy:generate`, instead of
//! `reset` and `step`.
//!
//! A flow is one suspended call. The host runs it from one `policy:generate` to the next, so that
//! the rest of r1 sees an environment: the argument of `generate` is the observation of a step, and
//! the response resumes the function. The first part runs as `reset` and each continuation as
//! `step`, with the same seeds and branches of the record.
//!
//! The local variables of a flow are its state, and cannot be copied. A fork runs the function
//! again from its beginning when it is next resumed, with the responses so far and the external
//! calls of its record.

use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Value};
use serde_json::Value as Json;

use super::worker::{Worker, broken};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Action, Limit};
use crate::script::api::policy::FlowPolicy;
use crate::script::runtime::convert;
use crate::script::runtime::failure::Failure;
use crate::script::runtime::flow::{Flow, FlowAnswer, FlowRewards, GenerateArguments};
use crate::script::runtime::host::{Call, EntryPoint, TrajectoryContext};
use crate::script::runtime::place::at_definition;
use crate::script::runtime::record::{Record, Strictness};
use crate::script::runtime::results::StepResult;
use crate::script::runtime::state::State;
use crate::script::runtime::suspended::Suspended;

impl Worker {
    /// Starts a flow and runs it to its first `policy:generate`.
    pub(crate) async fn begin_flow(
        &self,
        task: &Json,
        seed: u64,
        budget: usize,
        context: TrajectoryContext,
    ) -> Result<State, Failure> {
        let table = self.vm.lua.create_table()?;
        let TrajectoryContext { record, session, env } = context;
        let mut state = State::new(&self.vm.lua, table, seed, record.clone(), session, env);
        let flow = Rc::new(Flow::new(task.clone(), budget));
        state.flow = Some(Rc::clone(&flow));
        self.start_flow(&state, &flow, &record, false).await?;
        Ok(state)
    }

    async fn start_flow(&self, state: &State, flow: &Flow, record: &Record, quiet: bool) -> Result<(), Failure> {
        let function = flow_of(state)?;
        let lua = &self.vm.lua;
        let task = convert::from_row(lua, &flow.task)?;
        state.table.raw_set("task", &task)?;
        let kwargs = convert::from_row(lua, &Json::Object(state.env.kwargs.clone()))?;
        let policy = FlowPolicy {
            channel: Rc::clone(&flow.channel),
            host: Rc::clone(&self.vm.host),
            state: state.table.clone(),
            schemas: Arc::clone(&state.env.schemas),
            budget: flow.budget,
        };
        flow.held.set(0);
        flow.running.replace(Some(Suspended::outermost(lua, function, (task, policy, kwargs))));
        let call = self.call_at(EntryPoint::Reset, state, record, 0);
        call.quiet.set(quiet);
        if self.run_flow(flow, function, &call).await?.is_some() {
            let message = "the flow returned before it called policy:generate; a trajectory has at least one response";
            return Err(broken(function, message.to_owned()));
        }
        self.measure_flow(state, function, &call)
    }

    /// Passes a response to the flow and runs it to its next `policy:generate` or to its end.
    pub(crate) async fn step_flow(&self, state: &State, flow: &Flow, action: &Action) -> Result<StepResult, Failure> {
        let function = flow_of(state)?;
        self.catch_up(state, flow).await?;
        let call = self.call_of(EntryPoint::Step, state);
        let action = Rc::new(action.clone());
        flow.replies.borrow_mut().push(Rc::clone(&action));
        flow.channel.answer(FlowAnswer::Reply(action));
        let mut result = match self.run_flow(flow, function, &call).await? {
            Some(value) => self.vm.read_result(("flow", function), &value)?,
            None => StepResult::default(),
        };
        add(&mut result, flow.channel.earned.take());
        self.measure_flow(state, function, &call)?;
        Self::close_step(state, &call, &mut result);
        Ok(result)
    }

    /// Lets a flow finish whose trajectory was ended by a limit: `policy:generate` raises an error,
    /// which the flow may catch to return its reward. Rewards that it returns or sets are added to
    /// the last step.
    ///
    /// # Errors
    /// If the flow fails for another reason.
    pub async fn end_flow(&self, state: &State, limit: Limit) -> Result<StepResult, Failure> {
        let Some(flow) = state.flow.as_ref().filter(|flow| !flow.ended.get()) else {
            return Ok(StepResult::default());
        };
        let function = flow_of(state)?;
        self.catch_up(state, flow).await?;
        let over = Error::new(Kind::Script, format!("policy:generate: the trajectory is over: {}", limit.name()));
        flow.channel.over.replace(Some(over.clone()));
        let call = self.call_of(EntryPoint::Step, state);
        flow.channel.answer(FlowAnswer::Over);
        let mut result = match self.run_flow(flow, function, &call).await {
            Ok(Some(value)) => self.vm.read_result(("flow", function), &value)?,
            Err(failure) if failure.error.message != over.message => return Err(failure),
            // It no longer waits for a response, and need not catch the error.
            Ok(None) | Err(_) => StepResult::default(),
        };
        flow.ended.set(true);
        add(&mut result, flow.channel.earned.take());
        result.tools = call.tools.take();
        result.reward += result.tools.iter().map(|tool| tool.reward).sum::<f64>();
        Ok(result)
    }

    /// Runs the flow until it waits for a response (`None`) or returns.
    async fn run_flow(&self, flow: &Flow, function: &Function, call: &Rc<Call>) -> Result<Option<Value>, Failure> {
        let Some(mut running) = flow.running.take() else {
            return Err(broken(function, "the flow has ended".to_owned()));
        };
        call.held.set(flow.held.get());
        call.flow.replace(Some(Rc::clone(&flow.channel)));
        let ran = self.vm.run_until(call, function, &mut running, || flow.channel.is_waiting()).await;
        flow.held.set(call.held.get());
        match ran {
            Ok(None) => {
                flow.running.replace(Some(running));
                Ok(None)
            }
            Ok(Some(value)) => {
                flow.ended.set(true);
                flow.channel.wanted.take();
                Ok(Some(value))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Runs a fork up to the point where it was forked, with the responses and the record so far.
    async fn catch_up(&self, state: &State, flow: &Flow) -> Result<(), Failure> {
        let replies = flow.replies.borrow().clone();
        if flow.running.borrow().is_some() || flow.ended.get() {
            return Ok(());
        }
        let function = flow_of(state)?;
        let differs = |what: &str| {
            let error = at_definition(function, format!("the flow is not deterministic: {what}"));
            let hint = "a flow must be a function of its task, the responses and its external calls: draw with math.random, \
                        and keep nothing in locals outside";
            Failure::from(error.hint(hint))
        };
        let calls: Value = state.table.raw_get("calls")?;
        state.table.clear()?;
        let wanted = flow.channel.wanted.take();
        flow.channel.reply.take();
        flow.channel.steps.set(0);
        let record = Record::replay(state.record.exchanges(), Strictness::Exact);
        self.start_flow(state, flow, &record, true).await?;
        for (step, action) in replies.into_iter().enumerate() {
            let call = self.call_at(EntryPoint::Step, state, &record, step as u64);
            call.quiet.set(true);
            flow.channel.answer(FlowAnswer::Reply(action));
            if self.run_flow(flow, function, &call).await?.is_some() {
                return Err(differs(&format!("on a repeated run it returned after response {}", step + 1)));
            }
        }
        state.table.raw_set("calls", calls)?;
        flow.channel.earned.take();
        let same = |(one, two): (&Rc<GenerateArguments>, &Rc<GenerateArguments>)| one.observation == two.observation;
        match (&wanted, &flow.wanted()) {
            (Some(one), Some(two)) if !same((one, two)) => Err(differs("on a repeated run it passed another prompt")),
            _ => record.difference().map_or(Ok(()), |difference| Err(differs(&difference.to_string()))),
        }
    }

    /// Measures `policy.state`, which is plain data.
    fn measure_flow(&self, state: &State, function: &Function, call: &Rc<Call>) -> Result<(), Failure> {
        let size = self.vm.size(call, &state.table, self.vm.limits.trajectory << 20)?;
        state.size.set(self.sized(size, call, function)?);
        Ok(())
    }
}

/// Adds the rewards that the flow set itself.
fn add(result: &mut StepResult, earned: FlowRewards) {
    result.reward += earned.reward;
    result.earlier = earned.earlier;
}

fn flow_of(state: &State) -> Result<&Function, Failure> {
    let missing = || Error::new(Kind::Internal, "the environment has no flow").into();
    state.env.env.flow.as_ref().ok_or_else(missing)
}
