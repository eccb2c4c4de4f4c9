//! Models, scripts and runs for programs: typed calls ([`Services`]) to the thread that owns the
//! tensors and to the thread that runs scripts.
//!
//! Threads start with the first call, so that a program without a model starts fast. Calls are
//! processed in order; concurrent generate calls of one model (`r1.join`) are batched.

mod envs;
mod loaded;
mod models;
mod reward_models;
mod rl;
mod training;

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::encoders::Checkpoints;
use crate::engine::{self, Queue};
use crate::error::{Error, Kind, Result};
use crate::script::Services;
use crate::script::services::Call;
use crate::script::services::env::EnvCall;
use crate::script::services::model::{Generate, ModelCall, Response, Reward, RewardScores};
use crate::script::services::request::Reply;
use crate::search::SearchModels;
use crate::telemetry::Reporter;
use envs::ServedModel;
pub use loaded::Loaded;
use models::Models;
use reward_models::RewardModels;
use training::Trainings;

/// A job of the tensor thread.
enum Job {
    Call(Call),
    /// Serves the requests of trajectories with a model until the last one is complete.
    Serve {
        model: u64,
        queue: Queue,
        served: oneshot::Sender<Result<()>>,
    },
}

/// Models on a separate thread, which ends when this value is dropped.
pub struct TensorThread {
    reporter: Reporter,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    envs: Mutex<Option<UnboundedSender<envs::Job>>>,
}

impl TensorThread {
    /// Creates the services; `reporter` shows downloads from the Hub.
    pub fn new(reporter: Reporter) -> Self {
        Self { reporter, jobs: Mutex::new(None), thread: Mutex::new(None), envs: Mutex::new(None) }
    }

    /// Sends a job to the tensor thread, which starts with the first one.
    fn send_tensors(&self, job: Job) -> Result<()> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() {
            let (sender, receiver) = mpsc::channel();
            let reporter = self.reporter.clone();
            let thread = std::thread::Builder::new()
                .name("r1-tensors".to_owned())
                .spawn(move || answer(&receiver, reporter))
                .map_err(|error| Error::new(Kind::Internal, format!("can't start the tensor thread: {error}")))?;
            *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
            *jobs = Some(sender);
        }
        let stopped = || Error::new(Kind::Internal, "the tensor thread has stopped");
        jobs.as_ref().ok_or_else(stopped)?.send(job).map_err(|_| stopped())
    }

    /// Sends a job to the script thread, which starts with the first one.
    fn send_scripts(&self, job: envs::Job) -> Result<()> {
        let mut envs = self.envs.lock().unwrap_or_else(PoisonError::into_inner);
        if envs.is_none() {
            *envs = Some(envs::start(self.reporter.clone())?);
        }
        let stopped = || Error::new(Kind::Internal, "the script thread has stopped");
        envs.as_ref().ok_or_else(stopped)?.send(job).map_err(|_| stopped())
    }
}

impl Services for TensorThread {
    fn send(&self, call: Call) -> Result<()> {
        let Call::Env(call) = call else { return self.send_tensors(Job::Call(call)) };
        let mut model = None;
        if let EnvCall::RunTasks(request, _) = &call {
            // The tensor thread serves the requests of the trajectories on the script thread.
            let (client, queue) = engine::channel();
            let (sender, served) = oneshot::channel();
            self.send_tensors(Job::Serve { model: request.model, queue, served: sender })?;
            model = Some(ServedModel { client, served });
        }
        self.send_scripts(envs::Job { call, model })
    }

    fn search_models(&self) -> &'static dyn SearchModels {
        &Checkpoints
    }
}

/// Maximum time that a dropped [`TensorThread`] waits for a call in progress.
const LAST_CALL: Duration = Duration::from_secs(5);

impl Drop for TensorThread {
    /// Ends the tensor thread, so that models and recorded graphs are freed before the process runs
    /// its exit handlers, which end CUDA.
    fn drop(&mut self) {
        self.envs.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let begin = Instant::now();
        while !thread.is_finished() && begin.elapsed() < LAST_CALL {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// Time that a generate call waits for further ones: functions of `r1.join` call in quick
/// succession.
const BATCH_WINDOW: Duration = Duration::from_millis(1);

/// A generate call.
type GenerateCall = (Generate, Reply<Response>);
/// A call of a reward model.
type RewardCall = (Reward, Reply<RewardScores>);

/// The jobs of the tensor thread. A deferred job comes before those of the channel.
struct JobQueue<'a> {
    jobs: &'a mpsc::Receiver<Job>,
    deferred: Option<Job>,
}

impl JobQueue<'_> {
    /// The next job; `None` after the last one.
    fn next(&mut self) -> Option<Job> {
        self.deferred.take().or_else(|| self.jobs.recv().ok())
    }

    /// `first` and the calls that follow it, at most `limit`, while `same` accepts them. The first
    /// other job is deferred.
    fn collect<C>(&mut self, first: C, limit: usize, same: impl Fn(Job) -> std::result::Result<C, Box<Job>>) -> Vec<C> {
        let mut batch = vec![first];
        while batch.len() < limit {
            let Some(next) = self.deferred.take().or_else(|| self.jobs.recv_timeout(BATCH_WINDOW).ok()) else { break };
            match same(next) {
                Ok(call) => batch.push(call),
                Err(other) => {
                    self.deferred = Some(*other);
                    break;
                }
            }
        }
        batch
    }

    /// The generate calls of the same model.
    fn collect_generate(&mut self, first: GenerateCall) -> Vec<GenerateCall> {
        let model = first.0.model;
        self.collect(first, models::MAX_BATCH, |job| match job {
            Job::Call(Call::Model(ModelCall::Generate(next, reply))) if next.model == model => Ok((next, reply)),
            other => Err(Box::new(other)),
        })
    }

    /// The calls of the same reward model.
    fn collect_rewards(&mut self, first: RewardCall) -> Vec<RewardCall> {
        let model = first.0.model;
        self.collect(first, reward_models::MAX_BATCH, |job| match job {
            Job::Call(Call::Model(ModelCall::Reward(next, reply))) if next.model == model => Ok((next, reply)),
            other => Err(Box::new(other)),
        })
    }
}

fn answer(jobs: &mpsc::Receiver<Job>, reporter: Reporter) {
    let mut reward_models = RewardModels::new(reporter.clone());
    let mut models = Models::new(reporter);
    let mut trainings = Trainings::default();
    let mut jobs = JobQueue { jobs, deferred: None };
    while let Some(job) = jobs.next() {
        match job {
            Job::Call(Call::Model(ModelCall::Generate(request, reply))) => {
                models.generate(jobs.collect_generate((request, reply)));
            }
            Job::Call(Call::Model(ModelCall::OpenRewardModel(request, reply))) => {
                reply.send(reward_models.open(&request.name));
            }
            Job::Call(Call::Model(ModelCall::Reward(request, reply))) => {
                reward_models.answer(jobs.collect_rewards((request, reply)));
            }
            Job::Call(Call::Model(call)) => models.answer(call),
            Job::Call(Call::Rl(call)) => rl::answer(call),
            Job::Call(Call::Training(call)) => trainings.answer(call),
            // Scripts have a thread of their own.
            Job::Call(Call::Env(_)) => {}
            Job::Serve { model, queue, served } => {
                // A caller that has stopped waits for no result.
                let _ = served.send(models.serve(model, queue));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::script::services::model::{CloseModel, Prompt, ResponseOptions, SamplingFields};
    use crate::script::services::request::Request;

    fn job<R: Request<Calls: Into<Call>>>(request: R) -> Job {
        Job::Call(request.into_call(Reply::channel().0).into())
    }

    fn generate(model: u64) -> Job {
        let prompt = Prompt::Ids(vec![1]);
        job(Generate { model, prompt, options: ResponseOptions::default(), sampling: SamplingFields::default() })
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_dropped_tensor_thread_has_ended() {
        let running = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            tasks.flatten().map(name).filter(|name| name.trim() == "r1-tensors").count()
        };
        let services = TensorThread::new(Reporter::silent());
        let (_, queue) = engine::channel();
        let (sender, served) = oneshot::channel();
        services.send_tensors(Job::Serve { model: 1, queue, served: sender }).unwrap();
        assert!(served.blocking_recv().unwrap().is_err(), "no model is open");
        assert_eq!(running(), 1);
        drop(services);
        assert_eq!(running(), 0);
    }

    #[test]
    fn concurrent_generate_calls_of_one_model_are_batched() {
        let (sender, jobs) = mpsc::channel();
        for next in [generate(1), generate(1), generate(2), job(CloseModel { model: 1 }), generate(1)] {
            sender.send(next).unwrap();
        }
        drop(sender);
        let mut batches = Vec::new();
        let mut jobs = JobQueue { jobs: &jobs, deferred: None };
        while let Some(next) = jobs.next() {
            match next {
                Job::Call(Call::Model(ModelCall::Generate(request, reply))) => {
                    batches.push(("generate", jobs.collect_generate((request, reply)).len()));
                }
                _ => batches.push(("close", 1)),
            }
        }
        // The order of the calls is kept: a model is not used after its close.
        assert_eq!(batches, [("generate", 2), ("generate", 1), ("close", 1), ("generate", 1)]);
    }
}
