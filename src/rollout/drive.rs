//! One trajectory: reset, then observe, sample and step until the environment or a limit ends it,
//! then the reward.

use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::attempt::Attempt;
use super::ending;
use super::script_requests::with_policy;
use super::spec::Spec;
use super::stage::{Stage, Stop};
use super::tree::{BranchPoint, Points};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, Policy, Request, Sampling, Status, Trajectory};
use crate::script::{Failure, Record, Worker};
use crate::text::Renderer;
use crate::timeline;

/// Runs one trajectory to its end. Failures of script, tools or limits become its status; only
/// failures of the whole run (an unreadable dataset row, a closed policy) are errors.
pub async fn drive(worker: &Worker, renderer: &Renderer, policy: &dyn Policy, spec: &Spec) -> Result<Trajectory> {
    let made = drive_root(Stage { worker, renderer }, policy, spec, None).await;
    policy.release(spec.seed.trajectory);
    Ok(made?.trajectory)
}

/// A trajectory, and whether a retry could have another result.
pub(super) struct DrivenTrajectory {
    pub(super) trajectory: Trajectory,
    pub(super) worth_retrying: bool,
}

impl DrivenTrajectory {
    fn failed(trajectory: Trajectory, failure: &Failure, sampling: &Sampling) -> Self {
        let worth_retrying = may_differ(&trajectory, failure, sampling);
        Self { trajectory, worth_retrying }
    }
}

/// Whether a failed trajectory could have another result with newly sampled responses. It could not
/// if it is a function of task, seed and script only: nothing was sampled, and there were no
/// external calls.
fn may_differ(trajectory: &Trajectory, failure: &Failure, sampling: &Sampling) -> bool {
    match failure.status {
        Status::Aborted => false,
        _ if failure.lasting => false,
        // These depend on the clock, or on a server.
        Status::ToolTimeout | Status::ScriptLimit | Status::PolicyError => true,
        _ => {
            let drawn = sampling.temperature > 0.0 && !trajectory.own_steps().is_empty();
            drawn || !trajectory.record.is_empty()
        }
    }
}

/// As [`drive`], keeping the states to branch from. The conversation is not released.
pub(super) async fn drive_root(
    stage: Stage<'_>,
    policy: &dyn Policy,
    spec: &Spec,
    points: Option<&mut Points<'_>>,
) -> Result<DrivenTrajectory> {
    let task = stage.worker.row(spec.split, spec.task_index)?;
    let record = Record::live();
    let mut requests = record.listen();
    let begun = async {
        let _span = timeline::span("reset", || spec.id.clone());
        let begun = Attempt::begin(stage, spec.clone(), task.clone(), &record);
        unless_halted(policy, begun).await.unwrap_or_else(Err)
    };
    match with_policy(stage, policy, spec, &mut requests, begun).await {
        Ok(mut attempt) => {
            let ended = writing(stage, policy, &mut attempt, usize::MAX, points).await;
            finished(stage, attempt, ended).await
        }
        Err(failure) if failure.lacks_reference() => Err(ending::of_row(failure.error, stage.worker, spec, &task)),
        Err(failure) => {
            let mut trajectory = never_begun(stage, spec, task, &failure);
            trajectory.record = record.take();
            Ok(DrivenTrajectory::failed(trajectory, &failure, &spec.sampling))
        }
    }
}

/// The trajectory of a task whose `reset` failed.
pub fn never_begun(stage: Stage<'_>, spec: &Spec, task: Value, failure: &Failure) -> Trajectory {
    let mut trajectory = ending::empty(spec, task, stage.worker.hash());
    ending::fail(&mut trajectory, stage.worker, failure);
    trajectory
}

/// Runs a trajectory from its current step to its end, as [`drive`] does.
pub async fn go_on(stage: Stage<'_>, policy: &dyn Policy, mut attempt: Attempt) -> Result<Trajectory> {
    let ended = writing(stage, policy, &mut attempt, usize::MAX, None).await;
    policy.release(attempt.spec().seed.trajectory);
    Ok(finished(stage, attempt, ended).await?.trajectory)
}

/// The finished trajectory, after `close` of its environment; a failure becomes its status.
async fn finished(stage: Stage<'_>, mut attempt: Attempt, ended: Result<(), Stop>) -> Result<DrivenTrajectory> {
    stage.worker.close(attempt.state()).await;
    match ended {
        Ok(()) => Ok(DrivenTrajectory { trajectory: attempt.into_trajectory(), worth_retrying: false }),
        Err(Stop::Failed(failure)) => {
            attempt.fail(stage.worker, &failure);
            let sampling = attempt.spec().sampling.clone();
            Ok(DrivenTrajectory::failed(attempt.into_trajectory(), &failure, &sampling))
        }
        Err(Stop::Fatal(error)) => Err(ending::of_row(error, stage.worker, attempt.spec(), &attempt.trajectory().task)),
    }
}

/// Result of [`go_to`].
pub enum Reached {
    There(Box<Attempt>),
    /// It was already over.
    Ended(Box<Trajectory>),
}

/// Runs a trajectory until it has `step` steps, to branch there.
pub async fn go_to(stage: Stage<'_>, policy: &dyn Policy, mut attempt: Attempt, step: usize) -> Result<Reached> {
    let ended = writing(stage, policy, &mut attempt, step, None).await;
    if ended.is_ok() && attempt.over().is_none() {
        return Ok(Reached::There(Box::new(attempt)));
    }
    policy.release(attempt.spec().seed.trajectory);
    Ok(Reached::Ended(Box::new(finished(stage, attempt, ended).await?.trajectory)))
}

/// Continues a trajectory several times from its current step, concurrently: one continuation for
/// each of `specs`, with their names and random streams. Each includes the earlier steps.
pub async fn branch(
    stage: Stage<'_>,
    policy: &dyn Policy,
    from: &Attempt,
    specs: impl IntoIterator<Item = Spec>,
) -> Result<Vec<Trajectory>> {
    let forks = specs.into_iter().map(|spec| from.fork(spec)).collect::<Result<Vec<_>>>()?;
    try_join_all(forks.into_iter().map(|fork| go_on(stage, policy, fork))).await
}

/// Continues from a stored state, with its own name and seeds, and stores states itself. `replied`
/// is called after the first response. The conversation is not released.
pub(super) async fn branch_off(
    stage: Stage<'_>,
    policy: &dyn Policy,
    point: &BranchPoint,
    spec: &Spec,
    points: &mut Points<'_>,
    mut replied: impl FnMut(),
) -> Result<DrivenTrajectory> {
    let mut fork = match point.attempt.fork(spec.clone()) {
        Ok(fork) => fork,
        Err(error) => {
            let task = point.attempt.trajectory().task.clone();
            let failure = Failure::new(Status::ScriptLimit, error);
            let trajectory = never_begun(stage, spec, task, &failure);
            return Ok(DrivenTrajectory::failed(trajectory, &failure, &spec.sampling));
        }
    };
    let first = point.attempt.trajectory().steps.len() + 1;
    let mut ended = writing(stage, policy, &mut fork, first, None).await;
    replied();
    if ended.is_ok() && fork.over().is_none() {
        ended = writing(stage, policy, &mut fork, usize::MAX, Some(points)).await;
    }
    finished(stage, fork, ended).await
}

/// As [`run_steps`], and serves generation requests of the script.
async fn writing(
    stage: Stage<'_>,
    policy: &dyn Policy,
    attempt: &mut Attempt,
    limit: usize,
    points: Option<&mut Points<'_>>,
) -> Result<(), Stop> {
    let mut requests = attempt.state().record().listen();
    let spec = attempt.spec().clone();
    let run = unless_halted(policy, Box::pin(run_steps(stage, policy, attempt, limit, points)));
    let ended = with_policy(stage, policy, &spec, &mut requests, run).await;
    ended.unwrap_or_else(|halted| Err(halted.into()))
}

/// A part of a trajectory, which is dropped if the trajectories of the policy shall end.
async fn unless_halted<T>(policy: &dyn Policy, part: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = part => Ok(done),
        () = policy.halted() => {
            Err(Failure::new(Status::Aborted, Error::new(Kind::Interrupted, "the run does not need the trajectory")))
        }
    }
}

/// Runs until the end, or until there are `limit` steps.
async fn run_steps(
    stage: Stage<'_>,
    policy: &dyn Policy,
    attempt: &mut Attempt,
    limit: usize,
    mut points: Option<&mut Points<'_>>,
) -> Result<(), Stop> {
    while attempt.over().is_none() {
        if attempt.trajectory().steps.len() >= limit {
            return Ok(());
        }
        let span = |name: &'static str, attempt: &Attempt| timeline::span(name, || attempt.spec().id.clone());
        let observing = span("context", attempt);
        let Some(request) = attempt.request(stage).await? else { break };
        drop(observing);
        let mut sampling = span("sample", attempt);
        if let Some(sampling) = &mut sampling {
            sampling.detail("prompt_tokens", json!(request.prompt_ids.len()));
        }
        let sampled = sample(policy, request).await;
        if let (Some(sampling), Ok(completion)) = (&mut sampling, &sampled) {
            sampling.detail("sampled_tokens", json!(completion.token_ids.len()));
        }
        drop(sampling);
        let completion = match sampled {
            Ok(completion) => completion,
            // A server refuses the prompt as too long.
            Err(Stop::Failed(Failure { status: Status::ContextOverflow, error, .. })) => {
                attempt.overflow(stage, error).await?;
                break;
            }
            Err(stop) => return Err(stop),
        };
        if let Some(points) = &mut points {
            points.consider(attempt, &completion)?;
        }
        let mut acting = span("step", attempt);
        attempt.act(stage, completion).await?;
        if let (Some(acting), Some(step)) = (&mut acting, attempt.trajectory().steps.last()) {
            let tools = step.tools.iter().map(|tool| json!({ "tool": tool.name, "seconds": tool.seconds }));
            acting.detail("tools", tools.collect());
        }
    }
    let _rewarding = timeline::span("reward", || attempt.spec().id.clone());
    attempt.finish(stage).await
}

async fn sample(policy: &dyn Policy, request: Request) -> Result<Completion, Stop> {
    let served = request.chat.is_some();
    match policy.submit(request).await {
        Ok(Ok(completion)) => Ok(completion),
        Ok(Err(error)) if served && error.kind == Kind::Env && error.setting() == Some("policy.max_context") => {
            Err(Failure::new(Status::ContextOverflow, error).into())
        }
        Ok(Err(error)) if served && error.kind == Kind::Env => Err(Failure::new(Status::PolicyError, error).into()),
        Ok(Err(error)) if error.kind == Kind::Numeric => Err(Failure::new(Status::Aborted, error).into()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => {
            let error = Error::new(Kind::Interrupted, "the policy stopped before it replied");
            Err(Failure::new(Status::Aborted, error).into())
        }
    }
}
