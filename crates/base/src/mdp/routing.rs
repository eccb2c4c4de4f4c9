//! The experts that a mixture-of-experts model selected, so that the learner can use the same ones
//! (routing replay).

use serde::{Deserialize, Serialize};

/// The experts of consecutive tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routing {
    /// Position of the first token.
    pub start: u32,
    /// Experts per token: sparse layers times selected experts per layer; 0 if nothing is recorded.
    pub width: u32,
    /// `[tokens, width]`: for each token the experts of the first sparse layer in order of
    /// probability, then the experts of the next layer, …
    pub experts: Vec<u16>,
}

impl Routing {
    /// Marks an expert of a token without a record.
    pub const MISSING: u16 = u16::MAX;

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.experts.is_empty()
    }

    /// Number of recorded tokens.
    pub fn tokens(&self) -> usize {
        if self.width == 0 { 0 } else { self.experts.len() / self.width as usize }
    }

    /// The record from token `start` on.
    #[must_use]
    pub fn from(mut self, start: usize) -> Self {
        let skipped = start.saturating_sub(self.start as usize).min(self.tokens());
        self.experts.drain(..skipped * self.width as usize);
        self.start += skipped as u32;
        self
    }

    /// Appends the record of tokens at or after the end. Tokens in between are marked as missing.
    pub fn extend(&mut self, more: &Self) {
        if more.is_empty() {
            return;
        }
        if self.is_empty() {
            *self = Self { start: 0, width: more.width, experts: Vec::new() };
        }
        self.experts.resize(more.start as usize * more.width as usize, Self::MISSING);
        self.experts.extend_from_slice(&more.experts);
    }

    /// The experts of the token at `index`; empty if it has no record.
    pub fn of(&self, index: usize) -> &[u16] {
        let width = self.width as usize;
        let Some(at) = index.checked_sub(self.start as usize) else { return &[] };
        self.experts.get(at * width..(at + 1) * width).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expert_routing_records_of_steps_are_joined() {
        let of = |start: u32, experts: &[u16]| Routing { start, width: 2, experts: experts.to_vec() };
        let mut row = Routing::default();
        row.extend(&of(0, &[1, 2, 3, 4]));
        row.extend(&of(2, &[5, 6]));
        // A step without a record, then one with its own.
        row.extend(&Routing::default());
        row.extend(&of(4, &[7, 8]));
        assert_eq!((row.tokens(), row.of(1), row.of(2)), (5, [3, 4].as_slice(), [5, 6].as_slice()));
        assert_eq!((row.of(3), row.of(4)), ([Routing::MISSING; 2].as_slice(), [7, 8].as_slice()));
        assert!(row.of(5).is_empty() && of(3, &[1, 2]).of(2).is_empty() && Routing::default().of(0).is_empty());
        let last = of(0, &[1, 2, 3, 4]).from(1);
        assert_eq!((last.start, last.experts.as_slice()), (1, [3, 4].as_slice()));
        assert_eq!(last.clone().from(0), last);
    }
}
