//! Statistics of groups that several estimators share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Added to a group's standard deviation, as in verl (TRL adds 1e-4, OpenRLHF 1e-9).
pub(super) const EPSILON: f64 = 1e-6;

/// The divisor of the difference from a group's mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deviation {
    /// The standard deviation with n - 1, as in verl, TRL and OpenRLHF.
    Std,
    /// The standard deviation with n, as in rLLM and AReno.
    Population,
    /// Nothing (Dr. GRPO, arXiv:2503.20783).
    None,
}

/// The mean and the scale of a group's returns: `(R - mean) / scale` is the GRPO advantage. A group
/// of one has mean 0 and standard deviation 1.
pub(super) fn centre(members: &[f64], deviation: Deviation, epsilon: f64) -> (f64, f64) {
    let n = members.len() as f64;
    let (mean, std) = if members.len() > 1 { mean_std(members) } else { (0.0, 1.0) };
    let scale = match deviation {
        Deviation::Std => std + epsilon,
        Deviation::Population if members.len() > 1 => std * ((n - 1.0) / n).sqrt() + epsilon,
        Deviation::Population => 1.0 + epsilon,
        Deviation::None => 1.0,
    };
    (mean, scale)
}

/// Applies `estimate` to the returns of each group; results are in the order of `returns`.
pub(in crate::rl) fn per_group(returns: &[f64], groups: &[u64], estimate: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut advantages = vec![0.0; returns.len()];
    for places in places_of(groups).values() {
        let group_returns: Vec<f64> = places.iter().map(|&i| returns[i]).collect();
        for (&i, advantage) in places.iter().zip(estimate(&group_returns)) {
            advantages[i] = advantage;
        }
    }
    advantages
}

/// The indices of the trajectories of each group.
pub(super) fn places_of(groups: &[u64]) -> BTreeMap<u64, Vec<usize>> {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (i, &group) in groups.iter().enumerate() {
        places.entry(group).or_default().push(i);
    }
    places
}

/// Mean and unbiased standard deviation of two or more values. Summed in sorted order as
/// differences from the smallest, so that the result does not depend on the order, and the mean of
/// equal values is exactly their value.
pub(in crate::rl) fn mean_std(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let base = sorted[0];
    let mean = base + sorted.iter().map(|v| v - base).sum::<f64>() / n;
    let variance = sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, variance.sqrt())
}

/// The mean alone, bitwise equal.
pub(super) fn mean(values: &[f64]) -> f64 {
    mean_std(values).0
}
