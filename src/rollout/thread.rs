//! What a script worker thread does: it owns virtual machines and runs trajectories as tasks of a single-threaded runtime.

use std::cell::RefCell;
use std::rc::{Rc, Weak as RcWeak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::attempt::Stage;
use super::drive::{branch_off, drive, drive_root};
use super::pool::{Batch, Generation, Job};
use super::tree::Points;
use crate::engine::Policy;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Status, Trajectory};
use crate::script::{Split, Worker};
use crate::text::Renderer;

/// Rows of `data.train` and `data.eval`.
type Rows = (Option<u64>, Option<u64>);

/// The thread's body: loads the first generation, tells that it is ready, runs jobs until there are no more.
pub(super) fn work(
    first: Arc<Generation>,
    renderer: Arc<Renderer>,
    concurrency: usize,
    memory: &Arc<AtomicU64>,
    ready: oneshot::Sender<Result<Rows>>,
    mut queue: mpsc::UnboundedReceiver<Job>,
) {
    let machines = Rc::new(Machines { renderer, all: RefCell::default(), memory: Arc::clone(memory) });
    let started = machines.worker(&first).and_then(|worker| {
        let rows = (worker.rows(Split::Train)?, worker.rows(Split::Eval)?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::new(Kind::Internal, format!("can't start a runtime: {error}")))?;
        Ok((rows, runtime))
    });
    // From here on the pool decides how long the generation lives.
    drop(first);
    let runtime = match started {
        Ok((rows, runtime)) => {
            let _ = ready.send(Ok(rows));
            runtime
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
            let (machines, permits) = (Rc::clone(&machines), Arc::clone(&permits));
            tasks.spawn_local(async move { grow(&machines, &job, permit, &permits).await });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    });
}

/// Runs a tree: the root, and then what branches off it, side by side.
async fn grow(machines: &Machines, job: &Job, permit: OwnedSemaphorePermit, permits: &Semaphore) {
    let Job { tree, batch, .. } = job;
    let generation = batch.generation(tree.root.group);
    let policy = batch.policy.as_ref();
    let mut points = Points::new(tree);
    // States live in the virtual machine that made them.
    let mut home = None;
    let root = retrying(machines, batch, &generation, async |worker| {
        points.clear();
        let stage = Stage { worker: &worker, renderer: &machines.renderer };
        let trajectory = drive_root(stage, policy, &tree.root, Some(&mut points)).await;
        home = Some(worker);
        trajectory
    });
    let root = root.await;
    drop(permit);
    let failed = root.as_ref().map_or(true, |trajectory| trajectory.status.is_failure());
    let gone = root.is_err();
    tell(job, root);
    let conversation = Rc::new(Conversation(policy, tree.root.seed.trajectory));
    if gone {
        return;
    }
    if failed {
        points.clear();
    }
    let branches = points.of_branches();
    let branches = branches.into_iter().zip(&tree.branches).map(|(point, spec)| {
        let (home, generation) = (home.clone(), &generation);
        // The cache of what they share is kept until each of them has made use of it.
        let mut conversation = point.map(|_| Rc::clone(&conversation));
        async move {
            // Never closed.
            let _permit = permits.acquire().await;
            let branch = retrying(machines, batch, generation, async |worker| match (point, &home) {
                (Some(point), Some(home)) => {
                    let stage = Stage { worker: home, renderer: &machines.renderer };
                    branch_off(stage, policy, point, spec, || conversation = None).await
                }
                _ => drive(&worker, &machines.renderer, policy, spec).await,
            });
            tell(job, branch.await);
        }
    });
    let branches: Vec<_> = branches.collect();
    drop(conversation);
    join_all(branches).await;
}

/// A conversation that the policy holds in its cache.
struct Conversation<'a>(&'a dyn Policy, u64);

impl Drop for Conversation<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

fn tell(job: &Job, result: Result<Trajectory>) {
    if let Ok(trajectory) = &result {
        (job.batch.progress)(trajectory);
    }
    let _ = job.reply.send(result);
}

/// Makes a trajectory; a failed one is tried again, under the same seeds, from where it began.
async fn retrying(
    machines: &Machines,
    batch: &Batch,
    generation: &Arc<Generation>,
    mut make: impl AsyncFnMut(Rc<Worker>) -> Result<Trajectory>,
) -> Result<Trajectory> {
    let mut left = batch.retries;
    loop {
        if batch.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "stopped"));
        }
        let worker = machines.worker(generation)?;
        let trajectory = make(Rc::clone(&worker)).await?;
        machines.rest(generation, &worker);
        let again = trajectory.status.is_failure() && !matches!(trajectory.status, Status::Aborted);
        if !again || left == 0 {
            return Ok(trajectory);
        }
        left -= 1;
    }
}

/// The thread's virtual machines: one a generation that is in use.
struct Machines {
    renderer: Arc<Renderer>,
    all: RefCell<Vec<Machine>>,
    /// Bytes of all of them.
    memory: Arc<AtomicU64>,
}

struct Machine {
    generation: Weak<Generation>,
    worker: Rc<Worker>,
    /// What it has replaced, while trajectories still run there.
    worn: RcWeak<Worker>,
}

impl Machines {
    /// The worker for a generation, made when it is first needed.
    fn worker(&self, generation: &Arc<Generation>) -> Result<Rc<Worker>> {
        let mut all = self.all.borrow_mut();
        all.retain(|machine| machine.generation.strong_count() > 0);
        if let Some(machine) = all.iter().find(|machine| machine.generation.as_ptr() == Arc::as_ptr(generation)) {
            return Ok(Rc::clone(&machine.worker));
        }
        let worker = Rc::new(Worker::new(&generation.script, Some(Arc::clone(&self.renderer)))?);
        let generation = Arc::downgrade(generation);
        all.push(Machine { generation, worker: Rc::clone(&worker), worn: RcWeak::new() });
        Ok(worker)
    }

    /// After a trajectory: a worn machine finishes what it has begun, and the next trajectories get a fresh one. There are
    /// never more than two of a generation.
    fn rest(&self, generation: &Arc<Generation>, worker: &Rc<Worker>) {
        let worn = worker.is_worn();
        let mut all = self.all.borrow_mut();
        let own = all.iter_mut().find(|machine| Rc::ptr_eq(&machine.worker, worker));
        if let Some(machine) = own.filter(|machine| worn && machine.worn.strong_count() == 0)
            && let Ok(fresh) = Worker::new(&generation.script, Some(Arc::clone(&self.renderer)))
        {
            machine.worn = Rc::downgrade(&machine.worker);
            machine.worker = Rc::new(fresh);
        }
        let bytes = all.iter().map(|machine| {
            let worn = machine.worn.upgrade().map_or(0, |worn| worn.memory());
            machine.worker.memory() + worn
        });
        self.memory.store(bytes.sum::<usize>() as u64, Ordering::Relaxed);
    }
}
