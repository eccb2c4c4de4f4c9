//! GiGPO: groups in groups, steps compared with steps that saw the same observation.

use std::collections::{BTreeMap, HashMap};

use super::group::{Deviation, group_normalized};

/// What makes two states one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anchor<'a> {
    /// What the policy was shown.
    Seen(&'a str),
    /// It is the very same: a number for each state that trajectories were forked at.
    State(u64),
}

impl<'a> From<&'a str> for Anchor<'a> {
    fn from(seen: &'a str) -> Self {
        Self::Seen(seen)
    }
}

/// What GiGPO needs to know of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnchoredStep<'a> {
    pub group: u64,
    pub anchor: Anchor<'a>,
    /// Discounted return from this step on.
    pub discounted: f64,
}

/// The step part of GiGPO (arXiv:2505.10978, eq. 7): each step's discounted return, normalised among the steps of its
/// group that share its anchor. A step alone with its anchor has nothing to be compared with and gets 0.
///
/// Two anchors are the same when they are equal, or with `similarity` when [`similarity`] is at least that; then each
/// distinct text joins the first cluster whose founder it resembles, in alphabetical order. A state that trajectories were
/// forked at is never one with another.
pub fn anchor_advantages(
    steps: &[AnchoredStep<'_>],
    similarity: Option<f64>,
    deviation: Deviation,
    epsilon: f64,
) -> Vec<f64> {
    let mut distinct: BTreeMap<(u64, Anchor<'_>), u64> = BTreeMap::new();
    for step in steps {
        distinct.entry((step.group, step.anchor)).or_default();
    }
    let mut founders: BTreeMap<u64, Vec<(Anchor<'_>, u64)>> = BTreeMap::new();
    let mut clusters = 0;
    for ((group, anchor), cluster) in &mut distinct {
        let own = founders.entry(*group).or_default();
        let alike = |(founder, _): &&(Anchor<'_>, u64)| match (founder, anchor, similarity) {
            (Anchor::Seen(founder), Anchor::Seen(seen), Some(least)) => self::similarity(founder, seen, least) >= least,
            _ => false,
        };
        *cluster = if let Some((_, cluster)) = own.iter().find(alike) {
            *cluster
        } else {
            clusters += 1;
            own.push((*anchor, clusters));
            clusters
        };
    }
    let clusters: Vec<u64> = steps.iter().map(|step| distinct[&(step.group, step.anchor)]).collect();
    let discounted: Vec<f64> = steps.iter().map(|step| step.discounted).collect();
    let mut sizes: HashMap<u64, usize> = HashMap::new();
    for cluster in &clusters {
        *sizes.entry(*cluster).or_default() += 1;
    }
    let mut advantages = group_normalized(&discounted, &clusters, deviation, epsilon);
    for (advantage, cluster) in advantages.iter_mut().zip(&clusters) {
        if sizes[cluster] == 1 {
            *advantage = 0.0;
        }
    }
    advantages
}

/// How alike two texts are, from 0 to 1: twice the characters in common over all characters, where the common ones are the
/// longest common block and, recursively, those left and right of it (Ratcliff and Obershelp). Below `least` any number
/// below it may be returned.
pub fn similarity(a: &str, b: &str, least: f64) -> f64 {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let total = (a.len() + b.len()) as f64;
    if total == 0.0 {
        return 1.0;
    }
    // Cheap upper bounds first: most pairs are not alike.
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
    let mut found = 0;
    while let Some((a, b)) = todo.pop() {
        let (at, bt, length) = longest_block(a, b);
        if length > 0 {
            found += length;
            todo.push((&a[..at], &b[..bt]));
            todo.push((&a[at + length..], &b[bt + length..]));
        }
    }
    found
}

/// The longest common block, the earliest one in `a` and then in `b`: its places and its length.
fn longest_block(a: &[char], b: &[char]) -> (usize, usize, usize) {
    let mut best = (0, 0, 0);
    let mut lengths = vec![0_usize; b.len() + 1];
    for (i, letter) in a.iter().enumerate() {
        // From the right, so that lengths[j] is still the one of the row above.
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
    #![allow(clippy::float_cmp)]

    use super::*;

    fn step(group: u64, anchor: &str, discounted: f64) -> AnchoredStep<'_> {
        AnchoredStep { group, anchor: anchor.into(), discounted }
    }

    #[test]
    fn a_state_is_one_with_itself_alone() {
        let state = |state, discounted| AnchoredStep { group: 0, anchor: Anchor::State(state), discounted };
        let steps = [state(1, 1.0), state(2, 5.0), state(1, 3.0), step(0, "", 7.0)];
        for similarity in [None, Some(0.0)] {
            assert_eq!(anchor_advantages(&steps, similarity, Deviation::None, 1e-6), [-1.0, 0.0, 1.0, 0.0]);
        }
    }

    #[test]
    fn equal_anchors_of_a_group_are_compared() {
        let steps = [step(0, "a", 1.0), step(0, "b", 7.0), step(0, "a", 3.0), step(1, "a", 50.0), step(1, "a", 40.0)];
        assert_eq!(anchor_advantages(&steps, None, Deviation::None, 1e-6), [-1.0, 0.0, 1.0, 5.0, -5.0]);
    }

    #[test]
    fn similar_anchors_are_one_when_asked() {
        let (long, longer) = ("you are in a dark room with a lamp", "you are in a dark room with a lamp.");
        let steps = [step(0, long, 1.0), step(0, longer, 3.0), step(0, "elsewhere", 9.0)];
        assert_eq!(anchor_advantages(&steps, None, Deviation::None, 1e-6), [0.0; 3]);
        assert_eq!(anchor_advantages(&steps, Some(0.95), Deviation::None, 1e-6), [-1.0, 1.0, 0.0]);
    }

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
