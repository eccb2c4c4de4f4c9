//! The engine with its queue, and the rollouts that are in flight when a step ends. Rollouts of
//! later training steps (`rollout.async`) go on while the run waits for other trajectories, and
//! between the micro-batches of an update. Unfinished groups (`rollout.oversample`) wait for the
//! next step.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::open_groups::{OpenGroups, PositionedGroups};
use crate::config::{OnUpdate, RolloutSettings};
use crate::engine::{self, Engine, EngineClient, Queue, Stats};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Policy, Trajectory};
use crate::rollout::{OnFinished, PendingTrajectories, Tree};
use crate::telemetry::{Bar, Interrupt};
use crate::train::ranks::{Barrier, Ranks};
use crate::train::shards::Interleaved;

/// Trajectories in flight, of one rollout.
pub(crate) struct RolloutInFlight {
    pub(crate) pending: PendingTrajectories,
    /// Number of groups of the training step.
    pub(crate) groups: usize,
    /// Number of trajectories.
    pub(crate) count: usize,
    /// To begin again; empty if that is not needed.
    pub(crate) trees: Vec<Tree>,
    pub(crate) ended: Arc<Mutex<EndedTrajectories>>,
    pub(crate) progress: OnFinished,
}

/// The trajectories of a batch that have ended.
#[derive(Default)]
pub(crate) struct EndedTrajectories {
    pub(crate) count: u64,
    /// The bar that counts them, if the run waits for the batch.
    pub(crate) bar: Option<Bar>,
}

impl EndedTrajectories {
    pub(crate) fn add_one(&mut self) {
        self.count += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

pub(crate) fn lock(ended: &Mutex<EndedTrajectories>) -> MutexGuard<'_, EndedTrajectories> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Rollouts {
    engine: RefCell<Engine>,
    /// `None` after an interruption: requests fail from then on.
    channel: RefCell<Option<(EngineClient, Queue)>>,
    settings: RolloutSettings,
    /// The rollouts of later steps, in the order of the steps.
    ahead: RefCell<VecDeque<RolloutInFlight>>,
    /// Groups, of which a step takes the first that are complete.
    open: RefCell<OpenGroups>,
    /// Whether the weights are a version. False from the first optimiser step of an update to its
    /// end.
    samples: Cell<bool>,
    /// When the engine had its last turn.
    turned: Cell<Instant>,
    /// Time that the update waited for rollouts ahead.
    waited: Cell<Duration>,
    interrupt: Option<Interrupt>,
    /// Signals that end a rollout: an evaluation ends with the first, the sampling of a step with
    /// the second.
    pub(crate) patience: Cell<u32>,
}

impl Rollouts {
    pub(crate) fn new(engine: Engine, settings: RolloutSettings, interrupt: Option<Interrupt>) -> Self {
        Self {
            engine: RefCell::new(engine),
            channel: RefCell::new(Some(engine::channel())),
            settings,
            ahead: RefCell::default(),
            open: RefCell::default(),
            samples: Cell::new(true),
            turned: Cell::new(Instant::now()),
            waited: Cell::default(),
            interrupt,
            patience: Cell::new(2),
        }
    }

    pub(crate) fn engine(&self) -> RefMut<'_, Engine> {
        self.engine.borrow_mut()
    }

    /// Whether rollouts run beside updates.
    pub(crate) fn is_async(&self) -> bool {
        self.settings.r#async.staleness > 0
    }

    /// Whether trajectories are in flight when the weights change.
    pub(crate) fn crosses_updates(&self) -> bool {
        self.settings.crosses_updates()
    }

    pub(crate) fn open_groups(&self) -> RefMut<'_, OpenGroups> {
        self.open.borrow_mut()
    }

    /// Whether batches keep their trees.
    pub(crate) fn keeps_trees(&self) -> bool {
        self.is_async() && self.settings.r#async.on_update == OnUpdate::Restart
    }

    /// A client of the engine.
    ///
    /// # Errors
    /// `Kind::Interrupted` after an interruption.
    pub(crate) fn policy(&self) -> Result<Arc<dyn Policy>> {
        let channel = self.channel.borrow();
        let (client, _) = channel.as_ref().ok_or_else(|| Error::new(Kind::Interrupted, "stopped"))?;
        Ok(Arc::new(client.clone()))
    }

    /// Number of further steps whose rollouts may begin with the current weights.
    pub(crate) fn missing(&self) -> usize {
        let wanted = if self.is_async() { self.settings.r#async.staleness + 1 } else { 0 };
        wanted.saturating_sub(self.ahead.borrow().len())
    }

    /// The number of steps whose rollouts have begun, and of their groups.
    pub(crate) fn begun(&self) -> (usize, usize) {
        let ahead = self.ahead.borrow();
        (ahead.len(), ahead.iter().map(|batch| batch.groups).sum())
    }

    pub(crate) fn add_ahead(&self, batch: RolloutInFlight) {
        self.ahead.borrow_mut().push_back(batch);
    }

    pub(crate) fn next_ahead(&self) -> Option<RolloutInFlight> {
        self.ahead.borrow_mut().pop_front()
    }

    /// Ends all rollouts in flight; whether there were any. Requests fail from then on.
    pub(crate) fn discard_ahead(&self) -> bool {
        let (ahead, open) = (self.ahead.take(), self.open.borrow_mut().stop());
        if ahead.is_empty() && open.is_empty() {
            return false;
        }
        drop(self.channel.take());
        for mut batch in ahead {
            batch.pending.halt();
        }
        true
    }

    /// The seconds that the update has waited for rollouts since the last call.
    pub(crate) fn take_waited(&self) -> f64 {
        self.waited.take().as_secs_f64()
    }

    /// Samples until the trajectories of a batch have ended.
    ///
    /// # Errors
    /// `Kind::Interrupted` after `patience` signals, and if another process has ended; errors of
    /// the engine. All rollouts have ended then.
    pub(crate) fn wait(&self, mut batch: RolloutInFlight, ranks: &Ranks) -> Result<(Vec<Trajectory>, Stats)> {
        if let Err(error) = self.serve(ranks, &mut || batch.pending.is_done()) {
            batch.pending.halt();
            self.discard_ahead();
            return Err(error);
        }
        let trajectories = batch.pending.finish()?;
        self.drop_cancelled();
        Ok((trajectories, self.engine().take_stats()))
    }

    /// Samples until `count` of the open groups of this process have `samples` trajectories that
    /// have ended, and takes these, with the positions of the groups. `bar` counts trajectories.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn wait_for_groups(
        &self,
        count: usize,
        samples: usize,
        ranks: &Ranks,
        bar: &Bar,
    ) -> Result<(PositionedGroups, Stats)> {
        let mut shown = 0;
        let mut done = || {
            let complete = self.open.borrow_mut().complete(samples).min(count);
            bar.inc(((complete - shown) * samples) as u64);
            shown = complete;
            complete == count
        };
        if let Err(error) = self.serve(ranks, &mut done) {
            self.discard_ahead();
            return Err(error);
        }
        let taken = self.open.borrow_mut().take(count, samples)?;
        self.drop_cancelled();
        Ok((taken, self.engine().take_stats()))
    }

    /// Drops the requests whose trajectories have ended without their replies, unless others are in
    /// flight, which drop them later.
    pub(crate) fn drop_cancelled(&self) {
        if self.begun().0 == 0
            && self.open.borrow().is_empty()
            && let Some((_, queue)) = &*self.channel.borrow()
        {
            while self.engine().step(queue) {}
        }
    }

    fn serve(&self, ranks: &Ranks, done: &mut dyn FnMut() -> bool) -> Result<()> {
        let is_stopped = |interrupt: Interrupt| interrupt.count() >= self.patience.get();
        self.serve_unless(&|| ranks.has_ended() || self.interrupt.is_some_and(is_stopped), done)
    }

    /// Samples for the rollouts in flight until a barrier is complete. With `update` a signal does
    /// not end it: the update ends first.
    ///
    /// # Errors
    /// `Kind::Interrupted` after `patience` signals; `Kind::Device` if rank 0 has ended.
    pub(crate) fn serve_until_complete(&self, barrier: &Barrier, ranks: &Ranks, update: bool) -> Result<()> {
        let mut failed = None;
        let mut is_complete = || {
            barrier.is_complete().unwrap_or_else(|error| {
                failed = Some(error);
                true
            })
        };
        if update {
            self.serve_unless(&|| ranks.has_ended(), &mut is_complete)?;
        } else {
            self.serve(ranks, &mut is_complete)?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Before the weights of a process that samples only change.
    pub(crate) fn finish_ahead(&self, ranks: &Ranks) -> Result<()> {
        if self.settings.r#async.on_update != OnUpdate::Finish {
            return Ok(());
        }
        let mut done = || self.ahead.borrow_mut().iter_mut().all(|batch| batch.pending.is_done());
        self.serve_unless(&|| ranks.has_ended(), &mut done)
    }

    fn serve_unless(&self, stop: &dyn Fn() -> bool, done: &mut dyn FnMut() -> bool) -> Result<()> {
        let served = {
            let channel = self.channel.borrow();
            let (_, queue) = channel.as_ref().ok_or_else(|| Error::new(Kind::Interrupted, "stopped"))?;
            self.engine().serve_until(queue, stop, done)
        };
        self.turned.set(Instant::now());
        // Requests that come later fail.
        served.inspect_err(|_| drop(self.channel.take()))
    }

    /// The version of the weights from now on.
    pub(crate) fn set_policy_version(&self, version: u64) -> Result<()> {
        self.samples.set(true);
        self.turned.set(Instant::now());
        self.engine().set_policy_version(version)
    }

    /// Begins unfinished groups again, if the recipe wants it.
    pub(crate) fn begin_again(
        &self,
        begin: &dyn Fn(Vec<Tree>, &OnFinished) -> Result<PendingTrajectories>,
    ) -> Result<()> {
        if !self.keeps_trees() {
            return Ok(());
        }
        for batch in self.ahead.borrow_mut().iter_mut() {
            if batch.pending.is_done() {
                continue;
            }
            let mut missing: HashMap<u64, usize> = HashMap::new();
            for tree in &batch.trees {
                *missing.entry(tree.root.group).or_default() += tree.size();
            }
            let ended = batch.pending.halt();
            for trajectory in ended.iter().flatten() {
                missing.entry(trajectory.group).and_modify(|count| *count -= 1);
            }
            let is_kept = |group: u64| missing.get(&group).is_none_or(|count| *count == 0);
            let (kept, _): (Vec<_>, Vec<_>) =
                ended.into_iter().partition(|ended| ended.as_ref().map_or(true, |one| is_kept(one.group)));
            let again: Vec<Tree> = batch.trees.iter().filter(|tree| !is_kept(tree.root.group)).cloned().collect();
            lock(&batch.ended).count = kept.len() as u64;
            batch.pending = begin(again, &batch.progress)?;
            batch.pending.add(kept);
        }
        Ok(())
    }
}

impl Interleaved for Rollouts {
    /// Decode steps, for as long as the last micro-batch took, if there are requests.
    fn turn(&self) {
        if self.ahead.borrow().is_empty() || !self.samples.get() {
            return;
        }
        let (limit, began) = (self.turned.get().elapsed(), Instant::now());
        if let Some((_, queue)) = &*self.channel.borrow() {
            let mut engine = self.engine();
            while engine.step(queue) && began.elapsed() < limit {}
        }
        self.turned.set(Instant::now());
    }

    fn before_step(&self, ranks: &Ranks) -> Result<()> {
        let finishes =
            self.samples.replace(false) && self.is_async() && self.settings.r#async.on_update == OnUpdate::Finish;
        if !finishes {
            return Ok(());
        }
        let began = Instant::now();
        let served = self.serve(ranks, &mut || self.ahead.borrow_mut().iter_mut().all(|batch| batch.pending.is_done()));
        self.waited.set(self.waited.get() + began.elapsed());
        served
    }
}
