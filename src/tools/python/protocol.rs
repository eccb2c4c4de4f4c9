//! The binary protocol on the pipes between host and child. The host does not trust the child.
//!
//! Host to child, one *command* per call: `u8 mode, u32 prelude length, u32 code length, u32 files
//! length, prelude, code, files, nonce` (little endian, UTF-8); mode is `O` for a child's only
//! program, `S` for one of a session. Child to host, one *report* per call: `u8 kind, u32 text
//! length, u32 files length, nonce, text, files`. `files` has the blocks of files. The nonce is
//! random. The driver reads it from the command pipe only after the program has ended, so a program
//! that writes to the report pipe, or ends its process, does not produce a valid report. It does
//! not protect against a program that replaces the driver (reads the nonce from the pipe itself):
//! programs share a process with the driver. The decoder accepts any bytes, in any pieces, and
//! keeps at most [`MAX_REPORT`] of text and [`MAX_FILES`] of files.

use super::files::MAX_FILES;

/// Maximum length of a report's text; the driver truncates at the same length.
pub(super) const MAX_REPORT: usize = 1 << 20;

/// Maximum length of a program or prelude.
pub(super) const MAX_CODE: usize = 8 << 20;

/// Authenticates a report.
pub(super) type Nonce = [u8; 16];

const HEADER: usize = 9 + size_of::<Nonce>();

/// The end of a program, as reported by its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgramReport {
    /// The child has confined itself and waits for a command.
    Ready,
    /// No error; the text of the last expression's value, empty if there is none.
    Done(String),
    /// An error, formatted for the policy.
    Error(String),
    /// The confinement failed; the program was not run.
    Unconfined(String),
}

/// An invalid report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedReport;

/// Assembles a report from the pieces read from a pipe.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    /// The nonce of the current command; `None` before the first, when the child reports that it is
    /// ready.
    nonce: Option<Nonce>,
    /// The block of files of the last report.
    pub(super) files: Vec<u8>,
}

impl Decoder {
    /// From now on only a report with this nonce counts. Earlier bytes are dropped.
    pub(super) fn expect(&mut self, nonce: Nonce) {
        self.bytes.clear();
        self.files.clear();
        self.nonce = Some(nonce);
    }

    /// Adds a piece. Returns `Some` when a report is complete; later bytes are dropped.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<Option<ProgramReport>, MalformedReport> {
        let room = (HEADER + MAX_REPORT + MAX_FILES).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        let Some((header, text)) = self.bytes.split_at_checked(HEADER) else { return Ok(None) };
        let kind = header[0];
        let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
        let files = u32::from_le_bytes([header[5], header[6], header[7], header[8]]) as usize;
        let kinds = if self.nonce.is_some() { b"DE" } else { b"RU" };
        if length > MAX_REPORT
            || files > MAX_FILES
            || !kinds.contains(&kind)
            || header[9..] != self.nonce.unwrap_or_default()
        {
            return Err(MalformedReport);
        }
        let Some(files) = text.get(length..length + files) else { return Ok(None) };
        self.files = files.to_vec();
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        self.bytes.clear();
        Ok(Some(match kind {
            b'R' => ProgramReport::Ready,
            b'D' => ProgramReport::Done(text),
            b'E' => ProgramReport::Error(text),
            _ => ProgramReport::Unconfined(text),
        }))
    }
}

/// The command for a child to run `code` after `prelude`.
pub(super) fn encode(only: bool, code: &str, prelude: &str, files: &[u8], nonce: Nonce) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(13 + code.len() + prelude.len() + files.len() + nonce.len());
    bytes.push(if only { b'O' } else { b'S' });
    bytes.extend_from_slice(&(prelude.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(code.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(files.len() as u32).to_le_bytes());
    bytes.extend_from_slice(prelude.as_bytes());
    bytes.extend_from_slice(code.as_bytes());
    bytes.extend_from_slice(files);
    bytes.extend_from_slice(&nonce);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const NONCE: Nonce = [7; 16];

    fn report(kind: u8, nonce: Nonce, text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(text);
        bytes
    }

    fn decoder() -> Decoder {
        let mut decoder = Decoder::default();
        decoder.expect(NONCE);
        decoder
    }

    proptest! {
        #[test]
        fn a_report_in_any_pieces_is_decoded(text in ".{0,300}", cuts in prop::collection::vec(1usize..40, 1..50)) {
            let bytes = report(b'E', NONCE, text.as_bytes());
            let mut decoder = decoder();
            let (mut at, mut cuts, mut got) = (0, cuts.into_iter().cycle(), None);
            while at < bytes.len() {
                prop_assert_eq!(&got, &None);
                let next = (at + cuts.next().unwrap()).min(bytes.len());
                got = decoder.push(&bytes[at..next]).unwrap();
                at = next;
            }
            prop_assert_eq!(got, Some(ProgramReport::Error(text)));
        }

        #[test]
        fn any_report_bytes_are_handled_without_a_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut decoder = decoder();
            for piece in pieces {
                if decoder.push(&piece).is_err() {
                    break;
                }
                prop_assert!(decoder.bytes.len() <= HEADER + MAX_REPORT + MAX_FILES);
            }
        }
    }

    #[test]
    fn a_report_with_a_wrong_length_or_kind_is_malformed() {
        let mut long = report(b'D', NONCE, b"");
        long[1..5].copy_from_slice(&(MAX_REPORT as u32 + 1).to_le_bytes());
        assert_eq!(decoder().push(&long), Err(MalformedReport));
        assert_eq!(decoder().push(&report(b'?', NONCE, b"x")), Err(MalformedReport));
        assert_eq!(decoder().push(&report(b'D', NONCE, b"\xff")), Ok(Some(ProgramReport::Done("\u{fffd}".to_owned()))));
    }

    #[test]
    fn a_report_without_the_nonce_of_its_command_is_malformed() {
        assert_eq!(decoder().push(&report(b'D', [0; 16], b"")), Err(MalformedReport));
        assert_eq!(decoder().push(&report(b'R', NONCE, b"")), Err(MalformedReport));
        assert_eq!(Decoder::default().push(&report(b'D', [0; 16], b"")), Err(MalformedReport));
        assert_eq!(Decoder::default().push(&report(b'R', [0; 16], b"")), Ok(Some(ProgramReport::Ready)));
    }
}
