//! Limits of one call into a script (CPU time, waiting time, memory), and the watchdog for CPU
//! time.
//!
//! Luau calls an interrupt at every loop iteration and call. Reading a clock there makes scripts
//! five times slower, so the interrupt only compares two atomics. One watchdog thread reads the CPU
//! clocks of the script threads and marks the turns that exceed their limit. A marked turn stays
//! marked until the host takes it off the thread, so `pcall` cannot outlive the limit. The thread's
//! CPU time is measured, so other load on the machine does not count. Reading it is a system call,
//! and most turns take microseconds: those are charged by the wall clock. A charge is never less
//! than the CPU time of the turn, and never more than its wall time. Threads that work for a call,
//! such as long searches and queries, are added ([`WatchedVm::charge`]).

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::error::{Error, Kind, Result};

/// Interval of the watchdog; the precision of the CPU limit.
const TICK: Duration = Duration::from_millis(5);

/// Turns shorter than this are charged by the wall clock.
const SHORT: Duration = Duration::from_millis(1);

thread_local! {
    /// The virtual machine whose turn runs on this thread.
    static RUNNING: RefCell<Weak<WatchedVm>> = const { RefCell::new(Weak::new()) };
}

/// Whether the turn that runs on this thread has used up its time. Host functions that may run long
/// check it between their steps, since Luau's interrupts do not reach them.
pub(crate) fn is_late() -> bool {
    RUNNING.with_borrow(|slot| slot.upgrade().is_some_and(|slot| slot.expired()))
}

/// The part of a virtual machine that the watchdog reads.
pub(crate) struct WatchedVm {
    clock: Clock,
    /// Number of the running turn; 0 if none runs.
    turn: AtomicU64,
    /// CPU nanoseconds that the turn may use.
    budget: AtomicU64,
    /// The turn that has used up its budget.
    expired: AtomicU64,
    /// The last reading of the thread's CPU clock.
    looked: AtomicU64,
    turns: AtomicU64,
    /// CPU time of the thread when the running turn began.
    began: AtomicU64,
    /// CPU nanoseconds of other threads that work for the running turn.
    charged: AtomicU64,
}

/// A period in which a call runs on the thread, until it ends or waits.
pub(crate) struct CallTurn {
    number: u64,
    started: Instant,
    /// The thread's CPU time at the start, or an earlier reading.
    looked: u64,
}

impl WatchedVm {
    /// Registers the calling thread's new virtual machine with the watchdog.
    pub(crate) fn register() -> Result<Arc<Self>> {
        let clock = Clock::of_this_thread();
        let slot = Arc::new(Self {
            looked: AtomicU64::new(clock.now()),
            clock,
            turn: AtomicU64::new(0),
            budget: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            turns: AtomicU64::new(0),
            began: AtomicU64::new(0),
            charged: AtomicU64::new(0),
        });
        WATCHDOG.watch(&slot)?;
        Ok(slot)
    }

    /// Whether the running turn has used up its time.
    pub(crate) fn expired(&self) -> bool {
        let turn = self.turn.load(Ordering::Relaxed);
        turn != 0 && self.expired.load(Ordering::Relaxed) == turn
    }

    /// Remaining CPU time of the running turn.
    pub(crate) fn left(&self) -> Duration {
        let elapsed = self.clock.now().saturating_sub(self.began.load(Ordering::Relaxed));
        let used = elapsed.saturating_add(self.charged.load(Ordering::Relaxed));
        Duration::from_nanos(self.budget.load(Ordering::Relaxed).saturating_sub(used))
    }

    /// Adds CPU time of another thread that works for the running turn.
    pub(crate) fn charge(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.charged.fetch_add(nanoseconds, Ordering::Relaxed);
        if self.left().is_zero() {
            self.expire();
        }
    }

    /// Marks the running turn as expired.
    pub(crate) fn expire(&self) {
        self.expired.store(self.turn.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Begins a turn with `budget` nanoseconds of CPU time. Turns of one thread do not nest.
    pub(crate) fn arm(self: &Arc<Self>, budget: u64) -> CallTurn {
        RUNNING.set(Arc::downgrade(self));
        let number = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.budget.store(budget, Ordering::Relaxed);
        if budget == 0 {
            // Earlier turns have used up the budget. This turn may be too short for the watchdog.
            self.expired.store(number, Ordering::Relaxed);
        }
        let looked = self.looked.load(Ordering::Relaxed);
        self.began.store(looked, Ordering::Relaxed);
        self.charged.store(0, Ordering::Relaxed);
        self.turn.store(number, Ordering::Release);
        CallTurn { number, started: Instant::now(), looked }
    }

    /// Ends a turn: nanoseconds used, and whether the limit was reached.
    pub(crate) fn disarm(&self, turn: &CallTurn) -> (u64, bool) {
        let hit = self.expired.load(Ordering::Relaxed) == turn.number;
        self.turn.store(0, Ordering::Relaxed);
        let wall = turn.started.elapsed();
        let mut used = wall.as_nanos() as u64;
        if wall >= SHORT {
            let now = self.clock.now();
            self.looked.fetch_max(now, Ordering::Relaxed);
            used = used.min(now.saturating_sub(turn.looked));
        }
        (used.saturating_add(self.charged.load(Ordering::Relaxed)), hit)
    }

    /// One check of the watchdog. `seen` is the turn at the previous check, and the CPU time when
    /// it first saw it.
    fn check(&self, seen: &mut (u64, u64)) {
        let now = self.clock.now();
        self.looked.fetch_max(now, Ordering::Relaxed);
        let turn = self.turn.load(Ordering::Acquire);
        if turn != seen.0 {
            *seen = (turn, now);
        }
        let used = now.saturating_sub(seen.1).saturating_add(self.charged.load(Ordering::Relaxed));
        if turn != 0 && used >= self.budget.load(Ordering::Relaxed) {
            self.expired.store(turn, Ordering::Relaxed);
        }
    }
}

static WATCHDOG: LazyLock<Watchdog> = LazyLock::new(Watchdog::default);

/// One thread per process; it sleeps while no turn runs.
#[derive(Default)]
struct Watchdog {
    watched: Mutex<Watched>,
    wake: Condvar,
}

#[derive(Default)]
struct Watched {
    /// With the state of [`WatchedVm::check`].
    slots: Vec<(Weak<WatchedVm>, (u64, u64))>,
    started: bool,
}

impl Watchdog {
    fn watch(&self, slot: &Arc<WatchedVm>) -> Result<()> {
        let mut watched = self.lock();
        watched.slots.push((Arc::downgrade(slot), (0, 0)));
        if !watched.started {
            std::thread::Builder::new()
                .name("r1-watchdog".to_owned())
                .spawn(|| WATCHDOG.run())
                .map_err(|error| Error::new(Kind::Internal, format!("can't start the watchdog thread: {error}")))?;
            watched.started = true;
        }
        self.wake.notify_one();
        Ok(())
    }

    fn run(&self) {
        loop {
            let mut watched = self.lock();
            watched.slots.retain_mut(|(slot, seen)| {
                slot.upgrade().is_some_and(|slot| {
                    slot.check(seen);
                    true
                })
            });
            if watched.slots.is_empty() {
                drop(self.wake.wait(watched).unwrap_or_else(PoisonError::into_inner));
            } else {
                drop(watched);
                std::thread::sleep(TICK);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::script::runtime::convert::{NonJson, to_json};
    use crate::script::runtime::not_plain::NotPlainReason;

    /// Works until the thread has used `time` more CPU time.
    fn work(slot: &WatchedVm, time: Duration) {
        let end = slot.clock.now() + time.as_nanos() as u64;
        while slot.clock.now() < end {}
    }

    fn nanoseconds(time: Duration) -> u64 {
        time.as_nanos() as u64
    }

    #[test]
    fn the_watchdog_marks_a_turn_over_its_cpu_limit_and_not_the_next_one() {
        let slot = WatchedVm::register().unwrap();
        let turn = slot.arm(nanoseconds(TICK * 4));
        work(&slot, TICK * 2);
        assert!(!slot.expired());
        let started = Instant::now();
        while !slot.expired() {
            assert!(started.elapsed() < Duration::from_mins(1), "the watchdog does not mark the turn");
        }
        let (used, hit) = slot.disarm(&turn);
        assert!(hit && used >= nanoseconds(TICK * 4), "{used}");
        assert!(!slot.expired());
        let turn = slot.arm(nanoseconds(TICK * 1000));
        assert!(!slot.expired());
        assert!(!slot.disarm(&turn).1);
    }

    #[test]
    fn a_conversion_ends_with_its_turn() {
        let lua = mlua::Lua::new();
        let list = lua.create_sequence_from(0..3000).unwrap();
        let named = lua.create_table().unwrap();
        (0..3000).for_each(|n| named.raw_set(format!("name {n}"), n).unwrap());
        for table in [list, named] {
            let convert = || to_json(&mlua::Value::Table(table.clone()), "value", NonJson::Refuse);
            let slot = WatchedVm::register().unwrap();
            let turn = slot.arm(0);
            assert!(matches!(convert().unwrap_err().why, NotPlainReason::TooMuch));
            slot.disarm(&turn);
            convert().unwrap();
        }
    }

    #[test]
    fn charged_time_is_between_cpu_time_and_wall_time() {
        let slot = WatchedVm::register().unwrap();
        for time in [Duration::from_micros(50), SHORT / 2, SHORT * 3, TICK * 4] {
            let wall = Instant::now();
            let turn = slot.arm(u64::MAX);
            work(&slot, time);
            if time > SHORT {
                std::thread::sleep(SHORT * 10);
            }
            let (used, hit) = slot.disarm(&turn);
            let wall = nanoseconds(wall.elapsed());
            assert!(!hit && (nanoseconds(time)..=wall).contains(&used), "{time:?}: {used} of {wall}");
        }
        // An idle thread is charged only for what it did since the last reading.
        std::thread::sleep(TICK * 4);
        let turn = slot.arm(u64::MAX);
        std::thread::sleep(TICK * 40);
        assert!(slot.disarm(&turn).0 < nanoseconds(TICK * 20));
    }

    #[test]
    fn time_of_other_threads_is_charged_to_the_turn_that_they_work_for() {
        let slot = WatchedVm::register().unwrap();
        let turn = slot.arm(nanoseconds(Duration::from_secs(10)));
        slot.charge(Duration::from_secs(4));
        assert!(!slot.expired() && slot.left() < Duration::from_secs(6));
        slot.charge(Duration::from_secs(7));
        assert!(slot.expired() && slot.left().is_zero());
        let (used, hit) = slot.disarm(&turn);
        assert!(hit && used >= nanoseconds(Duration::from_secs(11)), "{used}");
        let turn = slot.arm(nanoseconds(Duration::from_secs(10)));
        assert!(slot.left() > Duration::from_secs(9) && !slot.disarm(&turn).1);
    }

    #[test]
    fn a_turn_without_remaining_cpu_budget_expires_at_once() {
        let slot = WatchedVm::register().unwrap();
        let turn = slot.arm(0);
        assert!(slot.expired());
        assert!(slot.disarm(&turn).1);
    }
}
