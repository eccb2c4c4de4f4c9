//! Means over tasks with intervals of 95 %.
//!
//! Tasks are resampled, not samples, because the samples of a task are not independent of each
//! other. The interval is the bias-corrected and accelerated bootstrap (BCa; Efron, 1987,
//! doi:10.1080/01621459.1987.10478410), the default of `scipy.stats.bootstrap`.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

/// Bootstrap samples.
const RESAMPLES: usize = 4000;
/// The quantile of the normal distribution that leaves 2.5 % above it.
const Z: f64 = 1.959_963_984_540_054;

/// A mean over tasks with its interval of 95 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// The mean of `values`, one per task, with its interval. `share`: values are from 0 to 1, so that
/// equal values leave an uncertainty too. `None` without tasks.
pub(super) fn estimate(values: &[f64], share: bool) -> Option<Estimate> {
    let first = *values.first()?;
    let count = values.len() as f64;
    let value = values.iter().sum::<f64>() / count;
    if values.iter().all(|value| value.to_bits() == first.to_bits()) {
        // Resampling equal values gives an interval of no width, which would be wrong for a few
        // solved tasks.
        let share = share && (0.0..=1.0).contains(&first);
        return Some(if share { wilson(first, count) } else { Estimate { value: first, low: first, high: first } });
    }
    let mut means = resampled(values);
    means.sort_by(f64::total_cmp);
    let quantile = bca(values, value, &means);
    Some(Estimate { value, low: at(&means, quantile(-Z)), high: at(&means, quantile(Z)) })
}

/// Means of resampled tasks; the same ones for the same number of tasks.
fn resampled(values: &[f64]) -> Vec<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(values.len() as u64);
    let count = values.len() as u64;
    let mean = |random: &mut ChaCha8Rng| {
        let sum: f64 = (0..count).map(|_| values[((u64::from(random.next_u32()) * count) >> 32) as usize]).sum();
        sum / count as f64
    };
    (0..RESAMPLES).map(|_| mean(&mut random)).collect()
}

/// From a quantile of the normal distribution to the probability of the bootstrap distribution.
fn bca(values: &[f64], mean: f64, sorted: &[f64]) -> impl Fn(f64) -> f64 {
    // Sums of the same values in another order differ by their rounding: they are ties.
    let tie = 1e-12 * values.iter().fold(0.0, |largest, value| f64::max(largest, value.abs()));
    let below = sorted.partition_point(|one| *one < mean - tie);
    let up_to = sorted.partition_point(|one| *one <= mean + tie);
    let bias = normal_quantile((below + up_to) as f64 / (2 * sorted.len()) as f64);
    // The jackknife's differences of a mean are proportional to the differences of the values.
    let (squares, cubes) = values.iter().fold((0.0, 0.0), |(squares, cubes), value| {
        let difference = value - mean;
        (squares + difference.powi(2), cubes + difference.powi(3))
    });
    let acceleration = cubes / (6.0 * f64::powf(squares, 1.5));
    move |z| {
        let shifted = bias + z;
        normal(bias + shifted / (1.0 - acceleration * shifted))
    }
}

/// The value at a probability, between neighbours as numpy does it.
fn at(sorted: &[f64], probability: f64) -> f64 {
    let position = probability.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (position - position.floor())
}

/// Wilson's score interval of a share (doi:10.1080/01621459.1927.10502953).
fn wilson(share: f64, count: f64) -> Estimate {
    let square = Z * Z;
    let middle = (share + square / (2.0 * count)) / (1.0 + square / count);
    let half = Z / (1.0 + square / count) * (share * (1.0 - share) / count + square / (4.0 * count * count)).sqrt();
    // Rounding must not move an end past the share.
    Estimate { value: share, low: (middle - half).clamp(0.0, share), high: (middle + half).clamp(share, 1.0) }
}

/// Distribution function of the standard normal distribution.
fn normal(z: f64) -> f64 {
    0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
}

/// Its inverse, by bisection; within ±8.
fn normal_quantile(probability: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if normal(middle) < probability { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn is_near(estimate: Estimate, low: f64, high: f64, by: f64) {
        assert!((estimate.low - low).abs() < by && (estimate.high - high).abs() < by, "{estimate:?}, not {low} {high}");
    }

    /// tests/golden/eval/intervals.py prints the intervals of scipy, with 400,000 resamples.
    #[test]
    fn intervals_are_those_of_scipy() {
        for case in crate::eval::paired::golden()["intervals"].as_array().unwrap() {
            let numbers = |key: &str| -> Vec<f64> {
                case[key].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
            };
            let (values, wanted) = (numbers("values"), numbers("interval"));
            let interval = estimate(&values, true).unwrap();
            let width = wanted[1] - wanted[0];
            is_near(interval, wanted[0], wanted[1], 0.05 * width);
            assert!((interval.value - mean_of(&values)).abs() < 1e-12);
        }
    }

    fn mean_of(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn equal_values_leave_the_uncertainty_of_a_share() {
        // Wilson's interval of 10 of 10: from 0.7225 on.
        is_near(estimate(&[1.0; 10], true).unwrap(), 0.722_467, 1.0, 1e-5);
        is_near(estimate(&[0.0; 10], true).unwrap(), 0.0, 0.277_533, 1e-5);
        for count in 1..200 {
            assert!(estimate(&vec![0.0; count], true).unwrap().low <= 0.0);
            assert!(estimate(&vec![1.0; count], true).unwrap().high >= 1.0);
        }
        is_near(estimate(&[7.0; 10], false).unwrap(), 7.0, 7.0, 1e-12);
        // Not a share, such as a difference.
        is_near(estimate(&[0.0; 10], false).unwrap(), 0.0, 0.0, 1e-12);
        assert_eq!(estimate(&[], true), None);
    }

    #[test]
    fn quantiles_of_the_normal_distribution() {
        assert!((normal_quantile(0.975) - Z).abs() < 1e-9);
        assert!((normal(1.0) - 0.841_344_746_068_543).abs() < 1e-12);
        assert!((normal(-Z) - 0.025).abs() < 1e-12);
    }

    #[test]
    fn values_between_two_resamples_are_interpolated() {
        for (probability, value) in [(0.0, 0.0), (0.5, 1.0), (0.75, 2.0), (1.0, 3.0), (1.5, 3.0)] {
            assert!((at(&[0.0, 1.0, 3.0], probability) - value).abs() < 1e-12, "{probability}");
        }
    }

    /// Tenths and whole numbers have the same ties of their means.
    #[test]
    fn intervals_do_not_depend_on_the_rounding_of_sums() {
        for values in [&[1.0, 2.0, 3.0][..], &[0.0, 1.0, 1.0, 3.0], &[1.0, 7.0, 7.0, 7.0, 3.0, 6.0]] {
            let whole = estimate(values, false).unwrap();
            let tenths: Vec<f64> = values.iter().map(|value| value / 10.0).collect();
            let interval = estimate(&tenths, false).unwrap();
            is_near(interval, whole.low / 10.0, whole.high / 10.0, 1e-9);
        }
    }

    /// 95 of 100 intervals contain the true mean.
    #[test]
    fn intervals_contain_the_true_mean_as_often_as_they_say() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let rounds = 300;
        let covered = (0..rounds)
            .filter(|_| {
                let values: Vec<f64> = (0..60).map(|_| f64::from(u8::from(random.next_u32() % 10 < 3))).collect();
                let interval = estimate(&values, true).unwrap();
                interval.low <= 0.3 && 0.3 <= interval.high
            })
            .count();
        let share = covered as f64 / f64::from(rounds);
        assert!((share - 0.95).abs() < 0.04, "{share}");
    }
}
