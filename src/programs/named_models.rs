//! The models that scripts name, on the thread that owns their tensors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use super::open_model::OpenModel;
use super::reward_models::OpenRewardModel;
use crate::config::{DeviceChoice, PolicySettings};
use crate::error::{Error, Kind, Result};
use crate::script::NamedModels;
use crate::script::named_models::{ModelInput, ModelResponse, ResponseRequest, RewardScores};
use crate::telemetry::Reporter;

/// Work of the thread.
type ModelCall = Box<dyn FnOnce(Rc<OpenModels>) -> LocalBoxFuture<'static, ()> + Send>;

/// The thread of the models, which starts with the first request. Concurrent requests to a model
/// are batched.
pub struct NamedModelThread {
    reporter: Reporter,
    running: Mutex<Option<ModelThread>>,
}

struct ModelThread {
    jobs: UnboundedSender<ModelCall>,
    thread: JoinHandle<()>,
}

/// Maximum time that [`NamedModelThread::stop`] waits for a forward pass.
const LAST_CALL: Duration = Duration::from_secs(5);

impl NamedModelThread {
    /// The reporter shows downloads from the Hub.
    pub fn new(reporter: Reporter) -> Self {
        Self { reporter, running: Mutex::new(None) }
    }

    /// Ends the thread, so that models and recorded graphs are freed before the process runs its
    /// exit handlers, which end CUDA.
    pub fn stop(&self) {
        let Some(ModelThread { jobs, thread }) = self.lock().take() else { return };
        drop(jobs);
        let begin = Instant::now();
        while !thread.is_finished() && begin.elapsed() < LAST_CALL {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ModelThread>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the thread; the future waits for its result.
    fn call<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&OpenModels) -> Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let (reply, result) = oneshot::channel();
        let sent = self.send(Box::new(move |models| {
            Box::pin(async move {
                // A caller that has stopped waits for no result.
                let _ = reply.send(work(&models).await);
            })
        }));
        Box::pin(async move {
            sent?;
            result.await.map_err(|_| stopped())?
        })
    }

    fn send(&self, job: ModelCall) -> Result<()> {
        let mut running = self.lock();
        let running = match &mut *running {
            Some(running) => running,
            none => none.insert(start(self.reporter.clone())?),
        };
        running.jobs.send(job).map_err(|_| stopped())
    }
}

fn stopped() -> Error {
    Error::new(Kind::Internal, "the thread of the models has stopped")
}

/// Starts the thread; it ends when the sender is dropped.
fn start(reporter: Reporter) -> Result<ModelThread> {
    let (sender, mut jobs) = unbounded_channel::<ModelCall>();
    let failed = |error: std::io::Error| Error::new(Kind::Internal, format!("can't start a thread: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let body = move || {
        LocalSet::new().block_on(&runtime, async move {
            let models =
                Rc::new(OpenModels { reporter, models: RefCell::default(), reward_models: RefCell::default() });
            while let Some(job) = jobs.recv().await {
                spawn_local(job(Rc::clone(&models)));
            }
        });
    };
    let thread = std::thread::Builder::new().name("r1-models".to_owned()).spawn(body).map_err(failed)?;
    Ok(ModelThread { jobs: sender, thread })
}

/// The open models by name.
struct OpenModels {
    reporter: Reporter,
    models: RefCell<BTreeMap<String, Rc<OpenModel>>>,
    reward_models: RefCell<BTreeMap<String, Rc<OpenRewardModel>>>,
}

impl OpenModels {
    fn model(&self, name: &str) -> Result<Rc<OpenModel>> {
        opened(&self.models, name, || {
            let policy = PolicySettings { model: name.to_owned(), ..PolicySettings::default() };
            OpenModel::open(policy, None, &self.reporter)
        })
    }

    fn reward_model(&self, name: &str, device: DeviceChoice) -> Result<Rc<OpenRewardModel>> {
        let on_device = format!("{name} on {}", device.name());
        opened(&self.reward_models, &on_device, || OpenRewardModel::open(name, device, &self.reporter))
    }
}

/// The model of a name, which `open` opens if it is not open.
fn opened<M>(models: &RefCell<BTreeMap<String, Rc<M>>>, name: &str, open: impl FnOnce() -> Result<M>) -> Result<Rc<M>> {
    if let Some(model) = models.borrow().get(name) {
        return Ok(Rc::clone(model));
    }
    let model = Rc::new(open()?);
    models.borrow_mut().insert(name.to_owned(), Rc::clone(&model));
    Ok(model)
}

impl NamedModels for NamedModelThread {
    fn generate(&self, model: &str, request: ResponseRequest) -> BoxFuture<'static, Result<ModelResponse>> {
        let name = model.to_owned();
        self.call(async move |models| models.model(&name)?.generate(request).await)
    }

    fn score(
        &self,
        model: &str,
        prompt: ModelInput,
        text: String,
        temperature: f64,
    ) -> BoxFuture<'static, Result<Vec<f64>>> {
        let name = model.to_owned();
        self.call(async move |models| models.model(&name)?.score(prompt, &text, temperature))
    }

    fn reward(
        &self,
        model: &str,
        device: DeviceChoice,
        prompt: ModelInput,
    ) -> BoxFuture<'static, Result<RewardScores>> {
        let name = model.to_owned();
        self.call(async move |models| models.reward_model(&name, device)?.reward(prompt).await)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_stopped_thread_has_ended() {
        let running = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            tasks.flatten().map(name).filter(|name| name.trim() == "r1-models").count()
        };
        let models = NamedModelThread::new(Reporter::silent());
        let missing = models.score("missing", ModelInput::Ids(vec![1]), String::new(), 1.0);
        assert!(futures_util::FutureExt::now_or_never(missing).is_none());
        // A thread has its name a moment after it was started.
        let until = Instant::now() + Duration::from_secs(30);
        while running() == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(running(), 1);
        models.stop();
        assert_eq!(running(), 0);
    }
}
