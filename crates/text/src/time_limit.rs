//! The CPU time of renderings of templates, and the bytes that one may keep.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind};

use r1_base::clock::Clock;

/// Maximum bytes of all strings that one rendering may loop over and assign; repeated assignments
/// count again.
const KEPT: usize = 1 << 32;

/// The longest limit; a longer one is the same as none.
const LONGEST: Duration = Duration::from_secs(1 << 30);

thread_local! {
    static LEFT: Cell<Option<Left>> = const { Cell::new(None) };
}

/// What is left to the renderings on a thread.
#[derive(Clone, Copy)]
struct Left {
    /// The limit can't be reached before this instant. Reading this clock is ten times faster
    /// than reading the thread's.
    earliest: Instant,
    clock: Clock,
    /// CPU time of the thread at the limit, in nanoseconds.
    end: u64,
    /// Bytes that a rendering may still keep.
    bytes: usize,
}

/// Limits the CPU time of all renderings on this thread until it is dropped. Limits may be nested;
/// the last one belongs to the current rendering.
pub struct TimeLimit {
    outer: Option<Left>,
    left: Left,
}

impl TimeLimit {
    pub fn new(limit: Duration) -> Self {
        let (limit, clock, outer) = (limit.min(LONGEST), Clock::of_this_thread(), LEFT.get());
        let (mut earliest, mut end) = (Instant::now() + limit, clock.now() + limit.as_nanos() as u64);
        if let Some(outer) = outer {
            (earliest, end) = (earliest.min(outer.earliest), end.min(outer.end));
        }
        let left = Left { earliest, clock, end, bytes: KEPT };
        LEFT.set(Some(left));
        Self { outer, left }
    }

    /// Whether the thread has reached the limit.
    pub fn is_reached(&self) -> bool {
        self.left.clock.now() >= self.left.end
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        LEFT.set(self.outer);
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
        let _limit = TimeLimit::new(Duration::from_millis(50));
        std::thread::sleep(Duration::from_millis(100));
        assert!(in_time().is_ok());
        while LEFT.get().is_some_and(|left| left.clock.now() <= left.end) {}
        assert!(in_time().is_err());
    }

    #[test]
    fn a_limit_ends_with_the_one_around_it() {
        let _outer = TimeLimit::new(Duration::from_millis(1));
        let inner = TimeLimit::new(Duration::from_secs(1000));
        let begin = Instant::now();
        while in_time().is_ok() && begin.elapsed() < Duration::from_secs(20) {}
        assert!(in_time().is_err() && inner.is_reached());
    }
}
