//! Ctrl-C, SIGTERM and SIGHUP: the first asks the process to stop at the next good place, later ones to stop sooner.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::error::{Error, Kind, Result};

static SIGNALS: AtomicU32 = AtomicU32::new(0);
static AT_ONCE: AtomicBool = AtomicBool::new(false);
/// Where the handler writes the number of each signal, if a thread answers them; -1: none does.
static ANSWERS: AtomicI32 = AtomicI32::new(-1);

/// Whether the user wants the process to stop. Cheap to copy and to ask.
#[derive(Clone, Copy, Debug)]
pub struct Interrupt(());

impl Interrupt {
    /// Whether a signal came.
    pub fn is_set(self) -> bool {
        self.count() > 0
    }

    /// How many signals came.
    pub fn count(self) -> u32 {
        SIGNALS.load(Ordering::SeqCst)
    }

    /// Forgets what came: a reply was stopped, and the conversation goes on.
    pub fn clear(self) {
        SIGNALS.store(0, Ordering::SeqCst);
    }

    /// While on, the first signal ends the process: nothing is under way, as at a prompt.
    pub fn at_once(self, on: bool) {
        AT_ONCE.store(on, Ordering::SeqCst);
    }

    /// Has the first two signals answered by `answer` on a thread of its own, at once, whatever the process is doing; it gets
    /// the number of the signal, 1 or 2. The second signal then ends the process only if `answer` does. The third one always
    /// does. Answers last as long as what is returned.
    ///
    /// # Errors
    /// `Kind::Internal` if there is no pipe or thread to be had.
    pub fn answered(self, answer: impl FnMut(u32) + Send + 'static) -> Result<Answered> {
        let failed = |error: std::io::Error| Error::new(Kind::Internal, format!("can't answer signals: {error}"));
        let (read, write) = pipe().map_err(failed)?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || listen(read, answer)).map_err(failed)?;
        let before = ANSWERS.swap(write, Ordering::SeqCst);
        Ok(Answered { write, before })
    }
}

/// Signals are answered while this lives; whoever answered them before does so again afterwards.
#[derive(Debug)]
pub struct Answered {
    write: libc::c_int,
    before: libc::c_int,
}

impl Drop for Answered {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // Another may have taken over.
        let _ = ANSWERS.compare_exchange(self.write, self.before, Ordering::SeqCst, Ordering::SeqCst);
        // SAFETY: the descriptor is this value's own. The thread reads the end of the file and leaves.
        unsafe {
            libc::close(self.write);
        }
    }
}

#[allow(unsafe_code)]
fn pipe() -> std::io::Result<(libc::c_int, libc::c_int)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok((ends[0], ends[1]))
}

#[allow(unsafe_code)]
fn listen(read: libc::c_int, mut answer: impl FnMut(u32)) {
    loop {
        let mut byte = 0_u8;
        // SAFETY: one byte into a variable of one byte.
        let count = unsafe { libc::read(read, (&raw mut byte).cast(), 1) };
        match count {
            1 => answer(u32::from(byte)),
            -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    // SAFETY: the descriptor is this thread's own.
    unsafe {
        libc::close(read);
    }
}

/// Catches SIGINT, SIGTERM and SIGHUP from now on; SIGHUP only if it was not ignored before, as under `nohup`. Unless
/// signals are [answered](Interrupt::answered), the second one exits with code 130, leaving files as they are; what was
/// written is whole, because files appear by rename.
pub fn ctrl_c() -> Interrupt {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::Relaxed) {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            install(signal);
        }
    }
    Interrupt(())
}

/// A file that would grow beyond the limit of file sizes (`ulimit -f`) gives an error from now on; by default the system
/// ends the process.
#[allow(unsafe_code)]
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal touches no memory.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

#[allow(unsafe_code)]
fn install(signal: libc::c_int) {
    // SAFETY: both actions are fully set before they are used, and the handler only touches atomics, errno and calls
    // `write` and `_exit`, all allowed in signal handlers. SA_RESTART keeps system calls of other code from failing
    // with EINTR.
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
    let most = if answers < 0 { 1 } else { 2 };
    // SAFETY: `write` and `_exit` may be called in a signal handler; errno is put back for the code that was interrupted.
    unsafe {
        if count > most || AT_ONCE.load(Ordering::SeqCst) {
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
