//! The CPU time of renderings of templates, and the bytes that one may keep.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

use r1_base::clock::Clock;

/// Maximum bytes of all strings that one rendering may loop over and assign; repeated assignments
/// count again.
const KEPT: usize = 1 << 32;

thread_local! {
    static LEFT: Cell<Option<Left>> = const { Cell::new(None) };
    static MOST: Cell<Duration> = const { Cell::new(Duration::MAX) };
}

/// Limits the CPU time of all renderings on this thread until it is dropped, in addition to each
/// rendering's own limit.
pub struct TimeLimit {
    before: Duration,
    clock: Clock,
    /// CPU time of the thread at the limit, in nanoseconds.
    end: u64,
}

impl TimeLimit {
    pub fn new(limit: Duration) -> Self {
        let clock = Clock::of_this_thread();
        let end = clock.now().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        Self { before: MOST.replace(limit.min(MOST.get())), clock, end }
    }

    /// Whether the thread has reached the limit.
    pub fn is_reached(&self) -> bool {
        self.clock.now() >= self.end
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        MOST.set(self.before);
    }
}

/// The remaining budget of the current rendering.
#[derive(Clone, Copy)]
struct Left {
    /// The limit can't be reached before this instant. Reading this clock is ten times faster
    /// than reading the thread's.
    earliest: Instant,
    clock: Clock,
    /// CPU time of the thread at the limit, in nanoseconds.
    end: u64,
    /// Bytes left.
    bytes: usize,
}

/// Limits CPU time and memory of one rendering on this thread until it is dropped.
pub(super) struct RenderingBudget {
    before: Option<Left>,
}

impl RenderingBudget {
    pub(super) fn new(time: Duration) -> Self {
        let clock = Clock::of_this_thread();
        let time = time.min(MOST.get());
        let end = clock.now() + time.as_nanos() as u64;
        Self { before: LEFT.replace(Some(Left { earliest: Instant::now() + time, clock, end, bytes: KEPT })) }
    }
}

impl Drop for RenderingBudget {
    fn drop(&mut self) {
        LEFT.set(self.before);
    }
}

/// The detail of the error of a rendering that takes too long.
pub(super) const LATE: &str = "it takes too long";

/// Fails when the rendering has used its time.
pub(super) fn in_time() -> Result<(), Error> {
    match LEFT.get() {
        Some(left) if Instant::now() > left.earliest && left.clock.now() > left.end => {
            Err(Error::new(ErrorKind::OutOfFuel, LATE))
        }
        _ => Ok(()),
    }
}

/// Takes bytes from what the rendering may keep; false if there are not enough.
pub(super) fn keep(bytes: usize) -> bool {
    let Some(left) = LEFT.get() else { return true };
    let Some(bytes) = left.bytes.checked_sub(bytes) else { return false };
    LEFT.set(Some(Left { bytes, ..left }));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPU time is measured, so a suspended program or a busy machine does not count.
    #[test]
    #[cfg(target_os = "linux")]
    fn time_of_other_threads_does_not_count() {
        let _budget = RenderingBudget::new(Duration::from_millis(50));
        std::thread::sleep(Duration::from_millis(100));
        assert!(in_time().is_ok());
        while LEFT.get().is_some_and(|left| left.clock.now() <= left.end) {}
        assert!(in_time().is_err());
    }
}
