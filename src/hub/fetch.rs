//! Downloads that the user sees and can stop.

use std::sync::{Mutex, PoisonError};

use super::{DownloadEvent, Watch, is_stopped};
use crate::error::Result;
use crate::telemetry::{Bar, Interrupt, Reporter};

/// Reports a download to the user, and stops it on request.
#[derive(Clone, Copy)]
pub struct Fetching<'a> {
    pub reporter: &'a Reporter,
    /// Ctrl-C ends the download; the received part is kept.
    pub interrupt: Option<Interrupt>,
}

/// Shows the progress of a download, which the user can stop.
pub(crate) fn watched<T>(what: &str, fetching: Fetching<'_>, fetch: impl FnOnce(&Watch<'_>) -> Result<T>) -> Result<T> {
    let reporter = fetching.reporter;
    let shown: Mutex<BarPosition> = Mutex::default();
    let event = |event: DownloadEvent<'_>| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            DownloadEvent::Begin { files, bytes } => {
                let size = if bytes > 0 { format!(", {:.1} MB", bytes as f64 / 1e6) } else { String::new() };
                let plural = if files == 1 { "" } else { "s" };
                reporter.info(&format!("fetching {what}: {files} file{plural}{size}"));
                shown.bar = Some(reporter.bar("fetching", bytes.div_ceil(MEGABYTE), "MB"));
            }
            DownloadEvent::Bytes(more) => shown.add(more),
            DownloadEvent::Lost(less) => shown.bytes = shown.bytes.saturating_sub(less),
            DownloadEvent::Note(note) => reporter.warn(note),
        }
    };
    let stop = || fetching.interrupt.is_some_and(Interrupt::is_set) || is_stopped();
    let fetched = fetch(&Watch { event: &event, stop: &stop });
    if let Some(bar) = &shown.into_inner().unwrap_or_else(PoisonError::into_inner).bar {
        bar.finish();
    }
    fetched
}

const MEGABYTE: u64 = 1_000_000;

/// Position of the bar. It never decreases: bytes that are fetched again count once.
#[derive(Default)]
struct BarPosition {
    bar: Option<Bar>,
    bytes: u64,
    megabytes: u64,
}

impl BarPosition {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        let megabytes = self.bytes / MEGABYTE;
        if let Some(bar) = self.bar.as_ref().filter(|_| megabytes > self.megabytes) {
            bar.inc(megabytes - self.megabytes);
            self.megabytes = megabytes;
        }
    }
}
