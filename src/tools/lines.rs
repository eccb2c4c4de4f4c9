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
    /// The line that was read.
    pub(super) line: Vec<u8>,
    /// The line is too long, and is dropped up to its end.
    dropping: bool,
    traffic: Arc<Traffic>,
    /// Longest line, in bytes.
    pub(super) longest: usize,
    /// Bytes that may be printed without an answer.
    limit: usize,
}

impl Lines {
    pub(super) fn new(output: ChildStdout, traffic: Arc<Traffic>, longest: usize, limit: usize) -> Self {
        Self { output: BufReader::new(output), line: Vec::new(), dropping: false, traffic, longest, limit }
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
            if self.traffic.bytes.fetch_add(count, Ordering::Relaxed) + count > self.limit {
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

    /// Forgets the line; one long line must not keep its memory.
    pub(super) fn clear(&mut self) {
        self.line.clear();
        self.line.shrink_to(KEPT);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Stdio;

    use super::*;

    /// The lines of a program, and whether it printed too much; `answers`: each line is an answer.
    fn read(program: &str, longest: usize, limit: usize, answers: bool) -> (Vec<(Read, usize)>, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut command = tokio::process::Command::new("sh");
            let mut child = command.args(["-c", program]).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
            let traffic = Arc::new(Traffic::default());
            let mut lines = Lines::new(child.stdout.take().unwrap(), Arc::clone(&traffic), longest, limit);
            let mut lines_read = Vec::new();
            while let Some(read) = lines.next().await {
                lines_read.push((read, lines.line.len()));
                if answers {
                    traffic.bytes.store(0, Ordering::Relaxed);
                }
                lines.clear();
            }
            (lines_read, traffic.flooded.load(Ordering::Relaxed))
        })
    }

    #[test]
    fn a_program_may_print_so_many_bytes_without_an_answer() {
        // 100 lines of 10 bytes.
        let program = "for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4 5 6 7 8 9; do echo 123456789; done; done";
        let line = (Read::Line, 10);
        assert_eq!(read(program, 10, 1000, false), (vec![line; 100], false));
        assert_eq!(read(program, 10, 999, false), (vec![line; 99], true));
        assert_eq!(read(program, 10, 55, false), (vec![line; 5], true));
        assert_eq!(read(program, 10, 10, true), (vec![line; 100], false));
        assert_eq!(read(program, 10, 9, true), (Vec::new(), true));
    }

    #[test]
    fn long_lines_are_dropped_up_to_their_end() {
        let program = "echo 12; echo 1234; echo 12345; echo 1";
        let expected = [(Read::Line, 3), (Read::Line, 5), (Read::TooLong, 0), (Read::Line, 2)];
        assert_eq!(read(program, 5, 1000, false), (expected.to_vec(), false));
        // Longer than what is read at once.
        let program = "head -c 100000 /dev/zero | tr '\\0' x; echo; echo 1";
        assert_eq!(read(program, 5, 1_000_000, false), (vec![(Read::TooLong, 0), (Read::Line, 2)], false));
    }
}
