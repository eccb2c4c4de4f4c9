//! Ctrl-C: the first asks the run to stop at the next good place, the second stops at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static SIGNALS: AtomicU32 = AtomicU32::new(0);
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Whether somebody wants the run to stop. Cheap to copy and to ask.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Whether Ctrl-C (or SIGTERM) came.
    pub fn is_set(self) -> bool {
        SIGNALS.load(Ordering::Relaxed) > 0
    }

    /// Forgets what came: a reply was stopped, and the conversation goes on.
    pub fn clear(self) {
        SIGNALS.store(0, Ordering::Relaxed);
    }

    /// While on, the first signal ends the process: nothing is under way, as at a prompt.
    pub fn at_once(self, on: bool) {
        AT_ONCE.store(on, Ordering::Relaxed);
    }
}

/// Catches SIGINT and SIGTERM from now on. The second one exits with code 130, leaving files as they are; what was
/// written is whole, because files appear by rename.
pub fn ctrl_c() -> Interrupt {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::Relaxed) {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            install(signal);
        }
    }
    Interrupt(())
}

#[allow(unsafe_code)]
fn install(signal: libc::c_int) {
    // SAFETY: the action is fully set before it is used, and the handler only touches atomics and calls `_exit`,
    // both allowed in signal handlers. SA_RESTART keeps system calls of other code from failing with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

#[allow(unsafe_code)]
extern "C" fn on_signal(_: libc::c_int) {
    let earlier = SIGNALS.fetch_add(1, Ordering::Relaxed);
    if earlier > 0 || AT_ONCE.load(Ordering::Relaxed) {
        // SAFETY: `_exit` may be called in a signal handler and does not return.
        unsafe { libc::_exit(130) }
    }
}
