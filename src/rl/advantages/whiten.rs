//! Whitening: advantages of a batch brought to mean 0 and standard deviation 1.

use serde::{Deserialize, Serialize};

/// Added to what whitening divides by.
const WHITEN_EPSILON: f64 = 1e-8;

/// Normalisation of advantages to mean 0 and standard deviation 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whiten {
    /// `(A - mean) / (std + 1e-8)` with the unbiased deviation: the step-level estimators of
    /// Agent-R1.
    Std,
    /// `(A - mean) / sqrt(var + 1e-8)`, the mean and the variance divided by `n + 1e-8` and the
    /// variance then multiplied by `n / (n - 1)`: equal to the masked whitening of verl.
    Variance,
    /// Not at all.
    #[default]
    None,
}

/// Whitens all decisions of a batch, see [`Whiten`]. One decision alone gives `A - mean`, which is
/// 0.
pub fn whiten(values: &[f64], how: Whiten) -> Vec<f64> {
    whiten_weighted(values, &vec![1.0; values.len()], how)
}

/// [`whiten`] over lists, as one batch.
pub fn whiten_all(values: &[Vec<f64>], how: Whiten) -> Vec<Vec<f64>> {
    let mut whitened = whiten(&values.concat(), how).into_iter();
    values.iter().map(|list| whitened.by_ref().take(list.len()).collect()).collect()
}

/// [`whiten`] where entry i counts as `weights[i]` equal decisions.
pub(super) fn whiten_weighted(values: &[f64], weights: &[f64], how: Whiten) -> Vec<f64> {
    let sum = |value: &dyn Fn(f64) -> f64| -> f64 { values.iter().zip(weights).map(|(v, w)| w * value(*v)).sum() };
    let n: f64 = weights.iter().sum();
    let epsilon = match how {
        Whiten::None => return values.to_vec(),
        Whiten::Variance if n > 1.0 => WHITEN_EPSILON,
        Whiten::Std | Whiten::Variance => 0.0,
    };
    let mean = if n > 0.0 { sum(&|v| v) / (n + epsilon) } else { 0.0 };
    let squares = sum(&|v| (v - mean).powi(2));
    let scale = match how {
        _ if n <= 1.0 => 1.0,
        Whiten::Variance => (squares / (n + epsilon) * (n / (n - 1.0)) + WHITEN_EPSILON).sqrt(),
        Whiten::Std | Whiten::None => (squares / (n - 1.0)).sqrt() + WHITEN_EPSILON,
    };
    values.iter().map(|v| (v - mean) / scale).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp)]

    use super::*;

    #[test]
    fn whitening_has_mean_zero_and_deviation_one() {
        for how in [Whiten::Std, Whiten::Variance] {
            assert_eq!(whiten(&[3.0], how), [0.0]);
            assert!(whiten(&[], how).is_empty());
            let got = whiten(&[1.0, 2.0, 3.0], how);
            assert!(got[1].abs() < 1e-8 && (got[2] - 1.0).abs() < 2e-8 && (got[0] + got[2]).abs() < 2e-8);
        }
        assert_eq!(whiten(&[1.0, 4.0], Whiten::None), [1.0, 4.0]);
    }
}
