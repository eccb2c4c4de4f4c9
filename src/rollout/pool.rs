//! Script worker threads. Each owns one VM and runs many trajectories as tasks of a single-threaded runtime.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{Spec, drive};
use crate::engine::Policy;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Status, Trajectory};
use crate::script::{Script, Split, Worker};
use crate::text::Renderer;

/// How many threads, how much at once.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Threads; 0 picks one for every four cores.
    pub workers: usize,
    /// Trajectories in flight, over all threads.
    pub concurrency: usize,
    /// Tries after a failed one.
    pub retries: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { workers: 0, concurrency: 128, retries: 1 }
    }
}

/// Called for every finished trajectory, from a worker thread.
pub type Progress = Arc<dyn Fn(&Trajectory) + Send + Sync>;

/// A [`Progress`] that tells nobody.
pub fn no_progress() -> Progress {
    Arc::new(|_| {})
}

struct Job {
    spec: Spec,
    policy: Arc<dyn Policy>,
    progress: Progress,
    reply: mpsc::UnboundedSender<Result<Trajectory>>,
    stop: Arc<AtomicBool>,
}

struct Thread {
    jobs: mpsc::UnboundedSender<Job>,
    handle: Option<JoinHandle<()>>,
}

/// Worker threads with one loaded script each.
pub struct Pool {
    threads: Vec<Thread>,
    train_rows: Option<u64>,
    eval_rows: Option<u64>,
}

impl Pool {
    /// Starts the threads and loads the script in each; the first load error is returned.
    pub fn new(script: &Script, renderer: &Arc<Renderer>, options: &PoolOptions) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = if options.workers == 0 { cores.div_ceil(4) } else { options.workers };
        let each = options.concurrency.div_ceil(count).max(1);
        let mut pool = Self { threads: Vec::new(), train_rows: None, eval_rows: None };
        for index in 0..count {
            let (jobs, queue) = mpsc::unbounded_channel();
            let (ready, loaded) = oneshot::channel();
            let (script, renderer, retries) = (script.clone(), Arc::clone(renderer), options.retries);
            let handle = std::thread::Builder::new()
                .name(format!("script-{index}"))
                .spawn(move || work(&script, &renderer, each, retries, ready, queue))
                .map_err(|error| Error::new(Kind::Internal, format!("can't start a script worker thread: {error}")))?;
            pool.threads.push(Thread { jobs, handle: Some(handle) });
            let (train, eval) = loaded.blocking_recv().map_err(|_| gone())??;
            (pool.train_rows, pool.eval_rows) = (train, eval);
        }
        Ok(pool)
    }

    /// Rows of a split; `None` when the recipe has no such split.
    pub fn rows(&self, split: Split) -> Option<u64> {
        match split {
            Split::Train => self.train_rows,
            Split::Eval => self.eval_rows,
        }
    }

    /// Hands out the trajectories and returns at once; they run while the caller serves the policy's queue. The
    /// policy handle is dropped with the last trajectory.
    pub fn start(&self, policy: &Arc<dyn Policy>, specs: Vec<Spec>, progress: &Progress) -> Result<Pending> {
        let (reply, results) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let expected = specs.len();
        for (index, spec) in specs.into_iter().enumerate() {
            let job = Job {
                spec,
                policy: Arc::clone(policy),
                progress: Arc::clone(progress),
                reply: reply.clone(),
                stop: Arc::clone(&stop),
            };
            self.threads[index % self.threads.len()].jobs.send(job).map_err(|_| gone())?;
        }
        Ok(Pending { results, stop, expected })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let handles: Vec<_> = self.threads.drain(..).filter_map(|thread| thread.handle).collect();
        for handle in handles {
            // A worker that panicked has been reported by the missing reply already.
            let _ = handle.join();
        }
    }
}

/// Trajectories on their way.
pub struct Pending {
    results: mpsc::UnboundedReceiver<Result<Trajectory>>,
    stop: Arc<AtomicBool>,
    expected: usize,
}

impl Pending {
    /// A flag that ends what has not started yet (Ctrl-C).
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Waits for all of them; ordered by group and sample. The first fatal error wins.
    pub fn finish(mut self) -> Result<Vec<Trajectory>> {
        let mut trajectories = Vec::new();
        while let Some(result) = self.results.blocking_recv() {
            trajectories.push(result?);
        }
        if trajectories.len() < self.expected {
            return Err(gone());
        }
        trajectories.sort_by_key(|trajectory| (trajectory.group, trajectory.sample));
        Ok(trajectories)
    }
}

fn gone() -> Error {
    Error::new(Kind::Internal, "a script worker thread ended early")
}

type Rows = (Option<u64>, Option<u64>);

fn work(
    script: &Script,
    renderer: &Arc<Renderer>,
    concurrency: usize,
    retries: usize,
    ready: oneshot::Sender<Result<Rows>>,
    mut queue: mpsc::UnboundedReceiver<Job>,
) {
    let loaded = Worker::new(script, Some(Arc::clone(renderer))).and_then(|worker| {
        let rows = (worker.rows(Split::Train)?, worker.rows(Split::Eval)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(Kind::Internal, format!("can't start a runtime: {error}")))?;
        Ok((worker, rows, runtime))
    });
    let (worker, runtime) = match loaded {
        Ok((worker, rows, runtime)) => {
            let _ = ready.send(Ok(rows));
            (Rc::new(worker), runtime)
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let permits = Arc::new(Semaphore::new(concurrency));
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let Some(job) = queue.recv().await else { break };
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let (worker, renderer) = (Rc::clone(&worker), Arc::clone(renderer));
            tasks.spawn_local(async move {
                let result = attempt(&worker, &renderer, &job, retries).await;
                if let Ok(trajectory) = &result {
                    (job.progress)(trajectory);
                }
                let _ = job.reply.send(result);
                drop(permit);
            });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    });
}

/// Drives one trajectory; a failed one is tried again in a fresh environment, under the same seeds.
async fn attempt(worker: &Worker, renderer: &Renderer, job: &Job, retries: usize) -> Result<Trajectory> {
    let mut left = retries;
    loop {
        if job.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "stopped"));
        }
        let trajectory = drive(worker, renderer, job.policy.as_ref(), &job.spec).await?;
        let again = trajectory.status.is_failure() && !matches!(trajectory.status, Status::Aborted);
        if !again || left == 0 {
            return Ok(trajectory);
        }
        left -= 1;
    }
}
