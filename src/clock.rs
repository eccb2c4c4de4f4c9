//! The CPU time of a thread: a limit on it does not count what a busy or suspended machine takes.

/// The CPU clock of one thread, readable from another.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(libc::clockid_t);

#[cfg(target_os = "linux")]
impl Clock {
    pub(crate) fn of_this_thread() -> Self {
        let mut id = libc::CLOCK_MONOTONIC;
        // SAFETY: asks for the calling thread's own clock and writes one clockid_t. On failure `id` stays the
        // monotonic clock: limits are then wall time.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) };
        Self(id)
    }

    /// Nanoseconds; 0 once the thread is gone.
    pub(crate) fn now(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec; an id of a finished thread is refused with EINVAL.
        unsafe { libc::clock_gettime(self.0, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Elsewhere another thread's CPU clock can't be read portably: limits are wall time there.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(std::time::Instant);

#[cfg(not(target_os = "linux"))]
impl Clock {
    pub(crate) fn of_this_thread() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
