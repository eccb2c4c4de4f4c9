//! Figures of one task with n samples, of which k are drawn without replacement.
//!
//! mean@k, best@k, worst@k and pass@k are exact expectations over all subsets of k samples, not
//! simulations. With c solved samples, pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al.,
//! arXiv:2107.03374). best@k and worst@k are the analogues for scores: the i-th smallest of n
//! scores is the largest of a subset with probability C(i - 1, k - 1) / C(n, k).

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A score from which on a sample counts as solved, for pass@k.
const SOLVED: f64 = 1.0 - 1e-9;

/// Subsets of k samples up to which maj@k is exact; more are estimated from [`DRAWS`] of them.
const SUBSETS: f64 = 5000.0;
const DRAWS: usize = 2000;

/// Mean of the scores; its expectation does not depend on k.
pub(super) fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}

/// Expected largest score of k samples; k is at most the number of samples.
pub(super) fn best(scores: &[f64], k: usize) -> f64 {
    let mut sorted = scores.to_vec();
    sorted.sort_by(f64::total_cmp);
    expected_last(&sorted, k)
}

/// Expected smallest score of k samples.
pub(super) fn worst(scores: &[f64], k: usize) -> f64 {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| f64::total_cmp(b, a));
    expected_last(&sorted, k)
}

/// Expectation of the element with the largest index in a subset of k.
fn expected_last(sorted: &[f64], k: usize) -> f64 {
    let n = sorted.len();
    // C(i, k - 1) / C(n, k) for the element with i before it, from the last one on:
    // k / n, and each one before it is smaller by (i - k + 1) / i.
    let mut share = k as f64 / n as f64;
    let mut sum = 0.0;
    for before in (k - 1..n).rev() {
        sum += share * sorted[before];
        if before > 0 {
            share *= (before + 1 - k) as f64 / before as f64;
        }
    }
    sum
}

/// Probability that k samples have a solved one.
pub(super) fn pass(scores: &[f64], k: usize) -> f64 {
    let solved: Vec<f64> = scores.iter().map(|score| f64::from(u8::from(*score >= SOLVED))).collect();
    best(&solved, k)
}

/// Expected score of the most frequent answer of k samples.
///
/// The score of an answer is the mean score of its samples. Equally frequent answers count with
/// their mean. Samples without an answer do not vote; if no sample of a subset has one, its score
/// is the mean of its samples.
pub(super) fn majority(samples: &[(f64, Option<&str>)], k: usize) -> f64 {
    let n = samples.len();
    let subset = |chosen: &[usize]| vote(&chosen.iter().map(|at| samples[*at]).collect::<Vec<_>>());
    if binomial(n, k) <= SUBSETS {
        let mut chosen: Vec<usize> = (0..k).collect();
        let (mut sum, mut count) = (0.0, 0.0);
        loop {
            sum += subset(&chosen);
            count += 1.0;
            let Some(at) = (0..k).rev().find(|at| chosen[*at] < n - k + at) else { return sum / count };
            chosen[at] += 1;
            for next in at + 1..k {
                chosen[next] = chosen[next - 1] + 1;
            }
        }
    }
    // The first k places of a shuffle, with the same draws for every task.
    let mut random = ChaCha8Rng::seed_from_u64(k as u64);
    let mut order: Vec<usize> = (0..n).collect();
    let mut sum = 0.0;
    for _ in 0..DRAWS {
        for index in 0..k {
            let other = index + (random.next_u64() % (n - index) as u64) as usize;
            order.swap(index, other);
        }
        sum += subset(&order[..k]);
    }
    sum / DRAWS as f64
}

fn vote(samples: &[(f64, Option<&str>)]) -> f64 {
    let mut answers: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (score, answer) in samples {
        if let Some(answer) = answer {
            let (count, sum) = answers.entry(answer).or_default();
            *count += 1;
            *sum += score;
        }
    }
    let highest = answers.values().map(|(count, _)| *count).max();
    let means: Vec<f64> = match highest {
        Some(highest) => {
            answers.values().filter(|(count, _)| *count == highest).map(|(count, sum)| sum / *count as f64).collect()
        }
        None => samples.iter().map(|(score, _)| *score).collect(),
    };
    mean(&means)
}

/// C(n, k), rounded for large numbers.
fn binomial(n: usize, k: usize) -> f64 {
    (0..k).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    /// All subsets of k places of n.
    fn subsets(n: usize, k: usize) -> Vec<Vec<usize>> {
        (0..1_u32 << n)
            .filter(|bits| bits.count_ones() as usize == k)
            .map(|bits| (0..n).filter(|at| bits >> at & 1 == 1).collect())
            .collect()
    }

    #[test]
    fn figures_at_k_of_hand_counted_cases() {
        // Two of four solved: 1 - C(2, 2) / C(4, 2) = 5/6.
        assert!(near(pass(&[1.0, 0.0, 0.0, 1.0], 2), 5.0 / 6.0));
        assert!(near(pass(&[1.0, 0.0, 0.0, 1.0], 1), 0.5));
        assert!(near(pass(&[0.5, 0.9], 2), 0.0), "a part of a solution is not one");
        // Pairs of 1, 2, 4: the largest are 2, 4, 4 and the smallest 1, 1, 2.
        assert!(near(best(&[4.0, 1.0, 2.0], 2), 10.0 / 3.0));
        assert!(near(worst(&[4.0, 1.0, 2.0], 2), 4.0 / 3.0));
        assert!(near(best(&[4.0, 1.0, 2.0], 3), 4.0) && near(best(&[4.0, 1.0, 2.0], 1), 7.0 / 3.0));
        let samples = [(1.0, Some("7")), (0.0, Some("8")), (1.0, Some("7")), (0.0, None)];
        assert!(near(majority(&samples, 4), 1.0));
        // The subset {7, 8, none} occurs twice and is undecided: 1/2; the others are 1.
        assert!(near(majority(&samples, 3), 0.75));
        assert!(near(majority(&[(0.0, None), (1.0, None)], 2), 0.5), "without answers the mean");
    }

    #[test]
    fn a_majority_over_many_subsets_is_estimated() {
        // 30 samples, 20 of them right: a majority of 15 is right in 97 of 100 draws.
        let samples: Vec<(f64, Option<&str>)> =
            (0..30).map(|at| if at < 20 { (1.0, Some("a")) } else { (0.0, Some("b")) }).collect();
        // The hypergeometric probability of 8 or more right samples of 15.
        let exact: f64 = (8..=15).map(|right| binomial(20, right) * binomial(10, 15 - right) / binomial(30, 15)).sum();
        let estimated = majority(&samples, 15);
        assert!((estimated - exact).abs() < 0.015, "{estimated} {exact}");
    }

    proptest! {
        #[test]
        fn figures_at_k_are_means_over_all_subsets(
            scores in prop::collection::vec(prop::sample::select(vec![0.0, 0.25, 1.0, 2.0]), 1..8),
            k in 1_usize..8,
        ) {
            let k = k.min(scores.len());
            let all = subsets(scores.len(), k);
            let expected = |of: &dyn Fn(&[f64]) -> f64| {
                let sum: f64 = all
                    .iter()
                    .map(|subset| of(&subset.iter().map(|at| scores[*at]).collect::<Vec<_>>()))
                    .sum();
                sum / all.len() as f64
            };
            let largest = |subset: &[f64]| subset.iter().copied().fold(f64::MIN, f64::max);
            let smallest = |subset: &[f64]| subset.iter().copied().fold(f64::MAX, f64::min);
            prop_assert!(near(best(&scores, k), expected(&largest)));
            prop_assert!(near(worst(&scores, k), expected(&smallest)));
            let solved = |subset: &[f64]| f64::from(u8::from(subset.iter().any(|score| *score >= 1.0)));
            prop_assert!(near(pass(&scores, k), expected(&solved)));
            let names = ["a", "b", "c"];
            let samples: Vec<(f64, Option<&str>)> = scores
                .iter()
                .enumerate()
                .map(|(at, score)| (*score, names.get(at % 4).copied()))
                .collect();
            let chosen = |subset: &Vec<usize>| vote(&subset.iter().map(|at| samples[*at]).collect::<Vec<_>>());
            let sum: f64 = all.iter().map(chosen).sum();
            prop_assert!(near(majority(&samples, k), sum / all.len() as f64));
        }
    }
}
