//! Stop strings, matched byte by byte over the tokens of a response.
//!
//! A stop string can start inside one token and end inside another, and a multi-byte character can
//! span tokens, so the search runs over bytes instead of decoded text. One Aho-Corasick automaton
//! has all strings: constant time per byte, without a copy of the response.

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;

/// Bytes of each token id. Ids past the end have no bytes.
#[derive(Clone, Debug, Default)]
pub struct TokenBytes(Vec<Vec<u8>>);

impl TokenBytes {
    /// `bytes[id]` are the bytes of token `id`.
    pub fn new(bytes: Vec<Vec<u8>>) -> Self {
        Self(bytes)
    }

    /// Bytes of a token.
    pub fn get(&self, id: u32) -> &[u8] {
        self.0.get(id as usize).map_or(&[], Vec::as_slice)
    }
}

/// Searches one response for several stop strings.
#[derive(Clone, Debug)]
pub(super) struct StopMatcher {
    /// The automaton and its state; `None` without stop strings.
    search: Option<(NFA, StateID)>,
}

impl StopMatcher {
    /// Empty strings never match.
    pub(super) fn new(strings: &[String]) -> Self {
        let patterns: Vec<&String> = strings.iter().filter(|string| !string.is_empty()).collect();
        if patterns.is_empty() {
            return Self { search: None };
        }
        // There is no automaton for strings of gigabytes, which never match either.
        let automaton = NFA::new(patterns).ok();
        Self { search: automaton.and_then(|all| all.start_state(Anchored::No).ok().map(|start| (all, start))) }
    }

    /// Processes the bytes of the next token; true if they complete a string.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let Some((automaton, state)) = &mut self.search else { return false };
        // No short circuit: the automaton must process every byte.
        bytes.iter().fold(false, |stopped, byte| {
            *state = automaton.next_state(Anchored::No, *state, *byte);
            automaton.is_match(*state) | stopped
        })
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
    fn stop_string_spans_tokens() {
        let mut stop = matcher(&["</code>"]);
        let stops: Vec<bool> = ["1 <", "/co", "d", "e> and more"].iter().map(|t| stop.push(t.as_bytes())).collect();
        assert_eq!(stops, [false, false, false, true]);
    }

    #[test]
    fn stop_string_can_start_inside_a_failed_match() {
        let mut stop = matcher(&["aab"]);
        assert!(!stop.push(b"aa"));
        assert!(!stop.push(b"a"));
        assert!(stop.push(b"b"));
    }

    #[test]
    fn stop_string_character_can_span_tokens() {
        let mut stop = matcher(&["終"]);
        let bytes = "終".as_bytes();
        assert!(!stop.push(&bytes[..1]));
        assert!(!stop.push(&bytes[1..2]));
        assert!(stop.push(&bytes[2..]));
    }

    #[test]
    fn tokens_without_bytes_do_not_affect_stop_strings() {
        let mut stop = matcher(&["ab", ""]);
        assert!(!stop.push(b"a"));
        assert!(!stop.push(TokenBytes::default().get(7)));
        assert!(stop.push(b"b"));
    }

    proptest! {
        /// Compares with a plain search over the whole response.
        #[test]
        fn stop_matcher_agrees_with_a_plain_search(
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
