//! Script worker threads, and the trajectories on their way. What a thread does is in `thread`.
//!
//! A pool has a *generation* of its script. [`Pool::replace`] gives it the next one, which starts with the next group: a
//! group is a single comparison, and all its members run on the generation that its first member found.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use super::Spec;
use super::thread::work;
use crate::engine::Policy;
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::script::{Script, Split};
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

/// A script as it was when it was loaded, and how many came before it.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) script: Script,
}

/// Trajectories that were handed out together.
pub(super) struct Batch {
    current: Arc<Mutex<Arc<Generation>>>,
    /// What a group's first member found.
    groups: Mutex<HashMap<u64, Arc<Generation>>>,
    pub(super) policy: Arc<dyn Policy>,
    pub(super) progress: Progress,
    pub(super) retries: usize,
    pub(super) stop: Arc<AtomicBool>,
}

impl Batch {
    /// The generation that a member of `group` runs on.
    pub(super) fn generation(&self, group: u64) -> Arc<Generation> {
        Arc::clone(lock(&self.groups).entry(group).or_insert_with(|| Arc::clone(&lock(&self.current))))
    }
}

pub(super) struct Job {
    pub(super) spec: Spec,
    pub(super) batch: Arc<Batch>,
    pub(super) reply: mpsc::UnboundedSender<Result<Trajectory>>,
}

struct Thread {
    jobs: mpsc::UnboundedSender<Job>,
    /// Bytes of its virtual machines.
    memory: Arc<AtomicU64>,
    handle: Option<JoinHandle<()>>,
}

/// Worker threads with one loaded script each.
pub struct Pool {
    threads: Vec<Thread>,
    current: Arc<Mutex<Arc<Generation>>>,
    retries: usize,
    train_rows: Option<u64>,
    eval_rows: Option<u64>,
}

impl Pool {
    /// Starts the threads and loads the script in each; the first load error is returned.
    pub fn new(script: &Script, renderer: &Arc<Renderer>, options: &PoolOptions) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = if options.workers == 0 { cores.div_ceil(4) } else { options.workers };
        let each = options.concurrency.div_ceil(count).max(1);
        let first = Arc::new(Generation { number: 0, script: script.clone() });
        let mut pool = Self {
            threads: Vec::new(),
            current: Arc::new(Mutex::new(Arc::clone(&first))),
            retries: options.retries,
            train_rows: None,
            eval_rows: None,
        };
        for index in 0..count {
            let (jobs, queue) = mpsc::unbounded_channel();
            let (ready, loaded) = oneshot::channel();
            let memory = Arc::new(AtomicU64::new(0));
            let (first, renderer, own) = (Arc::clone(&first), Arc::clone(renderer), Arc::clone(&memory));
            let handle = std::thread::Builder::new()
                .name(format!("script-{index}"))
                .stack_size(STACK)
                .spawn(move || work(first, renderer, each, &own, ready, queue))
                .map_err(|error| Error::new(Kind::Internal, format!("can't start a script worker thread: {error}")))?;
            pool.threads.push(Thread { jobs, memory, handle: Some(handle) });
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

    /// Lets groups that have not begun run on `script`; those in flight finish on the one they began with. Gives the
    /// number of the generation. The script's data must be what it was.
    pub fn replace(&self, script: Script) -> u64 {
        let mut current = lock(&self.current);
        let number = current.number + 1;
        *current = Arc::new(Generation { number, script });
        number
    }

    /// Tries after a failed one, from the next [`Pool::start`] on.
    pub fn set_retries(&mut self, retries: usize) {
        self.retries = retries;
    }

    /// MiB that the scripts' virtual machines hold, as of the last trajectory of each thread.
    pub fn memory(&self) -> f64 {
        let bytes: u64 = self.threads.iter().map(|thread| thread.memory.load(Ordering::Relaxed)).sum();
        bytes as f64 / f64::from(1 << 20)
    }

    /// Hands out the trajectories and returns at once; they run while the caller serves the policy's queue. The
    /// policy handle is dropped with the last trajectory.
    pub fn start(&self, policy: &Arc<dyn Policy>, specs: Vec<Spec>, progress: &Progress) -> Result<Pending> {
        let (reply, results) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let expected = specs.len();
        let batch = Arc::new(Batch {
            current: Arc::clone(&self.current),
            groups: Mutex::default(),
            policy: Arc::clone(policy),
            progress: Arc::clone(progress),
            retries: self.retries,
            stop: Arc::clone(&stop),
        });
        for (index, spec) in specs.into_iter().enumerate() {
            let job = Job { spec, batch: Arc::clone(&batch), reply: reply.clone() };
            self.threads[index % self.threads.len()].jobs.send(job).map_err(|_| gone())?;
        }
        Ok(Pending { results, stop, expected })
    }
}

/// Bytes of a thread's stack: tools that call tools have their waits nested on it.
const STACK: usize = 16 << 20;

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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> Error {
    Error::new(Kind::Internal, "a script worker thread ended early")
}
