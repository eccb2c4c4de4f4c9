//! Work of the host that can't be interrupted, such as encoding a long text. It runs on a thread of
//! its own, whose CPU time is charged to the call. A call that reaches its limit leaves the thread
//! behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use mlua::Lua;

use super::args::{charge, fail, raise};
use crate::clock::Clock;
use crate::tools::thread;

/// Maximum number of such threads, including those that were left behind.
const UNDER_WAY: usize = 8;
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Interval at which the time is charged.
const TICK: Duration = Duration::from_millis(5);

/// Counts a thread until it ends.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work` and returns its result.
///
/// # Errors
/// The CPU limit of the call, and too many threads at once.
pub(super) fn apart<T: Send + 'static>(
    lua: &Lua,
    function: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> mlua::Result<T> {
    let before = THREADS.fetch_add(1, Ordering::Relaxed);
    let counted = Counted;
    if before >= UNDER_WAY {
        return Err(fail(lua, function, format!("{UNDER_WAY} long calls are under way; use shorter texts")));
    }
    let (started, clock) = channel();
    let (done, result) = channel();
    thread::start(function, move || {
        let _counted = counted;
        // The call may have ended.
        let _ = started.send(Clock::of_this_thread());
        let _ = done.send(work());
    })
    .map_err(raise)?;
    let gone = || fail(lua, function, "its thread has stopped");
    let clock: Clock = clock.recv().map_err(|_| gone())?;
    let mut used = 0;
    loop {
        let found = result.recv_timeout(TICK);
        let now = clock.now().max(used);
        charge(lua, Duration::from_nanos(now - used))?;
        used = now;
        match found {
            Ok(found) => return Ok(found),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
        }
    }
}
