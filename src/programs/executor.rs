//! Runs the future of a program, and the tasks of its calls, on one thread.
//!
//! The thread is not in [`Runtime::block_on`]: a run that a program trains waits for its workers
//! and starts runtimes, as in `r1 run`, which tokio forbids there. Timers and sockets have a worker
//! thread, so that they go on while the model computes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::error::{Error, Kind, Result};

pub(crate) struct Executor {
    tasks: LocalSet,
    runtime: Runtime,
}

impl Executor {
    /// # Errors
    /// [`Kind::Internal`] if no thread can be started.
    pub(crate) fn new() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let failed = |error| Error::new(Kind::Internal, format!("can't start the runtime: {error}"));
        Ok(Self { tasks: LocalSet::new(), runtime: runtime.map_err(failed)? })
    }

    /// Waits for the future. Tasks that are left then go on in the next call.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let _entered = self.runtime.enter();
        let signal = Arc::new(Signal { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&signal));
        let mut future = pin!(self.tasks.run_until(future));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            // A wait inside of the future may have taken the token of `unpark`.
            while !signal.woken.swap(false, Ordering::Acquire) {
                thread::park();
            }
        }
    }
}

/// Wakes the thread of [`Executor::block_on`].
struct Signal {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
