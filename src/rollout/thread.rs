//! What a script worker thread does: it owns virtual machines and runs trajectories as tasks of a single-threaded runtime.

use std::cell::RefCell;
use std::rc::{Rc, Weak as RcWeak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::attempt::Stage;
use super::drive::{Made, branch_off, drive_root};
use super::pool::{Batch, Generation, Job};
use super::spec::Spec;
use super::tree::{Point, Points, choose};
use crate::engine::Policy;
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
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

/// Runs a tree: the root, and then, round after round, what branches off it, side by side.
async fn grow(machines: &Machines, job: &Job, permit: OwnedSemaphorePermit, permits: &Semaphore) {
    let tree = &job.tree;
    let generation = &job.batch.generation(tree.root.group);
    let rounds = tree.rounds();
    let states_from = |round: usize| rounds[round..].iter().map(|specs| tree.states(specs.len())).sum();
    let Some(root) = limb(machines, job, generation, &tree.root, None, states_from(0)).await else { return };
    drop(permit);
    let (root, offered) = root;
    let (mut limbs, mut offered) = (vec![root], vec![offered]);
    for (round, specs) in rounds.iter().enumerate() {
        let chosen = choose(&mut offered, tree.states(specs.len()));
        let (kept, later) = (&offered, states_from(round + 1));
        let grown = specs.iter().enumerate().map(|(branch, spec)| {
            let from = chosen.get(branch / tree.width.max(1) % chosen.len().max(1));
            let from = from.map(|&(limb, place)| (&kept[limb][place], limbs[limb].clone()));
            async move {
                // Never closed.
                let _permit = permits.acquire().await;
                limb(machines, job, generation, spec, from, later).await
            }
        });
        let grown: Vec<_> = grown.collect();
        if later == 0 {
            limbs.clear();
        }
        for (limb, points) in join_all(grown).await.into_iter().flatten() {
            limbs.push(limb);
            offered.push(points);
        }
    }
}

/// A trajectory that others may branch off.
#[derive(Clone)]
struct Limb<'a> {
    /// States live in the virtual machine that made them.
    home: Rc<Worker>,
    /// The cache of what they share is kept until each of them has made use of it.
    _conversation: Option<Rc<Conversation<'a>>>,
}

/// Makes a trajectory, from the beginning or from a state of another, and keeps at most so many of its states; none of one
/// that failed. `None` if it could not be made.
async fn limb<'a>(
    machines: &Machines,
    job: &'a Job,
    generation: &Arc<Generation>,
    spec: &Spec,
    from: Option<(&Point, Limb<'a>)>,
    most: usize,
) -> Option<(Limb<'a>, Vec<Point>)> {
    let Job { tree, batch, .. } = job;
    let policy = batch.policy.as_ref();
    let conversation = Rc::new(Conversation(policy, spec.seed.trajectory));
    let mut points = Points::new(&tree.at, spec.seed, most);
    let (point, mut parent) = from.unzip();
    let mut home = parent.as_ref().map(|parent| Rc::clone(&parent.home));
    let made = retrying(machines, batch, generation, spec, async |worker, spec| {
        points.clear();
        if let (Some(point), Some(home)) = (point, &home) {
            let stage = Stage { worker: home, renderer: &machines.renderer };
            return branch_off(stage, policy, point, &spec, &mut points, || parent = None).await;
        }
        let stage = Stage { worker: &worker, renderer: &machines.renderer };
        let trajectory = drive_root(stage, policy, &spec, Some(&mut points)).await;
        home = Some(worker);
        trajectory
    });
    let made = made.await;
    let sound = made.as_ref().is_ok_and(|trajectory| !trajectory.status.is_failure());
    let gone = made.is_err();
    tell(job, made);
    if gone {
        return None;
    }
    if !sound {
        points.clear();
    }
    let points = points.into_kept();
    Some((Limb { home: home?, _conversation: (!points.is_empty()).then_some(conversation) }, points))
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

/// Makes a trajectory. A failed one is made again from where it began, with replies from another random stream, unless it
/// could only fail again.
async fn retrying(
    machines: &Machines,
    batch: &Batch,
    generation: &Arc<Generation>,
    spec: &Spec,
    mut make: impl AsyncFnMut(Rc<Worker>, Spec) -> Result<Made>,
) -> Result<Trajectory> {
    let mut retries = 0;
    loop {
        if batch.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "stopped"));
        }
        let worker = machines.worker(generation)?;
        let made = make(Rc::clone(&worker), spec.retry(retries)).await?;
        machines.rest(generation, &worker);
        if !made.worth_retrying || retries as usize >= batch.retries {
            return Ok(Trajectory { retries, ..made.trajectory });
        }
        retries += 1;
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
