//! Script worker threads, and the trajectories in flight. The body of a thread is in `thread`.
//!
//! A pool has a *generation* of its script. A [`Replacer`] sets the next one, which starts with the
//! next group: the members of a group are compared with each other, so all run on the generation of
//! the first one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::thread::work;
use super::tree::Tree;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Policy, Trajectory};
use crate::script::{Script, Split};
use crate::text::Renderer;

/// Number of threads and of concurrent trajectories.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Threads; 0: one per four cores.
    pub workers: usize,
    /// Trajectories in flight, over all threads.
    pub concurrency: usize,
    /// Maximum retries of a failed trajectory, if a retry could have another result.
    pub retries: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { workers: 0, concurrency: 128, retries: 1 }
    }
}

/// Called for every finished trajectory, from a worker thread.
pub type OnFinished = Arc<dyn Fn(&Trajectory) + Send + Sync>;

/// A [`OnFinished`] that does nothing.
pub fn no_progress() -> OnFinished {
    Arc::new(|_| {})
}

/// A version of the script, and its number.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) script: Script,
}

/// Trajectories of one call of [`Pool::start`].
pub(super) struct PoolBatch {
    current: Arc<Mutex<Arc<Generation>>>,
    /// The generation of each group that has started.
    groups: Mutex<HashMap<u64, Arc<Generation>>>,
    pub(super) policy: Arc<dyn Policy>,
    pub(super) progress: OnFinished,
    pub(super) retries: usize,
    /// Ends what has not started yet.
    pub(super) stop: Arc<AtomicBool>,
    /// Ends trajectories before their next response.
    pub(super) halt: Arc<AtomicBool>,
}

impl PoolBatch {
    /// The generation that a member of `group` runs on.
    pub(super) fn generation(&self, group: u64) -> Arc<Generation> {
        Arc::clone(lock(&self.groups).entry(group).or_insert_with(|| Arc::clone(&lock(&self.current))))
    }
}

pub(super) struct Job {
    pub(super) tree: Tree,
    pub(super) batch: Arc<PoolBatch>,
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
            let (first, renderer, shared_memory) = (Arc::clone(&first), Arc::clone(renderer), Arc::clone(&memory));
            let handle = std::thread::Builder::new()
                .name(format!("script-{index}"))
                .stack_size(STACK)
                .spawn(move || work(first, renderer, each, &shared_memory, ready, queue))
                .map_err(|error| Error::new(Kind::Internal, format!("can't start a script worker thread: {error}")))?;
            pool.threads.push(Thread { jobs, memory, handle: Some(handle) });
            let (train, eval) = loaded.blocking_recv().map_err(|_| worker_ended())??;
            (pool.train_rows, pool.eval_rows) = (train, eval);
        }
        Ok(pool)
    }

    /// Rows of a split; `None` if the recipe has no such split.
    pub fn rows(&self, split: Split) -> Option<u64> {
        match split {
            Split::Train => self.train_rows,
            Split::Eval => self.eval_rows,
        }
    }

    /// Detaches the threads without waiting for their running calls; for a process that is about to
    /// exit.
    pub fn abandon(&mut self) {
        self.threads.iter_mut().for_each(|thread| thread.handle = None);
    }

    /// Sets the next generation of the pool, from any thread.
    pub fn replacer(&self) -> Replacer {
        Replacer(Arc::clone(&self.current))
    }

    /// The number of the generation for groups that start now.
    pub fn generation(&self) -> u64 {
        lock(&self.current).number
    }

    /// Sets the maximum retries, from the next [`Pool::start`] on.
    pub fn set_retries(&mut self, retries: usize) {
        self.retries = retries;
    }

    /// MiB used by the scripts' virtual machines, as of the last trajectory of each thread.
    pub fn memory(&self) -> f64 {
        let bytes: u64 = self.threads.iter().map(|thread| thread.memory.load(Ordering::Relaxed)).sum();
        bytes as f64 / f64::from(1 << 20)
    }

    /// Starts trajectories (a [`Spec`](super::Spec) is a tree of one) and returns immediately; they
    /// run while the caller serves the policy's queue. The policy handle is dropped with the last
    /// trajectory.
    pub fn start(
        &self,
        policy: &Arc<dyn Policy>,
        trees: Vec<impl Into<Tree>>,
        progress: &OnFinished,
    ) -> Result<PendingTrajectories> {
        let (reply, results) = mpsc::unbounded_channel();
        let (stop, halt) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let mut expected = 0;
        let batch = Arc::new(PoolBatch {
            current: Arc::clone(&self.current),
            groups: Mutex::default(),
            policy: Arc::clone(policy),
            progress: Arc::clone(progress),
            retries: self.retries,
            stop: Arc::clone(&stop),
            halt: Arc::clone(&halt),
        });
        for (index, tree) in trees.into_iter().map(Into::into).enumerate() {
            expected += tree.size();
            let job = Job { tree, batch: Arc::clone(&batch), reply: reply.clone() };
            self.threads[index % self.threads.len()].jobs.send(job).map_err(|_| worker_ended())?;
        }
        Ok(PendingTrajectories { results, stop, halt, expected, received: Vec::new() })
    }
}

/// Sets new versions of a pool's script.
#[derive(Clone)]
pub struct Replacer(Arc<Mutex<Arc<Generation>>>);

impl Replacer {
    /// Groups that have not started run on `script`; those in flight finish on their generation.
    /// Returns the number of the generation. The script's data must be unchanged.
    pub fn replace(&self, script: Script) -> u64 {
        let mut current = lock(&self.0);
        let number = current.number + 1;
        *current = Arc::new(Generation { number, script });
        number
    }

    /// The number of the generation for groups that start now.
    pub fn generation(&self) -> u64 {
        lock(&self.0).number
    }
}

/// Stack size of a thread in bytes: waits of nested tool calls are on it.
const STACK: usize = 16 << 20;

impl Drop for Pool {
    fn drop(&mut self) {
        let handles: Vec<_> = self.threads.drain(..).filter_map(|thread| thread.handle).collect();
        for handle in handles {
            // The missing reply of a panicked worker was already reported.
            let _ = handle.join();
        }
    }
}

/// Trajectories in flight.
pub struct PendingTrajectories {
    results: mpsc::UnboundedReceiver<Result<Trajectory>>,
    stop: Arc<AtomicBool>,
    halt: Arc<AtomicBool>,
    expected: usize,
    received: Vec<Result<Trajectory>>,
}

impl PendingTrajectories {
    /// Whether all trajectories have ended. Does not wait.
    pub fn is_done(&mut self) -> bool {
        loop {
            match self.results.try_recv() {
                Ok(result) => self.received.push(result),
                Err(TryRecvError::Empty) => return self.received.len() >= self.expected,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// A flag that ends what has not started yet (Ctrl-C).
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Ends the trajectories before their next response, and takes those that have ended already.
    pub fn halt(&mut self) -> Vec<Result<Trajectory>> {
        self.is_done();
        self.stop.store(true, Ordering::Relaxed);
        self.halt.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.received)
    }

    /// Adds trajectories that have ended before.
    pub fn add(&mut self, ended: Vec<Result<Trajectory>>) {
        self.expected += ended.len();
        self.received.extend(ended);
    }

    /// Waits for all trajectories; ordered by group and sample. Returns the first fatal error.
    pub fn finish(mut self) -> Result<Vec<Trajectory>> {
        // Until the trajectories have released their conversations, too.
        while let Some(result) = self.results.blocking_recv() {
            self.received.push(result);
        }
        let mut trajectories = self.received.into_iter().collect::<Result<Vec<_>>>()?;
        if trajectories.len() < self.expected {
            return Err(worker_ended());
        }
        trajectories.sort_by_key(|trajectory| (trajectory.group, trajectory.sample));
        Ok(trajectories)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn worker_ended() -> Error {
    Error::new(Kind::Internal, "a script worker thread ended early")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;
    use crate::mdp::Scripted;
    use crate::rollout::Spec;

    /// A replacement while a group is in flight starts with the next group, on every thread.
    #[test]
    fn no_group_mixes_generations() {
        let dir = tempfile::tempdir().unwrap();
        let load = |reward: u32| {
            let path = dir.path().join("x.lua");
            let data =
                "data = { train = r1.data.generate { count = 8, row = function(n) return { prompt = 'Say' } end } }";
            std::fs::write(&path, format!("return r1.recipe {{ reward = function() return {reward} end, {data} }}"))
                .unwrap();
            Script::load(&path, &[]).unwrap()
        };
        let (one, two) = (load(1), load(2));
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "retool").unwrap());
        let policy: Arc<dyn Policy> = Arc::new(Scripted::new(|_| vec![5]));
        for workers in [1, 3] {
            let pool = Pool::new(&one, &renderer, &PoolOptions { workers, concurrency: workers, retries: 0 }).unwrap();
            let specs = |groups: std::ops::Range<u64>| -> Vec<Spec> {
                let of = |group: u64, sample| Spec { group, sample, ..Spec::new(Split::Train, group, &one.settings) };
                groups.flat_map(|group| (0..4).map(move |sample| of(group, sample))).collect()
            };
            let (replacer, script) = (pool.replacer(), Mutex::new(Some(two.clone())));
            let progress: OnFinished = Arc::new(move |_| {
                if let Some(script) = lock(&script).take() {
                    assert_eq!(replacer.replace(script), 1);
                }
            });
            let trajectories = pool.start(&policy, specs(0..6), &progress).unwrap().finish().unwrap();
            for group in trajectories.chunks(4) {
                assert!(group.iter().all(|trajectory| trajectory.script_hash == group[0].script_hash));
                let wanted = if group[0].script_hash == one.hash { 1.0 } else { 2.0 };
                assert!(group.iter().all(|t| (t.total_reward() - wanted).abs() < 1e-9), "{group:?}");
            }
            assert_eq!((&trajectories[0].script_hash, &trajectories[23].script_hash), (&one.hash, &two.hash));
            assert_eq!(pool.generation(), 1);
            let later = pool.start(&policy, specs(6..8), &no_progress()).unwrap().finish().unwrap();
            assert!(later.iter().all(|trajectory| trajectory.script_hash == two.hash));
        }
    }
}
