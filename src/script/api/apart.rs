//! Work of the host that can't be interrupted, such as encoding a long text. It runs on a new
//! thread, whose CPU time is charged to the call. A call that reaches its limit leaves the thread
//! behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use mlua::Lua;

use super::args::{charge, fail, raise};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::script::runtime::host::out_of_time;
use crate::text::{Pieces, Renderer, TimeLimit};
use crate::tools::thread;

/// Minimum number of such threads at a time, including those that were left behind. Others wait
/// until one ends, as each does: a text is at most as long as the memory of a script.
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

/// Bytes of a text that is encoded in a few hundredths of a second.
pub(super) const SHORT: usize = 64 << 10;

/// The ids of a prompt's pieces, and a mask of those written by the policy.
pub(super) fn encode(
    lua: &Lua,
    function: &str,
    renderer: &Renderer,
    pieces: Pieces,
) -> mlua::Result<(Vec<u32>, Vec<bool>)> {
    if pieces.bytes() <= SHORT {
        return pieces.encode(renderer.tokenizer()).map_err(raise);
    }
    let tokenizer = Arc::clone(renderer.tokenizer());
    apart(lua, function, move || pieces.encode(&tokenizer))
}

/// The error of a rendering; the CPU limit of the call if that was exceeded.
pub(super) fn timed(lua: &Lua, limit: &TimeLimit, error: Error) -> mlua::Error {
    if limit.is_reached() { out_of_time(lua) } else { raise(error) }
}

/// Runs `work` and returns its result.
///
/// # Errors
/// The error of `work`, and the CPU limit of the call.
pub(super) fn apart<T: Send + 'static>(
    lua: &Lua,
    function: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> mlua::Result<T> {
    let limit = std::thread::available_parallelism().map_or(UNDER_WAY, |cores| cores.get().max(UNDER_WAY));
    let free = |count| (count < limit).then_some(count + 1);
    while THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_err() {
        std::thread::sleep(TICK);
    }
    let counted = Counted;
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
        let result = result.recv_timeout(TICK);
        let now = clock.now().max(used);
        charge(lua, Duration::from_nanos(now - used))?;
        used = now;
        match result {
            Ok(result) => return result.map_err(raise),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
        }
    }
}
