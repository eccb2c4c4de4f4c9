//! Ctrl-C, SIGTERM and SIGHUP: the first signal requests a stop at the next safe point, later
//! signals an earlier stop.

use std::io::{BufReader, PipeWriter, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::error::{Error, Kind, Result};

static SIGNALS: AtomicU32 = AtomicU32::new(0);
static AT_ONCE: AtomicBool = AtomicBool::new(false);
/// Pipe to the thread that handles signals; -1 if there is no such thread.
static ANSWERS: AtomicI32 = AtomicI32::new(-1);

/// Whether this process has received a signal that [`ctrl_c`] handles.
pub fn is_interrupted() -> bool {
    SIGNALS.load(Ordering::SeqCst) > 0
}

/// Flag of a requested stop. Cheap to copy and to read.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Whether a signal was received.
    pub fn is_set(self) -> bool {
        self.count() > 0
    }

    /// Number of received signals.
    pub fn count(self) -> u32 {
        SIGNALS.load(Ordering::SeqCst)
    }

    /// Resets the count, for example when a response was stopped and the conversation continues.
    pub fn clear(self) {
        SIGNALS.store(0, Ordering::SeqCst);
    }

    /// If `on`, the first signal exits the process, for example while waiting at a prompt.
    pub fn at_once(self, on: bool) {
        AT_ONCE.store(on, Ordering::SeqCst);
    }

    /// Calls `answer` on a separate thread for the first two signals, with their number (1 or 2).
    /// The second signal then exits the process only if `answer` does; the third always exits. Ends
    /// when the returned value is dropped.
    ///
    /// # Errors
    /// `Kind::Internal` if no pipe or thread can be created.
    pub fn on_signal(self, mut answer: impl FnMut(u32) + Send + 'static) -> Result<SignalGuard> {
        let failed = |error: std::io::Error| Error::new(Kind::Internal, format!("can't answer signals: {error}"));
        let (numbers, pipe) = std::io::pipe().map_err(failed)?;
        let numbers = BufReader::new(numbers).bytes().map_while(std::result::Result::ok);
        let listen = move || numbers.for_each(|number| answer(number.into()));
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(failed)?;
        let before = ANSWERS.swap(pipe.as_raw_fd(), Ordering::SeqCst);
        Ok(SignalGuard { pipe, before })
    }
}

/// Guard of [`Interrupt::on_signal`]: restores the previous handler when dropped.
#[derive(Debug)]
pub struct SignalGuard {
    /// The thread of the handler ends when it is closed.
    pipe: PipeWriter,
    before: RawFd,
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        // A newer handler stays in place.
        let _ = ANSWERS.compare_exchange(self.pipe.as_raw_fd(), self.before, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Installs handlers for SIGINT, SIGTERM and SIGHUP; SIGHUP only if it was not ignored before, as
/// under `nohup`. Unless signals are [handled](Interrupt::on_signal), the second one exits with
/// code 130. Files stay complete, because they are written by rename.
pub fn ctrl_c() -> Interrupt {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::Relaxed) {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            install(signal);
        }
    }
    Interrupt(())
}

/// Turns a write beyond the file size limit (`ulimit -f`) into an error; by default SIGXFSZ ends
/// the process.
#[allow(unsafe_code)]
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal touches no memory.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

#[allow(unsafe_code)]
fn install(signal: libc::c_int) {
    // SAFETY: both actions are fully set before they are used, and the handler only touches
    // atomics, errno and calls `write` and `_exit`, all allowed in signal handlers. SA_RESTART
    // keeps system calls of other code from failing with EINTR.
    unsafe {
        if signal == libc::SIGHUP {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut before);
            if before.sa_sigaction == libc::SIG_IGN {
                return;
            }
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

#[allow(unsafe_code)]
extern "C" fn on_signal(_: libc::c_int) {
    let count = SIGNALS.fetch_add(1, Ordering::SeqCst) + 1;
    let answers = ANSWERS.load(Ordering::SeqCst);
    let max_signals = if answers < 0 { 1 } else { 2 };
    // SAFETY: `write` and `_exit` are async-signal-safe; errno is restored for the interrupted
    // code.
    unsafe {
        if count > max_signals || AT_ONCE.load(Ordering::SeqCst) {
            libc::_exit(130)
        }
        if answers >= 0 {
            let errno = libc::__errno_location();
            let kept = *errno;
            let byte = count as u8;
            libc::write(answers, (&raw const byte).cast(), 1);
            *errno = kept;
        }
    }
}
