//! Limits of one call into a script: CPU time, waits, memory; and the watchdog that watches CPU time.
//!
//! Luau asks an interrupt "may I go on?" at every loop and call. Reading a clock there makes scripts five times
//! slower, so the interrupt only compares two atomics: one watchdog thread reads the CPU clocks of the script
//! threads and marks the calls that have run too long. A marked call stays marked until the host takes it off the
//! thread, so `pcall` cannot outlive its limit. CPU time is the thread's own, not the wall's: a script is not
//! blamed for a busy machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::error::{Error, Kind, Result};

/// How often the watchdog looks: the precision of the CPU limit.
const TICK: Duration = Duration::from_millis(5);

/// The part of a virtual machine that its watchdog sees.
pub(crate) struct Slot {
    clock: Clock,
    /// CPU time (ns) of the thread at which the running call is over its limit; 0 while none runs.
    armed: AtomicU64,
    /// The deadline that passed. Compared with `armed`, so a mark meant for an earlier call has no effect.
    expired: AtomicU64,
}

impl Slot {
    /// Registers the calling thread's new virtual machine with the watchdog.
    pub(crate) fn register() -> Result<Arc<Self>> {
        let slot =
            Arc::new(Self { clock: Clock::of_this_thread(), armed: AtomicU64::new(0), expired: AtomicU64::new(0) });
        WATCHDOG.watch(&slot)?;
        Ok(slot)
    }

    /// Whether the call that is running now has used up its time.
    pub(crate) fn expired(&self) -> bool {
        let armed = self.armed.load(Ordering::Relaxed);
        armed != 0 && self.expired.load(Ordering::Relaxed) == armed
    }

    /// Lets a call run for `budget` nanoseconds of CPU time; gives the time it started.
    pub(crate) fn arm(&self, budget: u64) -> u64 {
        let start = self.clock.now();
        self.armed.store(start.saturating_add(budget).max(1), Ordering::Relaxed);
        start
    }

    /// Ends what [`Slot::arm`] began: nanoseconds used, and whether the limit was hit.
    pub(crate) fn disarm(&self, start: u64) -> (u64, bool) {
        let hit = self.expired();
        self.armed.store(0, Ordering::Relaxed);
        (self.clock.now().saturating_sub(start), hit)
    }

    fn check(&self) {
        let armed = self.armed.load(Ordering::Relaxed);
        if armed != 0 && self.clock.now() >= armed {
            self.expired.store(armed, Ordering::Relaxed);
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
    slots: Vec<Weak<Slot>>,
    started: bool,
}

impl Watchdog {
    fn watch(&self, slot: &Arc<Slot>) -> Result<()> {
        let mut watched = self.lock();
        watched.slots.push(Arc::downgrade(slot));
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
            watched.slots.retain(|slot| {
                slot.upgrade().is_some_and(|slot| {
                    slot.check();
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

/// The CPU clock of one thread, readable from another.
#[cfg(target_os = "linux")]
struct Clock(libc::clockid_t);

#[cfg(target_os = "linux")]
impl Clock {
    fn of_this_thread() -> Self {
        let mut id = libc::CLOCK_MONOTONIC;
        // SAFETY: asks for the calling thread's own clock and writes one clockid_t. On failure `id` stays the
        // monotonic clock: limits are then wall time.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) };
        Self(id)
    }

    /// Nanoseconds; 0 once the thread is gone.
    fn now(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec; an id of a finished thread is refused with EINVAL.
        unsafe { libc::clock_gettime(self.0, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Elsewhere another thread's CPU clock can't be read portably: limits are wall time there.
#[cfg(not(target_os = "linux"))]
struct Clock(std::time::Instant);

#[cfg(not(target_os = "linux"))]
impl Clock {
    fn of_this_thread() -> Self {
        Self(std::time::Instant::now())
    }

    fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
