//! What a script worker thread does: it owns virtual machines and runs trajectories as tasks of a single-threaded runtime.

use std::cell::RefCell;
use std::rc::{Rc, Weak as RcWeak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::drive;
use super::pool::{Generation, Job};
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
            let machines = Rc::clone(&machines);
            tasks.spawn_local(async move {
                let result = attempt(&machines, &job).await;
                if let Ok(trajectory) = &result {
                    (job.batch.progress)(trajectory);
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
async fn attempt(machines: &Machines, job: &Job) -> Result<Trajectory> {
    let generation = job.batch.generation(job.spec.group);
    let mut left = job.batch.retries;
    loop {
        if job.batch.stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Interrupted, "stopped"));
        }
        let worker = machines.worker(&generation)?;
        let trajectory = drive(&worker, &machines.renderer, job.batch.policy.as_ref(), &job.spec).await?;
        machines.rest(&generation, &worker);
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
