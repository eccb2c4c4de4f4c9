//! `r1.script` and `r1.rollout`: scripts and their trajectories for programs, as concurrent tasks
//! of one thread.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::{mpsc, oneshot};

use super::Loaded;
use crate::engine::EngineClient;
use crate::error::{Error, Kind, Result};
use crate::load::load_script;
use crate::mdp::{Completion, FinishReason, Policy, Routing, Seed, Status, StreamSeed, Support, Trajectory};
use crate::rollout::{self, Attempt, Reached, Spec, Stage, Stop};
use crate::script::services::env::{
    AboutScript, BranchResult, Branching, EnvCall, Logged, OpenScript, OpenedScript, Reset, RewardReport, RunTasks,
    SampleRequest, ScriptedReply, Stepped, TaskChoice,
};
use crate::script::services::request::Reply;
use crate::script::{PolicyRequest, Record, SampledText};
use crate::telemetry::Reporter;
use crate::text::Renderer;

/// A call for the script thread.
pub(super) struct Job {
    pub(super) call: EnvCall,
    /// Generates the responses of [`RunTasks`].
    pub(super) model: Option<ServedModel>,
}

/// A model that the tensor thread serves until the last client is dropped.
pub(super) struct ServedModel {
    pub(super) client: EngineClient,
    pub(super) served: oneshot::Receiver<Result<()>>,
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
            while let Some(Job { call, model }) = jobs.recv().await {
                let envs = Rc::clone(&envs);
                tokio::task::spawn_local(async move { envs.answer(call, model).await });
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
    texts: Texts,
}

/// The texts that `r1.generate` returns in a trajectory: one for each call, the last one also for
/// later calls. `None`: there is no policy.
type Texts = Option<Rc<RefCell<VecDeque<String>>>>;

/// Runs a part of a trajectory, and gives the texts that its script requests meanwhile.
async fn with_texts<T>(renderer: &Renderer, texts: &Texts, record: &Record, future: impl Future<Output = T>) -> T {
    let Some(texts) = texts else { return future.await };
    let (mut future, mut requests) = (pin!(future), record.listen());
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            Some(request) = requests.recv() => match request {
                PolicyRequest::Generate(request) => drop(request.reply.send(next_text(renderer, &mut texts.borrow_mut()))),
                PolicyRequest::Logprobs(request) => {
                    let error = Error::new(Kind::Script, "r1.logprobs: there is no policy here").hint("r1 repl has one");
                    let _ = request.reply.send(Err(error));
                }
            },
        }
    }
}

fn next_text(renderer: &Renderer, texts: &mut VecDeque<String>) -> Result<SampledText> {
    let text = if texts.len() > 1 { texts.pop_front() } else { texts.front().cloned() }.unwrap_or_default();
    let token_ids: Vec<u32> =
        renderer.tokenizer().encode(&text)?.into_iter().chain(renderer.stop_ids().first().copied()).collect();
    Ok(SampledText { prompt_ids: Vec::new(), completion: given(token_ids, None, FinishReason::Stop), text })
}

/// Tokens that no policy sampled.
fn given(token_ids: Vec<u32>, logprobs: Option<Vec<f32>>, finish_reason: FinishReason) -> Completion {
    Completion {
        logprobs: logprobs.unwrap_or_else(|| vec![0.0; token_ids.len()]),
        token_ids,
        support: Support::default(),
        top_logprobs: Vec::new(),
        routing: Routing::default(),
        finish_reason,
        prefilled: 0,
        server: None,
    }
}

fn task(choice: &TaskChoice, loaded: &Loaded) -> Result<Json> {
    match &choice.task {
        Some(task) => Ok(task.clone()),
        None => loaded.worker.row(choice.split, choice.row),
    }
}

fn spec(choice: &TaskChoice, loaded: &Loaded) -> Spec {
    let mut spec = Spec::new(choice.split, choice.row, &loaded.script.settings);
    spec.env_seed = choice.seed.map_or(spec.env_seed, |seed| seed.0);
    if loaded.max_context > 0 {
        spec.max_context = loaded.max_context;
    }
    spec
}

impl Envs {
    async fn answer(&self, call: EnvCall, model: Option<ServedModel>) {
        use EnvCall as Call;
        match call {
            Call::OpenScript(request, reply) => reply.send(self.open(&request)),
            Call::CloseScript(request, reply) => {
                self.scripts.borrow_mut().remove(&request.script);
                reply.send(Ok(()));
            }
            Call::CloseAttempt(request, reply) => {
                self.attempts.borrow_mut().remove(&request.attempt);
                reply.send(Ok(()));
            }
            Call::CountRows(request, reply) => {
                let rows = self.script(request.script).and_then(|loaded| loaded.worker.rows(request.split));
                reply.send(rows.map(Option::unwrap_or_default));
            }
            Call::ReadRow(request, reply) => {
                let loaded = self.script(request.script);
                reply.send(loaded.and_then(|loaded| loaded.worker.row(request.split, request.row)));
            }
            Call::Reset(request, reply) => reply.send(self.reset(request).await),
            Call::RunTasks(request, reply) => reply.send(match model {
                Some(model) => self.serve(request, model).await,
                None => Err(Error::new(Kind::Internal, "no policy serves the requests")),
            }),
            Call::Observe(request, reply) => {
                let observe = async |_: &Rc<Loaded>, stage: Stage<'_>, attempt: &mut Attempt| {
                    Ok(attempt.observe(stage).await?.map(|prompt| prompt.observation.clone()))
                };
                self.work(request.attempt, reply, observe).await;
            }
            Call::NextRequest(request, reply) => self.work(request.attempt, reply, next_request).await,
            Call::TakeStep(request, reply) => {
                let step = async |_: &Rc<Loaded>, stage: Stage<'_>, attempt: &mut Attempt| {
                    step(stage, attempt, request.reply).await
                };
                self.work(request.attempt, reply, step).await;
            }
            Call::ReadState(request, reply) => {
                let state = async |_: &Rc<Loaded>, _: Stage<'_>, attempt: &mut Attempt| {
                    Ok(attempt.state().snapshot()?["state"].take())
                };
                self.work(request.attempt, reply, state).await;
            }
            Call::RewardSoFar(request, reply) => self.work_on(request.attempt, reply, false, reward).await,
            Call::Fork(request, reply) => {
                let texts = self.texts(request.attempt);
                let fork = async |loaded: &Rc<Loaded>, _: Stage<'_>, attempt: &mut Attempt| {
                    let mut spec = attempt.spec().clone();
                    spec.id = format!("{}+{}", spec.id, self.next.get());
                    Ok(self.keep(loaded, attempt.fork(spec)?, texts.clone()))
                };
                self.work(request.attempt, reply, fork).await;
            }
            Call::Finish(request, reply) => {
                let texts = self.texts(request.attempt);
                let finish = async |loaded: &Rc<Loaded>, stage: Stage<'_>, attempt: &mut Attempt| {
                    finish(loaded, stage, attempt, &texts).await
                };
                self.work(request.attempt, reply, finish).await;
            }
        }
    }

    fn open(&self, open: &OpenScript) -> Result<OpenedScript> {
        // From any directory, a test finds the script of its repository.
        let mut above = open.directory.ancestors().map(|folder| folder.join(&open.path));
        let path = if open.path.exists() {
            open.path.clone()
        } else {
            above.find(|path| path.exists()).unwrap_or_else(|| open.path.clone())
        };
        let script = load_script(&path, &open.overrides)?;
        let loaded = match &open.model {
            Some(dir) => {
                let renderer = Arc::new(Renderer::load_styled(dir, &script.style()?)?);
                Loaded::with(script, renderer, 0, false)?
            }
            None => Loaded::new(script, &self.reporter)?,
        };
        let (tools, format) = (loaded.worker.tools().to_vec(), loaded.renderer.format().name().to_owned());
        let script = self.number();
        self.scripts.borrow_mut().insert(script, Rc::new(loaded));
        Ok(OpenedScript { script, about: AboutScript { path, tools, format } })
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    fn script(&self, script: u64) -> Result<Rc<Loaded>> {
        self.scripts.borrow().get(&script).cloned().ok_or_else(|| Error::new(Kind::Internal, "the script is not open"))
    }

    fn texts(&self, attempt: u64) -> Texts {
        self.attempts.borrow().get(&attempt).and_then(|slot| slot.texts.clone())
    }

    fn keep(&self, loaded: &Rc<Loaded>, attempt: Attempt, texts: Texts) -> u64 {
        let number = self.number();
        self.attempts.borrow_mut().insert(number, Slot { loaded: Rc::clone(loaded), attempt: Some(attempt), texts });
        number
    }

    async fn reset(&self, request: Reset) -> Result<Logged<u64>> {
        let loaded = self.script(request.script)?;
        let (task, spec) = (task(&request.task, &loaded)?, spec(&request.task, &loaded));
        let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
        let texts: Texts = request.generated.map(|texts| Rc::new(RefCell::new(texts.into())));
        let record = Record::live();
        let begun = Attempt::begin(stage, spec, task, &record);
        let begun = with_texts(&loaded.renderer, &texts, &record, begun).await;
        let attempt = begun.map_err(|failure| failure.error)?;
        Ok(with_log(&loaded, self.keep(&loaded, attempt, texts)))
    }

    /// Runs a function on a trajectory with exclusive access. A failure ends the trajectory.
    async fn work<T>(
        &self,
        attempt: u64,
        reply: Reply<Logged<T>>,
        work: impl AsyncFnOnce(&Rc<Loaded>, Stage<'_>, &mut Attempt) -> Result<T, Stop>,
    ) {
        self.work_on(attempt, reply, true, work).await;
    }

    async fn work_on<T>(
        &self,
        number: u64,
        reply: Reply<Logged<T>>,
        fails: bool,
        work: impl AsyncFnOnce(&Rc<Loaded>, Stage<'_>, &mut Attempt) -> Result<T, Stop>,
    ) {
        let (loaded, mut attempt, texts) = match self.take(number) {
            Ok(taken) => taken,
            Err(error) => return reply.send(Err(error)),
        };
        let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
        let record = attempt.state().record().clone();
        let result = with_texts(&loaded.renderer, &texts, &record, work(&loaded, stage, &mut attempt)).await;
        if let Err(Stop::Failed(failure)) = &result
            && fails
        {
            attempt.fail(&loaded.worker, failure);
        }
        if let Some(slot) = self.attempts.borrow_mut().get_mut(&number) {
            slot.attempt = Some(attempt);
        }
        reply.send(result.map(|result| with_log(&loaded, result)).map_err(error));
    }

    /// Takes a trajectory out of its slot.
    fn take(&self, number: u64) -> Result<(Rc<Loaded>, Attempt, Texts)> {
        let mut attempts = self.attempts.borrow_mut();
        let slot = attempts.get_mut(&number).ok_or_else(|| Error::new(Kind::Internal, "the trajectory is closed"))?;
        let busy = || Error::new(Kind::Script, "another call is using the trajectory");
        Ok((Rc::clone(&slot.loaded), slot.attempt.take().ok_or_else(busy)?, slot.texts.clone()))
    }

    /// Runs trajectories with a model that the tensor thread serves meanwhile.
    async fn serve(
        &self,
        run: RunTasks,
        ServedModel { client, served }: ServedModel,
    ) -> Result<Logged<Vec<BranchResult>>> {
        let result = self.run(run, &client).await;
        drop(client);
        served.await.map_err(|_| Error::new(Kind::Internal, "the tensor thread has stopped"))??;
        result
    }

    /// Runs trajectories with a model, concurrently.
    async fn run(&self, run: RunTasks, policy: &EngineClient) -> Result<Logged<Vec<BranchResult>>> {
        let loaded = self.script(run.script)?;
        let sampling = run.sampling.over(&loaded.script.settings.sampling)?;
        let sampling = Arc::new(sampling.with_stop(loaded.renderer.stop_strings()));
        let mut jobs = Vec::new();
        for (group, choice) in run.tasks.iter().enumerate() {
            for sample in 0..run.samples {
                let mut spec = spec(choice, &loaded);
                spec.id = format!("{group}-{sample}");
                (spec.group, spec.sample) = (group as u64, sample);
                spec.seed =
                    StreamSeed { seed: run.seed.0, trajectory: u64::from(sample) << 32 | group as u64, step: 0 };
                spec.sampling = Arc::clone(&sampling);
                jobs.push(one(&loaded, policy, task(choice, &loaded)?, spec, run.branch));
            }
        }
        let done = futures_util::future::try_join_all(jobs).await?;
        Ok(with_log(&loaded, done.into_iter().flatten().collect()))
    }
}

/// Runs one trajectory, or its continuations from a step on.
async fn one(
    loaded: &Loaded,
    policy: &dyn Policy,
    task: Json,
    spec: Spec,
    branch: Option<Branching>,
) -> Result<Vec<BranchResult>> {
    let alone = |trajectory| vec![BranchResult { trajectory, branch: None }];
    let stage = Stage { worker: &loaded.worker, renderer: &loaded.renderer };
    let record = Record::live();
    let attempt = match Attempt::begin(stage, spec.clone(), task.clone(), &record).await {
        Ok(attempt) => attempt,
        Err(failure) => {
            let mut trajectory = rollout::never_begun(stage, &spec, task, &failure);
            trajectory.record = record.take();
            return Ok(alone(trajectory));
        }
    };
    let Some(Branching { step, count }) = branch else {
        return Ok(alone(rollout::go_on(stage, policy, attempt).await?));
    };
    let attempt = match rollout::go_to(stage, policy, attempt, step).await? {
        Reached::There(attempt) => attempt,
        Reached::Ended(trajectory) => return Ok(alone(*trajectory)),
    };
    let specs = (0..count).map(|number| {
        let mut own = spec.clone();
        own.id = format!("{}+{number}", spec.id);
        own.seed.trajectory = spec.seed.trajectory ^ (u64::from(number) + 1) << 48;
        own
    });
    let all = rollout::branch(stage, policy, &attempt, specs).await?;
    let numbered = all.into_iter().zip(0_u32..);
    Ok(numbered.map(|(trajectory, number)| BranchResult { trajectory, branch: Some(number) }).collect())
}

async fn next_request(_: &Rc<Loaded>, stage: Stage<'_>, attempt: &mut Attempt) -> Result<SampleRequest, Stop> {
    let Some(request) = attempt.request(stage).await? else { return Err(is_over(attempt)) };
    Ok(SampleRequest {
        stop_ids: request.stop_ids.to_vec(),
        seed: Seed(request.seed.seed),
        sampling: request.sampling.as_ref().clone().with_stop(attempt.renderer(stage).stop_strings()),
        prompt_ids: request.prompt_ids,
    })
}

async fn reward(_: &Rc<Loaded>, stage: Stage<'_>, attempt: &mut Attempt) -> Result<RewardReport, Stop> {
    let reward = attempt.reward(stage).await?;
    let steps: f64 = attempt.trajectory().steps.iter().fold(0.0, |sum, step| sum + step.reward);
    Ok(RewardReport { total: steps + reward.total, outcome: reward.total, parts: reward.parts })
}

async fn finish(
    loaded: &Rc<Loaded>,
    stage: Stage<'_>,
    attempt: &mut Attempt,
    texts: &Texts,
) -> Result<Trajectory, Stop> {
    let mut last = attempt.fork(attempt.spec().clone())?;
    if last.failed().is_none() {
        let record = last.state().record().clone();
        match with_texts(&loaded.renderer, texts, &record, last.finish(stage)).await {
            Err(Stop::Failed(failure)) => last.fail(&loaded.worker, &failure),
            other => other?,
        }
    }
    Ok(last.into_trajectory())
}

async fn step(stage: Stage<'_>, attempt: &mut Attempt, reply: ScriptedReply) -> Result<Stepped, Stop> {
    if attempt.failed().is_some() || attempt.over().is_some() || attempt.observe(stage).await?.is_none() {
        return Err(is_over(attempt));
    }
    let finish_reason = reply.finish_reason.unwrap_or(FinishReason::Stop);
    if let Some(token_ids) = reply.token_ids {
        attempt.act(stage, given(token_ids, Some(reply.logprobs), finish_reason)).await?;
    } else if reply.calls.is_empty() {
        let completion = rollout::typed(stage, attempt, &reply.text, finish_reason)?;
        attempt.act(stage, completion).await?;
    } else {
        let (completion, action) = rollout::typed_calls(stage, attempt, &reply.text, reply.calls)?;
        attempt.take(stage, completion, action).await?;
    }
    Ok(stepped(attempt))
}

fn is_over(attempt: &Attempt) -> Stop {
    let status = attempt.failed().or(attempt.over()).map_or("", Status::name);
    let limit = attempt.trajectory().truncated_by.map_or_else(String::new, |limit| format!(" by {}", limit.name()));
    Error::new(Kind::Script, format!("the trajectory is over: {status}{limit}")).into()
}

/// The result of the last step.
fn stepped(attempt: &Attempt) -> Stepped {
    let status = attempt.over().map(Status::name);
    let trajectory = attempt.trajectory();
    trajectory.steps.last().map_or_else(Stepped::default, |step| Stepped {
        reward: step.reward,
        done: status.is_some(),
        status,
        truncated_by: trajectory.truncated_by,
        text: step.text.clone(),
        tools: step.tools.clone(),
    })
}

/// Adds the lines that the script logged during the call.
fn with_log<T>(loaded: &Loaded, result: T) -> Logged<T> {
    Logged { result, log: loaded.worker.take_log() }
}

fn error(stop: Stop) -> Error {
    match stop {
        Stop::Failed(failure) => failure.error,
        Stop::Fatal(error) => error,
    }
}
