//! What crosses the pipes between host and a child: bytes in, bytes out, nothing trusted.
//!
//! Host to child, one *command* a call: `u8 mode, u32 prelude length, u32 code length, prelude, code` (little
//! endian, UTF-8); mode is `O` for a child's only program, `S` for one of a session.
//! Child to host, one *report* a call: `u8 kind, u32 length, text`. The child runs the program, so the program can
//! write a report of its own; all it gains is to end its call early with words of its choice. The decoder therefore
//! accepts any bytes, in any pieces, and keeps at most [`MAX_REPORT`] of them.

/// Longest text of a report; the driver cuts its own at the same length.
pub(super) const MAX_REPORT: usize = 1 << 20;

/// Longest program or prelude.
pub(super) const MAX_CODE: usize = 8 << 20;

const HEADER: usize = 5;

/// How a program ended, in the words of its own process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The child has confined itself and waits for a command.
    Ready,
    /// Without error; the text of the last expression's value, empty if there is none.
    Done(String),
    /// With an error, as it is to be shown.
    Error(String),
    /// The confinement could not be completed; the program was not run.
    Unconfined(String),
}

/// A report that no driver would write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Puts a report together from the pieces that a pipe gives.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes the next piece. `Some` once a report is whole; what follows it is dropped.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<Option<Report>, Malformed> {
        let room = (HEADER + MAX_REPORT).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        let Some((header, text)) = self.bytes.split_at_checked(HEADER) else { return Ok(None) };
        let kind = header[0];
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if length > MAX_REPORT || !b"RDEU".contains(&kind) {
            return Err(Malformed);
        }
        let Some(text) = text.get(..length) else { return Ok(None) };
        let text = String::from_utf8_lossy(text).into_owned();
        self.bytes.clear();
        Ok(Some(match kind {
            b'R' => Report::Ready,
            b'D' => Report::Done(text),
            b'E' => Report::Error(text),
            _ => Report::Unconfined(text),
        }))
    }
}

/// The command that makes a child run `code` after `prelude`.
pub(super) fn encode(only: bool, code: &str, prelude: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + code.len() + prelude.len());
    bytes.push(if only { b'O' } else { b'S' });
    bytes.extend_from_slice(&(prelude.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(code.len() as u32).to_le_bytes());
    bytes.extend_from_slice(prelude.as_bytes());
    bytes.extend_from_slice(code.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn report(kind: u8, text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text);
        bytes
    }

    proptest! {
        #[test]
        fn a_report_survives_any_cutting(text in ".{0,300}", cuts in prop::collection::vec(1usize..40, 1..50)) {
            let bytes = report(b'E', text.as_bytes());
            let mut decoder = Decoder::default();
            let (mut at, mut cuts, mut got) = (0, cuts.into_iter().cycle(), None);
            while at < bytes.len() {
                prop_assert_eq!(&got, &None);
                let next = (at + cuts.next().unwrap()).min(bytes.len());
                got = decoder.push(&bytes[at..next]).unwrap();
                at = next;
            }
            prop_assert_eq!(got, Some(Report::Error(text)));
        }

        #[test]
        fn any_bytes_are_survived(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut decoder = Decoder::default();
            for piece in pieces {
                if decoder.push(&piece).is_err() {
                    break;
                }
                prop_assert!(decoder.bytes.len() <= HEADER + MAX_REPORT);
            }
        }
    }

    #[test]
    fn a_report_too_long_or_of_no_kind_is_malformed() {
        let mut long = report(b'D', b"");
        long[1..5].copy_from_slice(&(MAX_REPORT as u32 + 1).to_le_bytes());
        assert_eq!(Decoder::default().push(&long), Err(Malformed));
        assert_eq!(Decoder::default().push(&report(b'?', b"x")), Err(Malformed));
        assert_eq!(Decoder::default().push(&report(b'D', b"\xff")), Ok(Some(Report::Done("\u{fffd}".to_owned()))));
    }
}
