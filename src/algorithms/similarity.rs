//! Similarity of two texts, as Python's difflib computes it.

use std::collections::HashMap;

/// Similarity of two texts, from 0 to 1: twice the characters in common over all characters, where
/// the common ones are the longest common block and, recursively, those left and right of it
/// (Ratcliff and Obershelp). For a similarity below `least`, any number below `least` may be
/// returned.
pub(super) fn similarity(a: &str, b: &str, least: f64) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let total = (a.len() + b.len()) as f64;
    if total == 0.0 {
        return 1.0;
    }
    // Cheap upper bounds first: most pairs are not similar.
    let by_length = 2.0 * a.len().min(b.len()) as f64 / total;
    if by_length < least {
        return by_length;
    }
    let mut counts: HashMap<char, i64> = HashMap::new();
    for letter in &b {
        *counts.entry(*letter).or_default() += 1;
    }
    let shared = a.iter().filter(|letter| {
        let left = counts.entry(**letter).or_default();
        *left -= 1;
        *left >= 0
    });
    let by_letters = 2.0 * shared.count() as f64 / total;
    if by_letters < least {
        return by_letters;
    }
    2.0 * common(&a, &b) as f64 / total
}

/// Characters in common, see [`similarity`].
fn common(a: &[char], b: &[char]) -> usize {
    let mut todo = vec![(a, b)];
    let mut count = 0;
    while let Some((a, b)) = todo.pop() {
        let (at, bt, length) = longest_block(a, b);
        if length > 0 {
            count += length;
            todo.push((&a[..at], &b[..bt]));
            todo.push((&a[at + length..], &b[bt + length..]));
        }
    }
    count
}

/// The longest common block, the earliest one in `a` and then in `b`: its positions and its length.
fn longest_block(a: &[char], b: &[char]) -> (usize, usize, usize) {
    let mut best = (0, 0, 0);
    let mut lengths = vec![0_usize; b.len() + 1];
    for (i, letter) in a.iter().enumerate() {
        // From the right, so that lengths[j] is still the value of the row above.
        for j in (0..b.len()).rev() {
            lengths[j + 1] = if *letter == b[j] { lengths[j] + 1 } else { 0 };
        }
        for (j, &length) in lengths.iter().enumerate() {
            if length > best.2 {
                best = (i + 1 - length, j - length, length);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_that_of_matching_blocks() {
        // The numbers of Python's difflib.SequenceMatcher(None, a, b, autojunk=False).ratio().
        for (a, b, want) in [
            ("abcd", "bcde", 0.75),
            ("", "", 1.0),
            ("abc", "xyz", 0.0),
            ("the cat sat", "the bat sat", 10.0 / 11.0),
            ("private Thread currentThread;", "private volatile Thread currentThread;", 58.0 / 67.0),
        ] {
            assert!((similarity(a, b, 0.0) - want).abs() < 1e-15, "{a} {b} {}", similarity(a, b, 0.0));
        }
        assert!(similarity("abcd", "bcde", 0.95) < 0.95);
    }
}
