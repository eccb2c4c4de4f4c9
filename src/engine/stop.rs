//! Stop strings, matched byte by byte over the tokens of a reply.
//!
//! A stop string may begin inside one token, end inside another and cut a multi-byte character between tokens, so
//! the search runs over bytes, never over decoded text. Each string has a Knuth-Morris-Pratt automaton: a byte
//! costs constant time and nothing of the reply is kept.

/// The bytes every token id stands for, for exact stop strings. Ids past the end stand for no bytes.
#[derive(Clone, Debug, Default)]
pub struct TokenBytes(Vec<Vec<u8>>);

impl TokenBytes {
    /// `bytes[id]` is what token `id` writes.
    pub fn new(bytes: Vec<Vec<u8>>) -> Self {
        Self(bytes)
    }

    /// What one token writes.
    pub fn get(&self, id: u32) -> &[u8] {
        self.0.get(id as usize).map_or(&[], Vec::as_slice)
    }
}

/// Watches one reply for any of several strings.
#[derive(Clone, Debug)]
pub(super) struct StopMatcher {
    patterns: Vec<Pattern>,
}

impl StopMatcher {
    /// Empty strings never match.
    pub(super) fn new(strings: &[String]) -> Self {
        let patterns = strings.iter().filter(|s| !s.is_empty()).map(|s| Pattern::new(s.as_bytes())).collect();
        Self { patterns }
    }

    /// Takes the bytes of the next token; true when a string is completed within them.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        // No short circuit: every automaton must see every byte.
        self.patterns.iter_mut().fold(false, |found, pattern| pattern.push(bytes) | found)
    }
}

#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: length of the longest proper border of the first `n` bytes.
    fallback: Vec<usize>,
    /// How many bytes of the pattern the reply's end matches.
    matched: usize,
}

impl Pattern {
    fn new(bytes: &[u8]) -> Self {
        let mut fallback = vec![0; bytes.len() + 1];
        let mut border = 0;
        for end in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[end] {
                border = fallback[border];
            }
            if bytes[border] == bytes[end] {
                border += 1;
            }
            fallback[end + 1] = border;
        }
        Self { bytes: bytes.to_vec(), fallback, matched: 0 }
    }

    fn push(&mut self, input: &[u8]) -> bool {
        let mut found = false;
        for &byte in input {
            if self.matched == self.bytes.len() {
                self.matched = self.fallback[self.matched];
            }
            while self.matched > 0 && self.bytes[self.matched] != byte {
                self.matched = self.fallback[self.matched];
            }
            if self.bytes[self.matched] == byte {
                self.matched += 1;
            }
            found |= self.matched == self.bytes.len();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(strings: &[&str]) -> StopMatcher {
        StopMatcher::new(&strings.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_string_spans_tokens() {
        let mut stop = matcher(&["</code>"]);
        let found: Vec<bool> = ["1 <", "/co", "d", "e> and more"].iter().map(|t| stop.push(t.as_bytes())).collect();
        assert_eq!(found, [false, false, false, true]);
    }

    #[test]
    fn a_failed_start_may_hold_the_real_one() {
        let mut stop = matcher(&["aab"]);
        assert!(!stop.push(b"aa"));
        assert!(!stop.push(b"a"));
        assert!(stop.push(b"b"));
    }

    #[test]
    fn a_character_may_be_cut_between_tokens() {
        let mut stop = matcher(&["終"]);
        let bytes = "終".as_bytes();
        assert!(!stop.push(&bytes[..1]));
        assert!(!stop.push(&bytes[1..2]));
        assert!(stop.push(&bytes[2..]));
    }

    #[test]
    fn tokens_without_bytes_neither_match_nor_break_a_match() {
        let mut stop = matcher(&["ab", ""]);
        assert!(!stop.push(b"a"));
        assert!(!stop.push(TokenBytes::default().get(7)));
        assert!(stop.push(b"b"));
    }

    proptest! {
        /// Against the plain search over everything written so far.
        #[test]
        fn agrees_with_a_search_over_the_whole_reply(
            strings in prop::collection::vec("[abé]{1,5}", 1..4),
            tokens in prop::collection::vec(prop::collection::vec(prop::sample::select("abé".as_bytes()), 0..4), 0..30),
        ) {
            let mut stop = StopMatcher::new(&strings);
            let mut reply: Vec<u8> = Vec::new();
            for token in tokens {
                let before = reply.len();
                reply.extend(&token);
                let expected = strings.iter().any(|s| {
                    (before + 1..=reply.len()).any(|end| reply[..end].ends_with(s.as_bytes()))
                });
                prop_assert_eq!(stop.push(&token), expected);
            }
        }
    }
}
