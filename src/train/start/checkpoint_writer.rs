//! A thread that writes a checkpoint while the run samples its next trajectories.
//!
//! The tensors of the checkpoint are those of the run. They do not change while trajectories are
//! sampled, so nothing is copied; before the run changes them, it waits until the thread has passed
//! all of them to the system. The disk may take longer; only the next checkpoint and the end of the
//! run wait for it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::telemetry::Metrics;

/// At most one checkpoint is written at a time.
#[derive(Default)]
pub(crate) struct CheckpointWriter {
    writing: RefCell<Option<Writing>>,
    /// Seconds since the last [`report`](Self::report): of the thread, and of the run, which waited
    /// for it.
    seconds: Cell<f64>,
    waited: Cell<f64>,
}

struct Writing {
    thread: JoinHandle<(Result<PathBuf>, f64)>,
    /// Gets a message when the tensors may change; `None` afterwards. An error of the checkpoint
    /// closes it.
    read: Option<Receiver<()>>,
}

impl CheckpointWriter {
    /// Begins to write a checkpoint, after the one before; `write` returns its path, and calls its
    /// argument when the tensors may change.
    ///
    /// # Errors
    /// Errors of the previous checkpoint; `Kind::Internal` if no thread can be started.
    pub(crate) fn start(&self, write: impl FnOnce(&dyn Fn()) -> Result<PathBuf> + Send + 'static) -> Result<()> {
        self.finish()?;
        let (send, read) = channel();
        let timed = move || {
            let began = Instant::now();
            // The run may have ended.
            let written = write(&|| {
                let _ = send.send(());
            });
            (written, began.elapsed().as_secs_f64())
        };
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(timed);
        let thread = thread
            .map_err(|error| Error::new(Kind::Internal, format!("can't start a thread for the checkpoint: {error}")))?;
        *self.writing.borrow_mut() = Some(Writing { thread, read: Some(read) });
        Ok(())
    }

    /// Waits until the tensors may change.
    ///
    /// # Errors
    /// Errors of the checkpoint until its tensors are written; later ones are returned by
    /// [`finish`](Self::finish).
    pub(crate) fn release(&self) -> Result<()> {
        let read = self.writing.borrow_mut().as_mut().and_then(|writing| writing.read.take());
        let Some(read) = read else { return Ok(()) };
        let began = Instant::now();
        let message = read.recv();
        self.wait(began);
        if message.is_err() { self.finish().map(drop) } else { Ok(()) }
    }

    /// Waits for the checkpoint that is being written; returns its path, or `None` if there is
    /// none.
    ///
    /// # Errors
    /// Errors of the `write` that was passed to [`start`](Self::start).
    pub(crate) fn finish(&self) -> Result<Option<PathBuf>> {
        let Some(Writing { thread, .. }) = self.writing.take() else { return Ok(None) };
        let began = Instant::now();
        let (written, seconds) =
            thread.join().map_err(|_| Error::new(Kind::Internal, "the thread of the checkpoint has panicked"))?;
        self.wait(began);
        self.seconds.set(self.seconds.get() + seconds);
        written.map(Some)
    }

    fn wait(&self, began: Instant) {
        self.waited.set(self.waited.get() + began.elapsed().as_secs_f64());
    }

    /// Adds the seconds since the last report to the metrics of a step.
    pub(crate) fn report(&self, values: &mut Metrics) {
        values.set("time/checkpoint", self.seconds.take());
        values.set("time/checkpoint_wait", self.waited.take());
    }
}

impl Drop for CheckpointWriter {
    /// A run that ends with an error completes its checkpoint.
    fn drop(&mut self) {
        // The error that ends the run is reported.
        let _ = self.finish();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_checkpoint_is_written_while_the_run_goes_on() {
        let writer = CheckpointWriter::default();
        let (tensors, wait_for_tensors) = channel::<()>();
        let (disk, wait_for_disk) = channel::<()>();
        writer
            .start(move |read| {
                wait_for_tensors.recv().unwrap();
                read();
                wait_for_disk.recv().unwrap();
                Ok(PathBuf::from("a"))
            })
            .unwrap();
        // The thread waits for these messages, so that the calls return before it ends.
        tensors.send(()).unwrap();
        writer.release().unwrap();
        writer.release().unwrap();
        disk.send(()).unwrap();
        assert_eq!(writer.finish().unwrap(), Some(PathBuf::from("a")));
        assert_eq!(writer.finish().unwrap(), None);
        writer.release().unwrap();
    }

    #[test]
    fn an_error_is_returned_by_the_next_operation() {
        let failing = |_: &dyn Fn()| Err(Error::new(Kind::Store, "the disk is full"));
        let writer = CheckpointWriter::default();
        writer.start(failing).unwrap();
        assert_eq!(writer.start(|_| Ok(PathBuf::new())).unwrap_err().message, "the disk is full");
        writer.start(failing).unwrap();
        assert!(writer.release().is_err() && writer.finish().unwrap().is_none());
    }

    #[test]
    fn the_times_are_those_since_the_last_report() {
        let writer = CheckpointWriter::default();
        let sleep = || thread::sleep(Duration::from_millis(20));
        writer
            .start(move |_| {
                sleep();
                Ok(PathBuf::new())
            })
            .unwrap();
        writer.finish().unwrap();
        let times = || {
            let mut values = Metrics::new();
            writer.report(&mut values);
            [values.get("time/checkpoint").unwrap(), values.get("time/checkpoint_wait").unwrap()]
        };
        assert!(times()[0] >= 0.02);
        assert!(times().iter().all(|seconds| *seconds == 0.0));
    }
}
