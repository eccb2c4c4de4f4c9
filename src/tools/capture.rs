//! Captures a program's output within a limit.

use std::collections::VecDeque;

/// The output of a program; if it is too long, its start and end.
#[derive(Debug)]
pub(super) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    limit: usize,
    /// Bytes printed so far, kept or not.
    pub(super) total: u64,
}

impl Capture {
    /// A capture of about `limit` bytes, three quarters of them from the start.
    pub(super) fn new(limit: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), limit, total: 0 }
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.total += piece.len() as u64;
        let room = self.limit.saturating_sub(self.head.len());
        let (head, rest) = piece.split_at(piece.len().min(room));
        self.head.extend_from_slice(head);
        let keep = self.limit / 4;
        let rest = &rest[rest.len().saturating_sub(keep)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(keep);
        self.tail.drain(..excess.min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// The text. Invalid UTF-8 is replaced; the middle of a long text is replaced by a line with
    /// its length.
    pub(super) fn text(&self) -> String {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if self.total <= self.limit as u64 {
            return lossy(&self.head);
        }
        // `head` holds a full limit so that output of exactly that length is complete.
        let tail_length = (self.limit / 4).min(self.total as usize);
        let mut end: Vec<u8> = self.tail.iter().copied().collect();
        let missing = tail_length.saturating_sub(end.len());
        if missing > 0 {
            let mut start = self.head[self.head.len().saturating_sub(missing)..].to_vec();
            start.append(&mut end);
            end = start;
        }
        let head = self.limit - self.limit / 4;
        let head = &self.head[..char_boundary(&self.head, head)];
        let start = (0..end.len().min(4)).find(|&i| end[i] & 0xC0 != 0x80).unwrap_or(0);
        let end = &end[start..];
        let left_out = self.total - (head.len() + end.len()) as u64;
        format!("{}\n[… {left_out} bytes left out …]\n{}", lossy(head), lossy(end))
    }
}

/// The largest index up to `at` that does not split a UTF-8 character.
fn char_boundary(bytes: &[u8], at: usize) -> usize {
    (at.saturating_sub(3)..=at).rev().find(|&i| i >= bytes.len() || bytes[i] & 0xC0 != 0x80).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn captured_output_keeps_its_start_and_end(
            pieces in prop::collection::vec(prop::collection::vec(b' '..b'~', 0..50), 0..30),
            limit in 64usize..200,
        ) {
            let mut capture = Capture::new(limit);
            for piece in &pieces {
                capture.push(piece);
            }
            let all = String::from_utf8(pieces.concat()).unwrap();
            let text = capture.text();
            if all.len() <= limit {
                prop_assert_eq!(text, all);
            } else {
                let (head, rest) = text.split_once("\n[… ").unwrap();
                let (count, tail) = rest.split_once(" bytes left out …]\n").unwrap();
                prop_assert!(all.starts_with(head) && all.ends_with(tail));
                prop_assert_eq!(tail.len(), limit / 4);
                prop_assert_eq!(head.len() + tail.len() + count.parse::<usize>().unwrap(), all.len());
            }
        }
    }

    #[test]
    fn truncated_output_does_not_split_characters() {
        let mut capture = Capture::new(64);
        capture.push("é".repeat(500).as_bytes());
        assert!(!capture.text().contains('\u{fffd}'), "{}", capture.text());
    }
}
