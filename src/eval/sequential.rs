//! A test of the difference of two policies that may be read after every task.
//!
//! A p-value of a fixed number of tasks is wrong if the number depends on the data: with a look
//! after every task, equal policies differ "significantly" sooner or later. This test is the test
//! by betting of Waudby-Smith and Ramdas (2024, doi:10.1093/jrsssb/qkad009, arXiv:2010.09686): a
//! player bets on the sign of the next task's difference. Between equal policies no strategy can
//! expect to win, so that the largest capital exceeds 1 / p with a probability of at most p, at any
//! number of tasks (Ville's inequality).

use std::collections::BTreeMap;

use serde::Serialize;

use super::samples::tasks;
use crate::mdp::Trajectory;

/// The largest share of the capital that is bet on one task, the truncation of the paper.
const MOST: f64 = 0.5;

/// The state of the test. Differences are from -1 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Betting {
    /// Logarithms of the capital and of the largest one so far; it begins with 1.
    capital: f64,
    largest: f64,
    count: usize,
    sum: f64,
    squares: f64,
}

impl Betting {
    pub fn new() -> Self {
        Self { capital: 0.0, largest: 0.0, count: 0, sum: 0.0, squares: 0.0 }
    }

    /// Adds the difference of the next task. The share that is bet on it depends on earlier tasks
    /// only: the approximate growth-rate adaptive share (aGRAPA), mean / (variance + mean²).
    pub fn add(&mut self, difference: f64) {
        let count = self.count as f64 + 1.0;
        let mean = self.sum / count;
        // One task of variance 1/4 precedes the first.
        let variance = ((0.25 + self.squares) / count - mean * mean).max(1e-6);
        let share = (mean / (variance + mean * mean)).clamp(-MOST, MOST);
        self.capital += (share * difference).ln_1p();
        self.largest = self.largest.max(self.capital);
        self.count += 1;
        self.sum += difference;
        self.squares += difference * difference;
    }

    /// The p-value of equal policies, valid after any number of tasks.
    pub fn p(&self) -> f64 {
        (-self.largest).exp().min(1.0)
    }

    /// Tasks so far.
    pub fn tasks(&self) -> usize {
        self.count
    }
}

impl Default for Betting {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of the test for a policy that was compared with the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sequential {
    /// The p-value of the mean score.
    pub p: f64,
    pub tasks: usize,
    /// The level at which sampling stops.
    pub level: f64,
    /// Sampling ended before the last task.
    pub stopped: bool,
}

/// The test over the tasks of `order` that both policies have `n` trajectories of, up to the first
/// task that `other` lacks. The difference of a task is the difference of the mean scores of its
/// samples that count; tasks without such samples are left out. `None` if a score is not from 0 to
/// 1.
pub fn betting(
    (baseline, other): (&[Trajectory], &[Trajectory]),
    order: &[u64],
    n: usize,
    accuracy: &str,
) -> Option<Betting> {
    let counted = |all: &[Trajectory]| {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for one in all {
            *counts.entry(one.task_index).or_default() += 1;
        }
        counts
    };
    let counts = counted(other);
    let (first, second) = (tasks(baseline, accuracy), tasks(other, accuracy));
    let mut test = Betting::new();
    for index in order.iter().take_while(|index| counts.get(index).is_some_and(|count| *count >= n)) {
        let (Some(first), Some(second)) = (first.get(index), second.get(index)) else { continue };
        if first.samples.is_empty() || second.samples.is_empty() {
            continue;
        }
        let (first, second) = (first.mean(), second.mean());
        if !(0.0..=1.0).contains(&first) || !(0.0..=1.0).contains(&second) {
            return None;
        }
        test.add(second - first);
    }
    Some(test)
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    use super::*;

    /// Runs with the task at which each was settled at a level of 5 %, if it was.
    fn settled(rounds: u64, limit: usize, draw: impl Fn(&mut ChaCha8Rng) -> f64) -> Vec<Option<usize>> {
        let round = |seed: u64| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut test = Betting::new();
            (1..=limit).find(|_| {
                test.add(draw(&mut random));
                test.p() <= 0.05
            })
        };
        (0..rounds).map(round).collect()
    }

    fn uniform(random: &mut ChaCha8Rng) -> f64 {
        f64::from(random.next_u32()) / f64::from(u32::MAX)
    }

    fn solved(random: &mut ChaCha8Rng, share: f64) -> f64 {
        f64::from(u8::from(uniform(random) < share))
    }

    /// With a look after each of 500 tasks, equal policies are told apart in at most 5 % of runs.
    #[test]
    fn equal_policies_are_rarely_told_apart_with_a_look_after_every_task() {
        let share = |ends: Vec<Option<usize>>| {
            let count = ends.len() as f64;
            ends.into_iter().flatten().count() as f64 / count
        };
        // Three kinds of tasks: solved or not, with a rare difference, with any score.
        let often = |random: &mut ChaCha8Rng| solved(random, 0.5) - solved(random, 0.5);
        let rarely = |random: &mut ChaCha8Rng| {
            let draw = uniform(random);
            if draw < 0.05 {
                1.0
            } else if draw < 0.1 {
                -1.0
            } else {
                0.0
            }
        };
        let any = |random: &mut ChaCha8Rng| uniform(random) - uniform(random);
        for (name, share) in [
            ("often", share(settled(2000, 500, often))),
            ("rarely", share(settled(2000, 500, rarely))),
            ("any", share(settled(2000, 500, any))),
        ] {
            // Three standard errors of 2000 runs are 0.015.
            assert!(share <= 0.05 + 0.015, "{name}: {share}");
            assert!(share > 0.001, "{name}: a test that never rejects has no power: {share}");
        }
    }

    /// A difference of 0.2 between policies that solve 70 % and 50 % is found within 500 tasks.
    #[test]
    fn a_difference_is_settled_before_all_tasks_are_sampled() {
        let better = |random: &mut ChaCha8Rng| solved(random, 0.7) - solved(random, 0.5);
        let mut ends: Vec<usize> = settled(400, 500, better).into_iter().flatten().collect();
        assert!(ends.len() >= 390, "{} of 400", ends.len());
        ends.sort_unstable();
        assert!(ends[ends.len() / 2] < 200, "the median is {}", ends[ends.len() / 2]);
    }

    #[test]
    fn p_is_the_inverse_of_the_largest_capital() {
        let mut test = Betting::new();
        assert!((test.p() - 1.0).abs() < 1e-12);
        // Nothing is bet on the first task; then (1/2) / (variance + mean²) is cut to 1/2.
        test.add(1.0);
        assert!((test.p() - 1.0).abs() < 1e-12);
        test.add(1.0);
        assert!((test.p() - 1.0 / 1.5).abs() < 1e-12, "{}", test.p());
        test.add(-1.0);
        assert!((test.p() - 1.0 / 1.5).abs() < 1e-12, "a lost bet does not raise p");
        assert_eq!(test.tasks(), 3);
    }
}
