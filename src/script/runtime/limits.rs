//! Limits of one call into a script: CPU time, waits, memory; and the watchdog that watches CPU time.
//!
//! Luau asks an interrupt "may I go on?" at every loop and call. Reading a clock there makes scripts five times
//! slower, so the interrupt only compares two atomics: one watchdog thread reads the CPU clocks of the script
//! threads and marks the turns that have run too long. A marked turn stays marked until the host takes it off the
//! thread, so `pcall` cannot outlive its limit. CPU time is the thread's own, not the wall's: a script is not
//! blamed for a busy machine. Reading it is a system call, and most turns are over in microseconds: those are charged
//! by the wall's clock. A charge is never less than the CPU time of the turn, and never more than its wall time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::error::{Error, Kind, Result};

/// How often the watchdog looks: the precision of the CPU limit.
const TICK: Duration = Duration::from_millis(5);

/// Turns that are shorter than this are charged by the wall's clock.
const SHORT: Duration = Duration::from_millis(1);

/// The part of a virtual machine that its watchdog sees.
pub(crate) struct Slot {
    clock: Clock,
    /// Number of the turn that runs; 0 while none does.
    turn: AtomicU64,
    /// CPU nanoseconds that it may use.
    budget: AtomicU64,
    /// The turn that has used them up.
    expired: AtomicU64,
    /// What the thread's CPU clock said when somebody last looked.
    looked: AtomicU64,
    turns: AtomicU64,
}

/// A call on the thread, until it is over or waits.
pub(crate) struct Turn {
    number: u64,
    started: Instant,
    /// The thread's CPU time at the start, or what it was some time before.
    looked: u64,
}

impl Slot {
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
        });
        WATCHDOG.watch(&slot)?;
        Ok(slot)
    }

    /// Whether the turn that is running now has used up its time.
    pub(crate) fn expired(&self) -> bool {
        let turn = self.turn.load(Ordering::Relaxed);
        turn != 0 && self.expired.load(Ordering::Relaxed) == turn
    }

    /// CPU time that the turn which is running now may use, from its beginning.
    pub(crate) fn budget(&self) -> Duration {
        Duration::from_nanos(self.budget.load(Ordering::Relaxed))
    }

    /// Marks the turn that is running now: its time is over.
    pub(crate) fn expire(&self) {
        self.expired.store(self.turn.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Begins a turn that may run for `budget` nanoseconds of CPU time. Turns of one thread do not nest.
    pub(crate) fn arm(&self, budget: u64) -> Turn {
        let number = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        self.budget.store(budget, Ordering::Relaxed);
        if budget == 0 {
            // The turns before have used it up. This one may be too short for the watchdog to see.
            self.expired.store(number, Ordering::Relaxed);
        }
        self.turn.store(number, Ordering::Release);
        Turn { number, started: Instant::now(), looked: self.looked.load(Ordering::Relaxed) }
    }

    /// Ends a turn: nanoseconds used, and whether the limit was hit.
    pub(crate) fn disarm(&self, turn: &Turn) -> (u64, bool) {
        let hit = self.expired.load(Ordering::Relaxed) == turn.number;
        self.turn.store(0, Ordering::Relaxed);
        let wall = turn.started.elapsed();
        let mut used = wall.as_nanos() as u64;
        if wall >= SHORT {
            let now = self.clock.now();
            self.looked.fetch_max(now, Ordering::Relaxed);
            used = used.min(now.saturating_sub(turn.looked));
        }
        (used, hit)
    }

    /// The watchdog's look. `seen` is the turn that it saw last, and the CPU time when it first saw it.
    fn check(&self, seen: &mut (u64, u64)) {
        let now = self.clock.now();
        self.looked.fetch_max(now, Ordering::Relaxed);
        let turn = self.turn.load(Ordering::Acquire);
        if turn != seen.0 {
            *seen = (turn, now);
        }
        if turn != 0 && now.saturating_sub(seen.1) >= self.budget.load(Ordering::Relaxed) {
            self.expired.store(turn, Ordering::Relaxed);
        }
    }
}

static WATCHDOG: LazyLock<Watchdog> = LazyLock::new(Watchdog::default);

/// One thread for the whole process; it sleeps while there is nothing to watch.
#[derive(Default)]
struct Watchdog {
    watched: Mutex<Watched>,
    wake: Condvar,
}

#[derive(Default)]
struct Watched {
    /// With what [`Slot::check`] has seen.
    slots: Vec<(Weak<Slot>, (u64, u64))>,
    started: bool,
}

impl Watchdog {
    fn watch(&self, slot: &Arc<Slot>) -> Result<()> {
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

    /// Works until the thread has used so much more CPU time.
    fn work(slot: &Slot, time: Duration) {
        let end = slot.clock.now() + time.as_nanos() as u64;
        while slot.clock.now() < end {}
    }

    fn nanoseconds(time: Duration) -> u64 {
        time.as_nanos() as u64
    }

    #[test]
    fn a_turn_that_goes_on_is_marked_and_the_next_one_is_not() {
        let slot = Slot::register().unwrap();
        let turn = slot.arm(nanoseconds(TICK * 4));
        work(&slot, TICK * 2);
        assert!(!slot.expired());
        let started = Instant::now();
        while !slot.expired() {
            assert!(started.elapsed() < Duration::from_mins(1), "nobody looks");
        }
        let (used, hit) = slot.disarm(&turn);
        assert!(hit && used >= nanoseconds(TICK * 4), "{used}");
        assert!(!slot.expired());
        let turn = slot.arm(nanoseconds(TICK * 1000));
        assert!(!slot.expired());
        assert!(!slot.disarm(&turn).1);
    }

    #[test]
    fn a_charge_lies_between_cpu_and_wall() {
        let slot = Slot::register().unwrap();
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
        // A thread that does not run is not charged, but for what it did since somebody last looked.
        std::thread::sleep(TICK * 4);
        let turn = slot.arm(u64::MAX);
        std::thread::sleep(TICK * 40);
        assert!(slot.disarm(&turn).0 < nanoseconds(TICK * 20));
    }

    #[test]
    fn nothing_runs_on_a_budget_that_is_used_up() {
        let slot = Slot::register().unwrap();
        let turn = slot.arm(0);
        assert!(slot.expired());
        assert!(slot.disarm(&turn).1);
    }
}
