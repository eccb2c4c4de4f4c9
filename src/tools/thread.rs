//! Work on new threads. A blocking task of a runtime keeps the runtime from ending, and the process
//! with it; a thread whose result nobody waits for does not.

use tokio::sync::oneshot;

use crate::error::{Error, Kind, Result};

/// Runs `work` on a new thread. If the future is dropped, the thread goes on and its result is
/// dropped.
///
/// # Errors
/// [`Kind::Internal`] if no thread can be started, or if the work panics.
pub(crate) async fn on_thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (done, result) = oneshot::channel();
    start(name, move || {
        // The receiver may have been dropped.
        let _ = done.send(work());
    })?;
    result.await.map_err(|_| Error::new(Kind::Internal, format!("the thread {name} stopped")))
}

/// Starts a thread and does not wait for it.
///
/// # Errors
/// [`Kind::Internal`] if no thread can be started.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let failed = |error| Error::new(Kind::Internal, format!("can't start the thread {name}: {error}"));
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(failed)
}
