//! The difference of two policies on the same tasks.
//!
//! Two policies are compared task by task, which removes the variance of the tasks. The p-value is
//! from a permutation test: under the hypothesis that both policies are equal, the sign of each
//! task's difference is random.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

use super::interval::{Estimate, estimate};

/// Tasks with a difference up to which all signs are tried.
const EXACT: usize = 14;
/// Random signs for more tasks.
const DRAWS: usize = 10_000;

/// A mean difference over tasks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Probability of a mean difference at least this large, either way, between equal policies.
    pub p: f64,
    /// Tasks that both policies have.
    pub tasks: usize,
}

/// The mean of differences, one per task; `None` without tasks.
pub(super) fn difference(differences: &[f64]) -> Option<Difference> {
    let estimate = estimate(differences, false)?;
    Some(Difference { estimate, p: sign_flip(differences), tasks: differences.len() })
}

fn sign_flip(differences: &[f64]) -> f64 {
    let nonzero: Vec<f64> = differences.iter().copied().filter(|difference| *difference != 0.0).collect();
    // Sums of the same numbers in another order differ by rounding.
    let reached = nonzero.iter().sum::<f64>().abs() - 1e-9 * nonzero.iter().map(|one| one.abs()).sum::<f64>();
    if nonzero.len() <= EXACT {
        let all = 1_u32 << nonzero.len();
        let as_large = (0..all).filter(|signs| {
            let sum: f64 =
                nonzero.iter().enumerate().map(|(at, one)| if signs >> at & 1 == 1 { -one } else { *one }).sum();
            sum.abs() >= reached
        });
        return as_large.count() as f64 / f64::from(all);
    }
    let mut random = ChaCha8Rng::seed_from_u64(nonzero.len() as u64);
    let as_large = (0..DRAWS).filter(|_| {
        let mut bits = 0;
        let mut sum = 0.0;
        for (at, one) in nonzero.iter().enumerate() {
            if at % 64 == 0 {
                bits = random.next_u64();
            }
            sum += if bits & 1 == 1 { -one } else { *one };
            bits >>= 1;
        }
        sum.abs() >= reached
    });
    // The observed signs count as one draw, so that p is never 0.
    (as_large.count() + 1) as f64 / (DRAWS + 1) as f64
}

/// Reference values that tests/golden/eval/intervals.py made with scipy.
#[cfg(test)]
pub(super) fn golden() -> serde_json::Value {
    serde_json::from_str(include_str!("../../tests/golden/eval/golden.json")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn p_values_of_hand_counted_cases() {
        // Five differences of one sign: 2 of 32 signs reach the sum.
        assert!((sign_flip(&[1.0; 5]) - 2.0 / 32.0).abs() < 1e-12);
        // Tasks without a difference do not count.
        assert!((sign_flip(&[0.0, 1.0, 0.0, 1.0]) - 0.5).abs() < 1e-12);
        assert!((sign_flip(&[0.0; 3]) - 1.0).abs() < 1e-12);
        let mostly_equal = [&[0.0; 40][..], &[1.0; 3]].concat();
        assert!((sign_flip(&mostly_equal) - 2.0 / 8.0).abs() < 1e-12, "all signs of three");
        assert!((sign_flip(&[0.1, 0.2, -0.3]) - 1.0).abs() < 1e-12);
        assert_eq!(difference(&[]), None);
        // Random signs never reach the sum of 100 equal differences: only the observed ones do.
        assert!((sign_flip(&[1.0; 100]) - 1.0 / (DRAWS + 1) as f64).abs() < 1e-12);
    }

    #[test]
    fn p_values_are_those_of_scipy() {
        for case in golden()["tests"].as_array().unwrap() {
            let values: Vec<f64> =
                case["differences"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
            let wanted = case["p"].as_f64().unwrap();
            let paired = difference(&values).unwrap();
            assert!((paired.p - wanted).abs() < 0.012, "{paired:?}, not {wanted}");
            assert_eq!(paired.tasks, values.len());
        }
    }
}
