//! Reads every row of the datasets in files once, so that a row that can't be read is found at the
//! start of a run, and not when it is drawn, hours later. Reinforcement learning checks the first
//! rows when it selects them (selection.rs); this file checks the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::config::Source;
use crate::error::{Error, Kind, Result};
use crate::script::{Script, Split, Worker};
use crate::telemetry::Reporter;

/// The longest time that a run waits for the rows before its first step; larger datasets are read
/// during training.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Rows being read on a thread.
pub(crate) struct RowCheck {
    result: Receiver<Result<()>>,
    stop: Arc<AtomicBool>,
}

impl RowCheck {
    /// Starts to read the rows that the run may draw, without the first `checked` of each dataset.
    /// Rows that a function makes are made when they are drawn.
    ///
    /// # Errors
    /// `Kind::Internal` if no thread can be started.
    pub(crate) fn start(script: &Script, checked: u64) -> Result<Self> {
        let (result, receiver) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (script, stopped) = (script.clone(), Arc::clone(&stop));
        std::thread::Builder::new()
            .name("rows".to_owned())
            .spawn(move || {
                // The run may have ended.
                let _ = result.send(read(&script, checked, &stopped));
            })
            .map_err(|error| Error::new(Kind::Internal, format!("can't start the thread that reads rows: {error}")))?;
        Ok(Self { result: receiver, stop })
    }

    /// Waits for the rows, at most for `longest`.
    ///
    /// # Errors
    /// The error of the first row that can't be read.
    pub(crate) fn wait(&self, longest: Duration) -> Result<()> {
        self.result.recv_timeout(longest).unwrap_or(Ok(()))
    }

    /// Warns about invalid rows found since the last call.
    pub(crate) fn report(&self, reporter: &Reporter) {
        if let Ok(Err(error)) = self.result.try_recv() {
            reporter.warn(&format!("{error}\n  the run ends with a checkpoint when it draws this row"));
        }
    }
}

impl Drop for RowCheck {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn read(script: &Script, checked: u64, stop: &AtomicBool) -> Result<()> {
    let settings = &script.settings;
    let in_files = |source: &Option<Source>| {
        let parts = source.as_ref().map(Source::parts).unwrap_or_default();
        parts.iter().any(|(_, source)| matches!(source, Source::File(_) | Source::Hub(_)))
    };
    if !in_files(&settings.data.train) && !in_files(&settings.data.eval) {
        return Ok(());
    }
    let worker = Worker::new(script, None)?;
    let limit = if settings.eval.limit == 0 { u64::MAX } else { settings.eval.limit as u64 };
    for (split, max) in [(Split::Train, u64::MAX), (Split::Eval, limit)] {
        let mut first = 0;
        for part in worker.parts(split)? {
            let wanted = if part.generated { 0 } else { part.rows.min(max) };
            for index in first + checked.min(wanted)..first + wanted {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                worker.row(split, index)?;
            }
            first += part.rows;
        }
    }
    Ok(())
}
