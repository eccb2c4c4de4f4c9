//! A prompt in pieces: text that the policy writes and text that everybody else writes, encoded one by one.
//!
//! A rollout samples a reply behind a prompt and appends what the environment says, so tokens never reach across
//! those borders. Whoever wants the ids of a rollout must encode the same pieces, not the whole text.

use super::Tokenizer;
use crate::error::Result;

/// Text with one writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub text: String,
    /// Written by the policy: a reply, or its end-of-turn token.
    pub sampled: bool,
}

/// Pieces in order; neighbours of one writer are one piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces(pub Vec<Piece>);

impl Pieces {
    pub(super) fn push(&mut self, text: &str, sampled: bool) {
        if text.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.sampled == sampled => last.text.push_str(text),
            _ => self.0.push(Piece { text: text.to_owned(), sampled }),
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        for piece in other.0 {
            self.push(&piece.text, piece.sampled);
        }
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|piece| piece.text.as_str()).collect()
    }

    /// The ids of each piece, one after the other, and whether the policy writes them.
    pub(super) fn encode(&self, tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<bool>)> {
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for piece in &self.0 {
            ids.extend(tokenizer.encode(&piece.text)?);
            mask.resize(ids.len(), piece.sampled);
        }
        Ok((ids, mask))
    }
}
