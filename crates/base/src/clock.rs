//! CPU time of a thread. A limit on CPU time excludes the time that a busy or suspended machine
//! takes.

/// CPU clock of one thread, readable from other threads.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub struct Clock(libc::clockid_t);

#[cfg(target_os = "linux")]
impl Clock {
    pub fn of_this_thread() -> Self {
        let mut id = libc::CLOCK_MONOTONIC;
        // SAFETY: writes one clockid_t, the clock of the calling thread. On failure `id` stays the
        // monotonic clock, and limits are wall time.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) };
        Self(id)
    }

    /// Nanoseconds; 0 after the end of the thread.
    pub fn now(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes one timespec; the id of a finished thread gives EINVAL.
        unsafe { libc::clock_gettime(self.0, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Other systems have no portable way to read another thread's CPU clock: limits are wall time.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

#[cfg(not(target_os = "linux"))]
impl Clock {
    pub fn of_this_thread() -> Self {
        Self(std::time::Instant::now())
    }

    pub fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
