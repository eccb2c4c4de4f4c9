//! Lines of a child process, with limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStdout;

/// Bytes of a line's buffer that are kept for the next line.
const KEPT: usize = 1 << 16;

/// What a process has printed that is not an answer.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// Bytes since the last answer.
    pub(super) bytes: AtomicUsize,
    /// Lines that are not messages, since the start.
    pub(super) garbage: AtomicUsize,
    /// The process printed more than it may without an answer; nothing more is read.
    pub(super) flooded: AtomicBool,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Line,
    /// The start of a line that is too long; the rest of it is dropped.
    TooLong,
}

/// The standard output of a process as lines.
pub(super) struct Lines {
    output: BufReader<ChildStdout>,
    line: Vec<u8>,
    /// The line is too long, and is dropped up to its end.
    dropping: bool,
    traffic: Arc<Traffic>,
    /// Longest line, in bytes.
    longest: usize,
    /// Bytes that may be printed without an answer.
    most: usize,
}

impl Lines {
    pub(super) fn new(output: ChildStdout, traffic: Arc<Traffic>, longest: usize, most: usize) -> Self {
        Self { output: BufReader::new(output), line: Vec::new(), dropping: false, traffic, longest, most }
    }

    /// Reads the next line into [`Lines::line`]; `None` at the end of the output. It can be
    /// cancelled between any two pieces: the line so far stays.
    pub(super) async fn next(&mut self) -> Option<Read> {
        loop {
            let piece = self.output.fill_buf().await.ok().filter(|piece| !piece.is_empty())?;
            let end = piece.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(piece.len(), |end| end + 1);
            if !self.dropping {
                self.line.extend_from_slice(&piece[..count]);
            }
            self.output.consume(count);
            if self.traffic.bytes.fetch_add(count, Ordering::Relaxed) + count > self.most {
                self.traffic.flooded.store(true, Ordering::Relaxed);
                return None;
            }
            if self.line.len() > self.longest {
                self.dropping = end.is_none();
                self.line = Vec::new();
                return Some(Read::TooLong);
            }
            if end.is_some() && !std::mem::take(&mut self.dropping) {
                return Some(Read::Line);
            }
        }
    }

    /// Longest line, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The line that was read.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Forgets the line; one long line must not keep its memory.
    pub(super) fn clear(&mut self) {
        self.line.clear();
        self.line.shrink_to(KEPT);
    }
}
