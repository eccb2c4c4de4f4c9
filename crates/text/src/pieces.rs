//! A prompt in pieces: text of the policy and all other text, tokenized separately.
//!
//! A rollout appends the environment's messages to a sampled reply, so no token crosses the border
//! between them. To get the ids of a rollout, tokenize the same pieces, not the whole text.

use super::Tokenizer;
use super::mark_text::SEPARATOR;
use r1_base::error::Result;

/// Text with one writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub text: String,
    /// Written by the policy: a reply or its end-of-turn token.
    pub sampled: bool,
}

/// Pieces in order; adjacent pieces with the same writer are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(pub(super) Vec<Piece>);

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

    pub fn bytes(&self) -> usize {
        self.0.iter().map(|piece| piece.text.len()).sum()
    }

    /// The ids of all pieces, and a mask of those written by the policy.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<bool>)> {
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for piece in &self.0 {
            for part in piece.text.split(SEPARATOR) {
                ids.extend(tokenizer.encode_part(part)?);
            }
            mask.resize(ids.len(), piece.sampled);
        }
        Ok((ids, mask))
    }
}
