//! `env.*`: scripts and their trajectories for programs, as concurrent tasks of one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};

use super::Loaded;
use crate::engine::{EngineClient, Policy};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Completion, FinishReason, Sampling, Seed, StreamSeed, Support, ToolCall, Trajectory, seed_value};
use crate::rollout::{self, Attempt, Reached, Spec, Stage, Stop};
use crate::script::{Record, Script, Split, section_over, trajectory_table};
use crate::telemetry::Reporter;
use crate::text::Renderer;

/// A call for the script thread. `policy` generates the responses of `env.run`.
pub(super) struct Job {
    pub(super) function: String,
    pub(super) arguments: Json,
    pub(super) policy: Option<EngineClient>,
    pub(super) reply: oneshot::Sender<Result<Json>>,
}

/// Starts the thread; it ends when the sender is dropped.
pub(super) fn start(reporter: Reporter) -> Result<mpsc::UnboundedSender<Job>> {
    let (sender, mut jobs) = mpsc::unbounded_channel::<Job>();
    let failed = |error: std::io::Error| Error::new(Kind::Internal, format!("can't start the script thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let body = move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let envs = Rc::new(Envs { reporter, ..Envs::default() });
            while let Some(job) = jobs.recv().await {
                let envs = Rc::clone(&envs);
                tokio::task::spawn_local(async move {
                    let Job { function, arguments, policy, reply } = job;
                    // The caller of a close may not wait for the result.
                    let _ = reply.send(envs.call(&function, &arguments, policy).await);
                });
            }
        });
    };
    std::thread::Builder::new().name("r1-scripts".to_owned()).spawn(body).map_err(failed)?;
    Ok(sender)
}

struct Envs {
    reporter: Reporter,
    scripts: RefCell<BTreeMap<u64, Rc<Loaded>>>,
    attempts: RefCell<BTreeMap<u64, Slot>>,
    next: Cell<u64>,
}

impl Default for Envs {
    fn default() -> Self {
        let (scripts, attempts) = (RefCell::default(), RefCell::default());
        Self { reporter: Reporter::silent(), scripts, attempts, next: Cell::new(1) }
    }
}

/// A trajectory that is open in a program.
struct Slot {
    loaded: Rc<Loaded>,
    /// `None` while a call uses it.
    attempt: Option<Attempt>,
}

#[derive(Deserialize)]
struct Open {
    path: PathBuf,
    /// Directory of the program, for paths that are not in the current directory.
    beside: PathBuf,
    #[serde(default)]
    overrides: Vec<String>,
    /// The model whose tokenizer is used.
    #[serde(default)]
    model: Option<PathBuf>,
}

/// A row of a dataset, or a task.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RowOrTask {
    split: Option<String>,
    row: u64,
    task: Option<Json>,
    seed: Option<Seed>,
}

impl RowOrTask {
    fn split(&self) -> Split {
        if self.split.as_deref() == Some("eval") { Split::Eval } else { Split::Train }
    }

    fn task(&self, loaded: &Loaded) -> Result<Json> {
        match &self.task {
            Some(task) => Ok(task.clone()),
            None => loaded.worker.row(self.split(), self.row),
        }
    }

    fn spec(&self, loaded: &Loaded) -> Spec {
        let mut spec = Spec::new(self.split(), self.row, &loaded.script.settings);
        spec.env_seed = self.seed.map_or(spec.env_seed, |seed| seed.0);
        if loaded.max_context > 0 {
            spec.max_context = loaded.max_context;
        }
        spec
    }
}

#[derive(Deserialize)]
struct Reply {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<ToolCall>,
    #[serde(default = "stop")]
    finish_reason: FinishReason,
    /// The exact ids, if a model sampled them.
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Vec<f32>,
}

fn stop() -> FinishReason {
    FinishReason::Stop
}

/// A rollout with a model: rows, samples per row, and the branching step.
#[derive(Deserialize)]
struct Run {
    script: u64,
    tasks: Vec<RowOrTask>,
    samples: u32,
    #[serde(default)]
    sampling: serde_json::Map<String, Json>,
    seed: Seed,
    #[serde(default)]
    branch: Option<Branch>,
}

#[derive(Clone, Copy, Deserialize)]
struct Branch {
    step: usize,
    count: u32,
}

impl Envs {
    async fn call(&self, function: &str, arguments: &Json, policy: Option<EngineClient>) -> Result<Json> {
        match function {
            "env.open" => self.open(&read(arguments)?),
            "env.close" => Ok(json!(self.scripts.borrow_mut().remove(&id(arguments, "script")?).is_some())),
            "env.drop" => Ok(json!(self.attempts.borrow_mut().remove(&id(arguments, "attempt")?).is_some())),
            "env.rows" => {
                let (loaded, which) = (self.script(arguments)?, read::<RowOrTask>(arguments)?);
                Ok(json!(loaded.worker.rows(which.split())?.unwrap_or(0)))
            }
            "env.row" => {
                let (loaded, which) = (self.script(arguments)?, read::<RowOrTask>(arguments)?);
                loaded.worker.row(which.split(), which.row)
            }
            "env.reset" => {
                let (loaded, which) = (self.script(arguments)?, read::<RowOrTask>(arguments)?);
                let (task, spec) = (which.task(&loaded)?, which.spec(&loaded));
                let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
                let begun = Attempt::begin(stage, spec, task, &Record::live()).await;
                let attempt = begun.map_err(|failure| failure.error);
                Ok(with_log(&loaded, &json!({ "attempt": self.keep(&loaded, attempt?) })))
            }
            "env.run" => match policy {
                Some(policy) => self.run(read(arguments)?, &policy).await,
                None => Err(Error::new(Kind::Internal, "no policy serves the requests")),
            },
            _ => self.with_attempt(function, arguments).await,
        }
    }

    fn open(&self, open: &Open) -> Result<Json> {
        let beside = open.beside.join(&open.path);
        let path = if open.path.exists() || !beside.exists() { &open.path } else { &beside };
        let script = Script::load(path, &open.overrides)?;
        let loaded = match &open.model {
            Some(dir) => {
                let renderer = Arc::new(Renderer::load_styled(dir, &script.style()?)?);
                Loaded::with(script, renderer, 0, false)?
            }
            None => Loaded::new(script, &self.reporter)?,
        };
        let about = json!({ "path": path, "tools": loaded.worker.tools(), "format": loaded.renderer.format().name() });
        let handle = self.number();
        self.scripts.borrow_mut().insert(handle, Rc::new(loaded));
        Ok(json!({ "script": handle, "about": about }))
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    fn script(&self, arguments: &Json) -> Result<Rc<Loaded>> {
        let handle = id(arguments, "script")?;
        self.scripts.borrow().get(&handle).cloned().ok_or_else(|| Error::new(Kind::Internal, "the script is not open"))
    }

    fn keep(&self, loaded: &Rc<Loaded>, attempt: Attempt) -> u64 {
        let handle = self.number();
        self.attempts.borrow_mut().insert(handle, Slot { loaded: Rc::clone(loaded), attempt: Some(attempt) });
        handle
    }

    /// Runs a function on a trajectory with exclusive access.
    async fn with_attempt(&self, function: &str, arguments: &Json) -> Result<Json> {
        let handle = id(arguments, "attempt")?;
        let (loaded, mut attempt) = {
            let mut attempts = self.attempts.borrow_mut();
            let slot =
                attempts.get_mut(&handle).ok_or_else(|| Error::new(Kind::Internal, "the trajectory is closed"))?;
            let busy = || Error::new(Kind::Script, "another call is using the trajectory");
            (Rc::clone(&slot.loaded), slot.attempt.take().ok_or_else(busy)?)
        };
        let result = self.work(function, arguments, &loaded, &mut attempt).await;
        if let Err(Stop::Failed(failure)) = &result
            && function != "env.reward"
        {
            attempt.fail(&loaded.worker, failure);
        }
        if let Some(slot) = self.attempts.borrow_mut().get_mut(&handle) {
            slot.attempt = Some(attempt);
        }
        result.map(|result| with_log(&loaded, &result)).map_err(error)
    }

    async fn work(
        &self,
        function: &str,
        arguments: &Json,
        loaded: &Rc<Loaded>,
        attempt: &mut Attempt,
    ) -> Result<Json, Stop> {
        let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
        match function {
            "env.observe" => Ok(match attempt.observe(stage).await? {
                Some(prompt) => json!(prompt.observation),
                None => json!({ "over": true }),
            }),
            "env.request" => {
                let Some(request) = attempt.request(stage).await? else { return Err(is_over(attempt)) };
                Ok(json!({
                    "prompt_ids": request.prompt_ids, "stop_ids": request.stop_ids, "seed": seed_value(request.seed.seed),
                    "sampling": *with_stop(attempt.renderer(stage), &request.sampling),
                }))
            }
            "env.step" => {
                if attempt.failed().is_some() || attempt.over().is_some() || attempt.observe(stage).await?.is_none() {
                    return Err(is_over(attempt));
                }
                let reply: Reply = read(&arguments["reply"])?;
                step(stage, attempt, reply).await?;
                Ok(stepped(attempt))
            }
            "env.state" => Ok(attempt.state().snapshot()?["state"].clone()),
            "env.reward" => {
                let reward = attempt.reward(stage).await?;
                let steps: f64 = attempt.trajectory().steps.iter().fold(0.0, |sum, step| sum + step.reward);
                Ok(json!({ "total": steps + reward.total, "outcome": reward.total, "parts": reward.parts }))
            }
            "env.fork" => {
                let mut spec = attempt.spec().clone();
                spec.id = format!("{}+{}", spec.id, self.next.get());
                let fork = attempt.fork(spec)?;
                Ok(json!({ "attempt": self.keep(loaded, fork) }))
            }
            "env.finish" => {
                let mut last = attempt.fork(attempt.spec().clone())?;
                if last.failed().is_none() {
                    match last.finish(stage).await {
                        Err(Stop::Failed(failure)) => last.fail(&loaded.worker, &failure),
                        other => other?,
                    }
                }
                Ok(shown(&last.into_trajectory(), None))
            }
            other => Err(Error::new(Kind::Internal, format!("unknown service `{other}`")).into()),
        }
    }

    /// Runs trajectories with a model, concurrently.
    async fn run(&self, run: Run, policy: &EngineClient) -> Result<Json> {
        let loaded = {
            let scripts = self.scripts.borrow();
            scripts.get(&run.script).cloned().ok_or_else(|| Error::new(Kind::Internal, "the script is not open"))?
        };
        let sampling = section_over("sampling", &Json::Object(run.sampling), &loaded.script.settings.sampling)?;
        let sampling = with_stop(&loaded.renderer, &sampling);
        let mut jobs = Vec::new();
        for (group, which) in run.tasks.iter().enumerate() {
            for sample in 0..run.samples {
                let mut spec = which.spec(&loaded);
                spec.id = format!("{group}-{sample}");
                (spec.group, spec.sample) = (group as u64, sample);
                spec.seed =
                    StreamSeed { seed: run.seed.0, trajectory: u64::from(sample) << 32 | group as u64, step: 0 };
                spec.sampling = Arc::clone(&sampling);
                jobs.push(one(&loaded, policy, which.task(&loaded)?, spec, run.branch));
            }
        }
        let done = futures_util::future::try_join_all(jobs).await?;
        let all: Vec<Json> = done.into_iter().flatten().collect();
        Ok(with_log(&loaded, &json!({ "trajectories": all })))
    }
}

/// Runs one trajectory, or its continuations from a step on.
async fn one(
    loaded: &Loaded,
    policy: &dyn Policy,
    task: Json,
    spec: Spec,
    branch: Option<Branch>,
) -> Result<Vec<Json>> {
    let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
    let attempt = match Attempt::begin(stage, spec.clone(), task.clone(), &Record::live()).await {
        Ok(attempt) => attempt,
        Err(failure) => return Ok(vec![shown(&rollout::never_begun(stage, &spec, task, &failure), None)]),
    };
    let Some(Branch { step, count }) = branch else {
        return Ok(vec![shown(&rollout::go_on(stage, policy, attempt).await?, None)]);
    };
    let attempt = match rollout::go_to(stage, policy, attempt, step).await? {
        Reached::There(attempt) => attempt,
        Reached::Ended(trajectory) => return Ok(vec![shown(&trajectory, None)]),
    };
    let specs = (0..count).map(|number| {
        let mut own = spec.clone();
        own.id = format!("{}+{number}", spec.id);
        own.seed.trajectory = spec.seed.trajectory ^ (u64::from(number) + 1) << 48;
        own
    });
    let all = rollout::branch(stage, policy, &attempt, specs).await?;
    Ok(all.iter().zip(0_u32..).map(|(trajectory, number)| shown(trajectory, Some(number))).collect())
}

async fn step(stage: Stage<'_>, attempt: &mut Attempt, reply: Reply) -> Result<(), Stop> {
    if let Some(token_ids) = reply.token_ids {
        let (logprobs, finish_reason) = (reply.logprobs, reply.finish_reason);
        let completion = Completion {
            token_ids,
            logprobs,
            support: Support::default(),
            top_logprobs: Vec::new(),
            routing: crate::mdp::Routing::default(),
            finish_reason,
            prefilled: 0,
        };
        return attempt.act(stage, completion).await;
    }
    if reply.calls.is_empty() {
        let completion = rollout::typed(attempt.renderer(stage), &reply.text, reply.finish_reason)?;
        return attempt.act(stage, completion).await;
    }
    let (completion, action) = rollout::typed_calls(stage, attempt, &reply.text, reply.calls)?;
    attempt.take(stage, completion, action).await
}

fn is_over(attempt: &Attempt) -> Stop {
    let status = attempt.failed().or(attempt.over()).map_or("", crate::mdp::Status::name);
    let limit = attempt.trajectory().truncated_by.map_or_else(String::new, |limit| format!(" by {}", limit.name()));
    Error::new(Kind::Script, format!("the trajectory is over: {status}{limit}")).into()
}

/// The result of the last step.
fn stepped(attempt: &Attempt) -> Json {
    let status = attempt.over().map(crate::mdp::Status::name);
    match attempt.trajectory().steps.last() {
        Some(step) => json!({
            "reward": step.reward, "done": status.is_some(), "status": status,
            "truncated_by": attempt.trajectory().truncated_by, "text": step.text, "tools": step.tools,
        }),
        None => json!({}),
    }
}

/// A trajectory with its token ids as JSON; `branch` is the index of the continuation.
fn shown(trajectory: &Trajectory, branch: Option<u32>) -> Json {
    let mut shown = trajectory_table(trajectory, true, false);
    if branch.is_some() {
        shown["branch"] = json!(branch);
    }
    shown
}

/// Adds the lines that the script logged during the call.
fn with_log(loaded: &Loaded, result: &Json) -> Json {
    let log: Vec<Json> =
        loaded.worker.take_log().into_iter().map(|line| json!({ "place": line.place, "text": line.text })).collect();
    json!({ "result": result, "log": log })
}

fn with_stop(renderer: &Renderer, sampling: &Sampling) -> Arc<Sampling> {
    let mut sampling = sampling.clone();
    for stop in renderer.stop_strings() {
        if !sampling.stop.contains(stop) {
            sampling.stop.push(stop.clone());
        }
    }
    Arc::new(sampling)
}

fn error(stop: Stop) -> Error {
    match stop {
        Stop::Failed(failure) => failure.error,
        Stop::Fatal(error) => error,
    }
}

fn id(arguments: &Json, name: &str) -> Result<u64> {
    arguments[name].as_u64().ok_or_else(|| Error::new(Kind::Internal, format!("`{name}` is not a handle")))
}

fn read<T: DeserializeOwned>(value: &Json) -> Result<T> {
    T::deserialize(value).map_err(|error| Error::new(Kind::Script, error.to_string()))
}
