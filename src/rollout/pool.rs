//! Script worker threads, and the trajectories in flight. The body of a thread is in `thread`.
//!
//! A pool has a *generation* of its script. A [`Replacer`] sets the next one, which starts with the
//! next group: the members of a group are compared with each other, so all run on the generation of
//! the first one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};

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
    /// Ends trajectories where they are.
    pub(super) halted: watch::Receiver<bool>,
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
    /// The thread of the next group that is started alone.
    next: AtomicUsize,
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
            next: AtomicUsize::new(0),
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
        self.start_at(0, policy, trees.into_iter().map(Into::into).collect(), progress)
    }

    /// As [`start`](Self::start), for a group of many that are started one by one: they share the
    /// threads.
    pub fn start_group(
        &self,
        policy: &Arc<dyn Policy>,
        trees: Vec<Tree>,
        progress: &OnFinished,
    ) -> Result<PendingTrajectories> {
        self.start_at(self.next.fetch_add(trees.len(), Ordering::Relaxed), policy, trees, progress)
    }

    /// Starts trees on the threads in turn, from thread `first` on.
    fn start_at(
        &self,
        first: usize,
        policy: &Arc<dyn Policy>,
        trees: Vec<Tree>,
        progress: &OnFinished,
    ) -> Result<PendingTrajectories> {
        let (reply, results) = mpsc::unbounded_channel();
        let (stop, (halt, halted)) = (Arc::<AtomicBool>::default(), watch::channel(false));
        let mut expected = 0;
        let batch = Arc::new(PoolBatch {
            current: Arc::clone(&self.current),
            groups: Mutex::default(),
            policy: Arc::clone(policy),
            progress: Arc::clone(progress),
            retries: self.retries,
            stop: Arc::clone(&stop),
            halted,
        });
        for (index, tree) in (first..).zip(trees) {
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
    halt: watch::Sender<bool>,
    expected: usize,
    received: Vec<Result<Trajectory>>,
}

impl PendingTrajectories {
    /// Whether all trajectories have ended. Does not wait.
    pub fn is_done(&mut self) -> bool {
        self.has(self.expected)
    }

    /// Whether this number of trajectories has ended, or there was an error. Does not wait.
    pub fn has(&mut self, count: usize) -> bool {
        loop {
            match self.results.try_recv() {
                Ok(result) => self.received.push(result),
                Err(TryRecvError::Empty) => {
                    return self.received.len() >= count || self.received.iter().any(Result::is_err);
                }
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Takes the first `count` trajectories that have ended, and ends the others.
    ///
    /// # Errors
    /// The first fatal error.
    pub fn take_first(mut self, count: usize) -> Result<Vec<Trajectory>> {
        if count >= self.expected {
            return self.finish();
        }
        let mut first = self.halt();
        first.truncate(count);
        let mut trajectories = first.into_iter().collect::<Result<Vec<_>>>()?;
        if trajectories.len() < count {
            return Err(worker_ended());
        }
        trajectories.sort_by_key(|trajectory| trajectory.sample);
        Ok(trajectories)
    }

    /// A flag that ends what has not started yet (Ctrl-C).
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Ends the trajectories where they are: their requests and calls are dropped. Returns those
    /// that have ended before.
    pub fn halt(&mut self) -> Vec<Result<Trajectory>> {
        self.is_done();
        self.stop.store(true, Ordering::Relaxed);
        self.halt.send_replace(true);
        std::mem::take(&mut self.received)
    }

    /// Adds trajectories that have ended before.
    pub fn add(&mut self, ended: Vec<Result<Trajectory>>) {
        self.expected += ended.len();
        self.received.extend(ended);
    }

    /// Waits for all trajectories; ordered by group and sample. Returns the first fatal error.
    pub fn finish(mut self) -> Result<Vec<Trajectory>> {
        self.is_done();
        if self.received.iter().any(Result::is_err) {
            // The requests of the others get no replies any more.
            self.stop.store(true, Ordering::Relaxed);
            self.halt.send_replace(true);
        }
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

    /// The first of three trajectories waits; the group is complete without it.
    #[test]
    fn a_group_is_complete_with_the_first_that_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lua");
        let script = "local count = 0
            return r1.recipe {
                env = r1.env { reset = function(task)
                    count += 1
                    if count == 1 then r1.sleep(20) end
                    return { messages = { r1.user(task.prompt) } }
                end },
                reward = function() return 1 end,
                data = { train = r1.data.generate { count = 8, row = function(n) return { prompt = 'Say' } end } },
            }";
        std::fs::write(&path, script).unwrap();
        let script = Script::load(&path, &[]).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "retool").unwrap());
        let policy: Arc<dyn Policy> = Arc::new(Scripted::new(|_| vec![5]));
        let options = PoolOptions { workers: 1, concurrency: 3, retries: 0 };
        let pool = Pool::new(&script, &renderer, &options).unwrap();
        let spec = |sample| Spec { sample, ..Spec::new(Split::Train, 0, &script.settings) };
        let began = std::time::Instant::now();
        let mut group =
            pool.start_group(&policy, (0..3).map(|one| spec(one).into()).collect(), &no_progress()).unwrap();
        while !group.has(2) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!group.is_done());
        let samples: Vec<u32> = group.take_first(2).unwrap().iter().map(|one| one.sample).collect();
        assert_eq!(samples, [1, 2]);
        // The thread ends without waiting for the first one.
        drop(pool);
        assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    }

    /// The policy fails for one trajectory, and never answers the others.
    #[test]
    fn the_first_error_ends_the_other_trajectories() {
        struct Failing(Mutex<Vec<oneshot::Sender<Result<crate::mdp::Completion>>>>);
        impl Policy for Failing {
            fn submit(&self, _: crate::mdp::Request) -> crate::mdp::PendingReply {
                let (sender, reply) = oneshot::channel();
                let mut waiting = lock(&self.0);
                waiting.push(sender);
                if waiting.len() == 3 {
                    let _ = waiting.remove(0).send(Err(Error::new(Kind::Device, "no memory")));
                }
                reply.into()
            }
            fn score(&self, _: crate::mdp::Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
                oneshot::channel().1
            }
            fn release(&self, _: u64) {}
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lua");
        let data = "data = { train = r1.data.generate { count = 8, row = function() return { prompt = 'Say' } end } }";
        std::fs::write(&path, format!("return r1.recipe {{ reward = function() return 1 end, {data} }}")).unwrap();
        let script = Script::load(&path, &[]).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "retool").unwrap());
        let options = PoolOptions { workers: 1, concurrency: 3, retries: 0 };
        let pool = Pool::new(&script, &renderer, &options).unwrap();
        let spec = |sample| Spec { sample, ..Spec::new(Split::Train, 0, &script.settings) };
        let policy: Arc<dyn Policy> = Arc::new(Failing(Mutex::default()));
        let pending = pool.start(&policy, (0..3).map(spec).collect(), &no_progress()).unwrap();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut pending = pending;
            while !pending.is_done() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            done.send(pending.finish())
        });
        let result = ended.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        assert_eq!(result.unwrap_err().message, "no memory");
    }

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
