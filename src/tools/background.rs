//! The thread that runs the servers of this process and the connections to them, so that the
//! single-threaded runtimes of trajectories share them.

use std::future::pending;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinError, JoinHandle};

use crate::error::{Error, Kind, Result};

/// Starts the thread on first use. It lives as long as the process: child processes end with the
/// thread that started them.
fn handle() -> Result<&'static Handle> {
    static HANDLE: OnceLock<std::result::Result<Handle, Error>> = OnceLock::new();
    let start = || {
        let failed = |error: std::io::Error| Error::new(Kind::Internal, format!("can't start the thread: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        std::thread::Builder::new().name("servers".to_owned()).spawn(run).map_err(failed)?;
        Ok(handle)
    };
    HANDLE.get_or_init(start).as_ref().map_err(Clone::clone)
}

/// Runs a future on the thread. Dropping the task drops the future.
pub(super) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<Task<T>> {
    Ok(Task(handle()?.spawn(future)))
}

/// Runs a future on the thread without waiting for its result.
pub(super) fn detach(future: impl Future<Output = ()> + Send + 'static) {
    if let Ok(handle) = handle() {
        drop(handle.spawn(future));
    }
}

/// Runs a future on the thread and blocks the calling thread until it is ready.
pub(super) fn block_on<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let (sender, answer) = std::sync::mpsc::channel();
    handle()?.spawn(async move {
        // The receiver waits below.
        let _ = sender.send(future.await);
    });
    answer.recv().map_err(|_| Error::new(Kind::Internal, "the thread of the servers stopped"))
}

/// A future on the thread, awaited from any runtime.
pub(super) struct Task<T>(JoinHandle<T>);

impl<T> Future for Task<T> {
    type Output = std::result::Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
