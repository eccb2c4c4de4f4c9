//! The body of a script worker thread: it owns virtual machines and runs trajectories as tasks of a
//! single-threaded runtime.

use std::cell::RefCell;
use std::rc::{Rc, Weak as RcWeak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::drive::{DrivenTrajectory, branch_off, drive_root};
use super::pool::{Generation, Job, PoolBatch};
use super::spec::Spec;
use super::stage::Stage;
use super::tree::{BranchPoint, Points, choose};
use crate::error::{Error, Kind, Result};
use crate::mdp::{PendingReply, Policy, Request, Scoring, Trajectory};
use crate::script::{Split, Worker};
use crate::text::Renderer;

/// Rows of `data.train` and `data.eval`.
type SplitRows = (Option<u64>, Option<u64>);

/// Loads the first generation, reports that it is ready, and runs jobs until the queue is closed.
pub(super) fn work(
    first: Arc<Generation>,
    renderer: Arc<Renderer>,
    concurrency: usize,
    memory: &Arc<AtomicU64>,
    ready: oneshot::Sender<Result<SplitRows>>,
    mut queue: mpsc::UnboundedReceiver<Job>,
) {
    let machines = Rc::new(Machines { renderer, all: RefCell::default(), memory: Arc::clone(memory) });
    let started = machines.worker(&first).and_then(|worker| {
        // Programs, indexes and variables that are missing are errors before the first trajectory.
        worker.prepare()?;
        let rows = (worker.rows(Split::Train)?, worker.rows(Split::Eval)?);
        let runtime = Worker::runtime()?;
        Ok((rows, runtime))
    });
    // From here on the pool owns the generation.
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
            tasks.spawn_local(async move { run_tree(&machines, &job, permit, &permits).await });
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    });
}

/// Runs a tree: the root, and then, round after round, the branches, concurrently.
async fn run_tree(machines: &Machines, job: &Job, permit: OwnedSemaphorePermit, permits: &Semaphore) {
    let tree = &job.tree;
    let generation = &job.batch.generation(tree.root.group);
    let rounds = tree.rounds();
    let states_from = |round: usize| rounds[round..].iter().map(|specs| tree.states(specs.len())).sum();
    let Some(root) = run_branch(machines, job, generation, &tree.root, None, states_from(0)).await else { return };
    drop(permit);
    let (root, offered) = root;
    let (mut handles, mut offered) = (vec![root], vec![offered]);
    for (round, specs) in rounds.iter().enumerate() {
        let chosen = choose(&mut offered, tree.states(specs.len()));
        let (kept, later) = (&offered, states_from(round + 1));
        let branches = specs.iter().enumerate().map(|(branch, spec)| {
            let from = chosen.get(branch / tree.width.max(1) % chosen.len().max(1));
            let from = from.map(|&(handle, point)| (&kept[handle][point], handles[handle].clone()));
            async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                run_branch(machines, job, generation, spec, from, later).await
            }
        });
        let branches: Vec<_> = branches.collect();
        if later == 0 {
            handles.clear();
        }
        for (handle, points) in join_all(branches).await.into_iter().flatten() {
            handles.push(handle);
            offered.push(points);
        }
    }
}

/// A finished trajectory that others may branch off.
#[derive(Clone)]
struct BranchHandle<'a> {
    /// States belong to the virtual machine that made them.
    state_worker: Rc<Worker>,
    /// Keeps the cache of the shared prefix until all branches have used it.
    _conversation: Option<Rc<Conversation<'a>>>,
}

/// Runs a trajectory, from the beginning or from a state of another one, and keeps at most `limit`
/// of its states (none if it failed). `None` if it could not be run.
async fn run_branch<'a>(
    machines: &Machines,
    job: &'a Job,
    generation: &Arc<Generation>,
    spec: &Spec,
    from: Option<(&BranchPoint, BranchHandle<'a>)>,
    limit: usize,
) -> Option<(BranchHandle<'a>, Vec<BranchPoint>)> {
    let Job { tree, batch, .. } = job;
    let policy = &HaltedPolicy { policy: batch.policy.as_ref(), halted: &batch.halted };
    let conversation = Rc::new(Conversation(batch.policy.as_ref(), spec.seed.trajectory));
    let mut points = Points::new(&tree.at, spec.seed, limit);
    let (point, mut parent) = from.unzip();
    let mut state_worker = parent.as_ref().map(|parent| Rc::clone(&parent.state_worker));
    let made = with_retries(machines, batch, generation, spec, async |worker, spec| {
        points.clear();
        if let (Some(point), Some(state_worker)) = (point, &state_worker) {
            let stage = Stage { worker: state_worker, renderer: &machines.renderer };
            return branch_off(stage, policy, point, &spec, &mut points, || parent = None).await;
        }
        let stage = Stage { worker: &worker, renderer: &machines.renderer };
        let trajectory = drive_root(stage, policy, &spec, Some(&mut points)).await;
        state_worker = Some(worker);
        trajectory
    });
    let made = made.await;
    let succeeded = made.as_ref().is_ok_and(|trajectory| !trajectory.status.is_failure());
    let gone = made.is_err();
    send_result(job, made);
    if gone {
        return None;
    }
    if !succeeded {
        points.clear();
    }
    let points = points.into_kept();
    Some((
        BranchHandle { state_worker: state_worker?, _conversation: (!points.is_empty()).then_some(conversation) },
        points,
    ))
}

/// A conversation in the policy's cache.
struct Conversation<'a>(&'a dyn Policy, u64);

impl Drop for Conversation<'_> {
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

/// A policy that gives no replies once it is `halted`: trajectories end as aborted.
struct HaltedPolicy<'a> {
    policy: &'a dyn Policy,
    halted: &'a watch::Receiver<bool>,
}

impl Policy for HaltedPolicy<'_> {
    fn submit(&self, request: Request) -> PendingReply {
        if *self.halted.borrow() { oneshot::channel().1.into() } else { self.policy.submit(request) }
    }

    fn halted(&self) -> BoxFuture<'static, ()> {
        let mut halted = self.halted.clone();
        Box::pin(async move {
            // Without a sender nothing halts the trajectories.
            if halted.wait_for(|halted| *halted).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    fn score(&self, scoring: Scoring) -> oneshot::Receiver<Result<Vec<f32>>> {
        self.policy.score(scoring)
    }

    fn release(&self, conversation: u64) {
        self.policy.release(conversation);
    }
}

fn send_result(job: &Job, result: Result<Trajectory>) {
    if let Ok(trajectory) = &result {
        (job.batch.progress)(trajectory);
    }
    let _ = job.reply.send(result);
}

/// Runs a trajectory and retries failures with another random stream, if a retry could have another
/// result.
async fn with_retries(
    machines: &Machines,
    batch: &PoolBatch,
    generation: &Arc<Generation>,
    spec: &Spec,
    mut make: impl AsyncFnMut(Rc<Worker>, Spec) -> Result<DrivenTrajectory>,
) -> Result<Trajectory> {
    let mut retries = 0;
    loop {
        if batch.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "stopped"));
        }
        let worker = machines.worker(generation)?;
        let started = Instant::now();
        let made = make(Rc::clone(&worker), spec.retry(retries)).await?;
        let seconds = started.elapsed().as_secs_f64();
        machines.rest(generation, &worker);
        if !made.worth_retrying || retries as usize >= batch.retries {
            return Ok(Trajectory { retries, seconds, ..made.trajectory });
        }
        retries += 1;
    }
}

/// The thread's virtual machines: one per generation in use.
struct Machines {
    renderer: Arc<Renderer>,
    all: RefCell<Vec<Machine>>,
    /// Bytes of all of them.
    memory: Arc<AtomicU64>,
}

struct Machine {
    generation: Weak<Generation>,
    worker: Rc<Worker>,
    /// The machine that it has replaced, while trajectories still run there.
    replaced: RcWeak<Worker>,
}

impl Machines {
    /// The worker of a generation, created on first use.
    fn worker(&self, generation: &Arc<Generation>) -> Result<Rc<Worker>> {
        let mut all = self.all.borrow_mut();
        all.retain(|machine| machine.generation.strong_count() > 0);
        if let Some(machine) = all.iter().find(|machine| machine.generation.as_ptr() == Arc::as_ptr(generation)) {
            return Ok(Rc::clone(&machine.worker));
        }
        let worker = Rc::new(Worker::new(&generation.script, Some(Arc::clone(&self.renderer)))?);
        let generation = Arc::downgrade(generation);
        all.push(Machine { generation, worker: Rc::clone(&worker), replaced: RcWeak::new() });
        Ok(worker)
    }

    /// Called after a trajectory: a machine whose worker needs a replacement finishes its
    /// trajectories, and later ones get a new machine. There are at most two machines per
    /// generation.
    fn rest(&self, generation: &Arc<Generation>, worker: &Rc<Worker>) {
        let full = worker.needs_replacement();
        let mut all = self.all.borrow_mut();
        let machine = all.iter_mut().find(|machine| Rc::ptr_eq(&machine.worker, worker));
        if let Some(machine) = machine.filter(|machine| full && machine.replaced.strong_count() == 0)
            && let Ok(fresh) = Worker::new(&generation.script, Some(Arc::clone(&self.renderer)))
        {
            machine.replaced = Rc::downgrade(&machine.worker);
            machine.worker = Rc::new(fresh);
        }
        let bytes = all.iter().map(|machine| {
            let old = machine.replaced.upgrade().map_or(0, |old| old.memory());
            machine.worker.memory() + old
        });
        self.memory.store(bytes.sum::<usize>() as u64, Ordering::Relaxed);
    }
}
